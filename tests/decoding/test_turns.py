"""One target forward a turn; features and log-probabilities belong to the token they are handed out with."""

import pytest
import torch

from outpace.decoding.generate import generate
from outpace.decoding.loop import Request, decode
from outpace.drafters.lookup import Lookup
from outpace.drafters.small import Small
from outpace.models.transformer import Transformer
from toys import Scripted, Watched, dense_logits, reference, right_then_wrong

PROMPTS = [(9,), (5, 6, 7), (1, 2, 3, 4, 5, 6, 7)]


def texts(target: Transformer, new: int = 40) -> list[list[int]]:
    return [[*prompt, *reference(target, prompt, new)] for prompt in PROMPTS]


@pytest.mark.parametrize("kind", ["none", "lookup", "small", "scripted"])
def test_one_forward_a_turn_for_the_whole_batch(kind: str, tiny: Transformer, tiny_draft: Transformer) -> None:
    watched = Watched(tiny)
    guessers = {
        "none": None,
        "lookup": Lookup(),
        "small": Small(tiny_draft, watched),
        "scripted": Scripted(right_then_wrong(texts(tiny), [[0], [2], [4]])),
    }
    results = generate(watched, guessers[kind], [list(p) for p in PROMPTS], num_draft_tokens=4, max_new_tokens=12)
    assert watched.prefills == [[len(prompt) for prompt in PROMPTS]]
    assert len(watched.scored) == max(result.stats.speculation.turns for result in results)
    if kind == "scripted":  # rows leave the forward when they are done
        assert [len(counts) for counts in watched.scored] == [3, 3, 3, 2, *[1] * 7]


def test_nothing_is_drafted_that_cannot_be_used(tiny: Transformer) -> None:
    """With n tokens to come at most n - 1 are drafted, and none when one is left."""
    guesser = Scripted(right_then_wrong(texts(tiny), [3]))
    generate(tiny, guesser, [list(p) for p in PROMPTS], num_draft_tokens=8, max_new_tokens=7)
    assert all(len(draft) == limit for _, limit, draft in guesser.drafts)
    watched = Watched(tiny)
    generate(
        watched, Scripted(right_then_wrong(texts(tiny), [3])), list(PROMPTS[0]), max_new_tokens=7, num_draft_tokens=8
    )
    assert watched.scored == [[5], [1]]


@pytest.mark.parametrize("slots", [1, 2, 3])
def test_features_are_those_of_the_kept_tokens(slots: int, tiny: Transformer) -> None:
    """Rows that accept 0, 2 and 4 a turn: each row's features are those of its own text, token by token."""
    guesser = Scripted(right_then_wrong(texts(tiny), [[0], [2], [4]]), taps=(0, 1, "last_normed"))
    requests = [Request(prompt, max_new_tokens=8) for prompt in PROMPTS]
    for _ in decode(tiny, guesser, requests, slots=slots):
        pass
    assert [row.prompt for row in guesser.rows] == [list(prompt) for prompt in PROMPTS]
    for row in guesser.rows:
        seen = torch.cat(row.features)
        read = row.known[:-1]  # the last token has not been read yet
        assert len(seen) == len(read)
        torch.testing.assert_close(seen[:, 0], tiny.embeddings[torch.tensor(read)])
        with torch.inference_mode():
            torch.testing.assert_close(tiny.head(seen[:, 2]), dense_logits(tiny, read), rtol=0, atol=1e-4)


@pytest.mark.parametrize("alternatives", [0, 3, 200])
@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_logprobs_are_the_raw_ones_of_every_token(alternatives: int, temperature: float, tiny: Transformer) -> None:
    """One entry a token, of the unprocessed logits: temperature and top-k leave them as they are."""
    guesser = Small(tiny, tiny) if temperature else Scripted(right_then_wrong(texts(tiny), [[0], [2], [4]]))
    results = generate(
        tiny,
        guesser,
        [list(prompt) for prompt in PROMPTS],
        max_new_tokens=7,
        num_draft_tokens=4,
        logprobs=alternatives,
        temperature=temperature,
        top_k=20 if temperature else 0,
        seed=3,
    )
    for prompt, result in zip(PROMPTS, results, strict=True):
        rows = dense_logits(tiny, [*prompt, *result.token_ids])[len(prompt) - 1 : -1].log_softmax(-1)
        assert result.logprobs is not None and len(result.logprobs) == len(result.token_ids) == 7
        for entry, token, row in zip(result.logprobs, result.token_ids, rows, strict=True):
            assert entry.token_id == token
            assert entry.logprob == pytest.approx(float(row[token]), abs=1e-4)
            assert len(entry.top) == min(alternatives, 64)
            assert all(value == pytest.approx(float(row[other]), abs=1e-4) for other, value in entry.top)
            if alternatives:
                assert token in [other for other, _ in entry.top]
                values = [value for _, value in entry.top]
                assert values == sorted(values, reverse=True)
            if alternatives and not temperature:
                assert entry.top[0] == (token, entry.logprob)


def test_logprobs_end_at_the_stop_and_may_be_empty(tiny: Transformer) -> None:
    said = reference(tiny, PROMPTS[1], 9)
    guesser = Scripted(right_then_wrong(texts(tiny), [8]))
    result = generate(tiny, guesser, list(PROMPTS[1]), eos_ids=[said[3]], logprobs=1, num_draft_tokens=8)
    assert result.logprobs is not None and [entry.token_id for entry in result.logprobs] == said[:4]
    assert generate(tiny, None, [1], max_new_tokens=0, logprobs=2).logprobs == []
    assert generate(tiny, None, [1], max_new_tokens=1).logprobs is None
