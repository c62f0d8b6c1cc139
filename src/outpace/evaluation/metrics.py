"""Figures with their uncertainty: ratios of medians by paired bootstrap, tau and acceptance pooled over texts.

Knows nothing of models, prompts or clocks: numbers come in, numbers come out, the same ones at every call.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest

import numpy as np
from numpy.typing import NDArray

from outpace.decoding.stats import Speculation

RESAMPLES = 4000
Figures = Sequence[float] | Sequence[int] | NDArray[np.float64]


@dataclass(frozen=True)
class Estimate:
    """A figure and its 95 % interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        if self.low == self.high == self.value:
            return f"{self.value:.3g}"
        return f"{self.value:.3g} [{self.low:.3g}, {self.high:.3g}]"


def resampled(count: int) -> NDArray[np.int64]:
    """Places drawn with replacement, one row a resample: the same for every call with the same count."""
    return np.random.default_rng(count).integers(count, size=(RESAMPLES, count))


def median_ratio(ours: Figures, theirs: Figures) -> Estimate:
    """The ratio of the two medians over units, with the interval of a paired bootstrap.

    Both sides of a resample draw the same units, so that what makes a unit easy or hard for both cancels.

    Args:
        ours, theirs: one positive figure a unit (a prompt, or a group of prompts), in the same order, at least one.

    Source: Efron and Tibshirani 1993, percentile intervals.
    """
    first, second = np.asarray(ours, float), np.asarray(theirs, float)
    places = resampled(len(first))
    ratios = np.median(first[places], 1) / np.median(second[places], 1)
    low, high = np.percentile(ratios, (2.5, 97.5))
    return Estimate(float(np.median(first) / np.median(second)), float(low), float(high))


def median(values: Figures) -> Estimate:
    """The median over units, with its bootstrap interval."""
    array = np.asarray(values, float)
    low, high = np.percentile(np.median(array[resampled(len(array))], 1), (2.5, 97.5))
    return Estimate(float(np.median(array)), float(low), float(high))


def ratio_of_sums(ours: Figures, theirs: Figures) -> Estimate:
    """The ratio of two sums over units, such as tokens to turns, with the interval of a bootstrap over units.

    Args:
        ours, theirs: one figure a unit, in the same order, at least one; a resample whose second sum is 0 counts as 0.
    """
    first, second = np.asarray(ours, float), np.asarray(theirs, float)
    places = resampled(len(first))
    above, below = first[places].sum(1), second[places].sum(1)
    low, high = np.percentile(np.divide(above, below, out=np.zeros_like(above), where=below > 0), (2.5, 97.5))
    whole = float(first.sum() / second.sum()) if second.sum() else 0.0
    return Estimate(whole, float(low), float(high))


@dataclass(frozen=True)
class Pooled:
    """How the drafting of several texts went together; the definitions are those of ``decoding/stats.py``.

    Args:
        turns, plain_turns, drafted, accepted: sums.
        tried, passed: sums by position.
        tau: tokens a verification forward, None when no turn ran.
        acceptance, acceptance_by_position: conditional on the positions before; None and empty without drafts.
    """

    turns: int
    plain_turns: int
    drafted: int
    accepted: int
    tried: tuple[int, ...]
    passed: tuple[int, ...]
    tau: float | None
    acceptance: float | None
    acceptance_by_position: tuple[float, ...]

    @property
    def plain_turn_share(self) -> float | None:
        """Of all turns, the share that had no draft; None when no turn ran."""
        return self.plain_turns / self.turns if self.turns else None


def pooled(speculations: Sequence[Speculation]) -> Pooled:
    """Sums over sums, by position too: the figures of one text that had all of these turns."""
    turns = sum(one.turns for one in speculations)
    tried = _by_position([one.tried for one in speculations])
    passed = _by_position([one.passed for one in speculations])
    return Pooled(
        turns=turns,
        plain_turns=sum(one.plain_turns for one in speculations),
        drafted=sum(one.drafted for one in speculations),
        accepted=sum(one.accepted for one in speculations),
        tried=tuple(tried),
        passed=tuple(passed),
        tau=sum(one.emitted for one in speculations) / turns if turns else None,
        acceptance=sum(passed) / sum(tried) if tried else None,
        acceptance_by_position=tuple(p / t for p, t in zip(passed, tried, strict=True)),
    )


def _by_position(counts: Sequence[Sequence[int]]) -> list[int]:
    return [sum(column) for column in zip_longest(*counts, fillvalue=0)]
