"""Does speculation help on these prompts? Drafted and plain decoding side by side, within a budget of time.

Knows nothing of where prompts come from or how results are shown.

Every way of decoding meets a prompt at one time, A B and at the next prompt B A, so that drift of the machine hits all
alike; each is warmed up once. The first pass goes through the categories in turn and ends early where the budget does,
after one prompt of each at the least; further passes over the same prompts are made only whole. Clocks run around the
public ``generate``, prefill, text and end-of-text included. A unit is a prompt, or a group of prompts of one category
that are decoded at once; its rate is all its new tokens over the wall time, the median of its repeats. A speed-up is
the ratio of median rates over units, plain decoding of the same temperature below the line, with the 95 % interval of a
paired bootstrap over units.
"""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import cycle, islice
from typing import Literal

from outpace.decoding.generate import generate
from outpace.decoding.options import Options
from outpace.decoding.stats import Speculation, Timing
from outpace.drafters.drafter import Drafter
from outpace.errors import NumericsError, UsageError
from outpace.evaluation.machine import peak_rss_mb, reset_peak
from outpace.evaluation.workloads import Question
from outpace.models.staging import Progress
from outpace.models.target import Target
from outpace.verification.probabilities import GREEDY_BELOW

Clock = Callable[[], float]


@dataclass(frozen=True)
class Setting:
    """One way of drafting; the fields are options of ``generate``."""

    num_draft_tokens: int | Literal["auto"] = "auto"
    tree: str = "chain"
    depth: int | None = None
    rule: str | None = None
    temperature: float = 0.0

    @property
    def greedy(self) -> bool:
        """Whether its texts are those of plain decoding, up to near-ties."""
        return self.temperature <= GREEDY_BELOW


@dataclass(frozen=True)
class Protocol:
    """How to measure.

    Args:
        budget_s: seconds for all of it, loading and judging apart; above 0.
        repeats: passes over the prompts at most; 1 or more.
        concurrency: prompts decoded at once; 1 or more.
        max_new_tokens: of each text; 1 or more.
        top_k, top_p, min_p, seed: as in ``generate``, for all ways alike.

    Raises:
        UsageError: a value is outside its range.
    """

    budget_s: float = 180.0
    repeats: int = 3
    concurrency: int = 1
    max_new_tokens: int = 128
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None

    def __post_init__(self) -> None:
        if not 0 < self.budget_s < float("inf"):
            raise UsageError(f"budget is {self.budget_s:g} seconds; allowed: more than 0")
        for name in ("repeats", "concurrency", "max_new_tokens"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} is {getattr(self, name)}; allowed: 1 or more")

    def options(self, setting: Setting | None, temperature: float) -> Options:
        """What ``generate`` is told: for a setting, or for plain decoding without one."""
        options: Options = {
            "temperature": temperature,
            "top_k": self.top_k,
            "top_p": self.top_p,
            "min_p": self.min_p,
            "seed": self.seed,
            "max_new_tokens": self.max_new_tokens,
        }
        if setting is not None:
            options["num_draft_tokens"] = setting.num_draft_tokens
            options["tree"] = setting.tree
            options["depth"] = setting.depth
            options["rule"] = setting.rule
        return options


@dataclass(frozen=True)
class Group:
    """Prompts of one category that are decoded at once; the last ``filled`` of them stand in other groups too."""

    category: str | None
    questions: list[Question]
    filled: int = 0

    @property
    def own(self) -> list[Question]:
        """The prompts that count as its own."""
        return self.questions[: len(self.questions) - self.filled]


def grouped(asked: Sequence[Question], size: int) -> list[Group]:
    """Groups of ``size``, the first of every category, then the second of every category, and so on.

    A category whose last group is not full fills it up from its beginning, so that every batch has the same size.
    """
    kinds: dict[str | None, list[Question]] = {}
    for question in asked:
        kinds.setdefault(question.category, []).append(question)
    rounds: dict[int, list[Group]] = {}
    for category, kind in kinds.items():
        for place, start in enumerate(range(0, len(kind), size)):
            own = kind[start : start + size]
            filler = list(islice(cycle(kind), size - len(own)))
            rounds.setdefault(place, []).append(Group(category, own + filler, len(filler)))
    return [group for place in sorted(rounds) for group in rounds[place]]


@dataclass(frozen=True)
class Run:
    """A group decoded once: the wall time, prefill included, and what came of it, one entry a prompt.

    ``peak_mb`` is the most memory that the process had in use meanwhile, or so far where the system keeps one mark.
    ``timings`` are each prompt's own: its text may have ended before the others'.
    """

    seconds: float
    texts: list[list[int]]
    speculations: list[Speculation]
    peak_mb: float | None = None
    timings: list[Timing] = field(default_factory=list)

    @property
    def rate(self) -> float:
        """New tokens a second, of all texts together."""
        return sum(map(len, self.texts)) / self.seconds


@dataclass(frozen=True)
class Measured:
    """All runs.

    Args:
        groups: what was measured, of ``offered`` groups.
        settings: the ways of drafting, each beside plain decoding of its temperature.
        plain: ``[temperature][group][repeat]``.
        drafted: ``[setting][group][repeat]``.
        repeats: passes over the groups.
        seconds: what all of it took.
    """

    groups: list[Group]
    offered: int
    settings: list[Setting]
    plain: dict[float, list[list[Run]]]
    drafted: list[list[list[Run]]]
    repeats: int
    seconds: float


@dataclass
class _Way:
    """A contestant: who drafts, what ``generate`` is told, and its runs so far."""

    drafter: Drafter | None
    options: Options
    runs: list[list[Run]] = field(default_factory=list)


def measure(
    target: Target,
    drafter: Drafter | Sequence[Drafter],
    groups: Sequence[Group],
    settings: Sequence[Setting],
    protocol: Protocol,
    progress: Progress | None = None,
    clock: Clock = time.perf_counter,
    *,
    warm: bool = True,
) -> Measured:
    """Decode every group in every way, interleaved, as often as the budget allows.

    Args:
        target, drafter: who verifies, and who guesses: one for all settings, or one each.
        groups: from ``grouped``, at least one.
        settings: at least one; plain decoding is measured once a temperature.
        progress: told of groups done in this pass.
        clock: seconds, rising.
        warm: decode the first group in every way unmeasured before; without it the ways have to be warm.

    Raises:
        UsageError, UnsupportedError, NumericsError: as for ``generate``.
    """
    begin = clock()
    plain = {one.temperature: _Way(None, protocol.options(None, one.temperature)) for one in settings}
    drafters = drafter if isinstance(drafter, Sequence) else [drafter] * len(settings)
    drafted = [
        _Way(guesser, protocol.options(one, one.temperature)) for guesser, one in zip(drafters, settings, strict=True)
    ]
    ways = [*plain.values(), *drafted]
    for way in ways if warm else ():
        _run(target, way, groups[0], clock)
    taken, least, repeats, started = len(groups), len({group.category for group in groups}), 0, clock()
    while repeats < protocol.repeats:
        for place in range(taken):
            now = clock()
            if not repeats and place >= least and now - begin + (now - started) / place > protocol.budget_s:
                taken = place
                break
            if progress is not None:
                progress(place, taken, f"pass {repeats + 1}")
            for way in ways if (repeats + place) % 2 == 0 else reversed(ways):
                if not repeats:
                    way.runs.append([])
                way.runs[place].append(_run(target, way, groups[place], clock))
        repeats += 1
        if clock() - begin + (clock() - started) / repeats > protocol.budget_s:
            break
    return Measured(
        groups=list(groups[:taken]),
        offered=len(groups),
        settings=list(settings),
        plain={temperature: way.runs for temperature, way in plain.items()},
        drafted=[way.runs for way in drafted],
        repeats=repeats,
        seconds=clock() - begin,
    )


def _run(target: Target, way: _Way, group: Group, clock: Clock) -> Run:
    reset_peak()
    begin = clock()
    results = generate(target, way.drafter, [question.ids for question in group.questions], **way.options)
    seconds = clock() - begin
    for question, result in zip(group.questions, results, strict=True):
        if result.error is not None:
            raise NumericsError(f"prompt {question.key!r}: {result.error}")
    texts = [result.token_ids for result in results]
    stats = [result.stats for result in results]
    return Run(seconds, texts, [one.speculation for one in stats], peak_rss_mb(), [one.timing for one in stats])


def median_rates(runs: Sequence[Sequence[Run]]) -> list[float]:
    """Tokens a second of every group, the median of its repeats."""
    return [statistics.median(run.rate for run in repeats) for repeats in runs]
