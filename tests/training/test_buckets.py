"""An epoch is every sample once, in batches of like length, in an order that seed and epoch alone decide."""

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outpace.errors import UsageError
from outpace.training import buckets
from outpace.training.buckets import order

lengths_of = st.lists(st.integers(1, 40), min_size=1, max_size=120)


@given(lengths_of, st.integers(0, 5), st.integers(0, 5), st.integers(40, 200), st.integers(1, 64))
def test_an_epoch(lengths: list[int], seed: int, epoch: int, tokens: int, window: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(buckets, "WINDOW", window)
        batches = order(lengths, seed, epoch, tokens)
        assert order(lengths, seed, epoch, tokens) == batches
    assert sorted(place for batch in batches for place in batch) == list(range(len(lengths)))
    assert all(len(batch) * max(lengths[place] for place in batch) <= tokens for batch in batches)


def test_the_order_is_the_same_on_every_machine() -> None:
    """Written down once: a run may be gone on with elsewhere, and in another release of Python."""
    lengths = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3]
    assert order(lengths, 1, 0, 12) == [[3], [8, 2], [0, 9, 6, 1], [5], [7, 4]]
    assert order(lengths, 1, 1, 12) == [[9, 0, 6, 3], [5], [7, 8], [1], [4, 2]]


def test_epochs_and_seeds_differ() -> None:
    """Of 200 samples the chance that two orders agree is below 1e-100."""
    lengths = [random.Random(4).randrange(1, 40) for _ in range(200)]
    found = [order(lengths, seed, epoch, 160) for seed in range(3) for epoch in range(3)]
    assert all(one != other for place, one in enumerate(found) for other in found[:place])


def test_little_is_wasted() -> None:
    """Texts of 40 to 400 tokens fill nine tenths of what they are padded to; unsorted they fill two thirds."""
    chance = random.Random(7)
    lengths = [chance.randrange(40, 401) for _ in range(3000)]

    def filled(batches: list[list[int]]) -> float:
        padded = sum(len(batch) * max(lengths[place] for place in batch) for batch in batches)
        return sum(lengths) / padded

    assert filled(order(lengths, 0, 0, 2048)) > 0.9
    chance.shuffle(places := list(range(len(lengths))))
    assert filled([places[start : start + 8] for start in range(0, len(places), 8)]) < 0.7


def test_batches_come_in_no_order_of_length() -> None:
    """Neighbours are no more alike than any two: of 375 batches, about half are followed by a longer one. False alarm:
    fewer than 130 or more than 245 of 374 has a chance below 1e-8 (half, with a standard deviation below 10)."""
    chance = random.Random(7)
    lengths = [chance.randrange(40, 401) for _ in range(3000)]
    longest = [max(lengths[place] for place in batch) for batch in order(lengths, 0, 0, 2048)]
    rising = sum(left < right for left, right in itertools.pairwise(longest))
    assert 0.35 * len(longest) < rising < 0.65 * len(longest)


def test_what_is_refused() -> None:
    with pytest.raises(UsageError, match="tokens_per_batch is 8 and the longest sample has 9 tokens; allowed: as many"):
        order([3, 9], 0, 0, 8)
    with pytest.raises(UsageError, match="there are no samples to make batches of"):
        order([], 0, 0, 8)
