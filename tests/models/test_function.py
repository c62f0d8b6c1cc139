"""A function as a target says what the function says: the plain reference beside every cached model."""

from typing import Any

import pytest
import torch
from torch.testing import assert_close

from outpace.errors import UsageError
from outpace.models.function import FunctionTarget
from outpace.models.toy import tiny_transformer
from outpace.models.transformer import Transformer
from outpace.verification.tree import DraftTree

KINDS: dict[str, dict[str, Any]] = {
    "llama": {"family": "llama"},
    "window": {"family": "mistral", "sliding_window": 4},
    "biases": {"family": "qwen2"},
    "head norms": {"family": "qwen3", "tie_word_embeddings": True},
}


def read_anew(model: Transformer) -> FunctionTarget:
    """The model as a function: every text is read from its start, as a chain behind its first token."""

    def logits_of(ids: torch.Tensor) -> torch.Tensor:
        state = model.open(len(ids), ids.shape[1])
        first = model.prefill(state, ids[:, :1], [1] * len(ids)).logits
        if ids.shape[1] == 1:
            return first
        return torch.cat((first, model.score(state, ids[:, 1], DraftTree.chain(ids[:, 2:])).logits), 1)

    return FunctionTarget(logits_of, model.vocab_size)


def random_trees(generator: torch.Generator, batch: int) -> DraftTree:
    """Ragged, from empty rows to 6 nodes, parents drawn freely."""
    rows = []
    for _ in range(batch):
        count = int(torch.randint(7, (), generator=generator))
        tokens = torch.randint(64, (count,), generator=generator).tolist()
        rows.append((tokens, [int(torch.randint(-1, node, (), generator=generator)) for node in range(count)]))
    return DraftTree.from_lists(rows)


def random_paths(generator: torch.Generator, tree: DraftTree) -> tuple[torch.Tensor, list[int]]:
    """The path to any node of each row, or to its root."""
    ends = torch.stack([torch.randint(-1, int(count), (), generator=generator) for count in tree.num_nodes])
    path = tree.path_to(ends)
    return path, (path >= 0).sum(1).tolist()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", [0, 1])
def test_a_cached_model_is_its_own_function(kind: str, seed: int) -> None:
    """Random trees, paths, rewinds, departures and arrivals: cache and full reading never part, to 1e-4."""
    model = tiny_transformer(**KINDS[kind])
    function, generator = read_anew(model), torch.Generator().manual_seed(seed)
    states = [target.open(4, 64) for target in (model, function)]
    for step in range(6):
        rows = len(states[0].lengths)
        if rows < 3:
            lengths = torch.randint(1, 8, (3 - rows,), generator=generator).tolist()
            ids = torch.randint(64, (3 - rows, max(lengths)), generator=generator)
            both = [
                target.prefill(state, ids, lengths) for target, state in zip((model, function), states, strict=True)
            ]
            assert_close(both[0].logits, both[1].logits, atol=1e-4, rtol=1e-4)
        last = torch.randint(64, (3,), generator=generator)
        tree = random_trees(generator, 3) if step != 2 else DraftTree.chain(last[:, None].expand(3, 4))
        path, accepted = random_paths(generator, tree)
        ours, theirs = (
            target.score(state, last, tree).logits for target, state in zip((model, function), states, strict=True)
        )
        for row, count in enumerate(tree.num_nodes.tolist()):
            assert_close(ours[row, : 1 + count], theirs[row, : 1 + count], atol=1e-4, rtol=1e-4)
        for target, state in zip((model, function), states, strict=True):
            target.keep(state, path, accepted)
            target.rewind(state, [length - (length > 4) for length in state.lengths])
            if step % 2:
                target.select(state, [2, 0])
        assert states[0].lengths == states[1].lengths


def test_a_chain_is_read_once() -> None:
    """A chain of K costs one text a row, a tree one text a node: the function is called once either way."""
    shapes: list[tuple[int, ...]] = []

    def logits_of(ids: torch.Tensor) -> torch.Tensor:
        shapes.append(tuple(ids.shape))
        return torch.zeros(*ids.shape, 5)

    target = FunctionTarget(logits_of, 5)
    state = target.open(2, 20)
    target.prefill(state, torch.ones(2, 3, dtype=torch.int64), [3, 2])
    target.score(state, torch.tensor([1, 2]), DraftTree.chain(torch.ones(2, 4, dtype=torch.int64)))
    target.score(state, torch.tensor([1, 2]), DraftTree.from_lists([([1, 2], [-1, -1])] * 2))
    assert [shape[0] for shape in shapes] == [2, 2, 6]


def test_a_ragged_batch_is_read_to_its_last_node_only() -> None:
    """The longest text has the shortest draft: nothing is read beyond them, where a table of positions may end."""
    table, places = torch.randn(2, 8, 8, generator=torch.Generator().manual_seed(0))
    target = FunctionTarget(lambda ids: table[ids] + places[: ids.shape[1]], 8, max_positions=8)
    state = target.open(2, 8)
    target.prefill(state, torch.tensor([[1, 2, 3, 4, 5, 6, 7], [1, 0, 0, 0, 0, 0, 0]]), [7, 1])
    for tree in (
        DraftTree.from_lists([([], []), ([3, 4, 5, 6], [-1, 0, 1, 2])]),
        DraftTree.from_lists([([], []), ([3, 4, 5, 6], [-1, -1, 0, 1])]),
    ):
        logits = target.score(state, torch.tensor([0, 2]), tree).logits
        assert_close(logits[0, 0], table[0] + places[7])
        assert_close(logits[1, 1:], table[torch.tensor([3, 4, 5, 6])] + places[1 + tree.depths()[1]])


def test_refusals() -> None:
    target = FunctionTarget(lambda ids: torch.zeros(*ids.shape, 5), 5)
    state = target.open(1, 8)
    target.prefill(state, torch.tensor([[1, 2, 3]]), [3])
    with pytest.raises(UsageError, match="nothing was scored that could be kept; allowed: keep once after each score"):
        target.keep(state, torch.zeros(1, 0, dtype=torch.int64), [0])
    with pytest.raises(UsageError, match="row 0 holds 3 tokens and cannot be rewound to 4; allowed: 0 to 3"):
        target.rewind(state, [4])
    with pytest.raises(UsageError, match=r"a function shows no features and was asked for \(1,\); allowed: no taps"):
        target.score(state, torch.tensor([1]), DraftTree.empty(1), (1,))
    with pytest.raises(TypeError, match="a FunctionTarget was given the state of another target: Cache"):
        target.rewind(tiny_transformer().open(1, 8), [])
