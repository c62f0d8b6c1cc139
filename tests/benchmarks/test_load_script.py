"""benchmarks/load.py runs end to end on a tiny model, and its result holds what the page on load quotes."""

import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

Script = Callable[[str], ModuleType]


def test_the_load_script_runs(
    script: Script, tiny: Path, questions: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "result.json"
    options = ["--quick", "--target", str(tiny), "--dtype", "fp32", "--drafters", "lookup", "--out", str(out)]
    assert script("load").main(options) == 0
    found = json.loads(out.read_text("utf-8"))
    assert {"script", "date", "machine", "versions", "protocol", "settings", "results", "gates"} <= found.keys()
    places = {(one["num_draft_tokens"], one["concurrency"]) for one in found["results"]}
    assert places == {(3, 1), (3, 2), ("auto", 1), ("auto", 2)}
    assert [point["num_draft_tokens"] for point in found["break_even"]] == [3, "auto"]
    assert {gate["name"] for gate in found["gates"]} == {f"lookup, auto, {one} at once" for one in (1, 2)}
    assert "lookup, 3 drafts: too few rounds for a verdict" in capsys.readouterr().out


def test_the_error_of_a_prediction_is_its_distance_from_what_was_measured(script: Script) -> None:
    module = script("load")
    cells = [
        {"predicted_speedup": predicted, "speedup": module.Estimate(2.0, 1.9, 2.1)}
        for predicted in (1.8, 2.0, 3.0, None)
    ]
    assert module.error_of(cells) == pytest.approx(0.1)
    assert module.error_of(cells[3:]) is None
