"""What is counted, by hand: accepted, matched, tau, and acceptance given that all before was accepted."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outpace.decoding.stats import Tally, timing


def tallied(turns: list[tuple[int, int, int]]) -> Tally:
    """Of turns ``(drafted, matched, emitted)``."""
    tally = Tally()
    for drafted, matched, emitted in turns:
        tally.add(rule="greedy", lossless=True, drafted=drafted, depth=drafted, matched=matched, emitted=emitted)
    return tally


def test_plain_decoding_has_tau_one_and_no_acceptance() -> None:
    stats = tallied([(0, 0, 1)] * 5).speculation("plain")
    assert (stats.tau, stats.acceptance, stats.acceptance_by_position) == (1.0, None, ())
    assert (stats.turns, stats.plain_turns, stats.drafted, stats.accepted) == (5, 5, 0, 0)


def test_no_turn_has_no_tau() -> None:
    stats = Tally().speculation("plain")
    assert (stats.tau, stats.acceptance, stats.rule, stats.lossless) == (None, None, "none", True)


def test_conditional_acceptance_by_position() -> None:
    stats = tallied([(3, 0, 1), (3, 1, 2), (3, 1, 2), (3, 3, 4)]).speculation("x")
    assert stats.acceptance_by_position == pytest.approx((3 / 4, 1 / 3, 1.0))
    assert (stats.tried, stats.passed) == ((4, 3, 1), (3, 1, 1))
    assert stats.acceptance == pytest.approx(5 / 8)
    assert stats.tau == pytest.approx(9 / 4)


def test_what_lies_behind_the_stop_is_matched_but_not_accepted() -> None:
    stats = tallied([(5, 5, 3)]).speculation("x")
    assert (stats.matched, stats.accepted, stats.emitted, stats.tau) == (5, 3, 3, 3.0)


def test_rules_and_losses_are_remembered() -> None:
    tally = tallied([(1, 1, 2)])
    tally.add(rule="typical", lossless=False, drafted=1, depth=1, matched=0, emitted=1)
    stats = tally.speculation("x")
    assert (stats.rule, stats.lossless) == ("greedy+typical", False)


turn = st.integers(0, 6).flatmap(
    lambda drafted: st.integers(0, drafted).flatmap(
        lambda matched: st.tuples(st.just(drafted), st.just(matched), st.integers(1, matched + 1))
    )
)


@given(st.lists(turn, min_size=1))
def test_sums(turns: list[tuple[int, int, int]]) -> None:
    """Unconditional rates are products of conditional ones; what was accepted was matched, what was matched drafted."""
    stats = tallied(turns).speculation("x")
    assert stats.accepted <= stats.matched <= stats.drafted
    assert stats.tau == pytest.approx(sum(emitted for _, _, emitted in turns) / len(turns))
    same = [one for one in turns if one[0] == turns[0][0]]
    product = 1.0
    for place, share in enumerate(tallied(same).speculation("x").acceptance_by_position):
        product *= share
        assert product == pytest.approx(sum(matched > place for _, matched, _ in same) / len(same))


def test_the_rate_counts_prefill_and_decoding() -> None:
    assert timing(0.5, 1.5, 10).tokens_per_second == 5.0
    assert timing(0.0, 0.0, 0).tokens_per_second == 0.0
