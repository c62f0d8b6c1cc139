"""A reduced vocabulary is the most frequent tokens of answers, and always the ends of texts."""

from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from outpace.errors import UsageError
from outpace.training.masks import Sample
from outpace.training.reduced import reduced_vocabulary

VOCAB = 12
tokens = st.lists(st.tuples(st.integers(0, VOCAB - 1), st.booleans()), min_size=1, max_size=12)


def sample(*marked: tuple[int, bool]) -> Sample:
    ids, mask = zip(*marked, strict=True)
    return Sample("s", torch.tensor(ids, dtype=torch.int32), torch.tensor(mask))


@given(st.lists(tokens, min_size=1, max_size=6), st.integers(2, VOCAB), st.sets(st.integers(0, VOCAB - 1), max_size=2))
def test_the_choice(texts: list[list[tuple[int, bool]]], size: int, ends: set[int]) -> None:
    """By a plain count and a plain sort: ends, then counts, then lower ids."""
    counts = Counter(token for text in texts for token, mask in text if mask)
    samples = [sample(*text) for text in texts]
    if not counts:
        with pytest.raises(UsageError, match="no token of the samples is an answer's"):
            reduced_vocabulary(samples, size, VOCAB, sorted(ends))
        return
    found = reduced_vocabulary(samples, size, VOCAB, sorted(ends))
    ranked = sorted(range(VOCAB), key=lambda token: (token not in ends, -counts[token], token))
    assert found.ids.tolist() == sorted(ranked[:size])
    assert found.ids.dtype == torch.int64
    assert found.coverage == pytest.approx(sum(counts[token] for token in ranked[:size]) / counts.total())


def test_tokens_of_prompts_do_not_count() -> None:
    found = reduced_vocabulary([sample(*[(9, False)] * 8, (5, True), (5, True), (7, True))], 2, VOCAB, [])
    assert found.ids.tolist() == [5, 7] and found.coverage == 1.0


def test_unused_ids_fill_it_up() -> None:
    found = reduced_vocabulary([sample((8, True), (8, True), (3, True))], 5, VOCAB, [11])
    assert found.ids.tolist() == [0, 1, 3, 8, 11] and found.coverage == 1.0
    whole = reduced_vocabulary([sample((8, True))], VOCAB, VOCAB, [])
    assert whole.ids.tolist() == list(range(VOCAB))


@pytest.mark.parametrize(
    ("size", "ends", "message"),
    [
        (0, [], "a draft vocabulary of 0 is asked for; allowed: from 1 "),
        (2, [1, 2, 3], r"of 2 is asked for; allowed: from 3 \(the end-of-text ids\) to 12"),
        (VOCAB + 1, [], r"of 13 is asked for; allowed: from 1 .* to 12 \(the whole vocabulary\)"),
    ],
)
def test_sizes_that_are_refused(size: int, ends: list[int], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        reduced_vocabulary([sample((8, True))], size, VOCAB, ends)


def test_a_token_beyond_the_vocabulary_is_named() -> None:
    with pytest.raises(UsageError, match="s holds the id 12; allowed: 0 to 11"):
        reduced_vocabulary([sample((12, True))], 3, VOCAB, [])
