"""The scripts of tuning run, go on where they stopped, and judge what they say they judge."""

import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from outpace.tuning.candidates import Candidate

Script = Callable[[str], ModuleType]


def test_the_controller_is_measured(script: Script, tiny: Path, questions: Path, tmp_path: Path) -> None:
    out = tmp_path / "result.json"
    assert script("control_cost").main(["--quick", "--target", str(tiny), "--dtype", "fp32", "--out", str(out)]) == 0
    found = json.loads(out.read_text("utf-8"))
    assert [(one["workload"], one["drafter"]) for one in found["results"]] == [("worst", "lookup"), ("best", "lookup")]
    assert [gate["bound"] for gate in found["gates"]] == [0.97, 0.95]
    assert found["results"][0]["beside"] == "plain" and found["results"][1]["beside"] in ("K 2", "K 4")


def test_the_grid_goes_on_where_it_stopped(
    script: Script, tiny: Path, questions: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Interrupted in the grid, a second run does not search again; with other settings it is refused."""
    module, out, state = script("tune_grid"), tmp_path / "result.json", tmp_path / "state.jsonl"
    flags = ["--quick", "--target", str(tiny), "--dtype", "fp32", "--out", str(out), "--state", str(state)]
    honest = module.compare

    def stopped(*given: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "compare", stopped)
    with pytest.raises(KeyboardInterrupt):
        module.main(flags)
    steps = [next(iter(json.loads(line))) for line in state.read_text("utf-8").splitlines()]
    assert steps == ["settings", "tune", "grid 0", "grid 1"]
    searched: list[int] = []
    known = module.tuned
    monkeypatch.setattr(module, "compare", honest)
    monkeypatch.setattr(module, "tuned", lambda *given: searched.append(1) or known(*given))
    assert module.main(flags) == 0
    assert len(searched) == 2, "the two searches where drafting hardly pays, and not the first one again"
    found = json.loads(out.read_text("utf-8"))
    assert [one["category"] for one in found["results"]] == ["writing", "summarization", "all"]
    assert len(found["grid"]) == 4 and found["settings"]["state"] == "state.jsonl"
    assert [one["where"] for one in found["hard"]] == ["lookup at temperature 1.5", "16 at a time"]
    names = [gate["name"] for gate in found["gates"]]
    assert names[:3] == [f"choice over the grid's winner, {name}" for name in ("writing", "summarization", "all")]
    with pytest.raises(SystemExit, match="was begun with other settings"):
        module.main([*flags, "--weak", "small"])


def test_a_choice_far_from_the_winner_fails(script: Script) -> None:
    module, common = script("tune_grid"), script("common")
    cells = [
        {"category": "a", "choice_over_winner": common.Estimate(0.8, 0.7, 0.9), "apart": 0.3},
        {"category": "all", "choice_over_winner": common.Estimate(0.97, 0.9, 1.0), "apart": 0.01},
    ]
    where = [{"where": "hot", "choice_over_plain": common.Estimate(0.9, 0.85, 0.95)}]
    assert [gate.holds for gate in module.gates_of(cells, where)] == [False, True, False, False]


def test_a_plan_is_followed(script: Script) -> None:
    from outpace.decoding.plan import Choice

    module = script("tune_grid")
    assert module.way(Choice(drafter="none", num_draft_tokens=0)) == Candidate()
    assert module.way(Choice(num_draft_tokens=3, depth=3)) == Candidate("lookup", 3, depth=3)
