"""The controller against known acceptance: near the best fixed K, and never far below plain decoding.

Verdicts are simulated and costs are given, so every figure is exact; seeds are fixed, so there are no false alarms.
"""

import itertools
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outpace.decoding import control as module
from outpace.decoding.control import START, WAGE, Adaptive, Fixed
from outpace.drafters.budget import CHAIN
from outpace.verification.expectation import TurnCosts, best_k, chain_tokens, speedup
from simulated import DEPTH, ROOM, TABLES, Alpha, chains_of, simulate, steady, table
from toys import must_fail

pytestmark = pytest.mark.usefixtures("unchecked")  # a hundred thousand turns


# ---- never far below plain -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("turns", [64, 128, 512])
def test_drafts_that_are_never_right(name: str, turns: int) -> None:
    """0.97 of plain decoding at least, and where a row costs anything nearly all turns are plain."""
    for found in (1.0, 0.3):
        outcome = simulate(Adaptive(table(TABLES[name])), TABLES[name], steady(0.0), turns, found=found)
        assert outcome.speedup >= 0.97
    if name not in ("free", "a small model on two cores") and turns == 512:
        assert outcome.plain_share >= 0.9


def test_a_greedy_controller_fails_that() -> None:
    """The negative control: a fixed K loses what it costs."""
    with must_fail():
        assert simulate(Fixed(CHAIN, 4), TABLES["steep"], steady(0.0), 128).speedup >= 0.97


@given(
    st.sampled_from(sorted(TABLES)),
    st.lists(st.lists(st.integers(0, DEPTH), min_size=3, max_size=3), max_size=60),
    st.integers(1, 3),
    st.data(),
)
def test_the_purse_bounds_the_loss_whatever_happens(
    name: str, verdicts: list[list[int]], batch: int, data: st.DataObject
) -> None:
    """Verdicts chosen against the controller: after n turns at most START + WAGE n turns of plain decoding are lost."""
    costs = TABLES[name]
    control, lost = Adaptive(table(costs)), 0.0
    control.admit(batch)
    for turn, accepted in enumerate(verdicts, 1):
        budget = control.budget([ROOM] * batch, [100] * batch)
        drafted = [data.draw(st.sampled_from([0, depth])) for depth in budget.depths]
        accepted = [min(pair) for pair in zip(drafted, accepted, strict=False)]
        longest = max(drafted)
        searched = costs.draft_turn if not longest and not budget.empty else 0.0
        lost += (costs.turn_ms(longest, longest) + searched) / costs.verify_ms(1) - 1 - sum(accepted) / batch
        # A search without a find costs its own time; the purse pays for it when it can.
        assert lost <= START + WAGE * turn + costs.draft_turn / costs.verify_ms(1) + 1e-9
        control.learn(chains_of(drafted, accepted))


def test_what_can_never_pay_is_never_tried() -> None:
    outcome = simulate(Adaptive(table(TABLES["every row a turn"])), TABLES["every row a turn"], steady(1.0), 300)
    assert outcome.plain_share == 1


# ---- near the best fixed K -------------------------------------------------------------------------------------------

ALPHAS = (0.0, 0.05, 0.15, 0.3, 0.5, 0.7, 0.85, 0.95, 0.99)


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("alpha", ALPHAS)
def test_stationary_acceptance(name: str, alpha: float) -> None:
    """At least 0.95 of what the best fixed K gives in expectation, its start included."""
    costs = TABLES[name]
    outcomes = [simulate(Adaptive(table(costs)), costs, steady(alpha), 600, seed=seed) for seed in range(4)]
    found = sum(one.plain_ms for one in outcomes) / sum(one.ms for one in outcomes)
    assert found >= 0.95 * best_k(alpha, costs, DEPTH).speedup


def test_drafts_that_are_nearly_always_right_grow_long() -> None:
    outcome = simulate(Adaptive(table(TABLES["stairs"])), TABLES["stairs"], steady(0.99), 60)
    assert fmean(budget.depths[0] for budget in outcome.budgets[20:]) >= DEPTH - 0.5
    assert outcome.plain_share == 0


def some_good(good: int) -> Alpha:
    return lambda turn, row: 0.9 if row < good else 0.0


@pytest.mark.parametrize(("good", "pays"), [(6, True), (1, False)])
def test_a_batch_shares_one_forward(good: int, pays: bool) -> None:
    """Good rows pay for bad ones, which ride along; with one good row of eight nothing pays."""
    costs = TABLES["steep"]
    outcome = simulate(Adaptive(table(costs)), costs, some_good(good), 300, batch=8)
    taus = [(good * chain_tokens(0.9, depth) + 8 - good) / 8 for depth in range(DEPTH + 1)]
    assert outcome.speedup >= 0.95 * max(speedup(tau, costs, depth) for depth, tau in enumerate(taus))
    assert (outcome.plain_share < 0.1) is pays


def test_lookup_that_finds_little() -> None:
    """Only the turns in which something was found count, for cost and for acceptance."""
    costs = TABLES["stairs"]
    for alpha, drafts in ((0.8, True), (0.02, False)):
        outcome = simulate(Adaptive(table(costs)), costs, steady(alpha), 1500, found=0.2)
        assert (outcome.plain_share < 0.05) is drafts
        rates = [
            (1 + 0.2 * (chain_tokens(alpha, depth) - 1)) / (0.8 + 0.2 / speedup(1.0, costs, depth))
            for depth in range(DEPTH + 1)
        ]
        assert outcome.speedup >= 0.95 * max(rates)


def test_a_turn_without_a_find_teaches_nothing() -> None:
    """Two hundred of them change no estimate: the next draft is as long as before."""
    control = Adaptive(table(TABLES["free"]))
    simulate(control, TABLES["free"], steady(0.9), 40)
    before = control.budget([ROOM], [100])
    control.learn(chains_of([0], [0]))
    for _ in range(200):
        assert control.budget([ROOM], [100]) == before
        control.learn(chains_of([0], [0]))


# ---- a text whose nature changes -------------------------------------------------------------------------------------

SPELL = 200


def changing(turn: int, row: int) -> float:
    return (0.0, 0.85)[turn // SPELL % 2]


def follows(costs: TurnCosts) -> None:
    """Through dull and easy spells: 0.85 of what the best K of each gives, and hardly a draft in the dull ones."""
    whole, dull = [], []
    for seed in range(3):
        control = Adaptive(table(costs))
        outcome = simulate(control, costs, changing, 4 * SPELL, seed=seed)
        whole.append(outcome)
        dull.append(fmean(budget.empty for budget in outcome.budgets[2 * SPELL + 60 : 3 * SPELL]))
    best = best_k(0.85, costs, DEPTH)
    # Both spells have the same number of turns: the first emits one token a turn, the second tau.
    ideal = (1 + best.tau) / (1 + best.tau / best.speedup)
    assert sum(one.plain_ms for one in whole) / sum(one.ms for one in whole) >= 0.85 * ideal
    assert fmean(dull) >= 0.85


@pytest.mark.parametrize("name", ["stairs", "steep", "a drafter that costs"])
def test_changing_acceptance(name: str) -> None:
    follows(TABLES[name])


def test_changing_acceptance_planted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The negative control never probes."""
    monkeypatch.setattr(Adaptive, "_probe", lambda *given: module.PLAIN)
    with must_fail():
        follows(TABLES["steep"])


def test_a_good_probe_revives_at_once() -> None:
    """After a long dull spell, drafts are there again within a few turns of the first probe that succeeds."""
    costs = TABLES["steep"]
    control = Adaptive(table(costs))
    simulate(control, costs, steady(0.0), 400)
    depths = []
    for _ in range(200):
        budget = control.budget([ROOM], [500])
        depths.append(budget.depths[0])
        control.learn(chains_of(budget.depths, budget.depths))
    first = next(place for place, depth in enumerate(depths) if depth)
    assert first <= module.LONGEST_WAIT
    assert min(depths[first + 3 : first + 50]) >= 1 and max(depths[first : first + 15]) == DEPTH


@pytest.mark.parametrize(("name", "waits"), [("steep", [8, 16, 32, 60]), ("a small model on two cores", [8] * 4)])
def test_probes_back_off(name: str, waits: list[int]) -> None:
    """Dear probes up to every 60th turn, cheap ones every 8th: they cost half a percent, and the start two turns."""
    costs = TABLES[name]
    outcome = simulate(Adaptive(table(costs)), costs, steady(0.0), 1500)
    drafted = [place for place, budget in enumerate(outcome.budgets) if not budget.empty]
    gaps = [after - before for before, after in itertools.pairwise(drafted) if after - before > 1]
    assert gaps[:4] == waits and set(gaps[4:]) == {waits[-1]}
    assert outcome.speedup >= 1 - module.SHARE - 2 / 1500
    assert all(outcome.budgets[place].depths[0] <= module.PROBE for place in drafted[-5:])
