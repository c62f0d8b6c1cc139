"""57: the attention kernel drops or misreads a tree's mask, and one branch sees another."""

import pytest
import torch
from torch import Tensor

from outpace.models import transformer
from outpace.models.transformer import Transformer
from outpace.verification.tree import DraftTree
from toys import lively, must_fail

TEXT = [5, 6, 7, 8, 9]
SHAPES = {"side by side": [-1, -1, 0, 1], "one after the other": [-1, 0, -1, 2]}


def case(target: Transformer) -> None:
    """Two branches of depth 2: a changed token moves its own branch from there on, and nothing else."""
    for parents in SHAPES.values():
        cache = target.open(1, 16)
        target.prefill(cache, torch.tensor([TEXT]), [len(TEXT)])

        def score(tokens: list[int], parents: list[int] = parents, cache: object = cache) -> Tensor:
            return target.score(cache, torch.tensor([20]), DraftTree.from_lists([(tokens, parents)])).logits[0]

        tokens = [11, 12, 13, 14]
        before = score(tokens)
        for changed in range(4):
            moved = score([token + 30 * (node == changed) for node, token in enumerate(tokens)])
            below = {1 + changed, *(1 + node for node in range(4) if parents[node] == changed)}
            for row, distance in enumerate((moved - before).abs().amax(-1)):
                assert distance > 0.1 if row in below else distance <= 1e-6


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3"])
def test_branches_do_not_see_each_other(family: str) -> None:
    case(lively(family, **({"sliding_window": 8} if family == "mistral" else {})))


def test_planted_fault(tiny: Transformer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mask is taken for an ordinary causal one."""
    honest = transformer.tree_mask
    monkeypatch.setattr(
        transformer, "tree_mask", lambda tree, *given: honest(DraftTree.chain(tree.tokens, tree.num_nodes), *given)
    )
    with must_fail():
        case(tiny)
