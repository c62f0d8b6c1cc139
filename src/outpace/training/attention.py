"""Attention of a training-time test: the text's own keys up to each query, and one key of every later step.

Knows nothing of weights, of positions or of what is attended for. A query at place t sees the keys of step 0 at all
places up to t, and of each later step only the key at t itself: what a draft sees that walks on behind that prefix.

                 step 0             step 1           step 2
              0  1  2  3         0  1  2  3       0  1  2  3
    query 0   x                  x                x
          1   x  x                  x                x
          2   x  x  x                  x                x
          3   x  x  x  x                  x                x
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

TILE = 128
"""Queries of one text that are scored together; scores are never kept, so this bounds the memory."""


@dataclass(frozen=True)
class Spans:
    """Where the keys and the queries of each text lie in their flat lists.

    Args:
        keys, queries: how many each text has; texts lie one behind the other.
        places: for every query the place of its own key among its text's, rising within a text.
    """

    keys: list[int]
    queries: list[int]
    places: Int[Tensor, " queries"]

    @cached_property
    def tiles(self) -> list[tuple[slice, slice, Tensor]]:
        """Neighbouring queries of one text, the keys that any of them sees, and which of these each does not."""
        return list(self._tiles())

    def _tiles(self) -> Iterator[tuple[slice, slice, Tensor]]:
        places = self.places.tolist()
        starts = pairwise(accumulate(self.queries, initial=0))
        for (first, end), key, count in zip(starts, accumulate(self.keys, initial=0), self.keys, strict=False):
            columns = torch.arange(count, device=self.places.device)
            for start in range(first, end, TILE):
                stop = min(start + TILE, end)
                seen = places[stop - 1] + 1
                yield slice(start, stop), slice(key, key + seen), columns[:seen] > self.places[start:stop, None]


def attend(
    queries: Float[Tensor, "queries heads width"],
    keys: Float[Tensor, "keys kv_heads width"],
    values: Float[Tensor, "keys kv_heads width"],
    later: Sequence[tuple[Float[Tensor, "queries kv_heads width"], Float[Tensor, "queries kv_heads width"]]],
    spans: Spans,
) -> Float[Tensor, "queries heads width"]:
    """One softmax over the keys of step 0 up to each query's place and its own key of every later step.

    Args:
        queries, keys, values: rotated, in fp32 or better; query heads are shared out evenly over the key-value heads.
        later: keys and values of the steps behind step 0, one for every query.
        spans: which keys and queries belong together.
    """
    applied: tuple[Tensor, Tensor] = _Causal.apply(queries, keys, values, spans.tiles)  # type: ignore[no-untyped-call]
    attended, logsumexp = applied
    if not later:
        return attended
    # A softmax over more columns is the old one, weighed as a single column of its log-sum-exp.
    count, heads, width = queries.shape
    shared = queries.view(count, keys.shape[1], -1, width) * width**-0.5  # a key's heads in one axis
    own = [(shared * key[:, :, None]).sum(-1).flatten(1) for key, _ in later]
    weights = torch.stack((logsumexp, *own), -1).softmax(-1)[..., None]
    mixed = attended * weights[:, :, 0]
    for step, (_, value) in enumerate(later, start=1):
        weight = weights[:, :, step].view(*shared.shape[:3], 1)
        mixed = mixed + (weight * value[:, :, None]).view(count, heads, width)
    return mixed


class _Causal(torch.autograd.Function):
    """Attention over the keys of step 0, and the log-sum-exp of its scores; scores are computed anew going back.

    Nothing is rounded below the dtype that is given, whatever precision the caller has set for other matrices.
    """

    @staticmethod
    def forward(
        ctx: Any, queries: Tensor, keys: Tensor, values: Tensor, tiles: list[tuple[slice, slice, Tensor]]
    ) -> tuple[Tensor, Tensor]:
        out, logsumexp = torch.empty_like(queries), torch.empty_like(queries[..., :1])
        with torch.autocast(queries.device.type, enabled=False):
            for asking, asked, unseen in tiles:
                scores = _scores(_grouped(queries[asking], keys), keys[asked], unseen)
                sums = scores.logsumexp(-1, keepdim=True)
                logsumexp[asking] = _ungrouped(sums, unseen)
                out[asking] = _ungrouped(scores.sub_(sums).exp_() @ values[asked].transpose(0, 1), unseen)
        ctx.save_for_backward(queries, keys, values, out, logsumexp)
        ctx.tiles = tiles
        return out, logsumexp.squeeze(-1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, out_gradient: Tensor, sum_gradient: Tensor) -> tuple[Tensor | None, ...]:
        queries, keys, values, out, logsumexp = ctx.saved_tensors
        gradients = torch.empty_like(queries), torch.zeros_like(keys), torch.zeros_like(values)
        # What a softmax takes off every score's gradient; a sum's own gradient goes back along the same weights.
        common = (out_gradient * out).sum(-1, keepdim=True) - sum_gradient[..., None]
        with torch.autocast(queries.device.type, enabled=False):
            for asking, asked, unseen in ctx.tiles:
                query, key, value = _grouped(queries[asking], keys), keys[asked].transpose(0, 1), values[asked]
                weights = _scores(query, keys[asked], unseen).sub_(_grouped(logsumexp[asking], keys)).exp_()
                gained = _grouped(out_gradient[asking], keys)
                gradients[2][asked] += (weights.mT @ gained).transpose(0, 1)
                slopes = (gained @ value.permute(1, 2, 0)).sub_(_grouped(common[asking], keys)).mul_(weights)
                slopes.mul_(queries.shape[2] ** -0.5)
                gradients[0][asking] = _ungrouped(slopes @ key, unseen)
                gradients[1][asked] += (slopes.mT @ query).transpose(0, 1)
        return *gradients, None


def _scores(query: Tensor, keys: Tensor, unseen: Tensor) -> Tensor:
    """Scaled scores ``[kv_heads, heads of a key x queries, keys]``, minus infinity where a query may not look."""
    scores: Tensor = (query * query.shape[2] ** -0.5) @ keys.permute(1, 2, 0)
    scores.view(len(scores), -1, *unseen.shape).masked_fill_(unseen, -torch.inf)
    return scores


def _grouped(states: Tensor, keys: Tensor) -> Tensor:
    """The heads that share a key stacked as rows: ``[kv_heads, heads of a key x queries, width]``."""
    return states.reshape(len(states), keys.shape[1], -1, states.shape[2]).permute(1, 2, 0, 3).flatten(1, 2)


def _ungrouped(states: Tensor, unseen: Tensor) -> Tensor:
    """Back to ``[queries, heads, width]``."""
    return states.view(len(states), -1, len(unseen), states.shape[2]).permute(2, 0, 1, 3).flatten(1, 2)
