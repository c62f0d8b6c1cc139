"""``auto`` asks no drafter for more depths than it can draft, and measures no costs of them."""

from typing import Any

import pytest

from medusas import medusa_on
from outpace.decoding import options as module
from outpace.decoding.control import Adaptive
from outpace.decoding.costs import Conditions, CostTable
from outpace.decoding.loop import Request, decode
from outpace.decoding.options import AUTO_DEPTH, AUTO_NODES, Options, control_of, costs_of
from outpace.drafters.drafter import deepest
from outpace.drafters.lookup import Lookup
from outpace.drafters.medusa import Medusa
from simulated import TABLES, table
from toys import lively, must_fail

HEADS = 4
ASKED: list[tuple[Options, tuple[int, int]]] = [
    ({}, (HEADS, HEADS)),
    ({"depth": 2}, (2, 2)),
    ({"depth": 6}, (HEADS, HEADS)),
    ({"tree": "dynamic"}, (HEADS, AUTO_NODES)),
    ({"tree": "static", "depth": 3}, (3, AUTO_NODES)),
]


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[Conditions]:
    """Under which conditions costs were measured; every row is free."""
    asked: list[Conditions] = []

    def costs(target: Any, drafter: Any, conditions: Conditions, **more: Any) -> CostTable:
        asked.append(conditions)
        return table(TABLES["free"])

    monkeypatch.setattr(module, "cost_table", costs)
    return asked


def drafter() -> Medusa:
    found = medusa_on(lively())
    assert deepest(found) == found.shape.heads == HEADS < AUTO_DEPTH and deepest(Lookup()) is None
    return found


@pytest.mark.parametrize(("options", "bounds"), ASKED, ids=[str(options) for options, _ in ASKED])
def test_bounds_are_the_drafters(options: Options, bounds: tuple[int, int], measured: list[Conditions]) -> None:
    control = control_of(lively(), drafter(), options, 1)
    assert isinstance(control, Adaptive) and (control.max_depth, control.max_nodes) == bounds
    costs_of(lively(), drafter(), options, 1)
    assert [one.rows for one in measured] == [1 + bounds[1]]


def test_other_drafters_have_room(measured: list[Conditions]) -> None:
    control = control_of(lively(), Lookup(), {}, 1)
    assert (control.max_depth, control.max_nodes) == (AUTO_DEPTH, AUTO_DEPTH)


def deepest_asked(monkeypatch: pytest.MonkeyPatch) -> int:
    """The deepest draft that a decoder asks of heads for which every row is free."""
    drafts, seen = drafter(), [0]
    honest = drafts.propose

    def propose(state: Any, budget: Any, *more: Any) -> Any:
        seen.extend(budget.depths)
        return honest(state, budget, *more)

    monkeypatch.setattr(drafts, "propose", propose)
    control = control_of(lively(), drafts, {}, 1)
    requests = [Request((5, 6, 7), max_new_tokens=24)]
    assert list(decode(lively(), drafts, requests, control=control))
    return max(seen)


def is_never_deeper(monkeypatch: pytest.MonkeyPatch) -> None:
    assert 1 < deepest_asked(monkeypatch) <= HEADS


def test_a_decoder_asks_for_no_more(monkeypatch: pytest.MonkeyPatch, measured: list[Conditions]) -> None:
    is_never_deeper(monkeypatch)


def test_planted_fault(monkeypatch: pytest.MonkeyPatch, measured: list[Conditions]) -> None:
    """Nobody reads the drafter's limit."""
    monkeypatch.setattr(module, "deepest", lambda drafter: None)
    with must_fail():
        is_never_deeper(monkeypatch)
