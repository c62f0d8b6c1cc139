"""What a file holds is checked before it is shown: a number has to be one, and an error names the line."""

import json
from pathlib import Path
from typing import Any

import pytest

from outpace.decoding.plan import Choice, Evidence, Plan
from outpace.errors import UsageError
from outpace.report.page import EXAMPLES
from outpace.report.planned import read_plan
from outpace.report.reading import apart, read_bench, read_cost_table, read_trace

ROW = {"category": "all", "method": "m", "rule": "match", "tree": "chain", "num_draft_tokens": "auto", "depth": None}
ROW |= {"temperature": 0.0, "batch": 1, "tau": None, "acceptance": None, "speedup": 1.5, "speedup_ci": None}


def lines() -> list[dict[str, Any]]:
    return [json.loads(line) for line in EXAMPLES[1].read_text("utf-8").splitlines()]


def written(path: Path, records: list[Any]) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records), "utf-8")
    return path


def changed(*keys: Any, value: Any) -> list[Any]:
    """The records of a trace with one value of the third line changed."""
    records = lines()
    at: Any = records[2]
    for key in keys[:-1]:
        at = at[key]
    at[keys[-1]] = value
    return records


BROKEN = {
    "a word for a number": changed("nodes", 0, "draft_prob", value="much"),
    "true for a number": changed("start", value=True),
    "no finite number": changed("coins", 0, value=float("nan")),
    "a parent behind its child": changed("nodes", 0, "parent", value=3),
    "a path that is none": changed("verdict", "path", value=[1, 0]),
    "a node that is not there": changed("verdict", "path", value=[99]),
    "a row too few": changed("target", value=[]),
    "a law without its children": changed("draft", value=[]),
    "two logits for a token": changed("target", 0, "ids", 1, value=lines()[2]["target"][0]["ids"][0]),
    "a list for a name": changed("verdict", "rule", value=["greedy"]),
    "a number beyond all": changed("target", 0, "logsumexp", value=10**400),
    "a sum below its logits": changed("target", 0, "logsumexp", value=-5000),
    "a sum far above its logits": changed("target", 0, "logsumexp", value=5000),
    "a token of no vocabulary": changed("verdict", "next_token", value=10**12),
    "a probability below 0": changed("nodes", 0, "target_prob", value=-0.5),
    "no record": [lines()[0], lines()[1], [1, 2]],
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_record_is_named(name: str, tmp_path: Path) -> None:
    path = written(tmp_path / "t.jsonl", BROKEN[name])
    with pytest.raises(
        UsageError, match=r"t.jsonl, line 3, is no record of a trace; allowed: what generate --trace wrote"
    ):
        read_trace(path)


def test_headers_are_checked(tmp_path: Path) -> None:
    header, *records = lines()
    for wrong in ({**header, "format_version": 2}, [1], {"format_version": 1}):
        with pytest.raises(UsageError, match="is no trace of version 1; allowed: what generate --trace wrote"):
            read_trace(written(tmp_path / "t.jsonl", [wrong, *records]))
    with pytest.raises(UsageError, match="is a probe, in which nothing was verified"):
        read_trace(written(tmp_path / "t.jsonl", [{**header, "probe": {}}, *records]))
    with pytest.raises(UsageError, match="line 1, is no header of a trace"):
        read_trace(written(tmp_path / "t.jsonl", [{**header, "sampling": {"temperature": -1}}, *records]))
    with pytest.raises(UsageError, match="holds no turn; allowed: one or more"):
        read_trace(written(tmp_path / "t.jsonl", [header]))
    with pytest.raises(UsageError, match=r"the trace .*none.jsonl cannot be read: No such file"):
        read_trace(tmp_path / "none.jsonl")


def test_a_measurement_is_checked(tmp_path: Path) -> None:
    path = tmp_path / "bench.json"
    good = {"format_version": 1, "results": [ROW], "protocol": {"target": "t"}, "machine": {"cpu": "c", "cores": 2}}
    path.write_text(json.dumps(good), "utf-8")
    found = read_bench(path)
    assert (found.rows[0]["speedup"], found.rows[0]["predicted_speedup"]) == (1.5, None)
    assert found.about == {"target": "t", "cpu": "c", "cores": "2"}
    for wrong in ({**good, "format_version": 3}, [good]):
        path.write_text(json.dumps(wrong), "utf-8")
        with pytest.raises(UsageError, match="is no measurement of version 1; allowed: what bench --json printed"):
            read_bench(path)
    for row in (
        {**ROW, "speedup": None},
        {**ROW, "batch": 0},
        {**ROW, "speedup_ci": ["<b>", 2]},
        {**ROW, "speedup_ci": []},
        "row",
    ):
        path.write_text(json.dumps({**good, "results": [row]}), "utf-8")
        with pytest.raises(UsageError, match="holds a result that is none; allowed: what bench --json printed"):
            read_bench(path)
    path.write_text(json.dumps({**good, "results": []}), "utf-8")
    with pytest.raises(UsageError, match="holds no result"):
        read_bench(path)


def test_top_k_is_a_whole_number(tmp_path: Path) -> None:
    header, *records = lines()
    path = written(tmp_path / "t.jsonl", [{**header, "sampling": {"temperature": 1.0, "top_k": 2.5}}, *records])
    with pytest.raises(UsageError, match="line 1, is no header of a trace"):
        read_trace(path)


def test_names_are_told_apart() -> None:
    assert apart(["a", "b", "a", "a (2)", "a"]) == ["a", "b", "a (2)", "a (2) (2)", "a (3)"]


def test_plans_come_as_toml_and_as_the_document_of_tune(tmp_path: Path) -> None:
    evidence = Evidence(prompts=30, speedup=1.4, low=1.2, high=1.6)
    choices = (Choice(num_draft_tokens=4, reason="It is faster.", evidence=evidence), Choice(batch=8, drafter="none"))
    plan = Plan("toy", "a-b-c", choices, "latency")
    plan.write(tmp_path / "plan.toml")
    found = read_plan(tmp_path / "plan.toml")
    assert (found.name, found.goal, found.choices[0]["evidence"]["speedup"]) == ("plan.toml", "latency", 1.4)
    assert found.reasons == [("all, 1 at a time, T 0", ["It is faster."])]
    from dataclasses import asdict

    document = {"format_version": 1, "plan": asdict(plan), "loads": ["It pays up to 4 at a time."]}
    document["reasons"] = [{"category": "all", "batch": 1, "temperature": 0.0, "sentences": ["One.", "Two."]}]
    path = tmp_path / "tune.json"
    path.write_text(json.dumps(document), "utf-8")
    whole = read_plan(path)
    assert whole.choices == found.choices
    assert whole.reasons == [("all, 1 at a time, T 0", ["One.", "Two."]), ("", ["It pays up to 4 at a time."])]
    for wrong in ({**document, "format_version": 2}, {**document, "plan": {}}, [1]):
        path.write_text(json.dumps(wrong), "utf-8")
        with pytest.raises(UsageError, match="is no document of tune of version 1; allowed: what tune --json printed"):
            read_plan(path)
    path.write_text("{", "utf-8")
    with pytest.raises(UsageError, match="is no JSON; allowed: what tune --json printed"):
        read_plan(path)
    with pytest.raises(UsageError, match="cannot be read"):
        read_plan(tmp_path / "none.json")


def test_a_cost_table_is_checked(tmp_path: Path) -> None:
    path = tmp_path / "costs.json"
    for wrong in ({}, [1], {"format_version": 1, "cells": [{"batch": 1}]}):
        path.write_text(json.dumps(wrong), "utf-8")
        with pytest.raises(UsageError, match="is no cost table; allowed: a file that outpace wrote"):
            read_cost_table(path)
