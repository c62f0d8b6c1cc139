"""Toys are the same for everyone and lively enough to tell models apart."""

import pytest
import torch

import outpace
from outpace.models.shape import FAMILIES
from outpace.models.toy import random_table, table_target, tiny_config, tiny_tensors, tiny_transformer
from outpace.verification.tree import DraftTree


@pytest.mark.parametrize("family", FAMILIES)
def test_a_tiny_model_is_lively(family: str) -> None:
    """Its greedy text has at least 8 different tokens in 40."""
    text = outpace.generate(tiny_transformer(family), None, [1, 2, 3], max_new_tokens=40, eos_ids=None).token_ids
    assert len(set(text)) >= 8


def test_a_seed_makes_a_model() -> None:
    config = tiny_config("qwen3", attention_bias=True)
    first, again, other = (tiny_tensors(config, seed=seed) for seed in (3, 3, 4))
    assert first.keys() == again.keys()
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not any(torch.equal(first[name], other[name]) for name in first)


def test_a_table_says_its_row() -> None:
    """After any text the logits are the last token's row, node by node."""
    table = random_table(5, seed=1, spread=2.0)
    assert torch.equal(table, random_table(5, seed=1, spread=2.0))
    assert table.dtype == torch.float64
    target = table_target(table, eos_ids=(4,))
    assert (target.vocab_size, target.eos_ids, target.dtype) == (5, (4,), torch.float64)
    state = target.open(1, 16)
    assert torch.equal(target.prefill(state, torch.tensor([[0, 3, 9 % 5]]), [2]).logits[0], table[[3]])
    tree = DraftTree.from_lists([([1, 2, 0], [-1, -1, 0])])
    assert torch.equal(target.score(state, torch.tensor([4]), tree).logits[0], table[[4, 1, 2, 0]])
