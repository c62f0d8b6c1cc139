"""A turn taken apart: where its time goes, what limits it, and what other circumstances would bring.

Knows nothing of words. Measured acceptance and measured or given costs come in. A change is told as the ratio of two
figures of the same formula, applied to what was measured, so that what the formula leaves out cancels.
"""

import math
from dataclasses import dataclass, replace

from outpace.decoding.costs import CostTable
from outpace.drafters.budget import Branching
from outpace.tuning.candidates import Candidate
from outpace.tuning.replay import Prediction
from outpace.tuning.trials import Figures
from outpace.verification.expectation import TurnCosts, chain_tokens

LONGEST = 8
"""The longest chain that a better drafter is supposed to draft."""
BETTER = 0.1
"""How much more acceptance a better drafter is supposed to have."""
_CONTEXT = 256


@dataclass(frozen=True)
class Breakdown:
    """A turn on average.

    Args:
        alpha: acceptance, conditional, pooled over positions; 0 to 1.
        found: the share of turns that have a draft.
        nodes, steps: of a draft, on average; of a chain the same.
        costs: milliseconds at this load.
        chain: whether drafts are chains, whose best length may change with their acceptance.
        turn_ms: what a turn took by the clock, everything included; None where nothing was timed.
        copied: the share of turns in which lookup drafts in place of the model, whose steps are not taken then.
    """

    alpha: float
    found: float
    nodes: int
    steps: int
    costs: TurnCosts
    chain: bool = True
    turn_ms: float | None = None
    copied: float = 0.0

    @classmethod
    def of(
        cls, one: Candidate, known: Figures | Prediction, table: CostTable, batch: int, copied: float = 0.0
    ) -> "Breakdown | None":
        """Of what was measured or predicted; None where there were no drafts. ``copied`` is predicted in any case."""
        if known.acceptance is None:
            return None
        steps = one.num_draft_tokens if isinstance(one.num_draft_tokens, int) else one.depth or LONGEST
        nodes, measured = steps, None
        if isinstance(known, Figures):
            nodes, measured = max(1, round(known.drafts_per_turn)), known.ms_per_turn
        chain = one.tree == "chain"
        steps = nodes if chain else min(nodes, one.depth or LONGEST)
        own = table.for_tree(Branching.parse(one.tree))
        costs = own.at(batch, _CONTEXT, 1 + max(nodes, LONGEST))
        found = 1 - (known.plain_turn_share or 0.0)
        return cls(known.acceptance, found, nodes, steps, costs, chain, measured, min(copied, found))

    @property
    def plain_ms(self) -> float:
        """A turn of plain decoding."""
        return self.costs.verify_ms(1)

    @property
    def draft_ms(self) -> float:
        """Drafting, in the mean over turns with a draft and without."""
        return (1 - self.copied) * self.costs.draft_turn + self._stepping * self.costs.draft_step

    @property
    def _stepping(self) -> float:
        """Draft steps of a turn."""
        return max(0.0, self.found - self.copied) * self.steps

    @property
    def verify_ms(self) -> float:
        """The target's forward and the judging, in the same mean."""
        return self.found * self.costs.verify_ms(1 + self.nodes) + (1 - self.found) * self.plain_ms

    @property
    def other_ms(self) -> float | None:
        """What neither explains: prompts, text, and the work between turns."""
        return None if self.turn_ms is None else max(0.0, self.turn_ms - self.draft_ms - self.verify_ms)

    @property
    def speedup(self) -> float:
        """Over plain decoding by the formula."""
        tau = 1 + self.found * (chain_tokens(self.alpha, self.steps) - 1)
        return tau * self.plain_ms / (self.draft_ms + self.verify_ms)

    def needed(self, scale: float = 1.0, *, adapts: bool = False) -> float:
        """The smallest acceptance, in hundredths, at which drafts like these are as fast as plain decoding.

        Args:
            scale: measured speed-up over that of the formula.
            adapts: whether chains take the best length for every acceptance.

        Returns:
            Infinite where even perfect drafts would not be.
        """
        steps = [step / 100 for step in range(101)]
        ways = {step: self.accepted(step) if adapts else replace(self, alpha=step) for step in steps}
        return next((step for step, way in ways.items() if way.speedup * scale >= 1), math.inf)

    def accepted(self, alpha: float) -> "Breakdown":
        """The same with another acceptance, and with the best length for it where drafts are chains."""
        one = replace(self, alpha=min(1.0, alpha))
        lengths = range(1, LONGEST + 1) if self.chain else []
        return max([one, *(replace(one, nodes=n, steps=n) for n in lengths)], key=lambda other: other.speedup)

    def cheaper_draft(self) -> "Breakdown":
        """The same with drafting at half its cost."""
        costs = TurnCosts(self.costs.verify, self.costs.draft_step / 2, self.costs.draft_turn / 2)
        return replace(self, costs=costs)

    def cheaper_rows(self) -> "Breakdown":
        """The same with every row of the forward but the first at half its cost."""
        verify = {rows: (ms + self.plain_ms) / 2 for rows, ms in self.costs.verify.items()}
        return replace(self, costs=replace(self.costs, verify=verify))

    def oftener(self) -> "Breakdown":
        """The same with a draft in half of the turns that have none."""
        return replace(self, found=(1 + self.found) / 2)

    def affordable_step(self, scale: float = 1.0) -> float:
        """Milliseconds that a draft step may take for these drafts to break even; negative where none may."""
        tau = 1 + self.found * (chain_tokens(self.alpha, self.steps) - 1)
        left = scale * tau * self.plain_ms - self.verify_ms - (1 - self.copied) * self.costs.draft_turn
        return left / max(1e-9, self._stepping)
