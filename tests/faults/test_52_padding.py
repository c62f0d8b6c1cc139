"""52: shorter prompts of a batch are padded, and their last token or their positions are taken from the padding."""

from typing import Any

import pytest
import torch
from torch import Tensor

from outpace.decoding.generate import generate
from outpace.drafters.small import Small
from outpace.models.transformer import Transformer
from toys import dense_logits, lively, must_fail, reference

PROMPT, NEW = [5, 6, 7, 8, 9], 12


def case(target: Transformer) -> None:
    """Padding of 0, 1, 3 and 7 tokens of any id changes neither a text nor how well its own target drafts it."""
    wanted = dense_logits(target, PROMPT)[-1]
    for pads in (0, 1, 3, 7):
        longer = [(3 * place) % 64 for place in range(len(PROMPT) + pads)]
        for pad in (0, PROMPT[-1], 63):
            ids = torch.tensor([[*PROMPT, *[pad] * pads], longer])
            logits = target.prefill(target.open(2, 16), ids, [len(PROMPT), len(longer)]).logits[0, 0]
            torch.testing.assert_close(logits, wanted, atol=1e-4, rtol=0)
        options: Any = {"max_new_tokens": NEW, "num_draft_tokens": 4, "eos_ids": None}
        result, _ = generate(target, Small(target, target), [PROMPT, longer], **options)
        assert result.token_ids == reference(target, tuple(PROMPT), NEW)
        assert result.stats.speculation.acceptance == 1.0


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_padding_is_never_seen(family: str) -> None:
    case(lively(family))


@pytest.mark.parametrize("fault", ["last column", "padding is kept", "positions of the longest"])
def test_planted_fault(fault: str, tiny: Transformer, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = Transformer.prefill

    def prefill(self: Transformer, state: Any, ids: Tensor, lengths: list[int], taps: Any = ()) -> Any:
        if fault == "last column":
            return honest(self, state, ids, [ids.shape[1]] * len(ids), taps)
        if fault == "positions of the longest":  # padding on the left, and positions from a plain range
            ids = torch.stack([row.roll(ids.shape[1] - size) for row, size in zip(ids, lengths, strict=True)])
            return honest(self, state, ids, [ids.shape[1]] * len(ids), taps)
        scores = honest(self, state, ids, lengths, taps)
        state.lengths[-len(lengths) :] = [ids.shape[1]] * len(lengths)
        return scores

    monkeypatch.setattr(Transformer, "prefill", prefill)
    with must_fail():
        case(tiny)
