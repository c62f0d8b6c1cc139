"""A draft tree walked as it grows: one pass a depth over the nodes that are new there, and the rest is remembered.

Knows nothing of how children are chosen: it is what growth looks through.
"""

from collections.abc import Callable

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import pad

from outpace.drafters.walk import Walker
from outpace.models.cache import Cache
from outpace.models.target import padded, take
from outpace.verification.tree import DraftTree


class Levels:
    """Walks a tree as it grows, one pass a depth over the nodes that are new there; it is what growth looks through.

    A node is known by its parent and its token, whatever has been dropped around it. Its entry stands in the cache
    behind those of the row's real features, in its slot, and stays there for this turn.

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
        self.walker, self.cache, self.in_target_ids, self.depth = walker, cache, in_target_ids, 0
        self.outs, self.logits = out, walker.logits(out)  # the root's, then one a slot
        self.seen: Bool[Tensor, "batch rows slots"] = torch.zeros(len(out), 1, 0, dtype=torch.bool, device=out.device)
        self.slots: list[dict[tuple[int, int], int]] = [{} for _ in out]

    def __call__(self, tree: DraftTree) -> Float[Tensor, "batch rows draft"]:
        """Draft logits after the root and after every node, in the head's ids; at most one depth is new."""
        if not tree.tokens.shape[1]:
            return self.logits
        drafted = self.seen.shape[2]
        places: list[list[int]] = []
        fresh: list[list[tuple[int, int]]] = []
        for (tokens, parents), known in zip(tree.to_lists(), self.slots, strict=True):
            own: list[int] = []
            new: list[tuple[int, int]] = []
            for token, parent in zip(tokens, parents, strict=True):
                node = (own[parent] if parent >= 0 else -1, token)
                own.append(known.setdefault(node, drafted + len(new)))
                if own[-1] == drafted + len(new):
                    new.append(node)
            places.append(own)
            fresh.append(new)
        self._walk(fresh, drafted)
        if all(own == list(range(tree.tokens.shape[1])) for own in places):
            return self.logits[:, : 1 + tree.tokens.shape[1]]
        return take(self.logits, 1 + padded([[-1, *own] for own in places], -1))

    def _walk(self, fresh: list[list[tuple[int, int]]], drafted: int) -> None:
        """One pass over new nodes; rows with fewer of them compute what nobody reads."""
        width = max(map(len, fresh))
        if not width:
            return
        walker = self.walker
        self.depth += 1
        self.cache = walker.roomy(self.cache, max(self.cache.lengths) + drafted + width)
        above = 1 + padded([[parent for parent, _ in new] for new in fresh], -1)
        tokens = self.in_target_ids(padded([[token for _, token in new] for new in fresh], 0).to(walker.device))
        starts = torch.tensor(self.cache.lengths, device=walker.device)[:, None]
        itself = torch.eye(width, dtype=torch.bool, device=walker.device).expand(len(fresh), -1, -1)
        seen = torch.cat((take(self.seen, above), itself), 2)
        hidden = walker.feed(take(self.outs, above))
        positions = (starts + self.depth - 1).expand_as(tokens)
        out = walker.step(self.cache, hidden, tokens, positions, drafted, seen)
        self.outs = torch.cat((self.outs, out), 1)
        self.logits = torch.cat((self.logits, walker.logits(out)), 1)
        self.seen = torch.cat((pad(self.seen, (0, width)), seen), 1)
