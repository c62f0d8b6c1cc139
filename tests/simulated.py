"""Decoding without models: turns with known verdicts, costs that are given, acceptance by chance or by script.

Knows nothing of what is tested. Import it as ``simulated``, as ``toys``.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from statistics import fmean

import torch

from outpace.decoding.control import Control
from outpace.decoding.costs import CostTable
from outpace.decoding.turn import Turn
from outpace.drafters.budget import Budget
from outpace.drafters.drafter import Proposal
from outpace.models.target import Scores, padded
from outpace.verification.coins import Keys
from outpace.verification.expectation import TurnCosts
from outpace.verification.tree import DraftTree
from outpace.verification.verdict import Verdict

ROOM = 999
DEPTH = 8


def rows(cost: Callable[[int], float], **draft: float) -> TurnCosts:
    return TurnCosts({size: float(cost(size)) for size in range(1, 34)}, **draft)


TABLES = {
    "a small model on two cores": rows(lambda size: 12 + 0.2 * (size - 1), draft_turn=0.1),
    "stairs": rows(lambda size: 20 + 5 * ((size + 2) // 4)),
    "steep": rows(lambda size: 20 + 3 * (size - 1)),
    "a drafter that costs": rows(lambda size: 20 + 0.3 * (size - 1), draft_step=3.0),
    "a step costs half a turn": rows(lambda size: 20 + 0.3 * (size - 1), draft_step=10.0),
    "every row a turn": rows(lambda size: 20 * size),
    "free": rows(lambda size: 20),
}


def table(costs: TurnCosts) -> CostTable:
    return CostTable({(1, 128): costs})


@cache
def turn_of(parents: tuple[tuple[int, ...], ...], paths: tuple[tuple[int, ...], ...]) -> Turn:
    """A turn with these trees and these accepted paths; what its tokens were is nobody's business."""
    batch, counts = len(parents), [len(path) for path in paths]
    tree = DraftTree.from_lists([([0] * len(row), row) for row in parents])
    nowhere = torch.zeros(batch, dtype=torch.int64)
    verdict = Verdict(padded([list(path) for path in paths], -1), torch.tensor(counts), nowhere, "greedy", True)
    return Turn(
        proposal=Proposal(tree),
        scores=Scores(torch.zeros(batch, 1 + tree.tokens.shape[1], 2)),
        verdict=verdict,
        rules=("greedy",) * batch,
        emitted=[[0] * (1 + count) for count in counts],
        paths=[list(path) for path in paths],
        keys=Keys((0,) * batch, (0,) * batch, (1,) * batch, (False,) * batch),
        errors=(None,) * batch,
        draft_s=0.0,
        verify_s=0.0,
        total_s=0.0,
    )


def chains_of(drafted: Sequence[int], accepted: Sequence[int]) -> Turn:
    return turn_of(
        tuple(tuple(range(-1, count - 1)) for count in drafted), tuple(tuple(range(count)) for count in accepted)
    )


@dataclass
class Outcome:
    """What a simulation cost and gained, and what was asked for in every turn."""

    ms: float = 0.0
    tokens: int = 0
    plain_ms: float = 0.0
    budgets: list[Budget] = field(default_factory=list)

    @property
    def speedup(self) -> float:
        """Over plain decoding of the same tokens, a row each."""
        return self.plain_ms / self.ms

    @property
    def plain_share(self) -> float:
        return fmean(budget.empty for budget in self.budgets)


Alpha = Callable[[int, int], float]
"""``(turn, row) -> acceptance``, the same at every depth."""


def simulate(
    control: Control, costs: TurnCosts, alpha: Alpha, turns: int, *, seed: int = 0, batch: int = 1, found: float = 1.0
) -> Outcome:
    """Turns of chains whose tokens are accepted with known chances, where the drafter finds anything."""
    coins, outcome = random.Random(seed), Outcome()
    control.admit(batch)
    for turn in range(turns):
        budget = control.budget([ROOM] * batch, [100 + turn] * batch)
        drafted = [depth if coins.random() < found else 0 for depth in budget.depths]
        accepted = []
        for row, count in enumerate(drafted):
            hits = [coins.random() < alpha(turn, row) for _ in range(count)]
            accepted.append([*hits, False].index(False))
        longest = max(drafted)
        searched = costs.draft_turn if not longest and not budget.empty else 0.0
        outcome.ms += costs.turn_ms(longest, longest) + searched
        outcome.tokens += batch + sum(accepted)
        outcome.plain_ms += costs.verify_ms(1) * (1 + sum(accepted) / batch)
        outcome.budgets.append(budget)
        control.learn(chains_of(drafted, accepted))
    return outcome


def steady(alpha: float) -> Alpha:
    return lambda turn, row: alpha
