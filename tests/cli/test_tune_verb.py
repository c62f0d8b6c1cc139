"""``outpace tune``: a plan, a table with reasons or one JSON document, exit codes, and what a plan does afterwards."""

import importlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import save_file
from typer.testing import CliRunner, Result

from outpace.cli import app
from outpace.decoding.plan import NONE, Plan
from outpace.models.toy import tiny_config, tiny_tensors
from outpace.tuning import search as searching
from toys import CHAT, LETTER_VOCAB, character_tokenizer

COMMAND = importlib.import_module("outpace.cli.tune")
ROW = {
    *("category", "batch", "temperature", "drafter", "num_draft_tokens", "tree", "depth", "rule", "fate", "predicted"),
    *("prompts", "speedup", "speedup_ci", "tokens_per_second", "ms_per_token", "tau", "acceptance"),
    *("acceptance_by_position", "plain_turn_share"),
}


def model_in(folder: Path, seed: int, context: int) -> Path:
    """A model with one token a character."""
    folder.mkdir(exist_ok=True)
    character_tokenizer(folder, CHAT)
    config = tiny_config(vocab_size=LETTER_VOCAB, max_position_embeddings=context)
    (folder / "config.json").write_text(json.dumps(config), "utf-8")
    save_file(tiny_tensors(config, seed=seed), folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model_in(tmp_path_factory.mktemp("models") / "target", 3, 128)


@pytest.fixture(scope="module")
def smaller(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model_in(tmp_path_factory.mktemp("models") / "draft", 4, 256)


@pytest.fixture(scope="module")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two prompts in each of two categories."""
    path = tmp_path_factory.mktemp("prompts") / "mine.jsonl"
    lines = [{"category": kind, "prompt": one * 6} for kind in ("letters", "words") for one in ("abc ", "ab ")]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
    return path


def run(folder: Path, prompts: Path, *flags: object, budget: str = "4s") -> Result:
    """The verb in process; where something has to be measured, ``budget`` leaves room for a busy machine."""
    given = ["--target", folder, "--dtype", "fp32", "--max-new-tokens", 12, "--prompts", prompts, "--budget", budget]
    return CliRunner().invoke(app, ["tune", *map(str, [*given, *flags])])


def test_json_is_one_document_and_the_plan_is_followed(folder: Path, prompts: Path, tmp_path: Path) -> None:
    """Two categories, two loads: a plan that reads back, is the document's, and that generate decodes by."""
    out = tmp_path / "plan.toml"
    result = run(folder, prompts, "--draft", "lookup", "--concurrency", "1,2", "--out", out, "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert {
        "format_version",
        "machine",
        "versions",
        "protocol",
        "plan",
        "candidates",
        "reasons",
        "loads",
    } <= found.keys()
    assert found["format_version"] == 1 and found["protocol"]["drafters"] == ["lookup"]
    assert found["protocol"]["source"] == "mine.jsonl" and not found["protocol"]["interrupted"]
    plan = Plan.read(out)
    assert [(one.category, one.batch) for one in plan.choices if one.category == "all"] == [("all", 1), ("all", 2)]
    assert found["plan"]["goal"] == plan.goal == "latency" and len(found["plan"]["choices"]) == len(plan.choices)
    assert all(row.keys() == ROW for row in found["candidates"])
    whole = [row for row in found["candidates"] if row["category"] == "all"]
    assert {row["batch"] for row in whole} == {1, 2} and {row["drafter"] for row in whole} == {NONE, "lookup"}
    assert sum(row["fate"] == "chosen" for row in whole) == 2
    assert [one["category"] for one in found["reasons"]][:1] == ["all"] and found["reasons"][0]["sentences"]
    assert "s; the plan is in" in result.stderr
    flags = ["--target", folder, "--dtype", "fp32", "--max-new-tokens", "5", "--plan", out, "--json"]
    said = CliRunner().invoke(app, ["generate", "abcabc", *map(str, flags)])
    method = json.loads(said.stdout)["speculation"]["method"]
    assert method == ("plain" if plan.choice().drafter == NONE else "lookup")


def test_a_table_and_reasons_for_people(folder: Path, prompts: Path) -> None:
    result = run(folder, prompts, "--draft", "lookup", "--temperature", 0.8, budget="12s")
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert lines[0].strip() == "1 at a time, temperature 0.8"
    assert "predicted" in lines[1] and "speed-up" in lines[1] and "tau" in lines[1]
    assert any(line.startswith("lookup, as many drafts as pay, at most 8") for line in lines)
    assert any(line.startswith(("all: Decode plainly", "all: Draft with")) for line in lines)
    assert "format_version" not in result.stdout


def test_models_draft_chains_and_trees(folder: Path, smaller: Path, prompts: Path) -> None:
    """A smaller model of the same family; where it is no good, plain decoding is said, and what would change that."""
    result = run(folder, prompts, "--draft", smaller, "--draft", NONE, "--json", budget="12s")
    assert result.exit_code == 0, result.output
    rows = json.loads(result.stdout)["candidates"]
    assert {row["tree"] for row in rows} == {"chain", "dynamic"}
    known = [row for row in rows if row["predicted"] is not None or (row["prompts"] and row["drafter"] != NONE)]
    assert known and {row["drafter"] for row in known} == {str(smaller)}


def test_lookup_and_a_model_are_joined(folder: Path, smaller: Path, prompts: Path, tmp_path: Path) -> None:
    """Beside the two there is a third one; named alone, it is the only one. Other verbs open it by its name."""
    out, both = tmp_path / "plan.toml", f"lookup+{smaller}"
    assumed = ("--costs", "assumed:bandwidth=1e9,flops=1e12")
    for given, names in ((["lookup", smaller], ["lookup", str(smaller), both]), ([both], [both])):
        flags = [word for name in given for word in ("--draft", name)]
        result = run(folder, prompts, *flags, *assumed, "--out", out, "--json")
        assert result.exit_code == 0, result.output
        found = json.loads(result.stdout)
        assert found["protocol"]["drafters"] == names
        assert {row["drafter"] for row in found["candidates"] if row["predicted"] is not None} == set(names)
    plan = Plan.read(out)
    changed = replace(plan, choices=(replace(plan.choices[0], drafter=both, num_draft_tokens=3, depth=3),))
    changed.write(out)
    flags = ["--target", folder, "--dtype", "fp32", "--max-new-tokens", "5", "--plan", out, "--json"]
    said = CliRunner().invoke(app, ["generate", "abcabc", *map(str, flags)])
    assert json.loads(said.stdout)["speculation"]["method"].startswith("lookup+small:")


def test_a_drafter_that_cannot_be_opened_is_a_finding(folder: Path, prompts: Path, tmp_path: Path) -> None:
    """The others go on, the plan is written, and the exit code says that somebody is missing."""
    out = tmp_path / "plan.toml"
    result = run(folder, prompts, "--draft", tmp_path / "nowhere", "--draft", "lookup", "--out", out, "--json")
    assert result.exit_code == 1, result.output
    found = json.loads(result.stdout)
    [finding] = found["protocol"]["findings"]
    assert f"{tmp_path / 'nowhere'} cannot be opened: " in finding and finding in result.stderr
    assert {row["drafter"] for row in found["candidates"]} == {NONE, "lookup"} and Plan.read(out).choices


def test_a_prompt_that_does_not_fit_is_a_finding(folder: Path, prompts: Path, tmp_path: Path) -> None:
    long = tmp_path / "long.jsonl"
    long.write_text(prompts.read_text("utf-8") + json.dumps({"id": "big", "prompt": "x" * 200}) + "\n", "utf-8")
    result = run(folder, long, "--draft", "lookup", "--json")
    assert result.exit_code == 1, result.output
    [finding] = json.loads(result.stdout)["protocol"]["findings"]
    assert finding == "prompt 'big' (line 5) is longer than the context and was skipped"


def test_an_interrupt_writes_what_stands(
    folder: Path, prompts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest, out, calls = searching.measure, tmp_path / "plan.toml", []

    def stopped(*given: Any, **more: Any) -> Any:
        calls.append(1)
        if len(calls) > 12:
            raise KeyboardInterrupt
        return honest(*given, **more)

    monkeypatch.setattr(searching, "measure", stopped)
    result = run(folder, prompts, "--draft", "lookup", "--budget", "1m", "--out", out, "--json")
    assert result.exit_code == 130
    assert json.loads(result.stdout)["protocol"]["interrupted"] and "interrupted; this is what stands" in result.stderr
    assert Plan.read(out).choice().evidence is not None
    monkeypatch.setattr(searching, "record", stopped)
    none = run(folder, prompts, "--draft", "lookup", "--out", tmp_path / "none.toml")
    assert none.exit_code == 130 and none.stdout == "" and not (tmp_path / "none.toml").exists()


def test_costs_of_a_machine_that_is_not_at_hand(folder: Path, prompts: Path) -> None:
    """Everything is predicted, and said to be."""
    spec = "assumed:bandwidth=3e12,flops=9e14"
    result = run(folder, prompts, "--draft", "lookup", "--costs", spec, "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["protocol"]["costs"] == spec
    assert all(row["prompts"] == 0 for row in found["candidates"])
    assert "nothing was timed" in found["reasons"][0]["sentences"][0]


REFUSED = [
    (["--budget", "soon"], "budget is 'soon'; allowed: a number of seconds, or one with s, m or h, such as 3m"),
    (["--goal", "fame"], "goal is 'fame'; allowed: latency, throughput, goodput"),
    (["--goal", "goodput"], "goal is goodput with no latency bound"),
    (["--concurrency", "1,1"], "concurrency is 1,1; allowed: 1 or more, or several different ones"),
    (["--temperature", "-1"], "temperature is -1; allowed: 0 or more"),
    (["--draft", "lookup", "--draft", "lookup"], "--draft names 'lookup' twice; allowed: once"),
    (["--rule", "wishful"], "rule is 'wishful'; allowed: greedy, match"),
    (["--category", "poems"], "category is 'poems'; allowed: letters, words"),
    (["--draft", "lookup", "--costs", "nowhere.json"], "the costs nowhere.json cannot be read"),
]


@pytest.mark.parametrize(("flags", "words"), REFUSED, ids=lambda value: value[-1] if isinstance(value, list) else "")
def test_refusals(flags: list[str], words: str, folder: Path, prompts: Path) -> None:
    result = run(folder, prompts, *flags)
    assert (result.exit_code, result.stdout) == (2, ""), result.output
    assert words in result.stderr and "Traceback" not in result.stderr


def test_a_file_of_costs_is_of_one_drafter(folder: Path, smaller: Path, prompts: Path) -> None:
    result = run(folder, prompts, "--draft", "lookup", "--draft", smaller, "--costs", "nowhere.json")
    assert result.exit_code == 2 and result.stdout == ""
    assert (
        "the costs nowhere.json hold one drafter's steps, and 2 may draft; allowed: a single --draft" in result.stderr
    )
