"""Trees that a recording holds: smaller ones cut out of the wide one, and shapes filled by rank.

Knows nothing of texts but the tokens that come next, and nothing of rules: a path is the text's or it is not.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from outpace.drafters.budget import RANKS, Branching
from outpace.drafters.growth import BEAM
from outpace.evaluation.probe import Followed, Node
from outpace.verification.shape import StaticShape

Cut = tuple[tuple[int, ...], tuple[int, ...], int, bool]
"""Parents, the path of the text, the longest path, and whether nothing can be missing."""


def ranked(
    tree: Sequence[Node], branching: Branching | None, depth: int, nodes: int, tokens: Sequence[int], full: bool
) -> Cut:
    """The tree that ``growth.ranked_tree`` would make with less room: the heaviest nodes of the wide one.

    A node weighs the product of probabilities along its path; products fall, so that of any narrower, shallower or
    smaller tree all nodes stand in the wide one, but for two cases: it was full and the narrower one reaches below its
    lightest node, or a node has no children there because wider ones took their places.

    Args:
        tree: the recorded nodes, siblings by rank.
        branching: ``top-k`` or ``top-p``, narrower than the recorded one; None for that very one.
        depth, nodes: how deep and how large, 1 or more each.
        tokens: what the text says next.
        full: whether the recorded tree has as many nodes as it may have.
    """
    depths, ranks, before, weights = _measured(tree)
    narrow = _within(branching, ranks, before)
    allowed = np.zeros(len(tree), dtype=bool)
    for place, node in enumerate(tree):
        allowed[place] = narrow[place] and depths[place] <= depth and (node.parent < 0 or allowed[node.parent])
    order = np.argsort(np.where(allowed, -weights, np.inf), kind="stable")[: min(nodes, int(allowed.sum()))]
    kept = np.zeros(len(tree), dtype=bool)
    kept[order] = True
    lightest = weights[order[-1]] if len(order) == nodes else 0.0
    sure = len(order) == nodes or not full
    if branching is not None:
        sure = sure and not _starved(kept, depths, weights, depth, lightest)
    if (
        branching is not None and branching.kind == "top-p"
    ):  # a last child that leaves some of the mass to others, which are not recorded
        ends = narrow & (ranks == RANKS - 1) & (before + [node.draft_prob for node in tree] < branching.width)
        sure = sure and not (weights[ends & kept] >= lightest).any()
    index = np.cumsum(kept) - 1
    parents = tuple(
        int(index[node.parent]) if node.parent >= 0 else -1 for node, own in zip(tree, kept, strict=True) if own
    )
    path = _path(parents, [node.token for node, own in zip(tree, kept, strict=True) if own], tokens)
    return parents, path, int(depths[kept].max(initial=0)), sure


def _within(branching: Branching | None, ranks: NDArray[np.int64], before: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Which nodes a narrower tree would have among their siblings."""
    if branching is None:
        return np.ones(len(ranks), dtype=bool)
    narrow: NDArray[np.bool_] = ranks < branching.width if branching.kind == "top-k" else before < branching.width
    return narrow


def _starved(
    kept: NDArray[np.bool_], depths: NDArray[np.int64], weights: NDArray[np.float64], depth: int, lightest: float
) -> bool:
    """Whether a kept node would get children of some weight, and did not in the wide tree: its beam was full."""
    for level in range(1, min(depth, int(depths.max(initial=0)) + 1)):
        there = np.flatnonzero(depths == level)
        if len(there) <= BEAM:
            continue
        expanded = there[np.argsort(-weights[there], kind="stable")[:BEAM]]
        own = there[kept[there]]
        wanted = own[np.argsort(-weights[own], kind="stable")[:BEAM]]
        if (weights[np.setdiff1d(wanted, expanded)] > lightest).any():
            return True
    return False


def _measured(
    tree: Sequence[Node],
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]:
    """Of every node: its depth, its rank among siblings, the mass of the siblings before it, and its weight."""
    count = len(tree)
    depths, ranks = np.zeros(count, np.int64), np.zeros(count, np.int64)
    before, weights = np.zeros(count), np.zeros(count)
    siblings: dict[int, list[int]] = {}
    for place, node in enumerate(tree):
        own = siblings.setdefault(node.parent, [])
        ranks[place] = len(own)
        before[place] = sum(tree[one].draft_prob for one in own)
        own.append(place)
        depths[place] = 1 if node.parent < 0 else depths[node.parent] + 1
        weights[place] = (1.0 if node.parent < 0 else weights[node.parent]) * node.draft_prob
    return depths, ranks, before, weights


def _path(parents: Sequence[int], tokens: Sequence[int], said: Sequence[int]) -> tuple[int, ...]:
    """The nodes along which the tree says what the text does."""
    path: list[int] = []
    for token in said:
        above = path[-1] if path else -1
        below = [node for node, parent in enumerate(parents) if parent == above and tokens[node] == token]
        if not below:
            break
        path.append(below[0])
    return tuple(path)


def shaped(shape: StaticShape, followed: Sequence[Followed]) -> tuple[int, ...]:
    """The places of a shape at which the text's own tokens stand, from the root on.

    Args:
        shape: whose places hold the drafter's children by rank.
        followed: how the drafter finds the tokens of the text, told of all before.
    """
    places = {
        (parent, rank): place for place, (parent, rank) in enumerate(zip(shape.parents, shape.ranks, strict=True))
    }
    path: list[int] = []
    for one in followed:
        place = places.get((path[-1] if path else -1, one.rank))
        if place is None or not one.row.logits:
            break
        path.append(place)
    return tuple(path)
