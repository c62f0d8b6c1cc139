"""Greedy text with penalties, bans and processors is transformers' own, although part of it was drafted."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers.generation.logits_process import NoRepeatNGramLogitsProcessor

import outpace
from outpace.drafters.lookup import Lookup
from outpace.drafters.small import Small

PROMPT = [2, 7, 1, 8, 2, 8, 1, 8, 2, 8, 4, 5, 9, 0, 4, 5]
NEW = 40

OPTIONS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "repetition": ({"repetition_penalty": 1.4}, {"repetition_penalty": 1.4}),
    "least": ({"min_new_tokens": 25}, {"min_new_tokens": 25}),
    "bias": ({"logit_bias": {5: -6.0, 9: 4.0}}, {"sequence_bias": [[[5], -6.0], [[9], 4.0]]}),
    "a processor of theirs": ({"processors": [NoRepeatNGramLogitsProcessor(1)]}, {"no_repeat_ngram_size": 1}),
}
"""What outpace is asked for, and transformers."""


@pytest.mark.parametrize("name", [*OPTIONS, "bad words", "all"])
def test_processed_text(name: str, build: Callable[[str], Any]) -> None:
    """Plain, looked up, drafted by the model itself in chains and in trees: one text, and another than without."""
    pair = build("llama")
    plain = pair.greedy(PROMPT, NEW)
    eos = plain[14]
    words = [[plain[3]], plain[6:8], plain[10:13]]
    every = OPTIONS | {"bad words": ({"bad_words": words}, {"bad_words_ids": words})}
    chosen = every.values() if name == "all" else [every[name]]
    ours = {key: value for options, _ in chosen for key, value in options.items()}
    theirs = {key: value for _, options in chosen for key, value in options.items()}
    ids = torch.tensor([PROMPT])
    out = pair.reference.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=NEW,
        do_sample=False,
        eos_token_id=eos,
        pad_token_id=0,
        **theirs,
    )
    expected = out[0, len(PROMPT) :].tolist()
    assert expected != plain[: plain.index(eos) + 1]
    target = pair.target()
    for drafter, shape in (
        (None, {}),
        (Lookup(), {"num_draft_tokens": 4}),
        (Small(target, target), {"num_draft_tokens": 5}),
        (Small(target, target), {"num_draft_tokens": 8, "tree": "top-k:2"}),
    ):
        result = outpace.generate(target, drafter, PROMPT, max_new_tokens=NEW, eos_ids=[eos], **shape, **ours)
        assert result.token_ids == expected
