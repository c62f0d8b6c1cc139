"""The cost table is what was measured: exact on a clock that is wound by hand, near the truth on toys, kept on disk."""

import json
import math
import os
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import isotonic_regression

from outpace.decoding import costs as module
from outpace.decoding import stopwatch
from outpace.decoding.costs import CONTEXTS, Conditions, CostTable, cost_table, measure, rising
from outpace.drafters.budget import CHAIN, Branching, Budget
from outpace.drafters.drafter import Drafter, Features, Proposal, chains
from outpace.drafters.lookup import Lookup
from outpace.drafters.small import Small
from outpace.errors import UsageError
from outpace.models.target import Scores, State, Tap
from outpace.models.toy import random_table, table_target
from outpace.models.transformer import Transformer
from outpace.verification.coins import Keys
from outpace.verification.expectation import TurnCosts
from outpace.verification.probabilities import Sampling
from outpace.verification.tree import DraftTree
from toys import Watched, lively, must_fail

AGREED = module.AGREED

# ---- the table -------------------------------------------------------------------------------------------------------


@given(st.lists(st.floats(0.1, 100), min_size=1, max_size=12))
def test_rising_is_isotonic_regression(values: list[float]) -> None:
    assert rising(values) == pytest.approx(list(isotonic_regression(values).x))


CELLS = {
    (1, 128): TurnCosts({1: 10.0, 2: 11.0, 5: 14.0}, draft_step=1.0, draft_turn=0.5),
    (1, 1024): TurnCosts({1: 20.0, 2: 22.0, 5: 28.0}, draft_step=1.0, draft_turn=0.5),
    (8, 128): TurnCosts({1: 30.0, 2: 40.0, 5: 70.0}, draft_step=8.0, draft_turn=0.5),
}


def test_a_table_holds_what_was_measured() -> None:
    table = CostTable(CELLS)
    for (batch, context), costs in CELLS.items():
        found = table.at(batch, context, 5)
        assert {rows: found.verify[rows] for rows in costs.verify} == costs.verify
        assert (found.draft_step, found.draft_turn) == (costs.draft_step, costs.draft_turn)


@pytest.mark.parametrize(
    ("batch", "context", "rows", "ms"),
    [
        (1, 128, 4, 13.0),
        (1, 576, 1, 15.0),
        (1, 1, 1, 10.0),
        (1, 99_999, 1, 20.0),
        (1, 128, 9, 18.0),
        (3, 128, 1, 10 + 20 * 2 / 7),
        (8, 1024, 2, 40.0),
        (64, 128, 5, 70.0),
    ],
)
def test_between_and_beyond(batch: int, context: int, rows: int, ms: float) -> None:
    """Straight lines between; the nearest batch and context outside; past the largest size its last slope."""
    assert CostTable(CELLS).at(batch, context, rows).verify_ms(rows) == pytest.approx(ms)


@given(st.integers(1, 20), st.integers(1, 3000))
def test_more_rows_never_cost_less(batch: int, context: int) -> None:
    verify = CostTable(CELLS).at(batch, context, 12).verify
    assert list(verify) == list(range(1, 13))
    assert all(verify[rows] <= verify[rows + 1] + 1e-9 for rows in range(1, 12))


def test_a_table_without_cells_is_refused() -> None:
    with pytest.raises(UsageError, match="a cost table has no cell; allowed: one or more"):
        CostTable({})


# ---- measuring on a clock that is wound by hand ----------------------------------------------------------------------


class Clock:
    """Stands still but for what is added; ``noise`` is added to every seventh piece of work."""

    def __init__(self, noise: float = 0.0) -> None:
        self.now, self.noise, self.works = 0.0, noise, 0

    def __call__(self) -> float:
        return self.now

    def work(self, ms: float) -> None:
        self.works += 1
        self.now += (ms + self.noise * (self.works % 7 == 0)) / 1e3


class Timed(Watched):
    """A target whose forwards take given milliseconds: by row, by token of the context, by sequence."""

    def __init__(self, target: Any, clock: Clock, *, first: float = 20, row: float = 2, reading: float = 0.1) -> None:
        super().__init__(target)
        self.clock, self.first, self.row, self.reading = clock, first, row, reading

    def ms(self, batch: int, context: int, rows: int) -> float:
        return self.first + batch * (0.01 * context + self.row * (rows - 1))

    def prefill(self, state: State, ids: torch.Tensor, lengths: list[int], taps: tuple[Tap, ...] = ()) -> Scores:
        self.clock.work(self.reading * ids.numel())
        return super().prefill(state, ids, lengths, taps)

    def score(self, state: State, last: torch.Tensor, tree: DraftTree, taps: tuple[Tap, ...] = ()) -> Scores:
        self.clock.work(self.ms(len(last), state.lengths[0], 1 + tree.tokens.shape[1]))
        return super().score(state, last, tree, taps)


class Slow:
    """A drafter that takes 3 ms a turn and 2 ms a token."""

    name, taps, branchings = "slow", (), frozenset({"chain", "top-k"})

    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    def open(self, slots: int, positions: int) -> Any:
        return object()

    def admit(self, state: Any, prompts: list[list[int]], features: list[Features] | None) -> None:
        pass

    def propose(self, state: Any, budget: Budget, sampling: list[Sampling], keys: Keys) -> Proposal:
        self.clock.work(3 + 2 * max(budget.depths))
        return Proposal(chains([[1] * depth for depth in budget.depths]))

    def commit(self, state: Any, emitted: list[list[int]], features: list[Features] | None) -> None:
        pass

    def select(self, state: Any, rows: list[int]) -> None:
        pass


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Clock]:
    wound = Clock()
    with monkeypatch.context() as patched:
        patched.setattr(time, "perf_counter", wound)
        yield wound


def table_of(clock: Clock, **changes: Any) -> Timed:
    return Timed(table_target(random_table(8, seed=1)), clock, **changes)


def exact(clock: Clock) -> None:
    """Every cell and the drafter's cost, one outlier in seven included."""
    clock.noise = 50.0
    target = table_of(clock)
    table = measure(target, Slow(clock), Conditions(4, 5), seconds=60.0)
    assert set(table.cells) == {(batch, context) for batch in (1, 4) for context in CONTEXTS}
    for (batch, context), costs in table.cells.items():
        assert costs.verify == pytest.approx({rows: target.ms(batch, context, rows) for rows in (1, 2, 3, 5)})
        assert (costs.draft_turn, costs.draft_step) == pytest.approx((3.0, 2.0))


def test_what_is_measured_is_what_was_spent(clock: Clock) -> None:
    exact(clock)


@pytest.mark.parametrize("fault", ["means", "no rewind"])
def test_what_is_measured_planted(fault: str, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    if fault == "means":
        monkeypatch.setattr(stopwatch.statistics, "median", stopwatch.statistics.fmean)
    else:
        monkeypatch.setattr(Timed, "rewind", lambda *given: None)
    with must_fail():
        try:
            exact(clock)
        except UsageError as error:
            raise AssertionError("it ran out of its room") from error


class SlowTree(Slow):
    """A drafter whose trees take half a millisecond a node more than its chains."""

    def propose(self, state: Any, budget: Budget, sampling: list[Sampling], keys: Keys) -> Proposal:
        if not budget.branching.is_chain:
            self.clock.work(0.5 * max(budget.nodes))
        return super().propose(state, budget, sampling, keys)


def test_drafting_is_timed_as_it_will_branch(clock: Clock) -> None:
    """A tree is drafted with all nodes that there may be; costs of a chain say nothing about it."""
    for branching, turn in ((CHAIN, 3.0), (Branching.parse("top-k:3"), 3 + 0.5 * 8)):
        table = measure(table_of(clock), SlowTree(clock), Conditions(rows=9, branching=branching), seconds=60.0)
        assert all((costs.draft_turn, costs.draft_step) == pytest.approx((turn, 2.0)) for costs in table.cells.values())


def test_a_falling_cost_is_no_staircase(clock: Clock) -> None:
    """Fewer milliseconds for more rows are noise: the sizes are pooled to their mean."""
    verify = measure(table_of(clock, row=-2.0), None, Conditions(rows=3), seconds=60.0).cells[1, CONTEXTS[0]].verify
    assert len(set(verify.values())) == 1 and verify[1] == pytest.approx(20 + 1.28 - 2)


def test_the_time_is_kept(clock: Clock) -> None:
    """A long prompt that would take longer than there is time for is left out; the short one has three rounds."""
    target = table_of(clock, first=200.0, reading=5.0)
    table = measure(target, None, Conditions(rows=9), seconds=4.0)
    assert set(table.cells) == {(1, CONTEXTS[0])}
    assert len(target.scored) == (1 + stopwatch.FEWEST) * 5
    ahead = clock.now
    assert set(measure(table_of(clock), None, Conditions(rows=9), seconds=4.0).cells) == {
        (1, context) for context in CONTEXTS
    }
    assert clock.now - ahead < 4


def test_progress_is_told(clock: Clock) -> None:
    told: list[tuple[int, int]] = []
    measure(table_of(clock), None, Conditions(rows=2), progress=lambda done, total, what: told.append((done, total)))
    assert told == [(0, 2), (1, 2), (2, 2)]


# ---- measuring in earnest --------------------------------------------------------------------------------------------


def drafters(target: Transformer) -> dict[str, Drafter | None]:
    return {"none": None, "lookup": Lookup(eos_ids=target.eos_ids), "small": Small(lively(seed=4, layers=1), target)}


@pytest.mark.parametrize("name", ["none", "lookup", "small"])
@pytest.mark.parametrize(
    ("sampling", "seeded"), [(Sampling(), False), (Sampling(1.0, top_p=0.9), False), (Sampling(1.0), True)]
)
def test_toys(name: str, sampling: Sampling, seeded: bool, tiny: Transformer) -> None:
    """Positive and rising, within the context, and nothing is left behind in target or warnings."""
    watched = Watched(tiny)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        table = measure(watched, drafters(tiny)[name], Conditions(2, 9, sampling, seeded))
    assert {batch for batch, _ in table.cells} == {1, 2}
    for costs in table.cells.values():
        assert list(costs.verify) == [1, 2, 3, 5, 9]
        assert list(costs.verify.values()) == sorted(costs.verify.values())
        assert costs.draft_step >= 0 and costs.draft_turn >= 0
    assert watched.furthest < tiny.max_positions
    assert table.machine["dtype"] == "float32" and table.machine["threads"] == torch.get_num_threads()


@pytest.mark.parametrize("positions", [2, 3, 12])
def test_a_short_context(positions: int) -> None:
    """Only sizes that fit, and never a position beyond the last."""
    target = table_target(random_table(8, seed=1))
    target.max_positions = positions
    watched = Watched(target)
    table = measure(watched, Lookup(), Conditions(rows=9))
    assert len(table.cells) == 1
    assert all(max(costs.verify) == min(9, positions - 1) for costs in table.cells.values())
    assert watched.furthest < positions


# ---- the file --------------------------------------------------------------------------------------------------------


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that tables are kept in, however busy the machine is that the tests run on."""
    monkeypatch.setattr(module, "AGREED", math.inf)
    monkeypatch.setenv("OUTPACE_CACHE", str(tmp_path))
    return tmp_path / "costs"


def loaded(tiny: Transformer, **changes: Any) -> Watched:
    """A target as if loaded from a folder: a new object every time."""
    watched = Watched(tiny)
    watched.folder, watched.fingerprint = Path("weights"), "abc"
    for name, value in changes.items():
        setattr(watched, name, value)
    return watched


def test_measured_once(kept: Path, tiny: Transformer) -> None:
    first, second = loaded(tiny), loaded(tiny)
    table = cost_table(first, None, Conditions(rows=3))
    assert first.scored and len(list(kept.iterdir())) == 1
    assert cost_table(second, None, Conditions(rows=3)) == table and second.scored == []
    assert cost_table(second, None, Conditions(rows=3)) is cost_table(second, None, Conditions(rows=2 + 1))
    cost_table(second, None, Conditions(rows=3), refresh=True)
    assert second.scored


def test_what_the_figures_depend_on(kept: Path, tiny: Transformer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another target, drafter, batch, size, law, dtype or version is another table."""
    cost_table(loaded(tiny), None, Conditions(rows=2))
    others: list[tuple[Watched, Drafter | None, dict[str, Any]]] = [
        (loaded(tiny, fingerprint="other"), None, {}),
        (loaded(tiny), Lookup(), {}),
        (loaded(tiny), None, {"batch": 2}),
        (loaded(tiny), None, {"rows": 3}),
        (loaded(tiny), None, {"branching": Branching.parse("top-k:3")}),
        (loaded(tiny), None, {"sampling": Sampling(1.0)}),
        (loaded(tiny), None, {"sampling": Sampling(1.0, top_k=3)}),
        (loaded(tiny), None, {"sampling": Sampling(1.0), "seeded": True}),
        (loaded(tiny, dtype=torch.bfloat16), None, {}),
    ]
    for target, drafter, options in others:
        cost_table(target, drafter, Conditions(**{"rows": 2} | options))
        assert target.scored, options
    assert len(list(kept.iterdir())) == 1 + len(others)
    monkeypatch.setattr(torch, "__version__", "99")
    upgraded = loaded(tiny)
    cost_table(upgraded, None, Conditions(rows=2))
    assert upgraded.scored
    near = loaded(tiny)
    cost_table(near, None, Conditions(2, 2))
    again = loaded(tiny, dtype=near.dtype)
    cost_table(again, None, Conditions(2, 2))
    assert again.scored == []


SPOILT: dict[str, Any] = {
    "not JSON": "{",
    "not a table": "[]",
    "another version": {"format_version": 99},
    "another key": {"key": {}},
    "no cells": {"cells": []},
    "a cell without sizes": {"cells": [{"batch": 1, "context": 1, "verify": {}, "draft_step": 0, "draft_turn": 0}]},
    "a cost that is none": {
        "cells": [{"batch": 1, "context": 1, "verify": {"1": -1}, "draft_step": 0, "draft_turn": 0}]
    },
    "a word for a number": {
        "cells": [{"batch": 1, "context": 1, "verify": {"1": "x"}, "draft_step": 0, "draft_turn": 0}]
    },
    "deep": "[" * 100_000,
}


@pytest.mark.parametrize("spoilt", SPOILT)
def test_a_file_that_cannot_be_used_is_measured_anew(spoilt: str, kept: Path, tiny: Transformer) -> None:
    cost_table(loaded(tiny), None, Conditions(rows=2))
    [path] = kept.iterdir()
    change = SPOILT[spoilt]
    path.write_text(change if isinstance(change, str) else json.dumps(json.loads(path.read_text()) | change))
    anew = loaded(tiny)
    table = cost_table(anew, None, Conditions(rows=2))
    assert anew.scored
    assert cost_table(loaded(tiny), None, Conditions(rows=2)) == table


def test_a_folder_that_cannot_be_written_is_no_error(kept: Path, tiny: Transformer) -> None:
    kept.write_text("a file where the folder should be")
    assert cost_table(loaded(tiny), None, Conditions(rows=2)).cells


def test_a_busy_machine_is_not_kept(
    kept: Path, tiny: Transformer, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No two rounds alike: the table serves this process and is not kept."""
    honest = clock.work
    monkeypatch.setattr(module, "AGREED", AGREED)
    for busy in (False, True):
        if busy:
            monkeypatch.setattr(clock, "work", lambda ms: honest(ms * (1 + 3 * clock.works % 5)))
        target = table_of(clock)
        target.folder, target.fingerprint = Path("weights"), f"busy: {busy}"
        table = cost_table(target, None, Conditions(rows=2))
        assert (table.spread > AGREED) is busy
        assert len(list(kept.iterdir())) == 1


def test_nothing_half_written_is_left(kept: Path, tiny: Transformer, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*given: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    assert cost_table(loaded(tiny), None, Conditions(rows=2)).cells
    assert list(kept.iterdir()) == []


@pytest.mark.parametrize("changes", [{"fingerprint": ""}, {"folder": None}])
def test_what_cannot_be_told_apart_is_not_kept(changes: dict[str, Any], kept: Path, tiny: Transformer) -> None:
    target = loaded(tiny, **changes)
    table = cost_table(target, None, Conditions(rows=2))
    assert not kept.exists()
    assert cost_table(target, None, Conditions(rows=2)) is table, "the same object is measured once"


@pytest.mark.parametrize(("options", "words"), [({"batch": 0}, "batch is 0"), ({"rows": 0}, "rows is 0")])
def test_refusals(options: dict[str, int], words: str, tiny: Transformer) -> None:
    with pytest.raises(UsageError, match=f"{words}; allowed: 1 or more"):
        cost_table(tiny, None, Conditions(**options))
