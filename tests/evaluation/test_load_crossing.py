"""Where drafting stops paying: the sentence says what the intervals say, and the break-even is the line's."""

import math

import pytest

from outpace.evaluation.crossing import Level, break_even, sentence


def level(concurrency: int, ratio: float, *noise: float) -> Level:
    """Plain rates of 100 and drafted ones around their multiple, five rounds where no noise is given."""
    plain = [100.0] * (len(noise) or 5)
    return Level(concurrency, [100.0 * ratio * (1 + one) for one in noise or [0.0] * 5], plain)


WIDE = (-0.2, -0.1, 0.0, 0.1, 0.2)


def test_it_pays_everywhere() -> None:
    levels = [level(1, 2.0), level(4, 1.5)]
    assert sentence(levels) == "drafting pays at every concurrency measured: still 1.50x [1.50, 1.50] at 4 at once"
    assert break_even(levels) is not None and break_even(levels).value == math.inf


def test_it_stops_paying_between_two_levels() -> None:
    """1.2 at 4 and 0.8 at 16: half way on a logarithmic line, at 8."""
    levels = [level(1, 2.0), level(4, 1.2), level(16, 0.8)]
    assert sentence(levels) == (
        "drafting pays up to 4 at once, and no longer from 16 on: 1.20x [1.20, 1.20] at 4, 0.80x [0.80, 0.80] at 16; "
        "break-even at about 8 at once [8, 8]"
    )


def test_it_stops_paying_clearly_at_a_level_that_is_in_doubt() -> None:
    levels = [level(1, 1.5), level(2, 1.05, *WIDE), level(4, 1.0)]
    assert sentence(levels) == (
        "drafting pays up to 1 at once, and no longer clearly from 2 on: 1.50x [1.50, 1.50] at 1, "
        "1.05x [0.84, 1.26] at 2"
    )


def test_a_level_in_doubt_below_one_that_pays_is_named() -> None:
    levels = [level(1, 1.0), level(2, 1.5), level(4, 0.5)]
    assert sentence(levels).startswith("drafting pays up to 2 at once, but not clearly at 1, and no longer from 4 on")
    assert sentence(levels[:2]) == (
        "drafting pays at every concurrency measured, but not clearly at 1: still 1.50x [1.50, 1.50] at 2 at once"
    )


def test_it_pays_nowhere() -> None:
    assert sentence([level(1, 0.9), level(2, 0.8)]) == (
        "drafting pays at no concurrency measured: at best 0.90x [0.90, 0.90] at 1 at once; decode plainly"
    )
    assert sentence([level(1, 1.0), level(2, 0.8)]) == (
        "drafting pays clearly at no concurrency measured: at best 1.00x [1.00, 1.00] at 1 at once"
    )
    assert break_even([level(1, 0.9), level(2, 0.8)]).value == 0.0


@pytest.mark.parametrize(
    ("ratio", "words"),
    [
        (1.5, "drafting pays: 1.50x [1.50, 1.50] at 4 at once"),
        (1.0, "no clear difference: 1.00x [1.00, 1.00] at 4 at once"),
        (0.5, "drafting does not pay: 0.50x [0.50, 0.50] at 4 at once; decode plainly"),
    ],
)
def test_a_single_level(ratio: float, words: str) -> None:
    assert sentence([level(4, ratio)]) == words and break_even([level(4, ratio)]) is None


def test_too_few_rounds_prove_nothing() -> None:
    few = [level(1, 2.0, *[0.0] * 4), level(2, 0.5, *[0.0] * 4)]
    assert sentence(few) == (
        "too few rounds for a verdict: 2.00x [2.00, 2.00] at 1, 0.50x [0.50, 0.50] at 2 at once; "
        "allow time for 5 rounds, or ask fewer levels"
    )
    assert sentence([level(1, 2.0, 0.0)]).startswith("too few rounds for a verdict: 2.00x at 1 at once")
    assert break_even([level(1, 2.0, 0.0), level(2, 0.5, 0.0)]) is None


def test_the_interval_of_the_break_even_holds_it_and_grows_with_noise() -> None:
    def at(*noise: float) -> tuple[float, float, float]:
        found = break_even([level(1, 1.5), level(4, 1.2, *noise), level(16, 0.8, *noise)])
        assert found is not None
        return found.low, found.value, found.high

    small, large = at(-0.02, -0.01, 0.0, 0.01, 0.02), at(-0.1, -0.05, 0.0, 0.05, 0.1)
    assert large[0] < small[0] < 8.0 < small[2] < large[2]
    assert small[1] == large[1] == pytest.approx(8.0)


def test_a_break_even_may_lie_above_all_levels() -> None:
    """0.95 at the last level, 30 % around: more than one resample in forty is above 1 there."""
    levels = [level(1, 1.5), level(2, 0.5), level(4, 0.95, -0.3, -0.2, 0.0, 0.2, 0.3)]
    found = break_even(levels)
    assert found is not None and found.high == math.inf


def test_levels_with_unequal_rounds_have_no_break_even() -> None:
    assert break_even([level(1, 1.5), level(2, 0.5, *[0.0] * 6)]) is None


def test_the_last_crossing_counts() -> None:
    """Below 1 at 2, above at 4 again: it pays up to there."""
    found = break_even([level(1, 1.5), level(2, 0.9), level(4, 1.1), level(8, 0.9)])
    assert found is not None and found.value == pytest.approx(4 * 2**0.5)
