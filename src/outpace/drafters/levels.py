"""A draft tree walked as it grows: one pass a depth over the nodes that get children there, and the rest is remembered.

Knows nothing of how children are chosen: it is what growth looks through.
"""

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import pad

from outpace.drafters.growth import Branches
from outpace.drafters.walk import Walker
from outpace.models.cache import Cache
from outpace.models.target import padded, take


class Levels:
    """Walks a tree as it grows, one pass a depth over the nodes that are asked for; it is what growth looks through.

    The entry of a node stands in the cache behind those of the row's real features, in a slot of its own, and stays
    there for this turn.

    Args:
        walker: who computes.
        cache: what each row has read; where a tree needs more room, a larger one takes its place.
        out: the output at the last position of each row.
        in_target_ids: the target's ids of draft ids.
    """

    def __init__(
        self,
        walker: Walker,
        cache: Cache,
        out: Float[Tensor, "batch 1 hidden"],
        in_target_ids: Callable[[Tensor], Tensor],
    ) -> None:
        self.walker, self.cache, self.in_target_ids = walker, cache, in_target_ids
        self.outs = out  # the root's, then one a slot
        self.seen: Bool[Tensor, "batch rows slots"] = torch.zeros(len(out), 1, 0, dtype=torch.bool, device=out.device)
        self.places: list[dict[int, int]] = [{-1: 0} for _ in out]

    def __call__(
        self, depth: int, grown: Sequence[Branches], nodes: Sequence[Sequence[int]]
    ) -> Float[Tensor, "batch width draft"]:
        """Draft logits after some nodes, in the head's ids; rows with fewer of them compute what nobody reads."""
        return self.walker.logits(self._walk(depth, grown, nodes) if depth else self.outs)

    def _walk(
        self, depth: int, grown: Sequence[Branches], nodes: Sequence[Sequence[int]]
    ) -> Float[Tensor, "batch width hidden"]:
        walker, drafted, width = self.walker, self.seen.shape[2], max(map(len, nodes))
        self.cache = walker.roomy(self.cache, max(self.cache.lengths) + drafted + width)
        rows = list(zip(self.places, grown, nodes, strict=True))
        above = padded([[places[parents[node]] for node in own] for places, (_, parents), own in rows], 0)
        ids = padded([[tokens[node] for node in own] for _, (tokens, _), own in rows], 0)
        for places, _, own in rows:
            places.update({node: 1 + drafted + place for place, node in enumerate(own)})
        itself = torch.eye(width, dtype=torch.bool, device=walker.device).expand(len(rows), -1, -1)
        seen = torch.cat((take(self.seen, above), itself), 2)
        starts = torch.tensor(self.cache.lengths, device=walker.device)[:, None]
        tokens, positions = self.in_target_ids(ids.to(walker.device)), (starts + depth - 1).expand_as(ids)
        out = walker.step(self.cache, walker.feed(take(self.outs, above)), tokens, positions, drafted, seen)
        self.outs = torch.cat((self.outs, out), 1)
        self.seen = torch.cat((pad(self.seen, (0, width)), seen), 1)
        return out
