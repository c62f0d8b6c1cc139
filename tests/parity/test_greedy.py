"""Greedy text is transformers' own, token for token: every family, batched, beyond window and old context."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

import outpace

PROMPTS = [[2, 7, 1, 8, 2, 8, 1, 8, 2, 8, 4, 5, 9, 0, 4, 5, 2, 3, 5, 3], [3, 1, 4, 1, 5, 9]]
NEW = 60


def test_greedy_text(pair: Any) -> None:
    """Prompts shorter and longer than the window, in one batch, equal their own runs in transformers.

    Decided by the models, not by rounding: the two best logits of every step lie more than ten times as far apart as
    the logits of both sides do.
    """
    expected = [pair.greedy(prompt, NEW) for prompt in PROMPTS]
    results = outpace.generate(pair.target(), None, PROMPTS, max_new_tokens=NEW, eos_ids=None)
    assert [result.token_ids for result in results] == expected
    for prompt, text in zip(PROMPTS, expected, strict=True):
        best = pair.read([prompt + text])[0][len(prompt) - 1 : -1].topk(2).values
        assert (best[:, 0] - best[:, 1]).min() > 3e-4


@pytest.mark.parametrize("name", ["mistral-window", "qwen3-mixed"])
def test_the_end_of_text_ends_both(build: Callable[[str], Any], name: str) -> None:
    """The tenth token of a text, made an end-of-text id, ends it where transformers ends it."""
    pair = build(name)
    for prompt in PROMPTS:
        plain = pair.greedy(prompt, 10)
        eos = plain[9]
        ids = torch.tensor([prompt])
        out = pair.reference.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=NEW,
            do_sample=False,
            eos_token_id=eos,
            pad_token_id=0,
        )
        result = outpace.generate(pair.target(), None, prompt, max_new_tokens=NEW, eos_ids=[eos])
        assert result.token_ids == out[0, len(prompt) :].tolist() == plain[: plain.index(eos) + 1]
        assert result.finish_reason == "stop"
