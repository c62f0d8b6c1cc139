"""A preallocated key-value cache: append, keep a path, rewind; slots are packed and refilled.

Knows nothing of attention or of what the tokens mean. Every batch row has its own length; entries past it are stale
and must be masked or overwritten, never read.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from outpace.errors import UsageError

Places = tuple[Int[Tensor, "batch 1"], Int[Tensor, "batch time"]]
"""Rows and positions of tokens in a cache, as an index."""

KeysValues = tuple[Float[Tensor, "batch kv_heads context width"], Float[Tensor, "batch kv_heads context width"]]


@dataclass(frozen=True)
class Room:
    """What a model would have its cache hold: so many layers of keys and values, all of one shape."""

    layers: int
    heads: int
    width: int
    dtype: torch.dtype


class Cache:
    """Keys and values of every layer, ``[layers, slots, heads, positions, width]`` each, and one length a row.

    Both lie in one tensor, keys before values along its heads, so that a layer writes them in one operation. The active
    rows are slots ``0 .. len(lengths) - 1``. Nothing is ever copied but accepted tree paths and rows that move into a
    freed slot.

    Args:
        layers, slots, heads, positions, width: the room to allocate; ``positions`` counts drafts in flight too.
        dtype, device: of keys and values.
    """

    def __init__(
        self,
        *,
        layers: int,
        slots: int,
        heads: int,
        positions: int,
        width: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        # Zeros and not empty memory: a masked entry weighs 0, and 0 times a stray NaN is NaN.
        self.entries = torch.zeros(layers, slots, 2 * heads, positions, width, dtype=dtype, device=device)
        self.keys, self.values = self.entries.chunk(2, dim=2)
        self.lengths: list[int] = []

    @property
    def slots(self) -> int:
        """How many rows fit."""
        return self.keys.shape[1]

    @property
    def positions(self) -> int:
        """How many tokens fit in a row."""
        return self.keys.shape[3]

    def admit(self, count: int) -> range:
        """Make ``count`` more rows active, at the end, each of length 0.

        Raises:
            UsageError: fewer slots are free.
        """
        first = len(self.lengths)
        if first + count > self.slots:
            raise UsageError(
                f"{count} more rows were given to a cache with {self.slots - first} of {self.slots} slots free",
                hint="open it with more slots, or wait until rows finish",
            )
        self.lengths += [0] * count
        return range(first, first + count)

    def require(self, starts: list[int], count: int) -> None:
        """Ask for room before a forward: ``count`` tokens behind each start.

        Raises:
            UsageError: a row would run past the positions that were allocated.
        """
        needed = max(starts, default=0) + count
        if needed > self.positions:
            raise UsageError(
                f"the cache holds {self.positions} positions a row and {needed} are needed",
                hint="open it with more positions: prompt, new tokens and drafts in flight",
            )

    def places(self, rows: Sequence[int], starts: list[int], time: int) -> Places:
        """Where ``time`` tokens behind each row's start belong, in every layer."""
        device = self.keys.device
        behind = torch.tensor(starts, dtype=torch.int64, device=device)[:, None] + torch.arange(time, device=device)
        return torch.tensor(rows, dtype=torch.int64, device=device)[:, None], behind

    def write(self, layer: int, places: Places, entries: Float[Tensor, "batch time both_heads width"]) -> None:
        """Put one layer's keys, and behind them its values, at their places; lengths stay as they are."""
        rows, behind = places
        self.entries[layer][rows, :, behind] = entries

    def read(self, rows: range, length: int) -> list[KeysValues]:
        """Views of the first ``length`` positions of these rows, keys and values for each layer."""
        at = (slice(None), slice(rows.start, rows.stop), slice(None), slice(0, length))
        return list(zip(self.keys[at].unbind(), self.values[at].unbind(), strict=True))

    def keep(self, path: Int[Tensor, "batch depth"], num_accepted: list[int]) -> None:
        """Keep the root and the accepted path of the tree written behind each length; forget its other nodes.

        The root lies at ``length``, node i at ``length + 1 + i``. Afterwards the path lies in order behind the root.
        """
        for row, (nodes, count) in enumerate(zip(path.tolist(), num_accepted, strict=True)):
            start = self.lengths[row] + 1
            kept = nodes[:count]
            if kept != list(range(count)):  # a chain, and a first branch, lie in order already
                source = torch.tensor([start + node for node in kept], device=self.keys.device)
                self.entries[:, row, :, start : start + count] = self.entries[:, row].index_select(2, source)
            self.lengths[row] = start + count

    def rewind(self, lengths: list[int]) -> None:
        """Forget every token past ``lengths``, one length an active row.

        Raises:
            UsageError: a length is negative or more than the row holds.
        """
        for row, (new, old) in enumerate(zip(lengths, self.lengths, strict=True)):
            if not 0 <= new <= old:
                raise UsageError(f"row {row} holds {old} tokens and cannot be rewound to {new}; allowed: 0 to {old}")
        self.lengths = list(lengths)

    def select(self, rows: list[int]) -> None:
        """Keep only these active rows, in this order, packed into the first slots."""
        lengths = [self.lengths[row] for row in rows]
        if rows != list(range(len(rows))):
            index = torch.tensor(rows, device=self.keys.device)
            used = max(lengths, default=0)
            for layer in self.entries:  # one layer at a time: the copy in flight stays small
                layer[: len(rows), :, :used] = layer[:, :, :used].index_select(0, index)
        self.lengths = lengths
