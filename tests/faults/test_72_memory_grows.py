"""72: memory or slots grow with every request: room for drafts is not given back, or states are kept."""

import gc
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from outpace.decoding import loop
from outpace.decoding.generate import generate
from outpace.decoding.loop import Emission, Request, decode
from outpace.drafters.drafter import Drafter
from outpace.drafters.lookup import Lookup
from outpace.drafters.small import Small
from outpace.models.target import State, Target
from outpace.models.transformer import Transformer
from toys import Watched, lively, must_fail

REQUESTS, NEW, DEPTH, SLOTS = 80, 6, 8, 4
PROMPT = (5, 6, 7, 5, 6)


class Roomy(Watched):
    """Notes the room that is asked for."""

    def __init__(self, target: Target) -> None:
        super().__init__(target)
        self.rooms: list[tuple[int, int]] = []

    def open(self, slots: int, positions: int) -> State:
        self.rooms.append((slots, positions))
        return super().open(slots, positions)


def live() -> int:
    """Tensors that somebody holds."""
    gc.collect()
    return sum(issubclass(type(one), torch.Tensor) for one in gc.get_objects())


def ends(emissions: Iterator[Emission]) -> Iterator[int]:
    """How many requests have ended, each time that one does."""
    done = 0
    for emission in emissions:
        if emission.finish is not None:
            done += 1
            yield done


def case(target: Transformer) -> None:
    """As many tensors after many requests as after twenty: in one run, in runs of their own, cancelled or plain."""
    drafters: list[Drafter | None] = [Lookup(), Small(target, target), None]
    for drafter in drafters:
        roomy = Roomy(target)
        requests = [Request(PROMPT, max_new_tokens=NEW + index % 2) for index in range(REQUESTS)]
        counts = [
            live()
            for done in ends(decode(roomy, drafter, requests, slots=SLOTS, num_draft_tokens=DEPTH))
            if done in (20, REQUESTS - SLOTS)
        ]
        assert counts[1] <= counts[0] + 8, "tensors are kept"
        in_flight = min(DEPTH, NEW + 1) if drafter is not None else 0
        assert roomy.rooms == [(SLOTS, len(PROMPT) + NEW + 1 + in_flight)]
    counts = []
    for index in range(60):
        drafter = drafters[index % 3]
        if index % 4 == 3:  # cancelled
            emissions = decode(target, drafter, [Request(PROMPT, max_new_tokens=NEW)], num_draft_tokens=DEPTH)
            next(emissions)
            del emissions
        else:
            generate(target, drafter, list(PROMPT), max_new_tokens=NEW, num_draft_tokens=DEPTH * (index % 2))
        if index in (11, 59):
            counts.append(live())
    assert counts[1] <= counts[0], "tensors are kept"


def small() -> Transformer:
    return lively(max_position_embeddings=48)


def test_case() -> None:
    case(small())


def test_planted_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """Turns are kept; so are features, caches or verdicts when they leak."""
    kept: list[Any] = []
    honest = loop.take_turn

    def keeping(*given: Any) -> Any:
        kept.append(honest(*given))
        return kept[-1]

    monkeypatch.setattr(loop, "take_turn", keeping)
    with must_fail():
        case(small())


def test_planted_fault_in_the_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every slot is given room for the drafts of all requests."""
    honest = Roomy.open
    monkeypatch.setattr(Roomy, "open", lambda self, slots, positions: honest(self, slots, positions + DEPTH * slots))
    with must_fail():
        case(small())
