"""What checks are made of: places in a law, limits, near-ties of an argmax and of a race, distances of rows."""

import math

import pytest
import torch
from scipy import stats

from outpace.decoding.loop import Request
from outpace.drafters.budget import Branching, Budget
from outpace.drafters.lookup import Lookup
from outpace.evaluation import comparison, sampled
from outpace.evaluation.comparison import NOTHING, at_the_border, compare
from outpace.evaluation.pair import Judge, Pair, read
from outpace.evaluation.rehearsed import Rehearsed
from outpace.evaluation.rows import check_rows, check_siblings, distance
from outpace.evaluation.sampled import SAMPLINGS, check_firsts, draw_sample
from outpace.evaluation.uniform import chi_square, chi_square_allowed, farthest, farthest_allowed, stand
from outpace.models.function import FunctionTarget
from outpace.models.toy import random_table, table_target
from outpace.verification.coins import Keys
from outpace.verification.probabilities import Sampling
from toys import lively

LAW = torch.tensor([0.1, 0.4, 0.0, 0.3, 0.2], dtype=torch.float64)


def pair_of(logits: torch.Tensor) -> Pair:
    """A target that always has the same logits."""
    target = FunctionTarget(lambda ids: logits.expand(*ids.shape, -1), len(logits), dtype=logits.dtype)
    return Pair(target, Lookup(), Judge(target), ((0,), (1, 2)))


# ---- places ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", [torch.zeros(5), torch.arange(5.0), torch.tensor([1.0, 0, 0, 1, 0])], ids=str)
def test_places_of_all_tokens_tile_the_unit_interval(order: torch.Tensor) -> None:
    """Whatever the order; of equals the more probable first. An impossible token has no place."""
    tokens = torch.arange(5)
    rows, orders = LAW.expand(5, 5), order.double().expand(5, 5)
    low, high = (stand(rows, orders, tokens, torch.full((5,), coin).double()) for coin in (0.0, 1.0))
    assert low[2].isnan() and high[2].isnan()
    known = [0, 1, 3, 4]
    ranked = sorted(known, key=lambda token: (-float(order[token]), -float(LAW[token])))
    assert low[known].argsort().tolist() == [known.index(token) for token in ranked]
    torch.testing.assert_close(high[known] - low[known], LAW[known])
    assert float(low[known].min()) == 0 and float(high[known].max()) == pytest.approx(1)


def test_the_farthest_distance_is_that_of_kolmogorov() -> None:
    places = torch.rand(500, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    assert farthest(places) == pytest.approx(stats.kstest(places.numpy(), "uniform").statistic, abs=1e-12)
    assert farthest(places.sqrt()) > farthest_allowed(500, 1e-6) > farthest(places)


@pytest.mark.parametrize("count", [20, 200, 2000])
@pytest.mark.parametrize("alarm", [1e-3, 1e-7])
def test_limits_are_never_too_strict(count: int, alarm: float) -> None:
    """The bound for all n lies above the exact quantile, and not far."""
    exact = stats.kstwo.isf(alarm, count)
    assert exact <= farthest_allowed(count, alarm) < 1.1 * exact
    assert farthest_allowed(0, alarm) == 1


@pytest.mark.parametrize("freedom", [1, 5, 40])
def test_the_limit_of_chi_square(freedom: int) -> None:
    assert chi_square_allowed(freedom, 1e-7) == pytest.approx(stats.chi2.isf(1e-7, freedom), rel=1e-6)


def test_places_of_a_sample_are_uniform_and_those_of_another_law_are_not() -> None:
    """False alarm 1e-6; the second sample is of a target that is a little warmer than the one that is read."""
    table = random_table(8, seed=1)
    target = table_target(table)
    pair = Pair(target, Lookup(), Judge(target), ((1,), (2, 3)))
    sample = draw_sample(pair, SAMPLINGS, 60, 10, "match")
    assert sample.places.shape == (180, 10) and int(sample.strange.sum()) == 0
    assert farthest(sample.places.flatten()) < farthest_allowed(1800, 1e-6)
    warm = Pair(table_target(table / 2), Lookup(), Judge(target), ((1,), (2, 3)))
    texts = [
        [int(row) for row in torch.randint(8, (10,), generator=torch.Generator().manual_seed(n))] for n in range(180)
    ]
    requests = [Request((1,), Sampling(1.0)) for _ in texts]
    places, _ = sampled._read_plainly(warm, requests, texts, 0)
    assert farthest(places.flatten()) > farthest_allowed(1800, 1e-6)


def test_rare_outcomes_are_counted_together() -> None:
    """Until none is rare; the statistic is scipy's of what is left."""
    statistic, freedom = chi_square([4.0, 30.0, 1.0, 25.0, 3.0, 37.0], [5, 28, 0, 30, 2, 35], 20.0)
    wanted = stats.chisquare([37, 28, 35], [33.0, 30.0, 37.0])
    assert (statistic, freedom) == (pytest.approx(wanted.statistic), 2)
    assert chi_square([2.0, 3.0], [4, 1], 20.0) == (0, 0)


def test_first_tokens_of_another_temperature_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """False alarm 1e-7."""
    target = table_target(random_table(8, seed=1, spread=1.5))
    pair = Pair(target, Lookup(), Judge(target), ((1,), (2, 1, 2)))
    assert check_firsts(pair, "match").passed
    colder = Pair(table_target(random_table(8, seed=1, spread=2.5)), Lookup(), Judge(target), ((1,), (2, 1, 2)))
    monkeypatch.setattr("outpace.evaluation.sampled.read", lambda _, texts: read(target, texts))
    assert not check_firsts(colder, "match").passed


# ---- near-ties -----------------------------------------------------------------------------------------------------

TIED = torch.tensor([1.0, 2.0, 2.0 - 5e-5, 1.9], dtype=torch.float32)


@pytest.mark.parametrize(("token", "wrong", "near"), [(1, 0, 0), (2, 0, 1), (3, 1, 0), (0, 1, 0)])
def test_a_difference_is_excused_where_the_logits_nearly_agree(token: int, wrong: int, near: int) -> None:
    request = Request((0,))
    found = compare(pair_of(TIED), [request], [[1, 1, 1]], [[1, token, 0 if token != 1 else 1]])
    assert (found.wrong, found.near_ties, found.tokens) == (wrong, near, 3 if token == 1 else 2)


def test_texts_of_different_length_are_different() -> None:
    found = compare(pair_of(TIED), [Request((0,))], [[1, 1]], [[1, 1, 1]])
    assert found.wrong == 1 and found.example == "text 0 has 2 tokens plainly and 3 with drafts"
    assert (NOTHING + found).example == found.example


def test_a_race_is_excused_where_its_clocks_nearly_agree() -> None:
    """A gap of the clocks' logarithms, times the temperature, is one of logits: move one logit by it, and they tie."""
    logits, request = torch.tensor([0.3, 0.1, -0.4, 0.0], dtype=torch.float64), Request((0,), Sampling(0.7), seed=3)
    keys = Keys((3,), (0,), (1,), (True,))
    noise = keys.noise(torch.zeros(1, 1, dtype=torch.int64), torch.arange(4)[None, None]).times[0, 0]
    clocks = (noise / (logits / 0.7).softmax(-1)).log()
    order = clocks.argsort().tolist()
    for one, other in ((order[0], order[1]), (order[1], order[0]), (order[0], order[3])):
        gap = comparison._race_gap(logits, request, 1, one, other, 1e-4)
        assert gap == pytest.approx(0.7 * abs(float(clocks[one] - clocks[other])))
        moved = logits.clone()
        moved[min(one, other, key=lambda token: float(clocks[token]))] -= gap
        assert comparison._race_gap(moved, request, 1, one, other, 1e-4) == pytest.approx(0, abs=1e-9)


def test_a_token_that_the_filters_drop_is_excused_at_their_border_only() -> None:
    logits = torch.tensor([3.0, 2.0, 1.0, 0.99995, 0.0], dtype=torch.float64)
    three = Sampling(1.0, top_k=3)
    assert [at_the_border(logits, token, three, 1e-4) for token in range(5)] == [False, False, True, True, False]
    share = float(logits.softmax(-1)[:2].sum())
    for top_p, border in ((share + 1e-6, True), (share - 1e-6, True), (share + 0.01, False), (share - 0.01, False)):
        assert at_the_border(logits[:3].clone(), 2, Sampling(1.0, top_p=top_p), 1e-4) in (border, False)
    request = Request((0,), three, seed=1)
    assert comparison._race_gap(logits, request, 1, 0, 4, 1e-4) == math.inf
    assert comparison._race_gap(logits, request, 1, 0, 3, 1e-4) == 0


# ---- rows and drafts ----------------------------------------------------------------------------------------------


def test_the_distance_of_rows() -> None:
    rows = torch.randn(3, 50, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    torch.testing.assert_close(
        distance(rows + 5, rows), torch.zeros(3).double(), atol=1e-9, rtol=0
    )  # a shift is no law
    assert bool((distance(rows * 1.01, rows) - 0.01).abs().max() < 1e-9)
    hidden = rows.clone()
    hidden[0, 3] = -torch.inf
    assert distance(hidden, rows)[0] == math.inf and distance(hidden, hidden)[0] == 0


@pytest.mark.parametrize("can_tree", [True, False])
def test_rows_of_a_flawless_target(can_tree: bool) -> None:
    target = lively("qwen2")
    target = target if can_tree else lively("qwen2", seed=5)
    target.can_tree = can_tree
    pair = Pair(target, Lookup(), Judge(target), ((1, 2, 3), (4,), (5, 6)))
    checks = [*check_rows(pair), check_siblings(pair)]
    target.can_tree = True
    assert all(check.passed for check in checks)
    assert [check.kind for check in checks] == ["cache", "mask", "mask"]
    assert (checks[1].name == "every node reads its own path") == can_tree


def test_rehearsed_drafts_are_right_and_then_wrong() -> None:
    """As a chain, and as a tree whose first sibling is always wrong; within the budget."""
    drafter = Rehearsed([[1, 2, 3, 4, 5], [7, 8, 9]], 10, rights=(2, 0))
    state = drafter.open(2, 20)
    drafter.admit(state, [[0], [0]], None)
    drafter.commit(state, [[1], [7]], None)
    none = Keys((0, 0), (0, 0), (1, 1), (False, False))
    chain = drafter.propose(state, Budget.chain([3, 3]), [Sampling()] * 2, none)
    assert chain.tree.to_lists() == [([2, 3, 5], [-1, 0, 1]), ([9, 0], [-1, 0])]
    tree = drafter.propose(state, Budget([3, 1], [5, 2], Branching("top-k", 2.0)), [Sampling()] * 2, none)
    assert tree.tree.to_lists() == [([3, 4, 4, 5], [-1, -1, 1, 1]), ([9, 8], [-1, -1])]
