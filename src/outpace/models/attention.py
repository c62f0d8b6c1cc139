"""Attention of hosted models: masks by position in the text, and no key repeated for the queries that share it.

Knows nothing of models or of how drafts are made. transformers asks for a mask once for each kind of layer and says
what that kind sees (everything before, a window, a chunk) as a function of two positions. It is evaluated here at the
positions in the text, so that a window reaches back by depth, and cut down to what a row of the cache may show.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional

Pattern = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""Of row, head, query's position and key's position: whether a kind of layer lets this query see this key."""

OTHER_SUMS = ("softcap", "s_aux", "sinks", "position_bias", "indices", "block_indices")
"""What some models add to attention; where one of these is given, the model's own plain code computes it."""


@dataclass(frozen=True)
class Flight:
    """The tokens of one forward.

    Args:
        visible: which entries of the cache each token may see at all: what its row holds, its ancestors and itself.
        places: the position of each token in its text; nodes of a tree stand at their depth.
        columns: the position in the text of every entry of the cache.
    """

    visible: Bool[Tensor, "batch time context"]
    places: Int[Tensor, "batch time"]
    columns: Int[Tensor, "batch context"]

    @classmethod
    def behind(
        cls, starts: list[int], places: Int[Tensor, "batch time"], visible: Bool[Tensor, "batch time context"]
    ) -> "Flight":
        """Tokens written behind ``starts``: what was kept before them lies in the order of the text."""
        batch, time = places.shape
        columns = torch.arange(visible.shape[2], device=places.device).repeat(batch, 1)
        written = torch.tensor(starts, device=places.device)[:, None] + torch.arange(time, device=places.device)
        return cls(visible, places, columns.scatter_(1, written, places))

    def mask(self, pattern: Pattern, dtype: torch.dtype) -> Float[Tensor, "batch 1 time context"] | None:
        """What one kind of layer adds to its scores: 0 where it sees, minus infinity elsewhere; None for all zeros.

        None is for a single token a row only: kernels take it to mean "causal" where there are more.
        """
        rows = torch.arange(len(self.places), device=self.places.device)[:, None, None, None]
        queries, keys = self.places[:, None, :, None], self.columns[:, None, None]
        seen = self.visible[:, None] & pattern(rows, torch.zeros_like(rows), queries, keys)
        if seen.shape[2] == 1 and bool(seen.all()):
            return None
        return torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill_(~seen, float("-inf"))

    @contextmanager
    def under_way(self) -> Iterator[None]:
        """While this lasts, masks are made for these tokens."""
        token = _UNDER_WAY.set(self)
        try:
            yield
        finally:
            _UNDER_WAY.reset(token)


_UNDER_WAY: ContextVar[Flight] = ContextVar("the forward of a hosted model that is under way")


def causal(rows: Tensor, heads: Tensor, queries: Tensor, keys: Tensor) -> Tensor:
    """Everything up to the query's own position."""
    return keys <= queries


def mask_under_way(
    *, mask_function: Pattern, dtype: torch.dtype = torch.float32, **shape: Any
) -> Float[Tensor, "batch 1 time context"] | None:
    """The mask that transformers asks for; sizes and offsets that it counts itself say nothing of ragged rows."""
    return _UNDER_WAY.get().mask(mask_function, dtype)


def attend(
    module: torch.nn.Module,
    query: Float[Tensor, "batch heads time width"],
    key: Float[Tensor, "batch kv_heads context width"],
    value: Float[Tensor, "batch kv_heads context width"],
    attention_mask: Float[Tensor, "batch 1 time context"] | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **options: Any,
) -> tuple[Float[Tensor, "batch time heads width"], Tensor | None]:
    """Grouped attention. The queries of one group are stacked as rows, so that keys are never repeated."""
    if any(options.get(name) is not None for name in OTHER_SUMS):
        plain = sys.modules[type(module).__module__].eager_attention_forward
        out, weights = plain(module, query, key, value, attention_mask, scaling=scaling, dropout=dropout, **options)
        return out, weights
    batch, heads, time, width = query.shape
    groups = key.shape[1]
    if attention_mask is not None:
        attention_mask = attention_mask.to(query.dtype)
        if time > 1 and groups < heads:
            attention_mask = attention_mask.repeat(1, 1, heads // groups, 1)
    stacked = query.reshape(batch, groups, heads // groups * time, width)
    out = functional.scaled_dot_product_attention(stacked, key, value, attn_mask=attention_mask, scale=scaling)
    return out.view(batch, heads, time, width).transpose(1, 2).contiguous(), None
