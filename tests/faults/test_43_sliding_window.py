"""43: once the window is full, layers with one attend too far, too near, or as if all layers were of one kind."""

from typing import Any

import pytest
import torch
from torch import Tensor

from outpace.decoding.generate import generate
from outpace.models import transformer
from outpace.models.transformer import Transformer
from outpace.verification.tree import DraftTree
from toys import Scripted, dense_logits, lively, must_fail, reference, right_then_wrong

WINDOW, NEW, DEPTH = 8, 50, 5
MIXED = {"use_sliding_window": True, "layer_types": ["full_attention", "sliding_attention"]}
KINDS: dict[str, dict[str, Any]] = {"mistral": {}, "qwen2": MIXED}


def case(target: Transformer) -> None:
    """Prompts shorter and longer than the window, drafts right, wrong and mixed; a tree deeper than the window."""
    prompts = [tuple((7 * place + length) % 64 for place in range(length)) for length in (6, 20)]
    texts = [[*prompt, *reference(target, prompt, NEW + DEPTH)] for prompt in prompts]
    for counts in ([5], [0], [3, 0, 5, 1]):
        guesser = Scripted(right_then_wrong(texts, counts))
        results = generate(target, guesser, [list(p) for p in prompts], num_draft_tokens=DEPTH, max_new_tokens=NEW)
        assert [result.token_ids for result in results] == [reference(target, prompt, NEW) for prompt in prompts]
    cache, text, chain = target.open(1, 64), list(prompts[1]), list(range(30, 42))
    target.prefill(cache, torch.tensor([text]), [len(text)])
    # Two leaves stand before the chain, so that places and depths part by two.
    tree = DraftTree.from_lists([([1, 2, *chain], [-1, -1, -1, *range(2, 1 + len(chain))])])
    logits = target.score(cache, torch.tensor([9]), tree).logits[0, 3:]
    wanted = dense_logits(target, [*text, 9, *chain])[len(text) + 1 :]
    torch.testing.assert_close(logits, wanted, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("family", KINDS)
def test_windows_slide(family: str) -> None:
    case(lively(family, sliding_window=WINDOW, **KINDS[family]))


def _flat(places: Tensor, starts: list[int], context: int, window: int) -> Tensor:
    return places[:, :, None] - torch.arange(context) < window


FAULTS = {
    "no window": lambda near: lambda places, starts, context, window: near(places, starts, context, 10**6),
    "one short": lambda near: lambda places, starts, context, window: near(places, starts, context, window - 1),
    "flat places": lambda near: _flat,
}


@pytest.mark.parametrize("family", KINDS)
@pytest.mark.parametrize("fault", FAULTS)
def test_planted_fault(fault: str, family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transformer, "_near", FAULTS[fault](transformer._near))
    with must_fail():
        case(lively(family, sliding_window=WINDOW, **KINDS[family]))


@pytest.mark.parametrize("kind", [None, WINDOW])
def test_planted_fault_one_mask_for_all_layers(kind: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = Transformer._masks
    monkeypatch.setattr(Transformer, "_masks", lambda *given: dict.fromkeys((None, WINDOW), honest(*given)[kind]))
    with must_fail():
        case(lively("qwen2", sliding_window=WINDOW, **MIXED))
