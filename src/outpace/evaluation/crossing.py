"""From which concurrency on drafting stops paying: a sentence, and the break-even with its interval.

Knows nothing of what was measured where: rates of both sides come in, round by round and level by level. That it pays
is said only where a whole interval lies above 1.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from outpace.evaluation.metrics import Estimate, median_ratio, resampled
from outpace.evaluation.outcome import ENOUGH


@dataclass(frozen=True)
class Level:
    """Tokens per second at one concurrency, one figure a round: drafted and plain on the same prompts."""

    concurrency: int
    drafted: Sequence[float]
    plain: Sequence[float]

    @property
    def ratio(self) -> Estimate:
        """The ratio of medians with its interval."""
        return median_ratio(self.drafted, self.plain)

    @property
    def enough(self) -> bool:
        """Whether so many rounds were measured that the interval means what it says."""
        return len(self.drafted) >= ENOUGH

    @property
    def faster(self) -> bool:
        """Whether drafting is faster, beyond doubt."""
        return self.enough and self.ratio.low > 1

    @property
    def slower(self) -> bool:
        """Whether drafting is slower, beyond doubt."""
        return self.enough and self.ratio.high < 1

    @property
    def figure(self) -> str:
        """The speed-up with its interval, if it has one, and the concurrency."""
        one = self.ratio
        between = f" [{one.low:.2f}, {one.high:.2f}]" if len(self.drafted) > 1 else ""
        return f"{one.value:.2f}x{between} at {self.concurrency}"


def break_even(levels: Sequence[Level]) -> Estimate | None:
    """The concurrency behind which drafting never pays again, on straight lines over the logarithm of concurrency.

    0 where it pays nowhere, infinite where it pays at the last level still. The interval is that of a bootstrap over
    rounds, all levels of a round together.

    Args:
        levels: in rising order.

    Returns:
        None for fewer than two levels or two rounds, or where levels have not as many.
    """
    if len(levels) < 2 or len(levels[0].drafted) < 2 or len({len(level.drafted) for level in levels}) > 1:
        return None
    places = resampled(len(levels[0].drafted))
    resamples = np.stack([_ratios(level, places) for level in levels], 1)
    sizes = [level.concurrency for level in levels]
    crossings = [_crossing(sizes, row) for row in resamples.tolist()]
    # The k-th of the sorted crossings rather than something between two of them: one may be infinite.
    low, high = np.percentile(crossings, (2.5, 97.5), method="inverted_cdf")
    return Estimate(_crossing(sizes, [level.ratio.value for level in levels]), float(low), float(high))


def _ratios(level: Level, places: NDArray[np.int64]) -> NDArray[np.float64]:
    drafted, plain = np.asarray(level.drafted, float), np.asarray(level.plain, float)
    ratios: NDArray[np.float64] = np.median(drafted[places], 1) / np.median(plain[places], 1)
    return ratios


def _crossing(sizes: Sequence[int], ratios: Sequence[float]) -> float:
    """Where the line through the ratios goes through 1 for the last time."""
    if ratios[-1] > 1:
        return math.inf
    for (left, above), (right, below) in reversed(list(itertools.pairwise(zip(sizes, ratios, strict=True)))):
        if above > 1:
            return float(left * (right / left) ** ((above - 1) / (above - below)))
    return 0.0


def sentence(levels: Sequence[Level]) -> str:
    """From which concurrency on drafting stops paying, with the figures on both sides of it.

    Args:
        levels: in rising order, at least one.
    """
    few = [level for level in levels if not level.enough]
    if few:
        figures = ", ".join(dict.fromkeys((levels[0].figure, levels[-1].figure)))
        return f"too few rounds for a verdict: {figures} at once; allow time for {ENOUGH} rounds, or ask fewer levels"
    if len(levels) == 1:
        words = "drafting pays" if levels[0].faster else "no clear difference"
        words, plainly = ("drafting does not pay", "; decode plainly") if levels[0].slower else (words, "")
        return f"{words}: {levels[0].figure} at once{plainly}"
    pays = [level for level in levels if level.faster]
    if not pays:
        best = max(levels, key=lambda level: level.ratio.value)
        if all(level.slower for level in levels):
            return f"drafting pays at no concurrency measured: at best {best.figure} at once; decode plainly"
        return f"drafting pays clearly at no concurrency measured: at best {best.figure} at once"
    doubtful = [str(level.concurrency) for level in levels if not level.faster and level.concurrency < _last(pays)]
    but = f", but not clearly at {', '.join(doubtful)}" if doubtful else ""
    if pays[-1] is levels[-1]:
        return f"drafting pays at every concurrency measured{but}: still {pays[-1].figure} at once"
    behind = next(level for level in levels if level.concurrency > _last(pays))
    longer = "no longer" if behind.slower else "no longer clearly"
    return f"drafting pays up to {_last(pays)} at once{but}, and {longer} from {behind.concurrency} on: " + (
        f"{pays[-1].figure}, {behind.figure}{_about(levels)}"
    )


def _last(pays: Sequence[Level]) -> int:
    return pays[-1].concurrency


def _about(levels: Sequence[Level]) -> str:
    """The break-even in words, where drafting is slower at some level beyond doubt: else there is none to speak of."""
    point = break_even(levels)
    if point is None or not any(level.slower for level in levels) or not math.isfinite(point.value):
        return ""
    high = f"{point.high:.3g}" if math.isfinite(point.high) else f"above {levels[-1].concurrency}"
    return f"; break-even at about {point.value:.3g} at once [{point.low:.3g}, {high}]"
