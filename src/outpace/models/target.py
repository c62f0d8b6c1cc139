"""The Target protocol: prefill, score a tree in one pass, show features, keep a path, rewind.

Knows nothing of drafters, acceptance or sampling.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from outpace.verification.tree import DraftTree

Tap = int | Literal["last_normed"]
"""A place to read features: ``k`` is the output of layer k (0: the embeddings), ``last_normed`` what the head reads."""


@dataclass(frozen=True)
class Scores:
    """What one forward shows.

    Args:
        logits: next-token logits; ``[batch, rows, vocab]``, one row for prefill (the last token of each prompt),
            1 + N rows for a scored tree.
        features: the states at the taps asked for; None when none were. Prefill shows every prompt position.
    """

    logits: Float[Tensor, "batch rows vocab"]
    features: Float[Tensor, "batch places taps width"] | None = None


@runtime_checkable
class State(Protocol):
    """The rows a target has read: one cache slot a row. Only the target that opened it looks inside."""

    @property
    def lengths(self) -> list[int]:
        """How many tokens of each active row the target has read and kept."""
        ...


@runtime_checkable
class Target(Protocol):
    """A model being accelerated.

    A batch lives in a ``State``. Rows join by ``prefill`` (at the end of the batch) and leave by ``select``; between
    the two every turn calls ``score`` once and ``keep`` once.
    """

    name: str
    folder: Path | None
    vocab_size: int
    max_positions: int
    eos_ids: tuple[int, ...]
    can_tree: bool
    can_rewind: bool
    fingerprint: str
    device: torch.device
    dtype: torch.dtype

    def open(self, slots: int, positions: int) -> State:
        """An empty batch with room for ``slots`` rows of ``positions`` tokens each, drafts included."""
        ...

    def prefill(
        self, state: State, ids: Int[Tensor, "new time"], lengths: list[int], taps: tuple[Tap, ...] = ()
    ) -> Scores:
        """Read new prompts (right-padded to ``time``) as new last rows; logits of each prompt's last token."""
        ...

    def score(self, state: State, last: Int[Tensor, " batch"], tree: DraftTree, taps: tuple[Tap, ...] = ()) -> Scores:
        """Logits after the last emitted token (row 0) and after every node (row 1 + i), in one forward.

        Each node sees the kept tokens, ``last``, its ancestors and itself. Nothing is kept until ``keep``.
        """
        ...

    def keep(self, state: State, path: Int[Tensor, "batch depth"], num_accepted: list[int]) -> None:
        """Keep ``last`` and the accepted path of the tree just scored; forget the other nodes."""
        ...

    def rewind(self, state: State, lengths: list[int]) -> None:
        """Forget every token past ``lengths``."""
        ...

    def select(self, state: State, rows: list[int]) -> None:
        """Keep only these batch rows, in this order; their slots are packed to the front."""
        ...


def take(
    rows: Shaped[Tensor, "batch rows *rest"], index: Int[Tensor, "batch some"]
) -> Shaped[Tensor, "batch some *rest"]:
    """Some rows of each batch row; an index below 0 counts from the end.

    One flat ``index_select``: where rows are as long as a vocabulary, it takes a third of what two indices take.
    """
    count = rows.shape[1]
    starts = torch.arange(0, len(rows) * count, count, device=rows.device)[:, None]
    flat = (index.to(rows.device) % count + starts).flatten()
    return rows.flatten(0, 1).index_select(0, flat).view(*index.shape, *rows.shape[2:])


def padded(rows: list[list[int]], filler: int) -> Int[Tensor, "rows width"]:
    """Ragged ids as one tensor, filled up on the right."""
    width = max(map(len, rows), default=0)
    filled = [[*row, *[filler] * (width - len(row))] for row in rows]
    return torch.tensor(filled, dtype=torch.int64).view(len(rows), width)
