"""Every measuring script and example runs end to end on a tiny model, and what they compute with is right."""

import json
import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from outpace.decoding.stats import Speculation, Tally
from outpace.drafters.budget import Branching
from outpace.drafters.drafter import Drafter
from outpace.evaluation.pair import Check, Report
from outpace.models.target import Target

REPOSITORY = Path(__file__).parents[2]
WORDS = [f"w{place}" for place in range(60)]
Script = Callable[[str], ModuleType]


SCRIPTS = ["plain_speed", "hosted_speed", "lookup_speed", "overhead", "tree_overhead", "batch_speed", "auto_speed"]
SCRIPTS += ["recording_speed"]


@pytest.mark.parametrize("name", [*SCRIPTS, "greedy_equality"])
def test_measuring_runs(name: str, script: Script, tiny: Path, questions: Path, tmp_path: Path) -> None:
    out = tmp_path / "result.json"
    assert script(name).main(["--quick", "--target", str(tiny), "--out", str(out)]) == 0
    found = json.loads(out.read_text("utf-8"))
    assert {"script", "date", "machine", "versions", "protocol", "settings", "results", "gates"} <= found.keys()
    assert found["script"] == f"benchmarks/{name}.py" and found["results"] and found["gates"]
    assert str(tiny.parent) not in out.read_text("utf-8"), "a result names no folder of the machine it was taken on"
    if name == "greedy_equality":
        assert all(one["not_excused"] == one["lengths_differ"] == 0 for one in found["results"].values())
    if name == "batch_speed":
        assert [cell["forwards_per_turn"] for cell in found["results"]] == [1, 1]


def test_ranks_of_accepted_tokens_are_counted(script: Script, tiny: Path, questions: Path, tmp_path: Path) -> None:
    out = tmp_path / "ranks.json"
    flags = ["--quick", "--dtype", "fp32", "--spread", "3", "--target", str(tiny), "--out", str(out)]
    assert script("tree_ranks").main(flags) == 0
    [found] = json.loads(out.read_text("utf-8"))["results"]
    assert found["forwards"] == found["turns"] > 0 and found["equality"]["equal"]
    accepted = sum(found["accepted_by_rank"].values())
    assert accepted > 0 and found["tau"] == pytest.approx(1 + accepted / found["turns"], rel=1e-5)
    with_noise = found["accepted_by_rank"]["2"] + found["accepted_by_rank"]["3"]
    assert found["share_of_later_ranks"]["value"] == pytest.approx(with_noise / accepted, rel=1e-5)


def test_a_twin_without_noise_is_always_of_the_first_rank(
    script: Script, tiny: Path, questions: Path, tmp_path: Path
) -> None:
    """The control: the drafter is the target, and nothing of a later rank is ever accepted."""
    out = tmp_path / "ranks.json"
    flags = ["--quick", "--dtype", "fp32", "--spread", "0", "--target", str(tiny), "--out", str(out)]
    assert script("tree_ranks").main(flags) == 0
    [found] = json.loads(out.read_text("utf-8"))["results"]
    assert found["accepted_by_rank"]["1"] > 0 and found["share_of_later_ranks"]["value"] == 0


def test_copies_are_counted_by_the_length_of_their_match(
    script: Script, tiny: Path, questions: Path, tmp_path: Path
) -> None:
    out = tmp_path / "copies.json"
    assert script("match_length").main(["--target", str(tiny), "--max-new-tokens", "40", "--out", str(out)]) == 0
    found = json.loads(out.read_text("utf-8"))["results"]
    assert sum(cell["share"]["value"] for cell in found) == pytest.approx(1, abs=1e-4)
    by_length = {cell["match"]: cell for cell in found}
    assert by_length[0]["first"]["value"] == 0, "nothing agrees, and nothing is copied"
    assert all(0 <= cell["first"]["value"] <= cell["run"]["value"] <= 8 or not cell["match"] for cell in found)


def test_a_copy_is_held_against_what_was_said(script: Script) -> None:
    """Behind 1 2 came 3 1: the 3 is right, the 1 is not; behind 1 2 3 came 1, and a 9 was said."""
    found = script("match_length").copies(SimpleNamespace(eos_ids=()), [1, 2, 3, 1], [2, 3, 9])
    assert [(one.match, one.right) for one in found] == [(2, 1), (3, 0)]


def test_what_a_check_says_is_judged(
    script: Script, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checks themselves are played: ``tests/cli`` runs them. A failed one fails its gate, and is counted."""
    law = Check("a law", "law", True, 0.1, 0.2, 1e-7, "it holds")
    planted = Check("a planted fault", "control", True, 9.0, 1.0, 0.0, "it was caught")

    def played(target: Target, drafter: Drafter, *, branching: Branching, **_: Any) -> Report:
        checks = (replace(law, passed=branching.is_chain), *[planted] * 10)
        return Report(target.name, drafter.name, "match", checks)

    module, out = script("losslessness"), tmp_path / "check.json"
    monkeypatch.setattr(module, "check_pair", played)
    assert module.main(["--dtype", "fp32", "--target", str(tiny), "--out", str(out)]) == 1
    text = out.read_text("utf-8")
    found = json.loads(text)
    assert [(cell["tree"], cell["lossless"]) for cell in found["results"]] == [
        ("chain", True),
        ("chain", True),
        ("sampled:2", False),
    ]
    assert [gate["holds"] for gate in found["gates"]] == [True, True, True, True, True, False, True]
    assert str(tiny.parent) not in text


def test_the_sweep_runs(script: Script, tiny: Path, questions: Path, tmp_path: Path) -> None:
    out = tmp_path / "sweep.json"
    assert script("lookup_speed").main(["--quick", "--sweep", "--target", str(tiny), "--out", str(out)]) == 0
    methods = {cell["method"] for cell in json.loads(out.read_text("utf-8"))["results"]}
    assert methods == {"outpace plain", *(f"K {depth}, min_match {match}" for depth in (2, 4) for match in (1, 2))}


def test_memory_runs(
    script: Script, tiny: Path, questions: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its processes are played by this one: what they would start with costs seconds each."""
    memory, out = script("memory"), tmp_path / "memory.json"

    def here(args: Any, kind: str, dtype: str, tokens: int) -> dict[str, Any]:
        args.child, args.prompt_tokens = kind, [tokens]
        found: dict[str, Any] = memory.child(args)
        args.child = None
        return found

    monkeypatch.setattr(memory, "fresh", here)
    assert memory.main(["--quick", "--target", str(tiny), "--prompt-tokens", "40", "--out", str(out)]) == 0
    cell = json.loads(out.read_text("utf-8"))["results"][0]
    assert cell["prompt_tokens"] == 40 and cell["peak_mb"] > 0
    values = 2 * 2 * 2 * 8 * (40 + 8)  # keys and values, layers, heads, width, positions
    assert cell["cache_mb"] == pytest.approx(values * 2 / 2**20, rel=1e-4)


def test_the_lesson_runs(script: Script, tmp_path: Path) -> None:
    """The law is kept by every rule and the planted fault is caught: seeds are fixed, so there are no false alarms."""
    out = tmp_path / "law.json"
    assert script("lesson_law").main(["--samples", "400", "--vocab", "3", "--out", str(out)]) == 0
    gates = json.loads(out.read_text("utf-8"))["gates"]
    assert [gate["ceiling"] for gate in gates] == [True] * 7 + [False]


def test_the_noise_floor_is_exact(script: Script) -> None:
    """Both expectations beside their definition, every outcome of five draws from two cells enumerated."""
    law, draws = np.array([0.3, 0.7]), 5
    tv = kl = 0.0
    for count in range(draws + 1):
        weight = math.comb(draws, count) * 0.3**count * 0.7 ** (draws - count)
        shares = np.array([count, draws - count]) / draws
        tv += weight * 0.5 * float(np.abs(shares - law).sum())
        kl += weight * sum(share * math.log(share / one) for share, one in zip(shares, law, strict=True) if share > 0)
    assert script("lesson_law").expected_tv(law, draws) == pytest.approx(tv, rel=1e-12)
    assert script("lesson_law").expected_kl(law, draws) == pytest.approx(kl, rel=1e-9)


def test_pooled_acceptance_is_sums_over_sums(script: Script) -> None:
    whole, parts = Tally(), []
    for turns in ([(4, 4, 2, 3), (0, 0, 0, 1)], [(2, 2, 0, 1), (4, 4, 4, 5)], [(3, 3, 0, 1)]):
        tally = Tally()
        for drafted, depth, matched, emitted in turns:
            for one in (tally, whole):
                one.add(rule="greedy", lossless=True, drafted=drafted, depth=depth, matched=matched, emitted=emitted)
        parts.append(tally.speculation("lookup"))
    all_at_once: Speculation = whole.speculation("lookup")
    found = script("common").pooled(parts)
    assert found["tau"] == pytest.approx(all_at_once.tau)
    assert found["acceptance"] == pytest.approx(all_at_once.acceptance)


def test_intervals_are_paired(script: Script) -> None:
    """However much prompts differ, one side twice the other on each of them is twice the other, without doubt."""
    common = script("common")
    theirs = np.array([1.0, 5.0, 20.0, 3.0, 8.0])
    estimate = common.median_ratio(2 * theirs, theirs)
    assert (estimate.value, estimate.low, estimate.high) == (2.0, 2.0, 2.0)
    noisy = common.median_ratio(theirs, theirs[::-1])
    assert noisy.low < noisy.value == 1.0 < noisy.high


@pytest.mark.parametrize(
    ("low", "high", "ceiling", "holds"),
    [(1.0, 1.4, False, False), (1.0, 1.6, False, True), (1.6, 2.0, True, False), (1.4, 2.0, True, True)],
)
def test_a_gate_fails_only_where_the_whole_interval_does(
    low: float, high: float, ceiling: bool, holds: bool, script: Script
) -> None:
    common = script("common")
    gate = common.Gate("a", common.Estimate((low + high) / 2, low, high), 1.5, ceiling=ceiling)
    assert gate.holds is holds
    assert common.judge([gate], quick=False) == int(not holds)
    assert common.judge([gate], quick=True) == 0


def answers(path: Path) -> list[str]:
    return sorted(path.read_text("utf-8").splitlines())


def test_answers_go_on_where_they_stopped(script: Script, tiny: Path, tmp_path: Path) -> None:
    """Interrupted in the middle of a line, the run ends with the answers of a run that was not, fp32 and a seed."""
    given, whole, torn = (tmp_path / name for name in ("in.jsonl", "whole.jsonl", "torn.jsonl"))
    kinds = [
        {"prompt": "w1 w2 w3"},
        {"question": "w4 w5"},
        {"turns": ["w6 w7 w8 w9", "w1"]},
        {"messages": [{"role": "user", "content": "w10 w11"}]},
        {"prompt": "w1 w2 w3"},
    ]
    given.write_text("".join(json.dumps(kind) + "\n" for kind in kinds), "utf-8")
    flags = ["--target", str(tiny), "--dtype", "fp32", "--max-new-tokens", "12", "--batch-size", "2", "--seed", "1"]
    main = script("answer_prompts").main
    assert main([str(given), str(whole), *flags]) == 0
    assert main([str(given), str(torn), *flags, "--limit", "3"]) == 0
    with torn.open("a", encoding="utf-8") as file:
        file.write('{"user": "w1 w2')
    assert main([str(given), str(torn), *flags]) == 0
    assert answers(torn) == answers(whole)
    records = [json.loads(line) for line in answers(whole)]
    assert len(records) == 5
    assert {"user", "answer_ids", "temperature"} <= set.intersection(*(set(record) for record in records))
    assert main([str(given), str(torn), *flags]) == 0
    assert answers(torn) == answers(whole)


def test_an_interrupt_keeps_what_is_whole(
    script: Script, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer_prompts = script("answer_prompts")
    given, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    given.write_text("".join(json.dumps({"prompt": f"w{place}"}) + "\n" for place in range(4)), "utf-8")
    honest = answer_prompts.decode

    def stopped(*given: Any, **options: Any) -> Iterator[Any]:
        ended = 0
        for emission in honest(*given, **options):
            yield emission
            ended += emission.finish is not None
            if ended == 2:
                raise KeyboardInterrupt

    monkeypatch.setattr(answer_prompts, "decode", stopped)
    flags = ["--target", str(tiny), "--max-new-tokens", "5", "--batch-size", "1"]
    assert answer_prompts.main([str(given), str(out), *flags]) == 130
    assert len([json.loads(line) for line in answers(out)]) == 2


def test_first_steps_run(tiny: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    path = REPOSITORY / "examples" / "first_steps.py"
    monkeypatch.setattr(sys, "argv", [str(path), str(tiny)])
    exec(compile(path.read_text("utf-8"), str(path), "exec"), {"__name__": "__main__"})
    printed = capsys.readouterr().out
    assert "plain: " in printed and "lookup: " in printed
