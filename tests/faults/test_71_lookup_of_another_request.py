"""71: a drafter keeps what it saw in an earlier request and proposes it again."""

from typing import Any

import pytest

from outpace.decoding.loop import Request
from outpace.drafters.drafter import Drafter
from outpace.drafters.lookup import History, Lookup
from outpace.drafters.small import Small
from outpace.models.transformer import Transformer
from toys import must_fail, reference, run

LONG, SHORT = tuple(range(10, 40)) * 2, (20, 21, 30, 31)


def case(target: Transformer) -> None:
    """A long, then B short, then A cut in half, by one drafter: drafts and figures are those of a fresh one."""
    for make in (Lookup, lambda: Small(target, target)):
        kept: Drafter = make()
        for prompt in (LONG, SHORT, LONG[:20], LONG):
            proposed: list[list[int]] = []
            [row] = run(target, kept, [Request(prompt, max_new_tokens=10)], observer=collect(proposed))
            fresh: list[list[int]] = []
            [other] = run(target, make(), [Request(prompt, max_new_tokens=10)], observer=collect(fresh))
            assert row.ids == other.ids == reference(target, prompt, 10)
            assert proposed == fresh
            assert (row.stats.drafted, row.stats.accepted) == (other.stats.drafted, other.stats.accepted)
            if isinstance(kept, Lookup):
                assert {token for draft in proposed for token in draft} <= {*prompt, *row.ids}


def collect(proposed: list[list[int]]) -> Any:
    def observe(turn: Any, indices: list[int]) -> None:
        proposed.extend(tokens for tokens, _ in turn.proposal.tree.to_lists())

    return observe


def test_case(tiny: Transformer) -> None:
    case(tiny)


def test_planted_fault(tiny: Transformer, monkeypatch: pytest.MonkeyPatch) -> None:
    texts: dict[int, tuple[Lookup, History]] = {}  # the drafter too: another one must not come by its id

    def goes_on(self: Lookup, state: Any, prompts: list[list[int]], features: Any) -> None:
        for prompt in prompts:
            state.rows.append(texts.setdefault(id(self), (self, History.with_room(64)))[1])
            self._extend(state.rows[-1], prompt)

    monkeypatch.setattr(Lookup, "admit", goes_on)
    with must_fail():
        case(tiny)


def test_planted_fault_of_a_model(tiny: Transformer, monkeypatch: pytest.MonkeyPatch) -> None:
    honest, kept = Small.admit, dict[int, tuple[Small, list[int]]]()

    def believes_to_know(self: Small, state: Any, prompts: list[list[int]], features: Any) -> None:
        _, first = kept.setdefault(id(self), (self, prompts[0]))
        honest(self, state, [first[: len(prompts[0])]], features)

    monkeypatch.setattr(Small, "admit", believes_to_know)
    with must_fail():
        case(tiny)
