"""Lab 2 runs small to its figures, and its formula, its best K and its simulated acceptance are right."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from exercises import LABS, opened
from outpace.decoding.costs import CostTable
from outpace.verification.expectation import TurnCosts

COSTS = CostTable({(1, 128): TurnCosts({1: 20.0, 2: 24.0, 3: 24.0, 5: 25.0, 9: 30.0, 17: 60.0}, 3.0, 0.5)})


@pytest.fixture(scope="module")
def lab() -> Iterator[ModuleType]:
    with opened("02-speedup") as module:
        yield module


@pytest.fixture(scope="module")
def found(lab: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A run beside a staircase that was made up."""
    folder, kept = tmp_path_factory.mktemp("speedup"), lab.STAIRCASE
    lab.STAIRCASE = folder / "staircase.json"
    lab.STAIRCASE.write_text(json.dumps({"costs": COSTS.to_json()}), "utf-8")
    assert lab.main(["--small", "--out", str(folder / "out")]) == 0
    lab.STAIRCASE = kept
    for name in ("tokens-per-forward", "speedup-by-k", "best-k", "staircase"):
        assert (folder / "out" / "figures" / f"{name}.png").stat().st_size > 10_000
    return json.loads((folder / "out" / "results.json").read_text("utf-8"))


def test_the_lesson_s_number_and_what_cost_does_to_it(found: Any) -> None:
    by_cost = {one["cost"]: one for one in found["lesson"]}
    assert by_cost[0]["speedup"] == pytest.approx(3.3616) and by_cost[0]["best_K"] is None
    assert by_cost[0.1]["speedup"] == pytest.approx(3.3616 / 1.4, rel=1e-5) and by_cost[0.1]["best_K"] == 6
    assert by_cost[0.4]["best_K"] == 2


def test_decoded_chains_have_the_acceptance_that_was_set(found: Any) -> None:
    """Twelve intervals of 95 %, by the real coin generator at fixed seeds; 1.5 times as wide they are of 99.7 %."""
    assert len(found["tokens"]) == 12
    for one in found["tokens"]:
        decoded = one["decoded"]
        half = 1.5 * (decoded["high"] - decoded["value"])
        assert abs(decoded["value"] - one["formula"]) < half, one


def test_another_acceptance_is_noticed(lab: ModuleType) -> None:
    """The control: what is decoded at 0.7 is not what the formula says of 0.8."""
    estimate = lab.simulated(0.7, 4, 40, 100, seed=0)
    assert estimate.low < lab.chain_tokens(0.7, 4) < estimate.high < lab.chain_tokens(0.8, 4)


@pytest.mark.parametrize("cost", [0.003, 0.02, 0.1, 0.3, 0.45, 0.8])
@pytest.mark.parametrize("alpha", [0.05, 0.31, 0.6, 0.8, 0.93])
def test_the_condition_finds_the_best_length(lab: ModuleType, alpha: float, cost: float) -> None:
    """Beside trying every K; nothing pays where α is not above c, and something does where it is."""
    choice = lab.best(alpha, cost)
    assert choice == lab.searched(alpha, cost, 150)
    assert (choice.num_draft_tokens > 0) == (alpha > cost) == (choice.speedup > 1)


def test_a_staircase_is_read(found: Any) -> None:
    rows = found["staircase"]
    assert [one["alpha"] for one in rows] == [0.5, 0.6, 0.7, 0.8, 0.9] and {one["batch"] for one in rows} == {1}
    for one in rows:
        assert one["cost"] == pytest.approx(3.5 / 20) and one["K"] <= 16
        assert one["speedup"] >= one["speedup_at_formula_K"] and one["formula_speedup"] > one["speedup"]
        assert 0 < one["break_even"] < 1


def test_machines_are_timed_into_a_document(lab: ModuleType, worded: Path, nearly: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(lab, "SECONDS", 0.1)
    found = lab.timed(str(worded), str(nearly))
    assert {batch for batch, _ in CostTable.from_json(found["costs"]).cells} == {1, 8}
    assert found["target"] == worded.name and found["draft"] == nearly.name, "a result names no folder"
    assert lab.by_staircase(found)


def test_the_readme_shows_the_committed_results(lab: ModuleType) -> None:
    committed = json.loads((LABS / "02-speedup" / "results.json").read_text("utf-8"))
    readme = (LABS / "02-speedup" / "README.md").read_text("utf-8")
    assert f"<!-- results -->\n{lab.summary(committed)}\n<!-- /results -->" in readme, "run the lab without --out"
    for picture in re.findall(r"\]\((figures/[\w-]+\.png)\)", readme):
        assert (LABS / "02-speedup" / picture).is_file()
