"""What costs and acceptance foresee under load: known cases by hand, and the law that all sequences share a forward."""

import itertools
import random

import pytest

from outpace.evaluation.forecast import TRIED, Usual, foreseen
from outpace.verification.expectation import TurnCosts, best_k, chain_tokens, speedup

COSTS = TurnCosts({1: 20.0, 2: 22.0, 3: 24.0, 5: 30.0, 9: 40.0}, draft_step=1.0, draft_turn=0.5)
DEAR = TurnCosts({1: 20.0, 2: 60.0, 3: 90.0, 5: 150.0, 9: 300.0}, draft_step=1.0, draft_turn=0.5)


def usual(rates: tuple[float, ...] = (0.7, 0.7, 0.7, 0.7), found: float = 1.0, tau: float | None = None) -> Usual:
    passed, tried = [], [1000]
    for rate in rates:
        passed.append(round(tried[-1] * rate))
        tried.append(passed[-1])
    whole = 1 + found * (chain_tokens(rates, len(rates)) - 1) if tau is None else tau
    return Usual(whole, tuple(tried[: len(rates)]), tuple(passed), found, float(len(rates)), float(len(rates)))


def at(one: Usual, costs: TurnCosts = COSTS, nodes: int | str = 4, **changes: float) -> float:
    given = {"in_flight": 1.0, "reading": 0.0} | changes
    return foreseen(one, costs, nodes, chain=True, depth=4, **given)  # type: ignore[arg-type]


def test_one_sequence_that_always_drafts_is_the_closed_form() -> None:
    assert at(usual()) == pytest.approx(speedup(usual().tau, COSTS, 4))


def test_prompts_that_are_read_gain_nothing() -> None:
    gain = at(usual())
    assert at(usual(), reading=1.0) == pytest.approx(1.0)
    assert at(usual(), reading=0.25) == pytest.approx(1 / (0.25 + 0.75 / gain))


@pytest.mark.parametrize(("found", "rows"), [(0.3, 1), (0.3, 4), (0.05, 16), (0.0, 3)])
def test_a_turn_is_plain_where_nobody_has_a_draft(found: float, rows: int) -> None:
    """By enumeration: every row finds a draft or not, and one that does widens the forward for all."""
    mean = 0.0
    for some in itertools.product((False, True), repeat=min(rows, 10)):
        chance = 1.0
        for one in some:
            chance *= found if one else 1 - found
        # beyond ten rows the others are taken together
        nobody = (1 - found) ** (rows - len(some))
        dear, cheap = COSTS.turn_ms(4, 4), COSTS.verify_ms(1) + COSTS.draft_turn
        mean += chance * (dear if any(some) else nobody * cheap + (1 - nobody) * dear)
    one = usual(found=found)
    assert at(one, in_flight=float(rows)) == pytest.approx(one.tau * COSTS.verify_ms(1) / mean)


def test_more_in_flight_make_drafts_of_a_few_dearer() -> None:
    gains = [at(usual(found=0.2), in_flight=float(rows)) for rows in (1, 2, 4, 8, 16)]
    assert gains == sorted(gains, reverse=True) and gains[0] > gains[-1]


def test_auto_takes_the_best_length() -> None:
    one = usual((0.8, 0.7, 0.6, 0.5))
    best = best_k((0.8, 0.7, 0.6, 0.5), TurnCosts({k: COSTS.verify_ms(k) for k in range(1, 6)}, 1.0, 0.5), 4)
    assert at(one, nodes="auto") == pytest.approx(best.speedup, rel=1e-2)


def test_auto_decodes_plainly_where_nothing_pays() -> None:
    assert at(usual(), DEAR) < 1
    assert at(usual(), DEAR, nodes="auto") == 1.0
    assert foreseen(usual(), DEAR, "auto", chain=False, depth=4, in_flight=4.0, reading=0.1) == pytest.approx(1.0)


def test_positions_that_were_seldom_tried_are_like_all_together() -> None:
    one = Usual(2.0, (100, TRIED, TRIED - 1), (60, 3, TRIED - 1), 1.0, 2.0, 2.0)
    pooled = (60 + 3 + TRIED - 1) / (100 + TRIED + TRIED - 1)
    assert one.rates(4) == pytest.approx([0.6, 3 / TRIED, pooled, pooled])
    assert Usual(1.0, (), (), 0.0, 0.0, 0.0).rates(2) == [0.0, 0.0]


def test_the_forecast_is_what_a_simulation_of_turns_does() -> None:
    """Four rows draft chains of 4 in a third of their turns. 20,000 turns: the spread of the ratio is 0.3 %, so that
    2 % off has a chance of less than 1e-9."""
    draw, rows, found, rates = random.Random(3), 4, 1 / 3, (0.7, 0.7, 0.7, 0.7)
    tokens = spent = 0.0
    for _ in range(20_000):
        drafting = [draw.random() < found for _ in range(rows)]
        spent += COSTS.turn_ms(4, 4) if any(drafting) else COSTS.verify_ms(1) + COSTS.draft_turn
        for one in drafting:
            accepted = next((place for place, rate in enumerate(rates) if draw.random() >= rate), 4) if one else 0
            tokens += 1 + accepted
    simulated = tokens / rows * COSTS.verify_ms(1) / spent
    assert at(usual(rates, found), in_flight=float(rows)) == pytest.approx(simulated, rel=0.02)
