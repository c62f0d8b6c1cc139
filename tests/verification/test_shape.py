"""The heap's static tree against every tree there is, and the lesson's shapes."""

import itertools
from collections.abc import Iterator

import pytest
import torch

from outpace.errors import UsageError
from outpace.verification.shape import StaticShape, static_tree

Path = tuple[int, ...]


def every_tree(num_nodes: int, depth: int, ranks: int) -> Iterator[frozenset[Path]]:
    """All sets of rank paths that hold their ancestors and their elder siblings, built node by node."""
    trees: set[frozenset[Path]] = {frozenset()}
    yield frozenset()
    for _ in range(num_nodes):
        grown = set()
        for tree in trees:
            for parent in [(), *tree]:
                rank = sum(1 for node in tree if node[:-1] == parent and len(node) == len(parent) + 1)
                if len(parent) < depth and rank < ranks:
                    grown.add(tree | {(*parent, rank)})
        trees = grown
        yield from trees


def value(tree: frozenset[Path], levels: list[list[float]]) -> float:
    total = 1.0
    for path in tree:
        product = 1.0
        for level, rank in enumerate(path):
            product *= levels[level][rank]
        total += product
    return total


def paths(shape: StaticShape) -> frozenset[Path]:
    found: list[Path] = []
    for parent, rank in zip(shape.parents, shape.ranks, strict=True):
        found.append((*(found[parent] if parent >= 0 else ()), rank))
    return frozenset(found)


LEVELS = [
    [[0.6, 0.2, 0.1]] * 4,
    [[0.9, 0.05]] * 4,
    [[0.3, 0.3, 0.3]] * 4,
    [[0.8, 0.1, 0.05], [0.5, 0.4], [0.7, 0.2, 0.1], [1.0]],
    [[0.2, 0.1], [0.9, 0.8, 0.7], [0.99], [0.5]],
]


@pytest.mark.parametrize("levels", LEVELS)
@pytest.mark.parametrize("depth", [1, 2, 4])
def test_no_tree_of_seven_nodes_expects_more(levels: list[list[float]], depth: int) -> None:
    """Brute force over all trees; within a depth the budget grows from 0 to 7 nodes."""
    padded = [row + [0.0] * (3 - len(row)) for row in levels]
    best = [1.0] * 8
    for tree in every_tree(7, depth, 3):
        for budget in range(len(tree), 8):
            best[budget] = max(best[budget], value(tree, padded))
    for budget in range(8):
        shape = static_tree(levels, budget, depth)
        assert len(shape.parents) <= budget and max(shape.depths, default=0) <= depth
        assert value(paths(shape), padded) == pytest.approx(best[budget], abs=1e-12)


def test_one_list_serves_every_depth() -> None:
    assert static_tree([0.6, 0.2], 9, 3) == static_tree([[0.6, 0.2]] * 3, 9, 3)


def test_nodes_stand_depth_by_depth_and_siblings_by_rank() -> None:
    shape = static_tree([0.6, 0.2, 0.1], 6, 3)
    assert shape == StaticShape(parents=(-1, -1, 0, 0, 1, 2), ranks=(0, 1, 0, 1, 0, 0))
    assert shape.depths == (1, 1, 2, 2, 2, 3)


def test_a_sure_drafter_gets_a_chain_and_a_flat_one_a_star() -> None:
    assert static_tree([1.0, 0.0], 5, 9) == StaticShape(parents=(-1, 0, 1, 2, 3), ranks=(0,) * 5)
    assert static_tree([0.1] * 5, 5, 9) == StaticShape(parents=(-1,) * 5, ranks=(0, 1, 2, 3, 4))


def test_hopeless_nodes_are_left_out() -> None:
    assert len(static_tree([0.5, 0.0], 10, 2).parents) == 2
    assert static_tree([0.5], 0, 4) == static_tree([0.5], 4, 0) == StaticShape((), ())


def test_fill_reads_candidates_by_depth_and_rank() -> None:
    shape = static_tree([0.6, 0.2, 0.1], 6, 3)
    candidates = torch.tensor([[[11, 12, 13], [21, 22, 23], [31, 32, 33]], [[1, 2, 3], [4, 5, 6], [7, 8, 9]]])
    tree = shape.fill(candidates)
    tree.validate()
    assert tree.to_lists() == [
        ([11, 12, 21, 22, 21, 31], list(shape.parents)),
        ([1, 2, 4, 5, 4, 7], list(shape.parents)),
    ]
    assert tree.depths()[0].tolist() == list(shape.depths)


@pytest.mark.parametrize(
    ("rank_probs", "num_nodes", "depth", "message"),
    [
        ([0.5], -1, 1, "num_nodes is -1; allowed: 0 or more"),
        ([0.5], 1, -1, "depth is -1; allowed: 0 or more"),
        ([[0.5]], 3, 2, "rank_probs has 1 lists for depth 2; allowed: one list a depth, or one for all"),
        ([[0.5], [0.2, 0.3]], 3, 2, r"rank_probs at depth 2 are \[0.2, 0.3\]; allowed: from 0 to 1, never increasing"),
        ([1.5], 3, 1, r"rank_probs at depth 1 are \[1.5\]; allowed: from 0 to 1, never increasing"),
    ],
)
def test_refusals(rank_probs: list[float], num_nodes: int, depth: int, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        static_tree(rank_probs, num_nodes, depth)


def test_brute_force_counts_plane_trees() -> None:
    """The reference is itself checked: without limits there are Catalan(n) ordered trees of n nodes under a root."""
    counts = [0] * 6
    for tree in every_tree(5, 9, 9):
        counts[len(tree)] += 1
    assert counts == [1, 1, 2, 5, 14, 42] and all(a <= b for a, b in itertools.pairwise(counts))
