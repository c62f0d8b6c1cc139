"""A tree without tokens: the best static shape for given probabilities by rank.

Knows nothing of models or of the tokens that will fill it.
"""

import heapq
import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

from outpace.errors import UsageError
from outpace.verification.tree import DraftTree


@dataclass(frozen=True)
class StaticShape:
    """A tree without tokens, the same for every turn: node i is child number ``ranks[i]`` of ``parents[i]``.

    Nodes stand depth by depth, so that a drafter fills one depth after the other.
    """

    parents: tuple[int, ...]
    ranks: tuple[int, ...]

    @property
    def depths(self) -> tuple[int, ...]:
        """Distance of every node from the root, from 1; never decreasing."""
        depths: list[int] = []
        for parent in self.parents:
            depths.append(1 if parent < 0 else depths[parent] + 1)
        return tuple(depths)

    def fill(self, candidates: Int[Tensor, "batch depth ranks"]) -> DraftTree:
        """Tokens that depend on depth and rank alone, as parallel heads give them: ``candidates[b, d - 1, r]``."""
        device = candidates.device
        depths, ranks, parents = (
            torch.tensor(part, dtype=torch.int64, device=device) for part in (self.depths, self.ranks, self.parents)
        )
        tokens = candidates[:, depths - 1, ranks]
        counts = torch.full((len(candidates),), len(self.parents), device=device)
        return DraftTree(tokens, parents.expand_as(tokens), counts)


def static_tree(rank_probs: Sequence[float] | Sequence[Sequence[float]], num_nodes: int, depth: int) -> StaticShape:
    """The tree of at most ``num_nodes`` nodes and ``depth`` levels with the most expected accepted tokens.

    When the child of rank r at depth d is the right one with probability ``rank_probs[d - 1][r]``, a tree accepts on
    average the sum over its nodes of the products along their paths. Ranks do not gain by waiting, so the best tree
    is the best products, found by a heap: take the best, offer its first child and its next sibling.

    Args:
        rank_probs: probabilities by rank, never increasing; one list for all depths or one list a depth.
        num_nodes: nodes without the root, at least 0.
        depth: longest path, at least 0.

    Returns:
        The shape; it has fewer nodes where no further node has a positive probability.

    Raises:
        UsageError: a negative size, fewer lists than ``depth``, or probabilities outside [0, 1] or increasing.

    Source: Sequoia (Chen et al., arXiv 2402.12374) for the objective, whose dynamic programme this
    equals; Medusa (Cai et al., arXiv 2401.10774) for the greedy construction.
    """
    levels = _per_depth(rank_probs, depth)
    if num_nodes < 0:
        raise UsageError(f"num_nodes is {num_nodes}; allowed: 0 or more")
    picked: list[tuple[int, int, int]] = []  # depth, parent as an index into picked, rank
    ticket = itertools.count()
    heap: list[tuple[float, int, tuple[int, int, int], float]] = []

    def offer(level: int, parent: int, rank: int, before: float) -> None:
        if level <= depth and rank < len(levels[level - 1]) and (product := before * levels[level - 1][rank]) > 0:
            heapq.heappush(heap, (-product, next(ticket), (level, parent, rank), before))

    offer(1, -1, 0, 1.0)
    while heap and len(picked) < num_nodes:
        negative, _, (level, parent, rank), before = heapq.heappop(heap)
        picked.append((level, parent, rank))
        offer(level + 1, len(picked) - 1, 0, -negative)
        offer(level, parent, rank + 1, before)
    order = sorted(range(len(picked)), key=lambda index: picked[index][0])
    place = {-1: -1} | {old: new for new, old in enumerate(order)}
    return StaticShape(tuple(place[picked[old][1]] for old in order), tuple(picked[old][2] for old in order))


def _per_depth(rank_probs: Sequence[float] | Sequence[Sequence[float]], depth: int) -> list[list[float]]:
    """One checked list of rank probabilities a depth."""
    if depth < 0:
        raise UsageError(f"depth is {depth}; allowed: 0 or more")
    lists = [list(row) for row in rank_probs if isinstance(row, Sequence)]
    flat = [float(value) for value in rank_probs if not isinstance(value, Sequence)]
    levels = lists if lists else [flat] * depth
    if len(levels) < depth:
        raise UsageError(
            f"rank_probs has {len(levels)} lists for depth {depth}; allowed: one list a depth, or one for all"
        )
    for level, row in enumerate(levels[:depth], start=1):
        if any(not 0 <= value <= 1 for value in row) or any(a < b for a, b in itertools.pairwise(row)):
            raise UsageError(f"rank_probs at depth {level} are {row}; allowed: from 0 to 1, never increasing")
    return levels
