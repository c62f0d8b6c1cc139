"""The tree of the module's own drawing, and every refusal."""

import pytest
import torch

from outpace.errors import UsageError
from outpace.verification.tree import DraftTree

A, B, C, D, E = range(5)
DRAWN = ([10, 11, 12, 13, 14], [-1, -1, A, A, B])


@pytest.fixture
def drawn() -> DraftTree:
    return DraftTree.from_lists([DRAWN, ([7], [-1])])


def indices(*values: int) -> torch.Tensor:
    return torch.tensor(values)


def test_the_drawing_in_the_docstring(drawn: DraftTree) -> None:
    assert drawn.depths()[0].tolist() == [1, 1, 2, 2, 2]
    sees = [[j for j, seen in enumerate(row) if seen] for row in drawn.ancestor_mask()[0].tolist()]
    assert sees == [[A], [B], [A, C], [A, D], [B, E]]
    assert drawn.positions(indices(100, 20)).tolist() == [[100, 101, 101, 102, 102, 102], [20, 21, 20, 20, 20, 20]]


def test_siblings_do_not_see_each_other_and_positions_follow_depth() -> None:
    """Fault 58: root -> {a, b}, a -> c, b -> d stands at n, n+1, n+1, n+2, n+2."""
    tree = DraftTree.from_lists([([1, 2, 3, 4], [-1, -1, 0, 1])])
    assert tree.positions(indices(9)).tolist() == [[9, 10, 10, 11, 11]]
    assert not tree.ancestor_mask()[0, 1, 0] and not tree.ancestor_mask()[0, 3, 2] and not tree.ancestor_mask()[0, 3, 0]


def test_filler_is_invisible(drawn: DraftTree) -> None:
    assert not drawn.ancestor_mask()[1, 1:].any() and not drawn.ancestor_mask()[1, :, 1:].any()
    assert drawn.depths()[1].tolist() == [1, 0, 0, 0, 0]


def test_paths_lead_down_from_the_root(drawn: DraftTree) -> None:
    assert drawn.path_to(indices(D, 0)).tolist() == [[A, D], [0, -1]]
    assert drawn.path_to(indices(-1, 0)).tolist() == [[-1], [0]]
    assert drawn.path_to(indices(-1, -1)).shape == (2, 0)


def test_children_of_a_node_and_of_the_root(drawn: DraftTree) -> None:
    assert drawn.children(indices(A, 0)).nonzero().tolist() == [[0, C], [0, D]]
    assert drawn.children(indices(-1, -1)).nonzero().tolist() == [[0, A], [0, B], [1, 0]]


def test_a_chain_is_a_tree_with_one_child_each() -> None:
    chain = DraftTree.chain(torch.tensor([[5, 6, 7], [8, 9, 9]]), indices(3, 1))
    chain.validate()
    assert chain.to_lists() == [([5, 6, 7], [-1, 0, 1]), ([8], [-1])]
    assert chain.is_chain and chain.depths().tolist() == [[1, 2, 3], [1, 0, 0]]
    assert torch.equal(chain.ancestor_mask(), DraftTree.from_lists(chain.to_lists()).ancestor_mask())


def test_is_chain_looks_at_every_row(drawn: DraftTree) -> None:
    assert not drawn.is_chain
    assert DraftTree.from_lists([([1, 2], [-1, 0]), ([], []), ([3], [-1])]).is_chain
    assert not DraftTree.from_lists([([1, 2], [-1, 0]), ([3, 4], [-1, -1])]).is_chain


def test_an_empty_draft_still_has_its_root() -> None:
    empty = DraftTree.empty(2)
    empty.validate()
    assert empty.is_chain and empty.ancestor_mask().shape == (2, 0, 0)
    assert empty.positions(indices(3, 4)).tolist() == [[3], [4]]
    assert empty.path_to(indices(-1, -1)).shape == (2, 0)
    assert empty.subtree(indices(-1, -1)).to_lists() == empty.prune(empty.real).to_lists() == [([], []), ([], [])]
    assert DraftTree.from_lists([]).positions(torch.empty(0, dtype=torch.int64)).shape == (0, 1)


def test_prune_reindexes_what_is_kept(drawn: DraftTree) -> None:
    keep = torch.tensor([[False, True, False, False, True], [False] * 5])
    assert drawn.prune(keep).to_lists() == [([11, 14], [-1, 0]), ([], [])]


def test_prune_refuses_an_orphan(drawn: DraftTree) -> None:
    keep = torch.tensor([[True, False, True, False, True], [True] * 5])
    with pytest.raises(UsageError, match="row 0 keeps node 4 without its parent 1; allowed: a set that holds every"):
        drawn.prune(keep)


def test_subtree_hangs_from_its_new_root(drawn: DraftTree) -> None:
    assert drawn.subtree(indices(A, 0)).to_lists() == [([12, 13], [-1, -1]), ([], [])]
    assert drawn.subtree(indices(-1, -1)).to_lists() == drawn.to_lists()
    deep = DraftTree.from_lists([([1, 2, 3, 4], [-1, 0, 1, 1])])
    assert deep.subtree(indices(0)).to_lists() == [([2, 3, 4], [-1, 0, 0])]


@pytest.mark.parametrize(
    ("tokens", "parents", "count", "message"),
    [
        ([[1, 2]], [[-1, 1]], [2], "row 0, node 1 has parent 1; allowed: -1 or an earlier node"),
        ([[1, 2]], [[-2, 0]], [2], "row 0, node 0 has parent -2; allowed: -1 or an earlier node"),
        ([[1, -3]], [[-1, 0]], [2], "row 0, node 1 has token -3; allowed: 0 or more"),
        ([[1, 2]], [[-1, -1]], [1], "row 0, node 1 has token 2; allowed: -1, as this is filler"),
        ([[1, -1]], [[-1, 0]], [1], "row 0, node 1 has parent 0; allowed: -1, as this is filler"),
        ([[1, 2]], [[-1, 0]], [3], "row 0 has num_nodes 3; allowed: 0 to 2"),
    ],
)
def test_validate_names_row_and_node(
    tokens: list[list[int]], parents: list[list[int]], count: list[int], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        DraftTree(torch.tensor(tokens), torch.tensor(parents), torch.tensor(count)).validate()


def test_validate_names_wrong_types() -> None:
    tree = DraftTree(torch.tensor([[1]], dtype=torch.int32), torch.tensor([[-1]]), torch.tensor([1]))
    with pytest.raises(UsageError, match=r"tokens is torch\.int32; allowed: torch\.int64"):
        tree.validate()


def test_lists_of_unequal_length_are_refused() -> None:
    with pytest.raises(UsageError, match="row 1 has 2 tokens and 1 parents; allowed: one each"):
        DraftTree.from_lists([([1], [-1]), ([1, 2], [-1])])
