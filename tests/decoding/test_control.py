"""The controller goes by past verdicts alone, keeps rows apart, and changes nothing but what is drafted."""

import random
from collections.abc import Callable
from statistics import fmean
from typing import Any

import pytest

from outpace.decoding import control as module
from outpace.decoding.control import UNGRADED, Adaptive, Control, Fixed
from outpace.decoding.costs import CostTable
from outpace.decoding.loop import Request
from outpace.drafters.budget import CHAIN, Branching, Budget
from outpace.drafters.lookup import Lookup
from outpace.errors import UsageError
from outpace.models.transformer import Transformer
from outpace.verification.expectation import best_tree
from outpace.verification.shape import static_tree
from simulated import DEPTH, ROOM, TABLES, chains_of, simulate, steady, table, turn_of
from toys import must_fail, reference, run

# ---- nothing but past verdicts ---------------------------------------------------------------------------------------


def does_not_anticipate(make: Callable[[list[int]], Control]) -> None:
    """Two futures, the same past: what is asked for may differ only after the first verdict that differs."""
    coins = random.Random(1)
    past = [coins.randrange(DEPTH + 1) for _ in range(50)]
    asked = []
    for coming in (0, DEPTH):
        script = [*past, *[coming] * 50]
        control = make(script)
        control.admit(1)
        depths = []
        for accepted in script:
            budget = control.budget([ROOM], [100])
            depths.append(budget.depths[0])
            control.learn(chains_of(budget.depths, [min(accepted, budget.depths[0])]))
        asked.append(depths)
    assert asked[0][: len(past) + 1] == asked[1][: len(past) + 1]
    assert asked[0] != asked[1], "a future that differs for long enough must be noticed"


class Foreseeing(Adaptive):
    """The planted fault: it looks at what will become of the draft it asks for."""

    def __init__(self, costs: CostTable, script: list[int]) -> None:
        super().__init__(costs)
        self.script, self.turns = script, 0

    def budget(self, rooms: list[int], lengths: list[int], grades: list[int] | None = None) -> Budget:
        super().budget(rooms, lengths, grades)
        asked = Budget.chain([min(self.script[self.turns], self.max_depth)])
        self._asked = asked, self._view(1, 100, False), [UNGRADED]
        self.turns += 1
        return asked


def test_the_past_alone_decides() -> None:
    does_not_anticipate(lambda script: Adaptive(table(TABLES["steep"])))


def test_the_past_alone_decides_planted() -> None:
    with must_fail():
        does_not_anticipate(lambda script: Foreseeing(table(TABLES["steep"]), script))


def test_the_same_verdicts_give_the_same_budgets() -> None:
    first, second = (simulate(Adaptive(table(TABLES["stairs"])), TABLES["stairs"], steady(0.6), 500) for _ in range(2))
    assert first.budgets == second.budgets


# ---- rows ------------------------------------------------------------------------------------------------------------


def taught() -> Adaptive:
    """Row 0 always right, row 1 never."""
    control = Adaptive(table(TABLES["steep"]))
    control.admit(2)
    for _ in range(40):
        budget = control.budget([ROOM, ROOM], [100, 100])
        control.learn(chains_of(budget.depths, [budget.depths[0], 0]))
    return control


def keeps_rows_apart() -> None:
    for rows_kept, long in (([0], True), ([1], False)):
        control = taught()
        control.select(rows_kept)
        assert (control.budget([ROOM], [100]).depths[0] >= 4) is long


def test_rows_keep_their_records() -> None:
    keeps_rows_apart()


def test_rows_keep_their_records_planted(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = Adaptive.select
    monkeypatch.setattr(Adaptive, "select", lambda self, kept: honest(self, [0] * len(kept)))
    with must_fail():
        keeps_rows_apart()


def test_the_order_of_rows_is_no_matter() -> None:
    """Rows that change places half-way give the same drafts."""
    asked = []
    for swapped in (False, True):
        control = taught()
        order = [1, 0] if swapped else [0, 1]
        control.select(order)
        depths = []
        for turn in range(60):
            rooms = [(ROOM, turn % 9)[row] for row in order]
            budget = control.budget(rooms, [100, 100])
            accepted = [(depth if row == 0 else depth // 3) for row, depth in zip(order, budget.depths, strict=True)]
            control.learn(chains_of(budget.depths, accepted))
            depths.append([budget.depths[order.index(row)] for row in (0, 1)])
        asked.append(depths)
    assert asked[0] == asked[1]


def test_a_new_row_is_tried_soon() -> None:
    """While everything rests a new text comes: it is probed in its first turn, whatever the wait was."""
    costs = TABLES["steep"]
    control = Adaptive(table(costs))
    simulate(control, costs, steady(0.0), 300)
    control.budget([ROOM], [100])
    control.learn(chains_of([0], [0]))
    control.admit(1)
    assert control.budget([ROOM, ROOM], [100, 5]).depths == [module.PROBE] * 2


def test_rooms_are_kept() -> None:
    control = Adaptive(table(TABLES["free"]))
    simulate(control, TABLES["free"], steady(1.0), 30, batch=4)
    budget = control.budget([ROOM, 0, 1, 3], [100, 2, 3, 4])
    assert budget.depths == [DEPTH, 0, 1, 3] and budget.nodes == budget.depths and budget.branching == CHAIN
    assert control.budget([0, 0, 0, 0], [100, 2, 3, 4]).empty


# ---- trees -----------------------------------------------------------------------------------------------------------

LEVELS = [[0.6, 0.2, 0.1], [0.5, 0.2, 0.1], [0.5, 0.15, 0.1], [0.4, 0.15, 0.1]]


@pytest.mark.parametrize(("levels", "share"), [(LEVELS, 0.93), ([[0.0] * 3] * 4, 0.97)])
def test_trees(levels: list[list[float]], share: float) -> None:
    """Near the best static tree for rates by depth and rank that are known; a hopeless drafter is left alone."""
    costs, coins = TABLES["a drafter that costs"], random.Random(2)
    control = Adaptive(table(costs), Branching("top-k", 3.0), 4, 24)
    control.admit(1)
    spent = emitted = 0.0
    sizes = []
    for turn in range(400):
        budget = control.budget([ROOM], [100 + turn])
        assert budget.branching == control.branching and budget.nodes[0] <= 24 and budget.depths[0] <= 4
        # A drafter that knows its rates by rank; ones that are all zero still make some tree.
        shape = static_tree([[rate + 1e-9 for rate in ranks] for ranks in levels], budget.nodes[0], budget.depths[0])
        path: list[int] = []
        for ranks in levels:
            right = coins.choices(range(4), [*ranks, 1 - sum(ranks)])[0]
            above = path[-1] if path else -1
            here = [
                node
                for node, place in enumerate(zip(shape.parents, shape.ranks, strict=True))
                if place == (above, right)
            ]
            if not here:
                break
            path += here
        sizes.append(len(shape.parents))
        spent += costs.turn_ms(len(shape.parents), max(shape.depths, default=0))
        emitted += 1 + len(path)
        control.learn(turn_of((shape.parents,), (tuple(path),)))
    best, choice = best_tree(levels, costs, 24)
    assert emitted * costs.verify_ms(1) / spent >= share * choice.speedup
    if best.parents:
        assert max(sizes[100:]) > max(best.depths), "a tree that pays is no chain"
    else:
        assert fmean(map(bool, sizes)) <= 0.1


# ---- the rest --------------------------------------------------------------------------------------------------------


def test_costs_are_asked_for_with_the_first_row() -> None:
    asked = []

    def costs() -> CostTable:
        asked.append(1)
        return table(TABLES["free"])

    control = Adaptive(costs)
    assert asked == []
    control.admit(1)
    control.admit(2)
    assert asked == [1] and not control.budget([ROOM] * 3, [1, 1, 1]).empty


def test_costs_are_those_of_the_context() -> None:
    """Free rows behind a short text, dear ones behind a long one: the same acceptance, another choice."""
    costs = CostTable({(1, 128): TABLES["free"], (1, 1024): TABLES["steep"]})
    short, long = [], []
    for length, depths in ((100, short), (2000, long)):
        control, coins = Adaptive(costs), random.Random(3)
        control.admit(1)
        for _ in range(100):
            budget = control.budget([ROOM], [length])
            depths.append(budget.depths[0])
            hits = [coins.random() < 0.5 for _ in range(depths[-1])]
            control.learn(chains_of(budget.depths, [[*hits, False].index(False)]))
    assert fmean(short) >= 4 and 0.5 <= fmean(long) <= 2


def test_fixed() -> None:
    chain = Fixed(CHAIN, 4)
    assert (chain.max_depth, chain.max_nodes) == (4, 4)
    assert chain.budget([9, 0, 2], [1, 1, 1]) == Budget.chain([4, 0, 2])
    wide = Fixed(Branching("top-k", 3.0), 5, 20)
    assert wide.budget([9, 0, 2], [1, 1, 1]) == Budget([5, 0, 2], [20, 0, 20], Branching("top-k", 3.0))
    assert Fixed(CHAIN, 0).budget([9], [1]).empty


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ((CHAIN, -1), r"depth is -1; allowed: 0 \(plain decoding\) or more"),
        ((CHAIN, 3, 5), "num_draft_tokens is 5 and depth 3; allowed: equal numbers for a chain"),
        (
            (Branching("top-k", 2.0), 5, 3),
            "num_draft_tokens is 3 and depth 5; allowed: as many nodes as depths, or more",
        ),
    ],
)
def test_refusals(given: tuple[Any, ...], words: str) -> None:
    for make in (lambda: Fixed(*given), lambda: Adaptive(table(TABLES["free"]), *given)):
        with pytest.raises(UsageError, match=words):
            make()


def test_the_text_does_not_depend_on_the_controller(tiny: Transformer) -> None:
    """Ragged rows that come and go, refilled slots, drafting and resting: plain decoding's tokens."""
    prompts = [(1, 2, 3), (5, 6, 5, 6, 5), (9,), (4, 4, 4, 4), (7, 8)]
    requests = [Request(prompt, max_new_tokens=20 + 9 * place) for place, prompt in enumerate(prompts)]
    control = Adaptive(table(TABLES["a small model on two cores"]))
    ended = run(tiny, Lookup(), requests, slots=2, control=control)
    assert [one.ids for one in ended] == [reference(tiny, one.ids, one.max_new_tokens) for one in requests]
    assert sum(one.stats.drafted for one in ended) > 0
