"""46: a preallocated cache lets tokens attend to slots that hold nothing, or a rejected draft."""

from typing import Any

import pytest
import torch
from torch import Tensor

from outpace.decoding.generate import generate
from outpace.errors import UsageError
from outpace.models import transformer
from outpace.models.cache import Cache
from outpace.models.transformer import Transformer
from outpace.verification.tree import DraftTree
from toys import Scripted, Watched, lively, must_fail, reference, right_then_wrong

CONTEXT, POISON = 32, 1e4
PROMPTS = [tuple((5 * place + length) % 64 for place in range(length)) for length in (2, 9, 20)]


class Poisoned(Watched):
    """Spoils every slot that holds nothing, at first and after every turn."""

    def open(self, slots: int, positions: int) -> Any:
        cache = super().open(slots, positions)
        cache.keys.fill_(POISON)
        cache.values.fill_(POISON)
        return cache

    def keep(self, state: Any, path: Tensor, num_accepted: list[int]) -> None:
        kept = [length + 1 + count for length, count in zip(state.lengths, num_accepted, strict=True)]
        super().keep(state, path, num_accepted)
        for row, length in enumerate(kept):
            state.keys[:, row, :, length:] = POISON
            state.values[:, row, :, length:] = POISON


def case(target: Transformer) -> None:
    """Rows of 2, 9 and 20 tokens run to slot 32 with rejections; what does not fit is an error in words."""
    said = [reference(target, prompt, CONTEXT - len(prompt)) for prompt in PROMPTS]
    texts = [[*prompt, *text] for prompt, text in zip(PROMPTS, said, strict=True)]
    for counts in ([2, 0, 4, 1], [0]):
        guesser = Scripted(right_then_wrong(texts, counts))
        results = generate(
            Poisoned(target), guesser, [list(prompt) for prompt in PROMPTS], max_new_tokens=None, num_draft_tokens=4
        )
        assert [result.token_ids for result in results] == said
    with pytest.raises(UsageError, match="the cache holds 4 positions a row and 5 are needed"):
        target.prefill(target.open(1, 4), torch.tensor([[1, 2, 3, 4, 5]]), [5])


def test_nothing_stale_is_attended() -> None:
    case(lively(max_position_embeddings=CONTEXT))


@pytest.mark.parametrize("fault", ["mask of the longest row", "rejected drafts stay"])
def test_planted_fault(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    masked, kept = transformer.tree_mask, Cache.keep

    def mask(tree: DraftTree, starts: Tensor, context: int) -> Tensor:
        return masked(tree, starts, context) | (torch.arange(context) < starts.max())

    if fault == "mask of the longest row":
        monkeypatch.setattr(transformer, "tree_mask", mask)
    else:
        chain = torch.arange(9).expand(9, -1)
        monkeypatch.setattr(
            Cache,  # one rejected draft at the start of the text, so that the room lasts
            "keep",
            lambda self, path, counts: kept(self, chain[: len(path)], [n + (self.lengths[0] < 4) for n in counts]),
        )
    with must_fail():
        case(lively(max_position_embeddings=CONTEXT))
