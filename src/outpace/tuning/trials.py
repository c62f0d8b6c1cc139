"""What was measured at one load: every candidate's runs by prompt, and the figures that they make.

Knows nothing of who is measured next or of what is chosen. Two candidates are compared only by the prompts, and the
passes over them, that both have decoded beside each other.
"""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from outpace.decoding.plan import ALL
from outpace.evaluation.benchmark import Measured, Run
from outpace.evaluation.metrics import Estimate, median_ratio, pooled
from outpace.evaluation.outcome import ENOUGH
from outpace.tuning.candidates import PLAIN, Candidate


@dataclass(frozen=True)
class Place:
    """A group of prompts decoded at one time: the group's number in its category, and the pass over it, both from 0."""

    category: str | None
    group: int
    passed: int = 0


@dataclass(frozen=True)
class Comparison:
    """How many times as fast one candidate is as another.

    Args:
        ratio: of the median scores over groups, and the 95 % interval of a paired bootstrap.
        groups, prompts: how many both have decoded.
    """

    ratio: Estimate
    groups: int
    prompts: int

    @property
    def enough(self) -> bool:
        """Whether so many groups were measured that the interval means what it says, as in ``bench``."""
        return self.groups >= ENOUGH

    @property
    def interval(self) -> tuple[float, float] | None:
        """The interval; a single group has none."""
        return None if self.groups < 2 else (self.ratio.low, self.ratio.high)

    def __str__(self) -> str:
        if self.interval is None:
            return f"{self.ratio.value:.2f}x"
        return f"{self.ratio.value:.2f}x [{self.ratio.low:.2f}, {self.ratio.high:.2f}]"


@dataclass(frozen=True)
class Figures:
    """One candidate in one category.

    Args:
        speedup: over plain decoding, in what the goal asks for.
        tokens_per_second: of all sequences together, the median over groups.
        ms_per_token: what one sequence waits for a token, reading its prompt included, the median over groups.
        ms_per_turn: wall time over turns, everything included.
        tau, acceptance, acceptance_by_position, plain_turn_share: pooled, see ``decoding/stats.py``.
        drafts_per_turn: drafted tokens over the turns that had any; 0 without.
    """

    speedup: Comparison
    tokens_per_second: float
    ms_per_token: float
    ms_per_turn: float | None
    tau: float | None
    acceptance: float | None
    acceptance_by_position: tuple[float, ...]
    plain_turn_share: float | None
    drafts_per_turn: float


class Trials:
    """Runs by candidate and place; plain decoding is one of the candidates and stands at every place.

    Args:
        each: whether a score is that of one sequence (latency) and not of all that are decoded at once.
    """

    def __init__(self, *, each: bool) -> None:
        self.each = each
        self.runs: dict[Candidate, dict[Place, Run]] = {}
        self.prompts: dict[Place, int] = {}

    def add(self, place: Place, measured: Measured, candidates: Sequence[Candidate]) -> None:
        """Take in one group, decoded once by plain decoding and by every candidate, in their order."""
        [plain] = measured.plain.values()
        self.prompts[place] = len(measured.groups[0].own)
        for one, runs in zip((PLAIN, *candidates), (plain, *measured.drafted), strict=True):
            self.runs.setdefault(one, {})[place] = runs[0][0]

    def places(self, candidate: Candidate, category: str = ALL) -> list[Place]:
        """Where it was measured, in one category or in all."""
        return [place for place in self.runs.get(candidate, {}) if category in (ALL, place.category)]

    def compare(self, ours: Candidate, theirs: Candidate, category: str = ALL) -> Comparison | None:
        """One candidate over another; None where they never met."""
        other = set(self.places(theirs, category))
        both = [place for place in self.places(ours, category) if place in other]
        if not both:
            return None
        ratio = median_ratio(self._scores(ours, both), self._scores(theirs, both))
        groups = {(place.category, place.group): self.prompts[place] for place in both}
        return Comparison(ratio, len(groups), sum(groups.values()))

    def figures(self, candidate: Candidate, category: str = ALL) -> Figures | None:
        """Everything about a candidate; None where it was not measured."""
        speedup = self.compare(candidate, PLAIN, category)
        if speedup is None:
            return None
        places = self.places(candidate, category)
        runs = [self.runs[candidate][place] for place in places]
        together = pooled([one for run in runs for one in run.speculations])
        turns = sum(max((one.turns for one in run.speculations), default=0) for run in runs)
        drafting = together.turns - together.plain_turns
        return Figures(
            speedup=speedup,
            tokens_per_second=statistics.median(_medians(places, [run.rate for run in runs])),
            ms_per_token=statistics.median(_medians(places, [pace(run) for run in runs])),
            ms_per_turn=1e3 * sum(run.seconds for run in runs) / turns if turns else None,
            tau=together.tau,
            acceptance=together.acceptance,
            acceptance_by_position=together.acceptance_by_position,
            plain_turn_share=together.plain_turn_share,
            drafts_per_turn=together.drafted / drafting if drafting else 0.0,
        )

    def _scores(self, candidate: Candidate, places: Sequence[Place]) -> list[float]:
        runs = [self.runs[candidate][place] for place in places]
        return _medians(places, [1e3 / pace(run) if self.each else run.rate for run in runs])


def pace(run: Run) -> float:
    """Milliseconds that one sequence waits for a token: the median over those decoded at once."""
    waits = [
        1e3 * (timing.prefill_s + timing.decode_s) / len(text)
        for timing, text in zip(run.timings, run.texts, strict=True)
    ]
    return statistics.median(waits)


def _medians(places: Iterable[Place], values: Iterable[float]) -> list[float]:
    """The median over passes, one a group."""
    found: dict[tuple[str | None, int], list[float]] = {}
    for place, value in zip(places, values, strict=True):
        found.setdefault((place.category, place.group), []).append(value)
    return [statistics.median(passes) for passes in found.values()]
