"""Greedy text in fp32 is the plain reference's, token for token, whatever drafts, however wide the batch.

The reference has no cache and no batch: every token reads the whole text anew.
"""

import random
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outpace.decoding.generate import generate
from outpace.drafters.drafter import Drafter
from outpace.drafters.either import Either
from outpace.drafters.lookup import Lookup
from outpace.drafters.small import Small
from outpace.models.target import Target
from outpace.models.transformer import Transformer
from toys import Scripted, lively, reference, right_then_wrong

NEW = 20
RANDOM = random.Random(5)
PROMPTS = [tuple(RANDOM.randrange(64) for _ in range(length)) for length in (1, 3, 7, 12)]
PROMPTS.append((7, 8, 9, 10, 11, 7, 8, 9, 10, 11, 7, 8, 9))
DRAFTERS = ("none", "lookup", "either", "self", "other", "scripted", "soft")


def drafter(kind: str, target: Target, other: Target, counts: Sequence[int]) -> Drafter | None:
    if kind == "lookup":
        return Lookup(eos_ids=target.eos_ids)
    if kind == "either":
        return Either(Lookup(eos_ids=target.eos_ids), Small(other, target))
    if kind in ("self", "other"):
        return Small(target if kind == "self" else other, target)
    if kind in ("scripted", "soft"):
        texts = [[*prompt, *reference(target, prompt, NEW + 9)] for prompt in PROMPTS]
        counted = [[*counts[index:], *counts[:index]] for index in range(len(PROMPTS))]  # every row in a own phase
        return Scripted(right_then_wrong(texts, counted), laws="soft" if kind == "soft" else None)
    return None


@settings(max_examples=60)
@given(
    kind=st.sampled_from(DRAFTERS),
    num_draft_tokens=st.sampled_from((0, 1, 2, 3, 5, 8)),
    rows=st.permutations(range(len(PROMPTS))).flatmap(lambda order: st.integers(1, 5).map(lambda n: order[:n])),
    slots=st.integers(1, 5),
    new=st.integers(1, NEW),
    stop=st.none() | st.tuples(st.integers(0, 4), st.integers(0, NEW - 1)),
    counts=st.lists(st.integers(0, 8), min_size=5, max_size=5),
)
def test_any_drafter_batch_and_stop(
    kind: str,
    num_draft_tokens: int,
    rows: list[int],
    slots: int,
    new: int,
    stop: tuple[int, int] | None,
    counts: list[int],
    tiny: Transformer,
    tiny_draft: Transformer,
) -> None:
    prompts = [PROMPTS[row] for row in rows]
    eos = () if stop is None else (reference(tiny, PROMPTS[stop[0]], NEW)[stop[1]],)
    results = generate(
        tiny,
        drafter(kind, tiny, tiny_draft, counts),
        [list(prompt) for prompt in prompts],
        num_draft_tokens=num_draft_tokens,
        max_new_tokens=new,
        batch_size=slots,
        eos_ids=eos,
    )
    for prompt, result in zip(prompts, results, strict=True):
        assert result.token_ids == reference(tiny, prompt, new, eos)
        assert result.finish_reason == ("stop" if result.token_ids[-1] in eos else "length")


KINDS: dict[str, dict[str, Any]] = {
    "llama": {"tie_word_embeddings": True},
    "mistral": {"sliding_window": 8},
    "qwen2": {},
    "qwen3": {
        "sliding_window": 8,
        "use_sliding_window": True,
        "layer_types": ["full_attention", "sliding_attention"],
    },
}


@pytest.mark.parametrize("family", KINDS)
@pytest.mark.parametrize("kind", ["self", "scripted", "lookup"])
def test_every_family(family: str, kind: str) -> None:
    target = lively(family, **KINDS[family])
    guesser = drafter(kind, target, target, (2, 0, 5, 1, 3))
    results = generate(target, guesser, [list(p) for p in PROMPTS], num_draft_tokens=5, max_new_tokens=NEW)
    assert [result.token_ids for result in results] == [reference(target, p, NEW) for p in PROMPTS]


def test_the_scripted_rows_accept_what_their_script_says(tiny: Transformer) -> None:
    """The fixture itself: rows that accept 0, 2 and all of 4 in one batch, turn after turn."""
    prompts = PROMPTS[1:4]
    texts = [[*prompt, *reference(tiny, prompt, NEW + 9)] for prompt in prompts]
    guesser = Scripted(right_then_wrong(texts, [[0], [2], [4]]))
    results = generate(tiny, guesser, [list(p) for p in prompts], num_draft_tokens=4, max_new_tokens=16)
    assert [result.token_ids for result in results] == [reference(tiny, prompt, 16) for prompt in prompts]
    stats = [result.stats.speculation for result in results]
    assert [one.turns for one in stats] == [15, 5, 3]
    assert [one.accepted for one in stats] == [0, 10, 12]
    assert [one.tau for one in stats] == [1, 3, 5]
