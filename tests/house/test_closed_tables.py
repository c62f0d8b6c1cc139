"""Tables of closed forms in the docs and in the skill are what the library's own formulas give."""

import re
from pathlib import Path

import pytest

from outpace.verification.expectation import TurnCosts, best_k, chain_tokens

REPOSITORY = Path(__file__).parents[2]


def table(page: str, head: str) -> list[list[str]]:
    """The rows below a heading row of a page, as cells."""
    _, found, behind = (REPOSITORY / page).read_text("utf-8").partition(head + "\n")
    assert found, f"{page} has no table {head}"
    rows = []
    for line in behind.splitlines()[1:]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    assert rows
    return rows


def test_ceilings_of_chains() -> None:
    for alpha, *cells, ceiling in table("docs/what-limits-it.md", "| α | K = 2 | K = 4 | K = 8 | any K |"):
        for length, cell in zip((2, 4, 8), cells, strict=True):
            assert cell == f"{chain_tokens(float(alpha), length):.2f}"
        assert ceiling == f"{1 / (1 - float(alpha)):.3g}"


@pytest.mark.parametrize("page", ["docs/what-limits-it.md", "outputs/skill-speculative-tuning.md"])
def test_best_lengths(page: str) -> None:
    costs = (0.02, 0.05, 0.1, 0.2, 0.4)
    for alpha, *cells in table(page, "| α | c = 0.02 | c = 0.05 | c = 0.1 | c = 0.2 | c = 0.4 |"):
        for cost, cell in zip(costs, cells, strict=True):
            found = best_k(float(alpha), TurnCosts({1: 1.0, 64: 1.0}, draft_step=cost), 60)
            assert cell == f"K {found.num_draft_tokens}, {found.speedup:.2f}", (alpha, cost)


def test_alpha_from_tau() -> None:
    for tau, alpha, most in table("docs/reading-alpha-and-tau.md", "| τ at K = 4 | α, if all positions are alike | best possible τ at that α |"):  # fmt: skip  # noqa: E501
        low, high = 0.0, 1.0
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (middle, high) if chain_tokens(middle, 4) < float(tau) else (low, middle)
        assert alpha == f"{high:.2f}" and most == f"{1 / (1 - high):.1f}"


def test_the_lesson_s_arithmetic() -> None:
    """What docs/lesson-figures.md reckons of the lesson's figures."""
    text = (REPOSITORY / "docs" / "lesson-figures.md").read_text("utf-8")
    said = (
        f"τ = {chain_tokens(0.75, 4):.2f} at α = 0.75 and {chain_tokens(0.82, 4):.2f} at α = 0.82",
        f"({chain_tokens(0.82, 7):.2f}, {chain_tokens(0.82, 8):.2f})",
        f"as a chain of 5 that is τ = {chain_tokens([0.79, 0.74, 0.72, 0.73, 0.67], 5):.1f}",
        f"at c = 0.1 and free verifying it is {chain_tokens(0.8, 4) / 1.4:.1f}",
    )
    flat = re.sub(r"\s+", " ", text)
    for sentence in said:
        assert sentence in flat, sentence
