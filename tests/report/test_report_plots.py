"""Pictures are drawn where there is data for them, and what is missing is said."""

import builtins
from pathlib import Path
from typing import Any

import pytest

from outpace.decoding.costs import CostTable
from outpace.errors import UsageError
from outpace.report.page import EXAMPLES
from outpace.report.plots import crossing, plots
from outpace.report.reading import Bench, read_trace
from outpace.verification.expectation import TurnCosts

ROW = {"category": "all", "method": "eagle3", "rule": "match", "tree": "chain", "num_draft_tokens": "4"}
ROW |= {"temperature": 0.0, "tau": 2.1, "acceptance_by_position": [0.7, 0.6], "predicted_speedup": 1.3}


def bench(*more: dict[str, Any]) -> Bench:
    rows = [ROW | {"batch": 1, "speedup": 1.5, "speedup_ci": [1.3, 1.7]}, *(ROW | one for one in more)]
    return Bench("bench.json", rows, "", {})


def test_every_picture_is_drawn(tmp_path: Path) -> None:
    costs = {batch: TurnCosts({1: 10.0 * batch, 5: 12.0 * batch, 9: 20.0 * batch}, 1.0) for batch in (1, 8)}
    table = CostTable({(batch, 128): cost for batch, cost in costs.items()})
    more = {"batch": 8, "speedup": 0.8, "speedup_ci": [0.7, 0.9]}
    writing = {"category": "writing", "batch": 1, "speedup": 1.1, "speedup_ci": None}
    found = plots(tmp_path / "p", [read_trace(EXAMPLES[0])], [bench(more, writing)], {"costs.json": table})
    assert set(found.values()) == {None} and len(found) == 5
    for name in found:
        assert (tmp_path / "p" / name).read_bytes().startswith(b"\x89PNG")
    assert {path.name for path in (tmp_path / "p").iterdir()} == {*found}


def test_what_is_missing_is_said(tmp_path: Path) -> None:
    found = plots(tmp_path, [], [bench()])
    assert found["by_category.png"] is None and found["acceptance_by_position.png"] is None
    assert found["break_even_batch.png"] == "needs a measurement at two batches"
    assert found["cost_curve.png"] == "needs a cost table, or traces with forwards of two sizes"
    assert found["best_k.png"] == "needs an acceptance and costs of a forward and of a draft step"
    assert {path.name for path in tmp_path.iterdir()} == {"by_category.png", "acceptance_by_position.png"}


def test_traces_of_one_name_are_all_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[list[str]] = []
    monkeypatch.setattr("outpace.report.plots._positions", lambda figure, said, rows: bool(drawn.append([*said])))
    trace = read_trace(EXAMPLES[0])
    plots(tmp_path, [trace, trace])
    assert drawn == [[trace.name, f"{trace.name} (2)"]]


def test_where_it_stops_paying() -> None:
    """On straight lines over the logarithm: halfway between 4 and 16 lies 8."""
    assert crossing([1, 4, 16], [1.5, 1.2, 0.8]) == pytest.approx(8)
    assert crossing([1, 2, 4, 8], [0.9, 1.1, 0.9, 0.8]) == pytest.approx(2**1.5)
    assert crossing([1, 2], [1.5, 1.2]) is None and crossing([1, 2], [0.5, 0.2]) is None


def test_without_matplotlib_the_hint_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = builtins.__import__

    def without(name: str, *given: Any, **more: Any) -> Any:
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return honest(name, *given, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(UsageError, match="plots need matplotlib, which is not installed") as error:
        plots(tmp_path, [], [bench()])
    assert error.value.hint == "pip install 'outpace[plot]'"
