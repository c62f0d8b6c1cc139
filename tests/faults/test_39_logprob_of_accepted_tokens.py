"""39: accepted tokens come without a log-probability of their own: 0.0, filled in, or left out."""

from dataclasses import replace
from typing import Any

import pytest

from outpace.decoding import loop
from outpace.decoding.generate import generate
from outpace.models.transformer import Transformer
from toys import Scripted, dense_logits, must_fail, reference, right_then_wrong

PROMPT, NEW = (5, 6, 7), 20


def case(target: Transformer) -> None:
    """Every token has one entry, of the raw law at its place, greedy or sampled, drafted or not."""
    script = right_then_wrong([[*PROMPT, *reference(target, PROMPT, NEW + 9)]], [0, 1, 2, 3, 4])
    for options in ({}, {"temperature": 1.5, "top_k": 9, "seed": 1}):
        result = generate(
            target, Scripted(script), list(PROMPT), max_new_tokens=NEW, num_draft_tokens=4, logprobs=3, **options
        )
        assert result.logprobs is not None
        assert [entry.token_id for entry in result.logprobs] == result.token_ids and len(result.token_ids) == NEW
        rows = dense_logits(target, [*PROMPT, *result.token_ids])[len(PROMPT) - 1 : -1].log_softmax(-1)
        for entry, row in zip(result.logprobs, rows, strict=True):
            assert entry.logprob == pytest.approx(float(row[entry.token_id]), abs=1e-4)
            assert len(entry.top) == 3 and (entry.token_id, entry.logprob) in entry.top
            assert options or entry.top[0][0] == entry.token_id


def test_accepted_tokens_have_their_logprob(tiny: Transformer) -> None:
    case(tiny)


@pytest.mark.parametrize("fault", ["zero", "missing"])
def test_planted_fault(fault: str, tiny: Transformer, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = loop._logprobs

    def first_only(*given: Any) -> list[loop.TokenLogprob]:
        first, *rest = honest(*given)
        return [first] if fault == "missing" else [first, *(replace(entry, logprob=0.0) for entry in rest)]

    monkeypatch.setattr(loop, "_logprobs", first_only)
    with must_fail():
        case(tiny)
