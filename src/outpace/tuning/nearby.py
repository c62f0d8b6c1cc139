"""Laws at a temperature near the one that was recorded, from the largest logits and their sums.

Knows nothing of turns.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from outpace.errors import UsageError
from outpace.evaluation.probe import Followed
from outpace.tuning.recording import Place, Recording
from outpace.verification.probabilities import Sampling

NEAR = 1.5
"""A temperature is near another one up to this factor."""
TAIL = 3.0
"""How far below the smallest recorded logit the mean of all others is supposed to lie, where nothing tells."""


@dataclass(frozen=True)
class Warmth:
    """From one temperature to another."""

    before: float
    after: float

    @classmethod
    def of(cls, recording: Recording, temperature: float) -> "Warmth | None":
        """None where it is the trace's own.

        Raises:
            UsageError: it is too far away, or the trace does not tell of others.
        """
        own = recording.sampling
        if temperature == own.temperature or (own.greedy and Sampling(temperature).greedy):
            return None
        near = f"{own.temperature / NEAR:.3g} to {own.temperature * NEAR:.3g}"
        allowed = f"{own.temperature:g}" if own.greedy or own.truncates or recording.kind == "trace" else near
        if allowed != near or not own.temperature / NEAR <= temperature <= own.temperature * NEAR:
            raise UsageError(
                f"temperature is {temperature:g}; allowed for this trace: {allowed}",
                hint="probe at that temperature: bench --probe --temperature",
            )
        return cls(own.temperature, temperature)

    def pair(self, theirs: Followed, ours: Place) -> tuple[float, float]:
        """The laws of drafter and target at a token of the text."""
        return self.law(theirs.prob, theirs.law, theirs.row.logits, theirs.row.logsumexp), self.target(ours)

    def target(self, ours: Place) -> float:
        """The target's law at a token of the text."""
        assert ours.said is not None and ours.row is not None, "a probe has them"
        return self.law(ours.said.prob, ours.said.law, *ours.row)

    def law(self, prob: float, law: float, logits: Sequence[float], logsumexp: float) -> float:
        """The law of a token at the other temperature.

        Args:
            prob, law: at temperature 1, and at the recorded one.
            logits, logsumexp: of its row.

        The sum over all tokens is that of the recorded logits, and a tail whose size is known at temperature 1 and at
        the recorded one: between and beyond it is taken to grow as steeply.
        """
        if prob <= 0 or law <= 0 or not logits:
            return 0.0
        logit = math.log(prob) + logsumexp
        sums = {1.0: logsumexp, 1 / self.before: logit / self.before - math.log(law)}
        tails = {beta: _rest(total, logits, beta) for beta, total in sums.items()}
        whole = _tail(tails, min(logits) - TAIL, 1 / self.after)
        total = _sum([value / self.after for value in logits] + whole)
        return min(1.0, math.exp(logit / self.after - total))


def _sum(values: Sequence[float]) -> float:
    """The logarithm of the sum of exponentials."""
    top = max(values)
    return top + math.log(math.fsum(math.exp(value - top) for value in values))


def _rest(total: float, logits: Sequence[float], beta: float) -> float | None:
    """The logarithm of what a sum holds beyond these logits; None where rounding leaves nothing."""
    share = -math.expm1(min(0.0, _sum([beta * value for value in logits]) - total))
    return total + math.log(share) if share > 1e-6 else None


def _tail(known: dict[float, float | None], mean: float, beta: float) -> list[float]:
    """The logarithm of the tail's sum at another inverse temperature; none where there is no tail."""
    points = [(at, value) for at, value in sorted(known.items()) if value is not None]
    if not points:
        return []
    if len(points) == 1:
        (at, value) = points[0]
        return [value + (beta - at) * mean]
    (left, low), (right, high) = points
    return [low + (high - low) * (beta - left) / (right - left)]
