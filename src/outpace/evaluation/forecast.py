"""The speed-up that a cost table and the measured acceptance foresee where so many sequences are decoded at once.

Knows nothing of prompts or clocks. One forward is shared by all sequences in flight: a turn is a plain one only where
no sequence has a draft, and each that drafts makes the forward wider for all. Acceptance does not depend on how many
are decoded at once; it is pooled over all of them.
"""

import math
from dataclasses import dataclass
from typing import Literal

from outpace.verification.expectation import TurnCosts, chain_tokens

TRIED = 30
"""Positions that were tried less often are taken to be accepted like all together."""


@dataclass(frozen=True)
class Usual:
    """How drafts of one setting fare.

    Args:
        tau: tokens a forward and sequence, turns without a draft included.
        tried, passed: by position, see ``decoding/stats.py``.
        found: of the drafts asked for, the share that had a token or more.
        nodes, steps: tokens and draft steps of a draft, on average.
    """

    tau: float
    tried: tuple[int, ...]
    passed: tuple[int, ...]
    found: float
    nodes: float
    steps: float

    def rates(self, depth: int) -> list[float]:
        """Conditional acceptance by position, up to a depth."""
        usual = sum(self.passed) / max(1, sum(self.tried))
        known = zip(self.tried, self.passed, strict=True)
        measured = [passed / tried if tried >= TRIED else usual for tried, passed in known]
        return [*measured, *[usual] * depth][:depth]


def foreseen(
    usual: Usual,
    costs: TurnCosts,
    num_draft_tokens: int | Literal["auto"],
    *,
    chain: bool,
    depth: int,
    in_flight: float,
    reading: float,
) -> float:
    """Tokens per second against plain decoding.

    Args:
        usual: how drafts fare.
        costs: at as many sequences, up to as many rows as a draft may have and the root.
        num_draft_tokens: of every draft; ``auto`` takes the length that pays best, 0 included.
        chain: whether drafts are chains; of ``auto`` with trees their mean size is taken, or none.
        depth: the longest chain of ``auto``; the draft steps of other drafts, at most.
        in_flight: sequences a turn, above 0.
        reading: the share of plain decoding's time in which prompts are read, 0 to 1: no draft shortens it.
    """

    def gain(tau: float, nodes: int, steps: int) -> float:
        drafting = 1 - math.pow(1 - usual.found, in_flight)
        plain = costs.verify_ms(1)
        turn = drafting * costs.turn_ms(nodes, steps) + (1 - drafting) * (plain + costs.draft_turn)
        return tau * plain / turn

    if num_draft_tokens == "auto" and chain:
        rates = usual.rates(depth)
        taus = [1 + usual.found * (chain_tokens(rates, length) - 1) for length in range(1, depth + 1)]
        decoding = max(1.0, *(gain(tau, length, length) for length, tau in enumerate(taus, 1)))
    elif num_draft_tokens == "auto":
        decoding = max(1.0, gain(usual.tau, round(usual.nodes), round(usual.steps)))
    else:
        decoding = gain(usual.tau, num_draft_tokens, min(depth, num_draft_tokens))
    return 1 / (reading + (1 - reading) / decoding)
