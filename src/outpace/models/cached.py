"""What targets over our own cache have in common: a batch of slots, and what a draft in flight may see.

Knows nothing of how a model computes.
"""

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from outpace.models.cache import Cache, Room
from outpace.models.target import State
from outpace.verification.tree import DraftTree


class Cached:
    """The part of a Target that holds its batch: every row has a slot of a ``Cache``.

    A model sets ``room`` and ``device``, and reads its rows by ``cache_of``.
    """

    can_rewind = True
    room: Room
    device: torch.device

    def open(self, slots: int, positions: int) -> Cache:
        """An empty cache with room for ``slots`` rows of ``positions`` tokens each, drafts included."""
        room = self.room
        return Cache(
            layers=room.layers,
            slots=slots,
            heads=room.heads,
            positions=positions,
            width=room.width,
            dtype=room.dtype,
            device=self.device,
        )

    def keep(self, state: State, path: Int[Tensor, "batch depth"], num_accepted: list[int]) -> None:
        """Keep the last token and the accepted path of the tree just scored."""
        self.cache_of(state).keep(path, num_accepted)

    def rewind(self, state: State, lengths: list[int]) -> None:
        """Forget every token past ``lengths``."""
        self.cache_of(state).rewind(lengths)

    def select(self, state: State, rows: list[int]) -> None:
        """Keep only these rows, in this order."""
        self.cache_of(state).select(rows)

    def cache_of(self, state: State) -> Cache:
        """The state as the cache that it is.

        Raises:
            TypeError: another target opened it.
        """
        if not isinstance(state, Cache):
            name = type(self).__name__
            raise TypeError(f"a {name} was given the state of another target: {type(state).__name__}")
        return state


def tree_mask(
    tree: DraftTree, starts: Int[Tensor, " batch"], context: int
) -> Bool[Tensor, "batch nodes_and_root context"]:
    """What root and nodes see: every kept token, the root, their ancestors and themselves; filler sees the root.

    Args:
        tree: the draft, whose root is written at the row's start and whose node i behind it at ``start + 1 + i``.
        starts: how many tokens of each row are kept.
        context: how many entries of a row are looked at, up to the end of the longest row.
    """
    batch, nodes = tree.tokens.shape
    rows = nodes + 1
    own = torch.zeros(batch, rows, rows, dtype=torch.bool, device=starts.device)
    own[:, :, 0] = True
    own[:, 1:, 1:] = tree.ancestor_mask().to(starts.device)
    visible = (torch.arange(context, device=starts.device) < starts[:, None])[:, None].expand(batch, rows, context)
    index = (starts[:, None] + torch.arange(rows, device=starts.device))[:, None].expand(batch, rows, rows)
    return visible.clone().scatter_(2, index, own)
