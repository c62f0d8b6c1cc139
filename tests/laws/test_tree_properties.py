"""Laws of every tree: masks, paths and selections against definitions by recursion. Nothing here is random
beyond Hypothesis's own choice of examples; every comparison is exact."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from outpace.verification.tree import DraftTree

Row = tuple[list[int], list[int]]


@st.composite
def rows(draw: st.DrawFn, max_nodes: int = 9) -> Row:
    count = draw(st.integers(0, max_nodes))
    parents = [draw(st.integers(-1, index - 1)) for index in range(count)]
    return [draw(st.integers(0, 30)) for _ in range(count)], parents


batches = st.lists(rows(), min_size=1, max_size=4)


def lineage(parents: list[int], node: int) -> list[int]:
    """The definition: a node's path is its parent's path and itself."""
    return [] if node < 0 else [*lineage(parents, parents[node]), node]


def closed(parents: list[int], wished: list[bool]) -> list[bool]:
    """The largest ancestor-closed set within a wished one."""
    return [all(wished[above] for above in lineage(parents, node)) for node in range(len(parents))]


@given(batches)
def test_lists_round_trip_and_validate(batch: list[Row]) -> None:
    tree = DraftTree.from_lists(batch)
    tree.validate()
    assert tree.to_lists() == batch


@given(batches)
def test_mask_depths_and_positions_follow_the_definition(batch: list[Row]) -> None:
    tree = DraftTree.from_lists(batch)
    positions = tree.positions(torch.arange(len(batch)) * 100)
    for row, (_, parents) in enumerate(batch):
        for node in range(tree.tokens.shape[1]):
            path = lineage(parents, node) if node < len(parents) else []
            assert tree.ancestor_mask()[row, node].nonzero().flatten().tolist() == sorted(path)
            assert tree.depths()[row, node] == len(path)
            assert positions[row, 1 + node] == 100 * row + len(path)
        assert positions[row, 0] == 100 * row


@given(batches, st.data())
def test_paths_follow_the_definition(batch: list[Row], data: st.DataObject) -> None:
    nodes = [data.draw(st.integers(-1, len(parents) - 1)) for _, parents in batch]
    paths = DraftTree.from_lists(batch).path_to(torch.tensor(nodes))
    expected = [lineage(parents, node) for (_, parents), node in zip(batch, nodes, strict=True)]
    assert paths.shape[1] == max(map(len, expected))
    assert [[node for node in path if node >= 0] for path in paths.tolist()] == expected


@given(batches)
def test_a_chain_is_known_whichever_way_it_was_built(batch: list[Row]) -> None:
    tree = DraftTree.from_lists(batch)
    assert tree.is_chain == all(parents == list(range(-1, len(parents) - 1)) for _, parents in batch)
    chain = DraftTree.chain(tree.tokens, tree.num_nodes)
    again = DraftTree.from_lists(chain.to_lists())
    assert chain.is_chain and again.is_chain
    assert torch.equal(chain.ancestor_mask(), again.ancestor_mask())
    assert torch.equal(chain.parents, again.parents) and torch.equal(chain.tokens, again.tokens)


@given(batches, st.data())
def test_prune_keeps_every_kept_path(batch: list[Row], data: st.DataObject) -> None:
    """Token sequences from the root are what a tree means; pruning keeps those of the kept nodes, in order."""
    tree = DraftTree.from_lists(batch)
    keep = [closed(parents, [data.draw(st.booleans()) for _ in parents]) for _, parents in batch]
    padded = torch.zeros_like(tree.real)
    for row, flags in enumerate(keep):
        padded[row, : len(flags)] = torch.tensor(flags, dtype=torch.bool)
    pruned = tree.prune(padded | ~tree.real)
    pruned.validate()
    assert pruned.tokens.shape[1] == max(map(sum, keep))
    for (tokens, parents), flags, (new_tokens, new_parents) in zip(batch, keep, pruned.to_lists(), strict=True):
        said = [[tokens[n] for n in lineage(parents, node)] for node, kept in enumerate(flags) if kept]
        assert said == [[new_tokens[n] for n in lineage(new_parents, node)] for node in range(len(new_parents))]


@given(batches, st.data())
def test_subtree_says_what_followed_its_root(batch: list[Row], data: st.DataObject) -> None:
    roots = [data.draw(st.integers(-1, len(parents) - 1)) for _, parents in batch]
    below = DraftTree.from_lists(batch).subtree(torch.tensor(roots))
    below.validate()
    for (tokens, parents), root, (new_tokens, new_parents) in zip(batch, roots, below.to_lists(), strict=True):
        prefix = lineage(parents, root)
        longer = [path for path in (lineage(parents, node) for node in range(len(parents))) if len(path) > len(prefix)]
        said = [[tokens[n] for n in path[len(prefix) :]] for path in longer if path[: len(prefix)] == prefix]
        assert said == [[new_tokens[n] for n in lineage(new_parents, node)] for node in range(len(new_parents))]


@given(batches)
def test_a_row_does_not_know_its_batch_mates(batch: list[Row]) -> None:
    together = DraftTree.from_lists(batch)
    half = torch.arange(together.tokens.shape[1]).expand_as(together.tokens) < (together.num_nodes // 2)[:, None]
    pruned = together.prune(half).to_lists()
    for row, lists in enumerate(batch):
        alone = DraftTree.from_lists([lists])
        width = len(lists[0])
        assert torch.equal(together.ancestor_mask()[row, :width, :width], alone.ancestor_mask()[0])
        assert torch.equal(together.depths()[row, :width], alone.depths()[0])
        assert alone.prune(half[row : row + 1, :width]).to_lists()[0] == pruned[row]
