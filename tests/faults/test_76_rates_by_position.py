"""76: acceptance by position is of all turns here, and of the turns that came so far there."""

import itertools
import operator
from typing import Any

import pytest

from outpace.decoding.generate import generate
from outpace.decoding.stats import Tally
from outpace.models.transformer import Transformer
from toys import Scripted, must_fail, reference, right_then_wrong

PROMPT, COUNTS, NEW = (5, 6, 7), [0, 1, 1, 3], 10


def case(target: Transformer) -> None:
    """Turns that accept 0, 1, 1 and 3 of 3: 3/4, 1/3 and 1 given all before; the products are the rates of all."""
    said = reference(target, PROMPT, NEW + 3)
    guesser = Scripted(right_then_wrong([[*PROMPT, *said]], COUNTS))
    stats = generate(target, guesser, list(PROMPT), max_new_tokens=NEW, num_draft_tokens=3).stats.speculation
    assert (stats.turns, stats.drafted, stats.matched, stats.plain_turns) == (4, 12, 5, 0)
    assert stats.acceptance_by_position == pytest.approx((3 / 4, 1 / 3, 1.0))
    products = list(itertools.accumulate(stats.acceptance_by_position, operator.mul))
    assert products == pytest.approx([sum(count > place for count in COUNTS) / 4 for place in range(3)])
    assert stats.acceptance == pytest.approx(5 / 8)  # of the eight drafts whose fate was decided


def test_rates_are_conditional(tiny: Transformer) -> None:
    case(tiny)


def test_planted_fault(tiny: Transformer, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = Tally.add

    def add(self: Tally, **turn: Any) -> None:
        honest(self, **turn)
        self.tried = [self.turns] * turn["depth"]
        self.passed += [0] * (turn["depth"] - len(self.passed))

    monkeypatch.setattr(Tally, "add", add)
    with must_fail():
        case(tiny)
