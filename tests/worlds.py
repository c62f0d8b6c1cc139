"""Landscapes of speed that are known: what every setting brings in every category, at every load and temperature.

Knows nothing of what is tested. A world plays ``generate``, costs and replay on a clock of its own; import it as
``worlds``, as ``toys``.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from outpace.decoding.costs import CostTable
from outpace.decoding.generate import Result, Stats
from outpace.decoding.plan import ALL
from outpace.decoding.stats import Tally, timing
from outpace.drafters.budget import KINDS, Kind
from outpace.drafters.lookup import Lookup
from outpace.errors import UsageError
from outpace.evaluation import benchmark
from outpace.evaluation.workloads import Question
from outpace.tuning import search as searching
from outpace.tuning.candidates import Candidate
from outpace.tuning.replay import Prediction
from outpace.tuning.search import Searched, search
from outpace.tuning.task import Level, Task
from outpace.verification.expectation import TurnCosts

PLAIN_S = 0.02
"""Seconds a token of plain decoding."""
TOKENS = 100
Speed = Callable[[str, Candidate, Level], float]
"""``(category, candidate, level) -> times as fast as plain decoding``."""


class Named(Lookup):
    """A drafter of which only the name and the ways of branching matter."""

    def __init__(self, name: str, branchings: frozenset[Kind] = frozenset(KINDS)) -> None:
        super().__init__()
        self.name, self.branchings = name, branchings


CHAINS_ONLY = frozenset[Kind]({"chain"})
LOOKUP, HEAD = Named("lookup", CHAINS_ONLY), Named("head")


def prompts(categories: Mapping[str | None, int]) -> list[Question]:
    """So many prompts a category; the first id tells which prompt it is."""
    names = [name for name, count in categories.items() for _ in range(count)]
    return [Question(f"q{place}", name, [1 + place, 2, 3]) for place, name in enumerate(names)]


@dataclass
class World:
    """Plays all that takes time.

    Args:
        speed: the landscape.
        promise: what a replay says of it; the truth by default, None for no replay at all.
        jitter: how far runs are off, as a share, by chance but the same every time.
        refused: candidates that ``generate`` will not decode with.
        interrupt: the number of the decoded group at which somebody presses Ctrl-C; 0 never.
    """

    speed: Speed
    promise: Speed | None = None
    truthful: bool = True
    jitter: float = 0.01
    refused: Callable[[Candidate], bool] = lambda one: False
    interrupt: int = 0
    now: float = 0.0
    asked: list[Question] = field(default_factory=list)
    drafters: dict[str, Named] = field(default_factory=dict)
    ran: list[tuple[str, Candidate, Level]] = field(default_factory=list)
    probed: int = 0

    def clock(self) -> float:
        return self.now

    def settings(self, drafter: Named | None, options: Mapping[str, Any]) -> Candidate:
        """Who was asked for by these options."""
        if drafter is None:
            return Candidate()
        name = next(name for name, one in self.drafters.items() if one is drafter)
        return Candidate(name, options["num_draft_tokens"], options["tree"], options["depth"], options["rule"])

    def generate(self, target: Any, drafter: Any, given: list[list[int]], **options: Any) -> list[Result]:
        one = self.settings(drafter, options)
        level = Level(len(given), options["temperature"])
        question = self.asked[given[0][0] - 1]
        category = question.category or ALL
        self.ran.append((question.key, one, level))
        if self.interrupt and len(self.ran) >= self.interrupt:
            raise KeyboardInterrupt
        if self.refused(one):
            raise UsageError(f"tree is {one.tree}; allowed: another")
        tokens = min(TOKENS, options["max_new_tokens"])
        chance = random.Random(f"{question.key} {one} {len(self.ran)}")
        hard = 1 + 0.3 * random.Random(question.key).random()
        factor = 1.0 if one.plain else self.speed(category, one, level)
        wait = PLAIN_S * hard / factor * (1 + self.jitter * chance.uniform(-1, 1))
        self.now += wait * tokens
        return [self.result(one, tokens, wait) for _ in given]

    def result(self, one: Candidate, tokens: int, wait: float) -> Result:
        """A text whose drafts are accepted in two cases of three."""
        tally, drafts = Tally(), 0 if one.plain else one.num_draft_tokens if one.num_draft_tokens != "auto" else 3
        assert isinstance(drafts, int)
        for turn in range(12):
            matched = drafts if turn % 3 else 0
            tally.add(rule="greedy", lossless=True, drafted=drafts, depth=drafts, matched=matched, emitted=matched + 1)
        stats = Stats(tally.speculation("x"), timing(0.0, wait * tokens, tokens))
        return Result([7] * tokens, "", "length", 3, stats)

    def costs(self, target: Any, drafter: Any, **given: Any) -> CostTable:
        self.now += 1.0
        verify = {rows: 20 + 0.5 * (rows - 1) for rows in range(1, 34)}
        batches = given["batches"]
        cells = {
            (batch, 256): TurnCosts({n: ms * batch**0.5 for n, ms in verify.items()}, 1.0, 0.1) for batch in batches
        }
        return CostTable(cells)

    def record(self, target: Any, drafters: Any, asked: Any, *given: Any, **more: Any) -> Any:
        self.probed += 1
        self.now += 5.0
        return {}, []

    def predict(
        self,
        recordings: Any,
        candidates: Sequence[Candidate],
        costs: Any,
        task: Task,
        level: Level,
        categories: Sequence[str] = (),
        **time: Any,
    ) -> dict[str, dict[Candidate, Prediction]]:
        speed = self.promise or (self.speed if self.truthful else None)
        if speed is None:
            return {ALL: {}}
        everyone = sorted({question.category or ALL for question in self.asked})
        drafting = [one for one in candidates if not one.plain]

        def said(one: Candidate, names: Sequence[str]) -> Prediction:
            value = sum(speed(name, one, level) for name in names) / len(names)
            return Prediction(2.0, 0.6, (0.6,), 0.0, PLAIN_S / value, value, (0.97 * value, 1.03 * value))

        found = {ALL: {one: said(one, everyone) for one in drafting}}
        return found | {name: {one: said(one, [name]) for one in drafting} for name in categories}

    def search(
        self,
        target: Any,
        monkeypatch: pytest.MonkeyPatch,
        task: Task,
        asked: list[Question],
        drafters: Mapping[str, Named],
        **given: Any,
    ) -> Searched:
        """A search in this world."""
        self.asked, self.drafters = asked, dict(drafters)
        monkeypatch.setattr(benchmark, "generate", self.generate)
        monkeypatch.setattr(searching, "tuning_costs", self.costs)
        monkeypatch.setattr(searching, "costs_of", lambda *_: None)
        monkeypatch.setattr(searching, "record", self.record)
        monkeypatch.setattr(searching, "predict", self.predict)
        everyone: Any = self.drafters
        return search(target, everyone, asked, task, clock=self.clock, **given)


def chain_of(best: int, peak: float, *, auto: float | None = None, steep: float = 0.1) -> Callable[[Candidate], float]:
    """Chains are best at one length and lose so much a token on either side; trees lose as much again."""

    def speed(one: Candidate) -> float:
        if one.num_draft_tokens == "auto":
            return auto if auto is not None else peak - steep / 2
        return peak - steep * abs(one.num_draft_tokens - best) - 0.3 * (one.tree != "chain")

    return speed
