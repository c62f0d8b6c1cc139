"""Intervals are paired, cover what they should, and pooled figures are those of all turns counted together."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outpace.decoding.stats import Tally
from outpace.evaluation.metrics import Estimate, median, median_ratio, pooled, resampled
from toys import must_fail

THEIRS = np.array([1.0, 5.0, 20.0, 3.0, 8.0])


def test_an_interval_is_paired() -> None:
    """However much prompts differ, one side twice the other on each of them is twice the other, without doubt."""
    assert median_ratio(2 * THEIRS, THEIRS) == Estimate(2.0, 2.0, 2.0)
    noisy = median_ratio(THEIRS, THEIRS[::-1].copy())
    assert noisy.low < noisy.value == 1.0 < noisy.high


def test_an_unpaired_bootstrap_would_be_noticed() -> None:
    """Planted: each side draws its own units."""
    draws = iter(np.random.default_rng(seed).integers(5, size=(4000, 5)) for seed in (1, 2))
    with must_fail():
        first, second = (np.median(THEIRS[next(draws)], 1) for _ in range(2))
        low, high = np.percentile(2 * first / second, (2.5, 97.5))
        assert (low, high) == (2.0, 2.0)


def test_intervals_do_not_change_from_call_to_call() -> None:
    ours = THEIRS + np.array([0.3, -0.2, 4.0, 0.1, -1.0])
    assert median_ratio(ours, THEIRS) == median_ratio(ours.tolist(), THEIRS.tolist())
    assert (resampled(7) == resampled(7)).all() and resampled(7).shape == (4000, 7)


@pytest.mark.parametrize("ratio", [0.8, 1.0, 1.3])
def test_an_interval_holds_the_truth_about_as_often_as_it_says(ratio: float) -> None:
    """Rates that differ from prompt to prompt by a factor of two, and 10 % of noise on either side; of 100 intervals
    at least 85 hold the ratio. Bootstrap intervals of medians are a little too short; with 93 % the count is below 85
    once in 500 times, and the seed is fixed: it never is."""
    generator = np.random.default_rng(3)
    held = 0
    for _ in range(100):
        prompt = np.exp(0.7 * generator.standard_normal(30))
        noise = np.exp(0.1 * generator.standard_normal((2, 30)))
        found = median_ratio(ratio * prompt * noise[0], prompt * noise[1])
        held += found.low <= ratio <= found.high
    assert held >= 85


def test_a_single_unit_has_no_width() -> None:
    assert median_ratio([3.0], [2.0]) == Estimate(1.5, 1.5, 1.5)
    assert str(median_ratio([3.0], [2.0])) == "1.5"
    assert str(Estimate(1.314, 1.2, 1.4)) == "1.31 [1.2, 1.4]"


def test_the_median_and_its_interval() -> None:
    found = median([1.0, 2.0, 3.0, 4.0, 100.0])
    assert found.value == 3.0 and 1.0 <= found.low < 3.0 < found.high <= 100.0


turn = st.integers(0, 5).flatmap(
    lambda matched: st.tuples(st.just(5), st.just(matched), st.integers(1, matched + 1))
) | st.just((0, 0, 1))


@given(st.lists(st.lists(turn, max_size=6), min_size=1, max_size=5))
def test_pooling_counts_all_turns_together(texts: list[list[tuple[int, int, int]]]) -> None:
    """Of drafts that are equally long, or none: the figures of all texts are those of one text with all their turns."""
    whole, parts = Tally(), []
    for turns in texts:
        own = Tally()
        for drafted, matched, emitted in turns:
            for one in (own, whole):
                one.add(rule="greedy", lossless=True, drafted=drafted, depth=drafted, matched=matched, emitted=emitted)
        parts.append(own.speculation("lookup"))
    together, found = whole.speculation("lookup"), pooled(parts)
    assert (found.turns, found.plain_turns) == (together.turns, together.plain_turns)
    assert (found.drafted, found.accepted) == (together.drafted, together.accepted)
    assert found.tau == pytest.approx(together.tau)
    assert found.acceptance == pytest.approx(together.acceptance)
    assert found.acceptance_by_position == pytest.approx(together.acceptance_by_position)
    assert found.plain_turn_share == (together.plain_turns / together.turns if together.turns else None)


def test_ragged_drafts_are_pooled_exactly_but_by_position() -> None:
    whole, parts = Tally(), []
    for turns in ([(4, 2), (0, 0)], [(2, 0), (4, 4)], [(3, 0)], [(1, 1), (5, 2)]):
        own = Tally()
        for drafted, matched in turns:
            for one in (own, whole):
                one.add(rule="x", lossless=True, drafted=drafted, depth=drafted, matched=matched, emitted=matched + 1)
        parts.append(own.speculation("lookup"))
    together, found = whole.speculation("lookup"), pooled(parts)
    assert found.tau == pytest.approx(together.tau) and found.acceptance == pytest.approx(together.acceptance)
    assert all(0 <= share <= 1 for share in found.acceptance_by_position)
    assert len(found.acceptance_by_position) == len(together.acceptance_by_position)


def test_nothing_pools_to_nothing() -> None:
    found = pooled([])
    assert (found.tau, found.acceptance, found.acceptance_by_position, found.plain_turn_share) == (None, None, (), None)
