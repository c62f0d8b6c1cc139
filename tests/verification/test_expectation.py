"""Closed forms against brute force, against a linear programme, and against published numbers."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linprog

from outpace.errors import UsageError
from outpace.verification.expectation import (
    Choice,
    TurnCosts,
    acceptance,
    acceptance_of_set,
    best_k,
    best_tree,
    break_even,
    chain_tokens,
    optimal_acceptance,
    speedup,
    tree_tokens,
)
from outpace.verification.shape import StaticShape, static_tree

unit = st.floats(0, 1)
FLAT = {1: 1.0, 64: 1.0}
"""A forward that costs the same at any size: the assumption of the published formulas."""


@st.composite
def law(draw: st.DrawFn, vocab: int) -> torch.Tensor:
    """A distribution with zeros, in float64."""
    weights = [draw(st.integers(0, 7)) for _ in range(vocab)]
    weights[draw(st.integers(0, vocab - 1))] += 1
    return torch.tensor(weights, dtype=torch.float64) / sum(weights)


def test_the_lesson() -> None:
    """α = 0.8, K = 4: (1 - 0.8^5) / (1 - 0.8), which the lesson rounds to 3.36."""
    assert chain_tokens(0.8, 4) == pytest.approx(3.3616, abs=1e-12)
    assert speedup(3.3616, TurnCosts(FLAT), 4) == pytest.approx(3.3616, abs=1e-12)


@given(unit, st.integers(0, 20))
def test_chain_tokens_is_its_closed_form(alpha: float, length: int) -> None:
    closed = length + 1 if alpha == 1 else (1 - alpha ** (length + 1)) / (1 - alpha)
    assert chain_tokens(alpha, length) == pytest.approx(closed, rel=1e-6)
    assert chain_tokens(alpha, length) == chain_tokens([alpha] * length, length)


@pytest.mark.parametrize(("alpha", "length", "tau"), [(1.0, 7, 8.0), (0.0, 7, 1.0), (0.5, 0, 1.0)])
def test_chain_tokens_at_the_edges(alpha: float, length: int, tau: float) -> None:
    assert chain_tokens(alpha, length) == tau


@given(st.lists(unit, max_size=5))
def test_chain_tokens_by_position_is_the_mean_over_all_outcomes(alphas: list[float]) -> None:
    """Enumerate where the first refusal falls."""
    mean = 0.0
    for accepted in range(len(alphas) + 1):
        refused = 1 - alphas[accepted] if accepted < len(alphas) else 1.0
        mean += (accepted + 1) * np.prod(alphas[:accepted]) * refused
    assert chain_tokens(alphas, len(alphas)) == pytest.approx(mean, abs=1e-12)


def test_chain_tokens_refusals() -> None:
    with pytest.raises(UsageError, match="acceptance has 2 positions for 3 draft tokens; allowed: one each"):
        chain_tokens([0.5, 0.5], 3)
    with pytest.raises(UsageError, match=r"acceptance is 1\.5; allowed: 0 to 1"):
        chain_tokens(1.5, 2)
    with pytest.raises(UsageError, match="num_draft_tokens is -1; allowed: 0 or more"):
        chain_tokens(0.5, -1)


def test_tree_tokens_of_a_chain_and_of_a_star() -> None:
    chain = StaticShape((-1, 0, 1), (0, 0, 0))
    assert tree_tokens(chain, [[0.9], [0.5], [0.2]]) == pytest.approx(chain_tokens([0.9, 0.5, 0.2], 3))
    assert tree_tokens(StaticShape((-1, -1), (0, 1)), [[0.6, 0.3]]) == pytest.approx(1.9)
    assert tree_tokens(StaticShape((), ()), []) == 1.0


@given(st.integers(0, 12), st.data())
def test_tree_tokens_is_the_mean_over_all_outcomes(nodes: int, data: st.DataObject) -> None:
    """At each depth exactly one rank is right, or none; walk the tree for every combination."""
    levels = [[0.5, 0.25, 0.125], [0.75, 0.125], [0.25, 0.25]]
    shape = static_tree(levels, nodes, data.draw(st.integers(0, 3)))
    mean = 0.0
    for right in itertools.product(*(range(len(row) + 1) for row in levels)):
        chance = np.prod([(*row, 1 - sum(row))[rank] for row, rank in zip(levels, right, strict=True)])
        node, emitted = -1, 1
        for rank in right:
            follow = [i for i in range(len(shape.parents)) if (shape.parents[i], shape.ranks[i]) == (node, rank)]
            if not follow:
                break
            node, emitted = follow[0], emitted + 1
        mean += chance * emitted
    assert tree_tokens(shape, levels) == pytest.approx(mean, abs=1e-12)


PUBLISHED = """
.6  7 2.30  6 2.17  4 1.92  3 1.67  2 1.40  1 1.14
.7  9 2.97  8 2.76  6 2.35  4 1.98  3 1.58  2 1.22
.75 11 3.49 9 3.20  7 2.67  5 2.19  3 1.71  2 1.28
.8  14 4.23 11 3.82 8 3.09  6 2.47  4 1.87  2 1.36
.82 15 4.63 12 4.14 9 3.30  6 2.61  4 1.94  2 1.38
.9  24 7.49 19 6.37 13 4.67 10 3.43 7 2.37  4 1.58
"""
CELLS = [
    (float(alpha), cost, int(cells[2 * column]), float(cells[2 * column + 1]))
    for alpha, *cells in (line.split() for line in PUBLISHED.split("\n") if line)
    for column, cost in enumerate((0.01, 0.02, 0.05, 0.1, 0.2, 0.4))
]


@pytest.mark.parametrize(("alpha", "cost", "length", "gain"), CELLS)
def test_best_k_at_a_flat_forward(alpha: float, cost: float, length: int, gain: float) -> None:
    """Scanned independently: the best K and its speed-up for a draft step of ``cost`` target steps."""
    choice = best_k(alpha, TurnCosts(FLAT, draft_step=cost), 40)
    assert choice.speedup == pytest.approx(gain, abs=0.0051)
    # Two lengths may tie at the table's two decimals: the chosen one is never worse than the printed one.
    printed = speedup(chain_tokens(alpha, length), TurnCosts(FLAT, draft_step=cost), length)
    assert choice.num_draft_tokens == length or printed == pytest.approx(choice.speedup, abs=0.005)


@given(unit, st.floats(0.01, 2), st.integers(0, 8))
def test_best_k_is_the_argmax_and_never_below_plain(alpha: float, cost: float, max_k: int) -> None:
    costs = TurnCosts({1: 1.0, 4: 1.3, 9: 2.5}, draft_step=cost)
    gains = [speedup(chain_tokens(alpha, length), costs, length) for length in range(max_k + 1)]
    choice = best_k(alpha, costs, max_k)
    assert choice.speedup == max(gains) >= 1 and choice.num_draft_tokens == gains.index(max(gains))


def test_best_k_says_do_not_speculate() -> None:
    assert best_k(0.3, TurnCosts(FLAT, draft_step=0.5), 9) == Choice(0, 1.0, 1.0)
    assert best_k([0.9, 0.0, 0.0], TurnCosts(FLAT, draft_step=0.1), 3).num_draft_tokens == 1


def test_cost_is_a_staircase() -> None:
    costs = TurnCosts({1: 20.0, 8: 24.0, 16: 29.0}, draft_step=2.0, draft_turn=5.0)
    assert [costs.verify_ms(rows) for rows in (1, 2, 8, 9, 16)] == [20.0, 24.0, 24.0, 29.0, 29.0]
    assert costs.turn_ms(0, 0) == 20.0 and costs.turn_ms(7, 3) == 24.0 + 5.0 + 6.0
    with pytest.raises(UsageError, match="17 rows were never measured; allowed: up to 16"):
        costs.verify_ms(17)


@pytest.mark.parametrize(
    ("verify", "step", "message"),
    [
        ({2: 1.0}, 0.0, r"verify has costs for \[2\] rows; allowed: 1 and any larger sizes"),
        ({0: 1.0, 1: 1.0}, 0.0, r"verify has costs for \[0, 1\] rows; allowed: 1 and any larger sizes"),
        ({1: 0.0}, 0.0, r"verify holds 0\.0 ms; allowed: positive numbers"),
        ({1: 1.0}, -1.0, r"draft_step is -1\.0 ms; allowed: 0 or more"),
        ({1: 1.0}, float("nan"), "draft_step is nan ms; allowed: 0 or more"),
    ],
)
def test_costs_refuse_what_was_not_measured(verify: dict[int, float], step: float, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        TurnCosts(verify, step)


def test_one_draft_pays_when_its_acceptance_exceeds_its_cost() -> None:
    assert break_even(TurnCosts(FLAT, draft_step=0.37), 1) == pytest.approx(0.37, abs=1e-12)


@given(st.floats(0, 3), st.integers(1, 8))
def test_break_even_is_where_the_speedup_is_one(cost: float, length: int) -> None:
    costs = TurnCosts({1: 1.0, 4: 1.3, 9: 2.5}, draft_step=cost)
    alpha = break_even(costs, length)
    if alpha > 1:
        assert speedup(chain_tokens(1.0, length), costs, length) < 1
    else:
        assert speedup(chain_tokens(alpha, length), costs, length) == pytest.approx(1.0, abs=1e-12)


def test_break_even_of_a_free_draft_and_of_no_draft() -> None:
    assert break_even(TurnCosts(FLAT), 3) == 0.0
    with pytest.raises(UsageError, match="num_draft_tokens is 0; allowed: 1 or more"):
        break_even(TurnCosts(FLAT), 0)


def test_best_tree_is_the_best_of_all_sizes_and_depths() -> None:
    levels = [[0.6, 0.2, 0.1], [0.5, 0.2, 0.1], [0.4, 0.2]]
    costs = TurnCosts({1: 20.0, 4: 21.0, 8: 24.0, 16: 29.0, 32: 44.0}, draft_step=2.0)
    gains = [
        speedup(tree_tokens(shape, levels), costs, len(shape.parents), max(shape.depths, default=0))
        for shape in (static_tree(levels, nodes, depth) for nodes in range(32) for depth in range(4))
    ]
    shape, choice = best_tree(levels, costs, 31)
    assert choice.speedup == pytest.approx(max(gains), abs=1e-12)
    assert tree_tokens(shape, levels) == pytest.approx(choice.tau, abs=1e-12)
    assert len(shape.parents) == choice.num_draft_tokens
    assert 1 + choice.num_draft_tokens in costs.verify, "a staircase is left at its edges"


def test_best_tree_may_be_none() -> None:
    assert best_tree([[0.1]], TurnCosts(FLAT, draft_step=0.5), 4) == (StaticShape((), ()), Choice(0, 1.0, 1.0))


@given(law(5), law(5))
def test_acceptance_is_one_minus_total_variation(target: torch.Tensor, draft: torch.Tensor) -> None:
    assert acceptance(target, draft).item() == pytest.approx(1 - 0.5 * (target - draft).abs().sum().item(), abs=1e-12)
    assert optimal_acceptance(target, draft, 1).item() == pytest.approx(acceptance(target, draft).item(), abs=1e-12)


def test_acceptance_keeps_leading_axes() -> None:
    target, draft = torch.eye(3), torch.full((3, 3), 1 / 3)
    assert acceptance(target, draft).tolist() == pytest.approx([1 / 3] * 3)


@given(law(6), st.lists(st.integers(-1, 5), min_size=1, max_size=8))
def test_a_set_accepts_its_mass_once(target: torch.Tensor, tokens: list[int]) -> None:
    mass = sum(target[token].item() for token in set(tokens) - {-1})
    assert acceptance_of_set(target, torch.tensor(tokens)).item() == pytest.approx(mass, abs=1e-12)


def by_sets(target: torch.Tensor, draft: torch.Tensor, num_drafts: int) -> float:
    """The minimum over every subset of the vocabulary."""
    subsets = itertools.product([0.0, 1.0], repeat=len(target))
    members = torch.tensor(list(subsets), dtype=torch.float64)
    return (members @ target + 1 - (members @ draft) ** num_drafts).min().item()


@given(law(6), law(6), st.integers(1, 5))
def test_the_worst_set_is_a_threshold_set(target: torch.Tensor, draft: torch.Tensor, num_drafts: int) -> None:
    expected = by_sets(target, draft, num_drafts)
    assert optimal_acceptance(target, draft, num_drafts).item() == pytest.approx(expected, abs=1e-12)


def by_transport(target: torch.Tensor, draft: torch.Tensor, num_drafts: int) -> float:
    """The best coupling of n draws with one target token, by linear programming: mass where the token was drawn."""
    vocab = len(target)
    draws = list(itertools.product(range(vocab), repeat=num_drafts))
    gain = np.array([[-float(token in draw) for token in range(vocab)] for draw in draws]).ravel()
    rows = np.kron(np.eye(len(draws)), np.ones(vocab))
    columns = np.kron(np.ones(len(draws)), np.eye(vocab))
    masses = [np.prod([draft[token].item() for token in draw]) for draw in draws]
    solved = linprog(gain, A_eq=np.vstack([rows, columns]), b_eq=[*masses, *target.tolist()], bounds=(0, None))
    return -float(solved.fun)


TOYS = [
    ([0.5, 0.3, 0.2], [0.2, 0.3, 0.5]),
    ([0.9, 0.1, 0.0], [0.1, 0.2, 0.7]),
    ([0.25, 0.25, 0.25, 0.25], [0.7, 0.1, 0.1, 0.1]),
    ([0.6, 0.0, 0.3, 0.1], [0.0, 0.5, 0.25, 0.25]),
]


@pytest.mark.parametrize(("target", "draft"), TOYS)
@pytest.mark.parametrize("num_drafts", [1, 2, 3])
def test_no_coupling_accepts_more(target: list[float], draft: list[float], num_drafts: int) -> None:
    target_probs, draft_probs = (torch.tensor(row, dtype=torch.float64) for row in (target, draft))
    bound = optimal_acceptance(target_probs, draft_probs, num_drafts).item()
    assert bound == pytest.approx(by_transport(target_probs, draft_probs, num_drafts), abs=1e-9)


def test_the_bound_of_no_draft_is_refused() -> None:
    with pytest.raises(UsageError, match="num_drafts is 0; allowed: 1 or more"):
        optimal_acceptance(torch.tensor([1.0]), torch.tensor([1.0]), 0)
