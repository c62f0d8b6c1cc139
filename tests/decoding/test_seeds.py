"""A seeded text is the plain seeded text, whatever drafts, however many, in whatever company."""

import warnings
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from outpace.decoding.generate import generate, speculative_decode
from outpace.decoding.loop import Request, decode
from outpace.drafters.drafter import Drafter
from outpace.drafters.lookup import Lookup
from outpace.drafters.small import Small
from outpace.models.transformer import Transformer
from outpace.verification.probabilities import Sampling
from toys import Scripted, lively, reference, right_then_wrong, run, seeded_reference

WARM = Sampling(0.8)
SAMPLINGS = [WARM, Sampling(1.3, top_k=5), Sampling(1.0, top_p=0.8), Sampling(1.0, 9, 0.9, 0.05)]
NEW = 8
PROMPTS = [(9,), (5, 6, 7), (7, 8, 7, 8, 7, 8, 7)]


def drafters(target: Transformer, other: Transformer) -> dict[str, Drafter | None]:
    texts = [[*prompt, *reference(target, prompt, 30)] for prompt in PROMPTS]
    return {
        "none": None,
        "lookup": Lookup(),
        "self": Small(target, target),
        "other": Small(other, target),
        "scripted": Scripted(right_then_wrong(texts, [3])),
    }


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
def test_plain_seeded_text_is_one_race_a_position(sampling: Sampling, tiny: Transformer) -> None:
    for seed, prompt in enumerate(PROMPTS):
        [last] = [e for e in decode(tiny, None, [Request(prompt, sampling, NEW, seed=seed)]) if e.finish]
        emitted = generate(tiny, None, list(prompt), max_new_tokens=NEW, seed=seed, **vars(sampling)).token_ids
        assert emitted == seeded_reference(tiny, prompt, NEW, sampling, seed)
        assert last.speculation is not None and last.speculation.rule == "coupling"


@settings(max_examples=25)
@given(
    kind=st.sampled_from(("none", "lookup", "self", "other", "scripted")),
    num_draft_tokens=st.sampled_from((0, 1, 3, 8)),
    rows=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3), st.sampled_from(SAMPLINGS)), min_size=1, max_size=4),
    slots=st.integers(1, 4),
)
def test_drafter_length_and_company_do_not_matter(
    kind: str,
    num_draft_tokens: int,
    rows: list[tuple[int, int, Sampling]],
    slots: int,
    tiny: Transformer,
    tiny_draft: Transformer,
) -> None:
    requests = [Request(PROMPTS[prompt], sampling, NEW, seed=seed) for prompt, seed, sampling in rows]
    texts: list[list[int]] = [[] for _ in rows]
    guesser = drafters(tiny, tiny_draft)[kind]
    for emission in decode(tiny, guesser, requests, num_draft_tokens=num_draft_tokens, slots=slots):
        texts[emission.index] += emission.ids
    wanted = [seeded_reference(tiny, PROMPTS[prompt], NEW, sampling, seed) for prompt, seed, sampling in rows]
    assert texts == wanted


def test_a_self_draft_under_a_seed_is_always_accepted(tiny: Transformer) -> None:
    """Target and drafter race with the same noise."""
    for sampling in SAMPLINGS:
        result = generate(
            tiny, Small(tiny, tiny), [1, 2, 3], num_draft_tokens=4, max_new_tokens=11, seed=5, **vars(sampling)
        )
        assert result.stats.speculation.acceptance == 1.0
        assert result.stats.speculation.turns == 2


def test_samples_of_a_seed_differ_and_repeat(tiny: Transformer) -> None:
    first, second = (
        speculative_decode(tiny, lively(seed=4), [1, 2], 3, 1.0, max_new_tokens=8, seed=1, num_samples=4) for _ in "ab"
    )
    assert torch.equal(first, second)
    assert len({tuple(row) for row in first.tolist()}) == 4
    assert first[0].tolist() == generate(tiny, None, [1, 2], max_new_tokens=8, seed=1, temperature=1.0).token_ids


@pytest.mark.parametrize("rule", ["match", "rejection", "block", "tree-rejection", "traversal"])
def test_a_named_rule_wins_and_the_seed_makes_it_reproducible(
    rule: str, tiny: Transformer, tiny_draft: Transformer
) -> None:
    options = {"temperature": 1.0, "seed": 4, "rule": rule, "max_new_tokens": 12}
    guesser = Small(tiny_draft, tiny)
    first, second = (generate(tiny, guesser, [1, 2, 3], **options) for _ in "ab")
    assert first.token_ids == second.token_ids
    assert first.stats.speculation.rule == rule
    assert generate(tiny, guesser, [1, 2, 3], **(options | {"seed": 5})).token_ids != first.token_ids


@pytest.mark.parametrize("rule", ["match", "rejection", "block", "tree-rejection", "traversal"])
def test_a_named_rule_and_its_seed_do_not_mind_the_company(rule: str, tiny: Transformer) -> None:
    """A neighbour with a longer draft makes the batch wider, and moves nobody's coins."""
    models = [lively(seed=4), lively(seed=4, max_position_embeddings=10)]  # the second stops drafting early
    for model in models:
        guesser = Small(model, tiny)
        requests = [Request(prompt, Sampling(1.2), 9, seed=seed) for seed, prompt in enumerate(PROMPTS[:2])]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            alone = [run(tiny, guesser, [request], rule=rule, num_draft_tokens=5)[0].ids for request in requests]
            for slots in (1, 2):
                together = run(tiny, guesser, requests, rule=rule, num_draft_tokens=5, slots=slots)
                assert [row.ids for row in together] == alone


def test_without_a_seed_the_best_rule_that_fits_is_in_force(tiny: Transformer) -> None:
    options: Any = {"num_draft_tokens": 4, "max_new_tokens": 6}
    rules = {
        kind: generate(tiny, guesser, [1, 2, 3], **options, temperature=1.0).stats.speculation.rule
        for kind, guesser in {"lookup": Lookup(), "small": Small(tiny, tiny), "none": None}.items()
    }
    assert rules == {"lookup": "match", "small": "block", "none": "match"}
    assert generate(tiny, Small(tiny, tiny), [1], **options, seed=3).stats.speculation.rule == "greedy"
