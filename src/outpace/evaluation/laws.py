"""Whether a rule keeps the law, and whether every draft was drawn from the law that it claims.

Knows nothing of models: rules are enumerated on tables, and drafts are watched turn by turn.
"""

from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor

from outpace.decoding.turn import Turn
from outpace.drafters.drafter import Proposal
from outpace.evaluation.pair import Check
from outpace.evaluation.uniform import farthest, farthest_allowed, stand
from outpace.verification.oracle import (
    Drafting,
    Table,
    count_prefixes,
    map_sampler,
    output_law,
    ranked,
    sampled,
    total_variation,
)
from outpace.verification.rules import CHAIN_ONLY, rule_named
from outpace.verification.tree import DraftTree


def _tables(seed: int) -> tuple[Table, Table]:
    generator = torch.Generator().manual_seed(seed)
    shape = (2, count_prefixes(3, 3), 3)
    target, draft = (1.5 * torch.randn(shape, generator=generator, dtype=torch.float64)).softmax(-1)
    return Table(target), Table(draft)


def check_rule(name: str) -> Check:
    """The law of the rule by enumeration over all drafts of a small vocabulary, and of its sampler over all coins."""
    rule, far = rule_named(name), 0.0
    shapes = [(-1,), (-1, 0)] if name in CHAIN_ONLY else [(-1,), (-1, 0), (-1, -1, 0)]
    for seed in range(2):
        target, draft = _tables(seed)
        for shape in shapes:
            makers: list[Drafting] = [sampled(draft, shape), ranked(draft, shape)]
            far = max([far, *(total_variation(output_law(rule, target, make, 3), target.joint(3)) for make in makers)])
        for token in range(3):
            tree, rows = DraftTree.chain(torch.tensor([[token]])), torch.tensor([[0, 1 + token]])
            given = target.rows[rows], tree, draft.rows[rows]
            far = max(far, float((map_sampler(rule, *given).law - rule.law(*given)[0]).abs().max()))
    words = "total variation from the target's law, all drafts of a small vocabulary enumerated"
    lossy = "" if rule.lossless else f"; {name} is a lossy rule by design"
    return Check(f"the rule {name} keeps the law", "law", far < 1e-9, far, 1e-9, 0.0, words + lossy)


# ---- drafts and what they claim ------------------------------------------------------------------------------------


@dataclass
class DraftPlaces:
    """Where drafted tokens stand in the laws that their proposals claim; an observer of turns.

    Siblings are drawn without replacement: each from what the ones before it have left. The places are uniform only if
    a token was drawn from the law that is claimed, and if nobody looked at it before it was submitted.
    """

    generator: torch.Generator
    found: list[Tensor] = field(default_factory=list)

    def __call__(self, turn: Turn, indices: list[int]) -> None:
        """Look at one turn."""
        proposal = turn.proposal
        if proposal.draft_probs is not None:
            width = proposal.tree.tokens.shape[1]
            self.found += [self._places(proposal, proposal.draft_probs, node) for node in range(width)]

    def _places(self, proposal: Proposal, laws: Float[Tensor, "batch rows vocab"], node: int) -> Float[Tensor, " some"]:
        tree = proposal.tree
        who = tree.real[:, node].nonzero()[:, 0]
        parents, tokens = tree.parents[who], tree.tokens[who]
        law = laws[who, parents[:, node] + 1].clone()
        for other in range(node):
            twin = (parents[:, other] == parents[:, node]).nonzero()[:, 0]
            law[twin, tokens[twin, other]] = 0
        coins = torch.rand(len(who), generator=self.generator, dtype=torch.float64)
        return stand(law, law, tokens[:, node], coins)

    def check(self, alarm: float) -> Check | None:
        """None where no draft claimed a law. The count is a power of two, each with its share of the alarm."""
        places = torch.cat(self.found) if self.found else torch.empty(0, dtype=torch.float64)
        if not len(places):
            return None
        impossible = int(places.isnan().sum())
        count = 1 << (len(places).bit_length() - 1)
        first = places[:count].nan_to_num(1.0)
        statistic, allowed = farthest(first), farthest_allowed(count, alarm / 24)
        words = f"{count} drafted tokens, distance of their places in that law from uniform"
        words += f"; {impossible} that the law cannot draw" if impossible else ""
        passed = statistic <= allowed and not impossible
        return Check("drafts follow the law they claim", "law", passed, statistic, allowed, alarm, words)
