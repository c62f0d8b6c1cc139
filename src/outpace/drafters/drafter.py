"""The Drafter protocol and Proposal.

Knows nothing of verdicts' mathematics: it is told what was kept and guesses again.
"""

from dataclasses import dataclass
from typing import Protocol

from jaxtyping import Float, Int
from torch import Tensor

from outpace.models.target import Tap
from outpace.verification.coins import Keys
from outpace.verification.probabilities import Sampling
from outpace.verification.tree import DraftTree

Features = Float[Tensor, "places taps width"]


@dataclass(frozen=True)
class Proposal:
    """A draft for every batch row, and the laws it was drawn from.

    Args:
        tree: the drafted nodes; a row may be empty.
        draft_probs: row 0 is the law the root's children were drawn from, row 1 + i the law of node i's children, in
            target ids; None when children are deterministic (one-hot), as for lookup and top-k trees.
    """

    tree: DraftTree
    draft_probs: Float[Tensor, "batch rows vocab"] | None = None


class DraftState(Protocol):
    """What a drafter remembers of a batch; opened by ``begin``, looked into by its own drafter only."""


class Drafter(Protocol):
    """A guesser. It holds weights only; what belongs to a batch lives in its ``DraftState``.

    Rows join by ``admit`` (at the end of the batch, as the target's do) and leave by ``select``.
    """

    name: str
    taps: tuple[Tap, ...]

    def open(self, slots: int, positions: int) -> DraftState:
        """An empty batch with room for ``slots`` rows of ``positions`` tokens."""
        ...

    def admit(self, state: DraftState, prompts: list[list[int]], features: list[Features] | None) -> None:
        """New last rows whose prompts the target has just read, with its features at ``taps`` for every position."""
        ...

    def propose(
        self,
        state: DraftState,
        limits: list[int],
        sampling: list[Sampling],
        keys: Keys,
    ) -> Proposal:
        """Guess at most ``limits[b]`` tokens of row b after all tokens it was told of.

        Whether a token is submitted may depend on earlier tokens and coins, never on that token itself or on later
        ones (non-anticipation). A draft row that is not finite counts as no draft.
        """
        ...

    def commit(self, state: DraftState, emitted: list[list[int]], features: list[Features] | None) -> None:
        """Tokens that every row has emitted since the last call, in order, and the target's features at ``taps``.

        ``features[b]`` has a row for every token that the target read in that turn and kept: the last token of the
        turn before, then the accepted path.
        """
        ...

    def select(self, state: DraftState, rows: Int[Tensor, " kept"]) -> None:
        """Keep only these batch rows, in this order."""
        ...
