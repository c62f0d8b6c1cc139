"""What may be chosen: plain decoding, and for every drafter chains, trees and the controller, the simplest first.

Knows nothing of how they are measured or of which one wins.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from outpace.decoding.options import AUTO_DEPTH
from outpace.decoding.plan import NONE, Choice, Evidence
from outpace.drafters.budget import Branching
from outpace.drafters.drafter import Drafter, deepest, own_rates
from outpace.drafters.load import JOINED, LOOKUP
from outpace.evaluation.benchmark import Setting
from outpace.models.target import Target
from outpace.verification.rules import CHAIN_ONLY

CHAINS = (1, 2, 3, 4, 6, 8)
"""Lengths of chains that are tried, as far as the drafter reaches."""
TREES = ((8, 3), (16, 4), (24, 6))
"""Nodes and depths of the trees that are tried; as large as ``auto`` may choose them."""


@dataclass(frozen=True)
class Candidate:
    """One way of decoding; the fields are those of a ``Choice``, and by default it is plain."""

    drafter: str = NONE
    num_draft_tokens: int | Literal["auto"] = 0
    tree: str = "chain"
    depth: int | None = None
    rule: str | None = None

    @property
    def plain(self) -> bool:
        """Whether nothing is drafted."""
        return self.drafter == NONE or self.num_draft_tokens == 0

    @property
    def effort(self) -> tuple[int, ...]:
        """How much there is to it, for ties: plain, then lookup, then other drafters, then two that are joined; of each
        first the controller, which gives up by itself where drafting does not pay, then chains by their length, then
        trees."""
        who = 0 if self.plain else 1 if self.drafter == LOOKUP else 2 + self.drafter.startswith(JOINED)
        fixed = self.num_draft_tokens if isinstance(self.num_draft_tokens, int) else 0
        return who, int(self.tree != "chain"), int(fixed > 0), fixed, self.depth or 0

    @property
    def words(self) -> str:
        """In words, as in a sentence of reasons."""
        other = self.drafter.removeprefix(JOINED)
        return self._said(
            self.drafter if other == self.drafter else f"{LOOKUP} where the text repeats itself and {other} elsewhere"
        )

    @property
    def label(self) -> str:
        """As a row of a table has it: short, the drafter by its name."""
        return self._said(self.drafter)

    def _said(self, drafter: str) -> str:
        if self.plain:
            return "plain decoding"
        ruled = f", rule {self.rule}" if self.rule is not None else ""
        shape = "" if self.tree == "chain" else f", {self.tree}" + (f", {self.depth} deep" if self.depth else "")
        if self.num_draft_tokens != "auto":
            many = f"{self.num_draft_tokens} draft{'s' * (self.num_draft_tokens > 1)} a turn"
            return f"{drafter}, {many}{shape}{ruled}"
        most = f", at most {self.depth}" if self.depth and not shape else ""
        return f"{drafter}, as many drafts as pay{most}{shape}{ruled}"

    def setting(self, temperature: float) -> Setting:
        """The same as ``bench`` measures it."""
        return Setting(self.num_draft_tokens, self.tree, self.depth, self.rule, temperature)

    def choice(self, category: str, batch: int, temperature: float, reason: str, evidence: Evidence) -> Choice:
        """The same as a choice of a plan."""
        return Choice(
            category,
            batch,
            self.drafter,
            self.num_draft_tokens,
            self.tree,
            self.depth,
            self.rule,
            temperature,
            reason,
            evidence,
        )


PLAIN = Candidate()


def grid(
    name: str, drafter: Drafter, target: Target, *, drawn: bool = False, rule: str | None = None
) -> list[Candidate]:
    """All that is tried of one drafter: the controller, chains, and trees where both can branch and the rule allows.

    Args:
        name: as the plan will say it and ``load_drafter`` takes it.
        drafter, target: the pair; a target that cannot rewind is decoded plainly alone.
        drawn: whether drafts are drawn from the drafter's law (a temperature and no seed), so that trees of drawn
            children are tried besides.
        rule: a named rule for all of them.
    """
    if not target.can_rewind:
        return []
    most = min(AUTO_DEPTH, deepest(drafter) or AUTO_DEPTH)
    found = [Candidate(name, "auto", depth=most, rule=rule)]
    found += [Candidate(name, length, depth=length, rule=rule) for length in sorted({min(one, most) for one in CHAINS})]
    if not target.can_tree or rule in CHAIN_ONLY:
        return found
    kinds = ["dynamic", *["static"] * bool(own_rates(drafter)), *["sampled:3"] * drawn]
    for tree in [kind for kind in kinds if Branching.parse(kind).kind in drafter.branchings]:
        found.append(Candidate(name, "auto", tree, most, rule))
        found += [Candidate(name, nodes, tree, min(depth, most), rule) for nodes, depth in TREES]
    return found


def all_candidates(
    drafters: Sequence[tuple[str, Drafter]], target: Target, *, drawn: bool = False, rule: str | None = None
) -> list[Candidate]:
    """Plain decoding and the grids of all drafters, simple ones first; the arguments are those of ``grid``."""
    found = [PLAIN]
    for name, drafter in drafters:
        found += grid(name, drafter, target, drawn=drawn, rule=rule)
    return sorted(found, key=lambda one: one.effort)
