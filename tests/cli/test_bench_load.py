"""``outpace bench --concurrency 1,2,4``: a row a level, where it stops paying, and a plan's choices by level."""

import importlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benches import FIELDS, call, six_prompts, tiny_folder
from outpace.decoding.costs import CostTable
from outpace.decoding.plan import Choice, Plan
from outpace.errors import UsageError
from outpace.evaluation import load
from outpace.models.load import load_target
from outpace.verification.expectation import TurnCosts

COMMAND = importlib.import_module("outpace.cli.bench_load")
LOAD = {
    *("streams", "in_flight", "first_token_ms", "baseline_first_token_ms", "ms_per_token", "ms_per_token_ci"),
    *("baseline_ms_per_token", "baseline_ms_per_token_ci", "predicted_speedup"),
}
"""What a result has at several concurrencies beside what every result has."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_folder(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    return six_prompts(tmp_path)


@pytest.fixture
def steady(monkeypatch: pytest.MonkeyPatch) -> dict[int, float]:
    """A clock that stands still but for streams: 100 s plainly, and drafted what is said for their level."""
    drafted, now, honest = {1: 50.0, 2: 80.0, 4: 125.0}, [0.0], load._flow

    def flow(target: Any, drafter: Any, stream: Any, level: int, options: Any, clock: Any) -> Any:
        begin = now[0]
        found = honest(target, drafter, stream, level, options, clock)
        now[0] = begin + (drafted[level] if "num_draft_tokens" in options else 100.0)
        return replace(found, seconds=now[0] - begin)

    monkeypatch.setattr(load, "_flow", flow)
    monkeypatch.setattr(load, "cost_table", lambda *given: CostTable({(1, 16): TurnCosts({1: 20.0, 3: 40.0})}))
    monkeypatch.setattr(COMMAND, "measure", lambda *given: load.measure(*given, clock=lambda: now[0]))
    return drafted


def test_a_row_for_each_concurrency(model: Path, mine: Path, steady: dict[int, float]) -> None:
    options = ["--prompts", mine, "--num-draft-tokens", 2, "--concurrency", "4,1,2", "--repeats", 5, "--budget", "9h"]
    result = call("--target", model, "--dtype", "fp32", "--max-new-tokens", 4, *options, "--json")
    assert result.exit_code == 1, result.output
    found = json.loads(result.stdout)
    assert {"format_version", "machine", "versions", "protocol", "results", "verdict", "skipped"} <= found.keys()
    assert [row["batch"] for row in found["results"]] == [1, 2, 4]
    for row in found["results"]:
        assert row.keys() >= FIELDS | LOAD and row["streams"] == 5 and row["category"] == "all"
    assert [row["speedup"] for row in found["results"]] == [2.0, 1.25, 0.8]
    assert found["verdict"] == (
        "drafting pays up to 2 at once, and no longer from 4 on: 1.25x [1.25, 1.25] at 2, 0.80x [0.80, 0.80] at 4; "
        "break-even at about 2.94 at once [2.94, 2.94]"
    )
    assert found["verdicts"][0]["break_even"]["value"] == pytest.approx(2 * 2 ** (0.25 / 0.45))
    said = "slower than plain decoding at 4 at once: 0.80x [0.80, 0.80] with 2 drafts a turn, chain, temperature 0"
    assert found["findings"] == [said] and said in result.stderr
    assert found["protocol"]["concurrency"] == [1, 2, 4] and found["protocol"]["rounds"] == 5
    assert "slots" in found["protocol"]["how"]


def test_a_table_for_people_and_a_budget(model: Path, mine: Path, steady: dict[int, float]) -> None:
    options = ["--prompts", mine, "--num-draft-tokens", 2, "--concurrency", "1,2", "--budget", "500s"]
    result = call("--target", model, "--dtype", "fp32", "--max-new-tokens", 12, *options)
    assert result.exit_code == 0, result.output
    lines = [line.split() for line in result.stdout.splitlines()]
    [first, second] = [line for line in lines if line[:1] in (["1"], ["2"])]
    assert first[1] == second[1] == "1" and first[4:7] == ["2.00x", "too", "few"]
    assert result.stdout.splitlines()[0].strip() == "lookup, 2 drafts a turn, chain, temperature 0, rule greedy"
    assert result.stdout.splitlines()[-1].startswith("too few rounds for a verdict: 2.00x at 1, 1.25x at 2 at once")
    assert "1 of 5 rounds: the budget of 500 s held no more" in result.stderr


@pytest.mark.parametrize("given", ["x", "1,x", "0,2", "2,2", "1,,2", "-1"])
def test_concurrencies_that_are_none(given: str) -> None:
    result = call(f"--concurrency={given}")
    assert result.exit_code == 2
    words = f"concurrency is {given}; allowed: 1 or more, or several different ones, such as 1,2,4,8,16"
    assert words in result.stderr


# ---- plans ---------------------------------------------------------------------------------------------------------


def plan_of(folder: Path, model: Path, *choices: Choice) -> Path:
    target = load_target(model, dtype="fp32")
    Plan(str(model), target.fingerprint, choices).write(folder / "plan.toml")
    return folder / "plan.toml"


def test_a_plan_has_its_choice_for_each_level(
    model: Path,
    mine: Path,
    tmp_path: Path,
    steady: dict[int, float],
) -> None:
    plan = plan_of(
        tmp_path,
        model,
        Choice(num_draft_tokens=3),
        Choice(batch=2, num_draft_tokens=1),
        Choice(batch=4, drafter="none", num_draft_tokens=0),
    )
    options = ["--plan", plan, "--prompts", mine, "--concurrency", "1,2,4", "--repeats", 1, "--json"]
    result = call("--target", model, "--dtype", "fp32", "--max-new-tokens", 4, *options)
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert [(row["batch"], row["num_draft_tokens"]) for row in found["results"]] == [(1, 3), (2, 1)]
    assert "the plan decodes plainly at 4 at once: nothing to compare there" in result.stderr


def test_a_plan_with_two_drafters_is_measured_one_at_a_time(model: Path, tmp_path: Path) -> None:
    plan = plan_of(tmp_path, model, Choice(), Choice(batch=2, drafter="eagle3"))
    result = call("--target", model, "--plan", plan, "--concurrency", "1,2")
    assert result.exit_code == 2
    assert "the plan has the drafters eagle3, lookup for these concurrencies; allowed: one at a time" in result.stderr


def test_a_plan_that_is_plain_everywhere_leaves_nothing_to_measure() -> None:
    def make(choice: Choice | None) -> Any:
        raise UsageError("the plan decodes plainly here; allowed: one that drafts")

    plain = Choice(drafter="none", num_draft_tokens=0)
    with pytest.raises(UsageError, match="the plan decodes plainly here"):
        COMMAND.settings_of({1: plain, 2: plain}, make)
