"""A drafter whose drafts are known beforehand: right for some tokens, then wrong, so that all that can happen happens.

Knows nothing of what is checked with it, nor of the target.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from outpace.drafters.budget import Budget, Kind
from outpace.drafters.drafter import DraftState, Features, Proposal
from outpace.models.target import Tap
from outpace.verification.coins import Keys
from outpace.verification.probabilities import Sampling
from outpace.verification.tree import DraftTree


@dataclass
class _Rehearsing:
    """Of every row: which text, how many of its tokens are out, and how many turns it took."""

    rows: list[list[int]] = field(default_factory=list)
    admitted: int = 0


class Rehearsed:
    """Drafts known texts, right for some tokens and then wrong, so that every kind of acceptance happens.

    As a tree it has two children a node, the wrong one first.

    Args:
        texts: what will be said, one a request and in their order.
        vocab_size: of the target.
        rights: how many right tokens a draft begins with, turn by turn; they cycle.
    """

    name = "rehearsed"
    taps: tuple[Tap, ...] = ()
    branchings: frozenset[Kind] = frozenset({"chain", "top-k"})

    def __init__(
        self, texts: Sequence[Sequence[int]], vocab_size: int, rights: Sequence[int] = (9, 0, 2, 9, 1)
    ) -> None:
        self.texts, self.vocab_size, self.rights = texts, vocab_size, rights

    def open(self, slots: int, positions: int) -> _Rehearsing:
        """An empty batch."""
        return _Rehearsing()

    def admit(self, state: DraftState, prompts: list[list[int]], features: list[Features] | None) -> None:
        """The next requests."""
        own = _own(state)
        own.rows += [[own.admitted + place, 0, 0] for place in range(len(prompts))]
        own.admitted += len(prompts)

    def propose(self, state: DraftState, budget: Budget, sampling: list[Sampling], keys: Keys) -> Proposal:
        """What comes next, and from some place on something else."""
        drafts: list[tuple[list[int], list[int]]] = []
        for row, depth, nodes in zip(_own(state).rows, budget.depths, budget.nodes, strict=True):
            index, said, turns = row
            right, siblings = self.rights[(index + turns) % len(self.rights)], not budget.branching.is_chain
            tokens: list[int] = []
            parents: list[int] = []
            parent = -1
            for step, token in enumerate(self.texts[index][said : said + min(depth, nodes // (1 + siblings))]):
                other = (token + 1) % self.vocab_size
                if siblings:
                    tokens.append(other)
                    parents.append(parent)
                    other = (token + 2) % self.vocab_size
                tokens.append(token if step < right else other)
                parents.append(parent)
                parent = len(tokens) - 1
            drafts.append((tokens, parents))
            row[2] += 1
        return Proposal(DraftTree.from_lists(drafts))

    def commit(self, state: DraftState, emitted: list[list[int]], features: list[Features] | None) -> None:
        """Count what was said."""
        for row, tokens in zip(_own(state).rows, emitted, strict=True):
            row[1] += len(tokens)

    def select(self, state: DraftState, rows: list[int]) -> None:
        """Keep only these rows."""
        own = _own(state)
        own.rows = [own.rows[row] for row in rows]


def _own(state: DraftState) -> _Rehearsing:
    if not isinstance(state, _Rehearsing):
        raise TypeError(f"a rehearsed drafter was given the state of another drafter: {type(state).__name__}")
    return state
