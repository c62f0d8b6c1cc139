"""49: after a rejection the target's cache is emptied, and verification sees the block without the prompt."""

from typing import Any

import pytest
import torch
from torch import Tensor

from outpace.decoding.loop import Request, decode
from outpace.decoding.turn import Turn
from outpace.drafters.small import Small
from outpace.models.cache import Cache
from outpace.models.toy import tiny_transformer
from outpace.models.transformer import Transformer
from toys import dense_logits, must_fail, reference

PROMPT, NEW = (5, 6, 7), 20


def case(target: Transformer) -> None:
    """The target's first layer drafts: the text, and every row that verified it, are those of the whole text anew."""
    first = tiny_transformer(seed=3, layers=1)
    assert torch.equal(first.embeddings, target.embeddings)  # the same weights, but a layer less
    text, refused = list(PROMPT), [0]

    def look(turn: Turn, rows: list[int]) -> None:
        [draft] = [tokens for tokens, _ in turn.proposal.tree.to_lists()]
        wanted = dense_logits(target, [*text, *draft])[len(text) - 1 :]
        torch.testing.assert_close(turn.scores.logits[0], wanted, atol=1e-4, rtol=0)
        refused[0] += len(draft) - len(turn.paths[0])
        text.extend(turn.emitted[0])

    request = Request(PROMPT, max_new_tokens=NEW)
    said = [token for one in decode(target, Small(first, target), [request], observer=look) for token in one.ids]
    assert said == reference(target, PROMPT, NEW)
    assert refused[0] > 9


def test_early_exit_drafts(tiny: Transformer) -> None:
    case(tiny)


def test_planted_fault(tiny: Transformer, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = tiny.keep

    def keep(state: Any, path: Tensor, num_accepted: list[int]) -> None:
        assert isinstance(state, Cache)
        honest(state, path, num_accepted)
        state.lengths[:] = [0 for _ in num_accepted]

    monkeypatch.setattr(tiny, "keep", keep)
    with must_fail():
        case(tiny)
