"""What is asked of a search: the goal, the loads and temperatures, how texts are decoded, and the time.

Knows nothing of models or of how the time is spent.
"""

import math
from collections import Counter
from dataclasses import dataclass

from outpace.decoding.judging import check_rule
from outpace.decoding.plan import GOALS
from outpace.errors import UsageError
from outpace.evaluation.benchmark import Protocol
from outpace.verification.probabilities import Sampling


@dataclass(frozen=True)
class Level:
    """One load: sequences decoded at once, and their temperature."""

    batch: int = 1
    temperature: float = 0.0

    @property
    def words(self) -> str:
        """As a heading has it."""
        return f"{self.batch} at a time, temperature {self.temperature:g}"


@dataclass(frozen=True)
class Task:
    """A search.

    Args:
        goal: ``latency`` (time a token of one sequence), ``throughput`` (tokens a second of all that are decoded at
            once), or ``goodput`` (the same, of settings that keep to the bound).
        latency_bound_ms: for goodput, what one sequence may wait for a token; above 0.
        batches: sequences decoded at once, each 1 or more, no two alike.
        temperatures: 0, which is greedy, or more, no two alike.
        budget_s: seconds for all of it, loading apart; above 0.
        rule: an acceptance rule for all; None takes the best one that fits.
        max_new_tokens, top_k, top_p, min_p, seed: of every text, as in ``generate``.

    Raises:
        UsageError: a value is outside of these, the rule cannot judge such texts, or a bound stands without its goal or
            the other way round.
    """

    goal: str = "latency"
    latency_bound_ms: float | None = None
    batches: tuple[int, ...] = (1,)
    temperatures: tuple[float, ...] = (0.0,)
    budget_s: float = 300.0
    rule: str | None = None
    max_new_tokens: int = 128
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None

    def __post_init__(self) -> None:
        if self.goal not in GOALS:
            raise UsageError(f"goal is {self.goal!r}; allowed: {', '.join(GOALS)}")
        bound = self.latency_bound_ms
        if (self.goal == "goodput") != (bound is not None):
            said = "no latency bound" if bound is None else f"a latency bound of {bound:g} ms"
            raise UsageError(
                f"goal is {self.goal} with {said}; allowed: goodput with a bound, others without",
                hint="--goal goodput --latency-bound 50",
            )
        if bound is not None and not 0 < bound < math.inf:
            raise UsageError(f"latency_bound is {bound:g} ms; allowed: above 0")
        numbers: tuple[tuple[str, tuple[float, ...], float], ...] = (
            ("concurrency", self.batches, 1),
            ("temperature", self.temperatures, 0),
        )
        for name, values, least in numbers:
            if not values:
                raise UsageError(f"no {name} is given; allowed: one or more")
            for value, times in Counter(values).items():
                if not least <= value < math.inf or times > 1:
                    words = f"{least} or more" if times == 1 else "no number twice"
                    raise UsageError(f"{name} is {value:g}; allowed: {words}")
        check_rule(self.rule, [self.sampling(heat) for heat in self.temperatures])
        self.protocol(self.levels[0])

    @property
    def levels(self) -> list[Level]:
        """Every load at every temperature, the lightest first."""
        return [Level(batch, heat) for heat in sorted(self.temperatures) for batch in sorted(self.batches)]

    def protocol(self, level: Level, *, seconds: float | None = None, tokens: int | None = None) -> Protocol:
        """How one group is measured at a level, once."""
        return Protocol(
            self.budget_s if seconds is None else seconds,
            1,
            level.batch,
            self.max_new_tokens if tokens is None else tokens,
            self.top_k,
            self.top_p,
            self.min_p,
            self.seed,
        )

    def sampling(self, temperature: float) -> Sampling:
        """The law of every token."""
        return Sampling(temperature, self.top_k, self.top_p, self.min_p)

    def seeded(self) -> bool:
        """Whether the coupling judges."""
        return self.seed is not None and self.rule is None

    def drawn(self, temperature: float) -> bool:
        """Whether a model's drafts are drawn freely, so that trees of drawn children make sense."""
        return not self.sampling(temperature).greedy and not self.seeded()
