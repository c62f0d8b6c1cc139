"""56: causality is lost when several tokens are run on a cache: earlier rows of a block see later drafts."""

import pytest
import torch
from torch import Tensor

from outpace.models import transformer
from outpace.models.transformer import Transformer
from outpace.verification.tree import DraftTree
from toys import dense_logits, lively, must_fail

TEXT, BLOCK = [5, 6, 7, 8, 9, 1, 2, 3, 4, 50], [11, 12, 13, 14, 15]


def case(target: Transformer) -> None:
    """A cache of 10 and a block of 5: the last draft moves no earlier row, and the block is its tokens one by one."""
    cache = target.open(1, 32)
    target.prefill(cache, torch.tensor([TEXT]), [len(TEXT)])

    def score(drafts: list[int]) -> Tensor:
        return target.score(cache, torch.tensor([20]), DraftTree.chain(torch.tensor([drafts]))).logits[0]

    before, after = score(BLOCK), score([*BLOCK[:-1], 40])
    torch.testing.assert_close(after[:-1], before[:-1], atol=1e-6, rtol=0)
    assert (after[-1] - before[-1]).abs().max() > 0.1
    torch.testing.assert_close(before, dense_logits(target, [*TEXT, 20, *BLOCK])[len(TEXT) :], atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3"])
def test_a_block_is_causal(family: str) -> None:
    case(lively(family, **({"sliding_window": 8} if family == "mistral" else {})))


@pytest.mark.parametrize("fault", ["no mask within the block", "one ahead", "own token unseen"])
def test_planted_fault(fault: str, tiny: Transformer, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = transformer.tree_mask

    def mask(tree: DraftTree, starts: Tensor, context: int) -> Tensor:
        visible = honest(tree, starts, context)
        if fault == "no mask within the block":
            return torch.ones_like(visible)
        by = 1 if fault == "one ahead" else -1
        return visible | visible.roll(by, 2) if by == 1 else visible & visible.roll(by, 2)

    monkeypatch.setattr(transformer, "tree_mask", mask)
    with must_fail():
        case(tiny)
