"""Takes whole turns on arbitrary ids, again and again, and times them.

Knows nothing of what the times are for.
"""

import statistics
import time
from collections.abc import Callable, Mapping
from typing import TypeVar

from outpace.decoding.turn import Batch, Turn, first_turn, take_turn
from outpace.drafters.budget import CHAIN, Branching, Budget, Kind
from outpace.drafters.drafter import Drafter, DraftState, Features, Proposal, chains
from outpace.models.target import Tap, Target
from outpace.verification.coins import Keys
from outpace.verification.probabilities import Sampling

ROUNDS, FEWEST = 7, 3
"""Rounds that are taken and counted, and how many even where there is no time."""
_SPARE = 128  # positions of a drafter's cache for the texts that grow while it is timed

Name = TypeVar("Name")


class Filler:
    """Drafts one token over and over, as many as the budget says: what is verified makes no difference to the time."""

    name = "filler"
    branchings: frozenset[Kind] = frozenset({"chain"})

    def __init__(self, taps: tuple[Tap, ...]) -> None:
        self.taps = taps

    def open(self, slots: int, positions: int) -> DraftState:
        return object()

    def admit(self, state: DraftState, prompts: list[list[int]], features: list[Features] | None) -> None:
        pass

    def propose(self, state: DraftState, budget: Budget, sampling: list[Sampling], keys: Keys) -> Proposal:
        return Proposal(chains([[0] * depth for depth in budget.depths]))

    def commit(self, state: DraftState, emitted: list[list[int]], features: list[Features] | None) -> None:
        pass

    def select(self, state: DraftState, rows: list[int]) -> None:
        pass


class Bench:
    """A batch of equal texts whose turns can be taken again and again: the target forgets each of them."""

    def __init__(
        self,
        target: Target,
        drafter: Drafter,
        count: int,
        context: int,
        rows: int,
        sampling: Sampling,
        seeded: bool,
        branching: Branching = CHAIN,
    ) -> None:
        self.branching, self.nodes = branching, rows - 1
        self.batch = Batch(
            target=target,
            state=target.open(count, context + 1 + rows),
            drafter=drafter,
            draft_state=drafter.open(count, context + 1 + rows + _SPARE),
            processors=[()] * count,
            samplings=[sampling] * count,
            seeds=[0] * count,
            samples=list(range(count)),
            coupled=[seeded and not sampling.greedy] * count,
        )
        ids = [token for token in range(min(target.vocab_size, 32)) if token not in target.eos_ids] or [0]
        prompt = (ids * (1 + context // len(ids)))[:context]  # it repeats itself, so that lookup has what to copy
        first_turn(self.batch, [list(prompt) for _ in range(count)])
        self.lengths = list(self.batch.state.lengths)

    def _turn(self, depth: int) -> Turn:
        nodes = depth if self.branching.is_chain else max(depth, self.nodes)
        budget = Budget([depth] * len(self.lengths), [nodes] * len(self.lengths), self.branching)
        turn = take_turn(self.batch, budget)
        self.batch.target.rewind(self.batch.state, self.lengths)
        for text, length in zip(self.batch.texts, self.lengths, strict=True):
            del text[length + 1 :]
        return turn

    def verify_ms(self, rows: int) -> float:
        """One turn with so many rows a sequence, drafting excluded."""
        turn = self._turn(rows - 1)
        return (turn.total_s - turn.draft_s) * 1e3

    def draft_ms(self, depth: int) -> float:
        """The drafting of one turn; of a tree, with as many nodes as there may be rows."""
        return self._turn(depth).draft_s * 1e3


def medians(jobs: Mapping[Name, Callable[[], float]], until: float) -> tuple[dict[Name, float], float]:
    """The median of every job and the largest spread, run in turns: A B C, C B A, ...

    A first round, which prepares kernels, is not counted. Rounds stop when the time is up, but not before the fewest.
    """
    for job in jobs.values():
        job()
    times: dict[Name, list[float]] = {name: [] for name in jobs}
    for taken in range(ROUNDS):
        if taken >= FEWEST and time.perf_counter() > until:
            break
        for name in list(jobs)[:: 1 if taken % 2 == 0 else -1]:
            times[name].append(max(jobs[name](), 1e-6))  # a clock may be too coarse for a toy
    middles = {name: statistics.median(found) for name, found in times.items()}
    apart = [statistics.median(abs(one / middles[name] - 1) for one in found) for name, found in times.items()]
    return middles, max(apart)
