"""The figures of exercise 2.

Knows nothing of how anything was measured.
"""

from itertools import pairwise
from typing import Any

import numpy as np
from common import BLUE, GREEN, GREY, ORANGE, RED
from formula import best, gain
from matplotlib import colormaps
from matplotlib.colors import BoundaryNorm, ListedColormap
from matplotlib.figure import Figure

from outpace.decoding.costs import CostTable
from outpace.verification.expectation import TurnCosts, chain_tokens, speedup

ALPHAS = (0.5, 0.6, 0.7, 0.8, 0.9)
COSTS = ((0.0, GREY), (0.02, BLUE), (0.05, GREEN), (0.1, ORANGE), (0.2, RED), (0.4, "#882255"))
LESSON = 0.8, 4


def _colour(alpha: float) -> Any:
    return colormaps["viridis"](0.95 - (alpha - 0.5) * 2)


def tokens_a_forward(found: dict[str, Any]) -> Figure:
    """Left: tokens a forward against K, lines by the formula and dots as decoded. Right: against α."""
    figure = Figure(figsize=(10, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    lengths = range(17)
    for alpha in ALPHAS:
        left.plot(
            lengths, [chain_tokens(alpha, length) for length in lengths], color=_colour(alpha), label=f"{alpha:g}"
        )
        left.axhline(1 / (1 - alpha), color=_colour(alpha), linestyle=":", linewidth=1)
    for one in found["tokens"]:
        left.plot(one["K"], one["decoded"].value, "o", color=_colour(one["alpha"]), markeredgecolor="white")
    left.plot(LESSON[1], chain_tokens(*LESSON), "*", color=RED, markersize=14)
    line = {"arrowstyle": "-", "color": RED}
    left.annotate("the lesson's 3.36", (LESSON[1], chain_tokens(*LESSON)), (8.5, 1.3), arrowprops=line, color=RED)
    left.set_ylim(1, 8)
    left.set_xlabel("K, drafted tokens a turn")
    left.set_ylabel("tokens a forward of the target")
    left.set_title("Lines: the formula; dots: decoded; dotted: 1 / (1 - α)")
    left.legend(title="α", fontsize="small")
    alphas = np.linspace(0, 1, 200)
    for length, colour in zip((1, 2, 4, 8, 16), (GREY, BLUE, RED, GREEN, ORANGE), strict=True):
        right.plot(
            alphas, [chain_tokens(float(alpha), length) for alpha in alphas], color=colour, label=f"K = {length}"
        )
    right.set_xlabel("α, acceptance of one drafted token")
    right.set_yscale("log", base=2)
    right.set_yticks([1, 2, 4, 8, 16], ["1", "2", "4", "8", "16"])
    right.set_title("A long draft is worth its length only near α = 1")
    right.legend(fontsize="small")
    return figure


def gains() -> Figure:
    """Speed-up against K at the lesson's α, a line for each cost of a draft step."""
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axis = figure.subplots()
    lengths, alpha = range(17), LESSON[0]
    for cost, colour in COSTS:
        label = "free, as the lesson has it" if cost == 0 else f"c = {cost:g}"
        axis.plot(lengths, [gain(alpha, cost, length) for length in lengths], color=colour, label=label)
        if cost:
            choice = best(alpha, cost)
            axis.plot(choice.num_draft_tokens, choice.speedup, "o", color=colour, markersize=8)
    axis.axhline(1, color="black", linewidth=1)
    axis.annotate("plain decoding", (16, 1), (0, 4), textcoords="offset points", ha="right", fontsize="small")
    axis.plot(LESSON[1], gain(*LESSON[:1], 0.0, LESSON[1]), "*", color=RED, markersize=14)
    axis.set_xlabel("K, drafted tokens a turn")
    axis.set_ylabel("speed-up over plain decoding")
    axis.set_title("α = 0.8: what a draft step costs decides K (dots: the best one)")
    axis.legend(fontsize="small", ncols=2)
    return figure


def best_lengths() -> Figure:
    """The best K for every α and cost, and the lines below which a chain of K loses to plain decoding."""
    figure = Figure(figsize=(7.5, 5), layout="constrained")
    axis = figure.subplots()
    costs, alphas = np.logspace(-2.3, 0, 140), np.linspace(0, 1, 141)
    lengths = np.array([[best(float(alpha), float(cost)).num_draft_tokens for cost in costs] for alpha in alphas])
    edges = [0, 1, 2, 3, 4, 5, 7, 10, 15, 25, 600]
    names = [f"{low}" if high - low == 1 else f"{low}-{high - 1}" for low, high in pairwise(edges)]
    colours = ListedColormap(["white", *colormaps["YlGnBu"](np.linspace(0.1, 1, len(names) - 1))])
    mesh = axis.pcolormesh(costs, alphas, lengths, cmap=colours, norm=BoundaryNorm(edges, colours.N), rasterized=True)
    bar = figure.colorbar(mesh, label="best K (0: decode plainly)", spacing="uniform")
    bar.set_ticks([(low + high) / 2 for low, high in pairwise(edges)], labels=[*names[:-1], "25+"])
    bar.ax.minorticks_off()
    for length, style in ((1, "-"), (4, "--"), (8, ":")):
        label = "K = 1: α = c" if length == 1 else f"K = {length}"
        axis.plot(costs, [_pays_from(float(cost), length) for cost in costs], style, color=RED, label=label)
    axis.set_xscale("log")
    axis.set_ylim(0, 1)
    axis.set_xlabel("c, a draft step over a forward of the target")
    axis.set_ylabel("α, acceptance of one drafted token")
    axis.set_title("Colour: the best K. Red: below the line a chain of K is slower than plain")
    axis.legend(fontsize="small", loc="lower left", frameon=True)
    axis.grid(False)
    return figure


def _pays_from(cost: float, length: int) -> float:
    """The acceptance at which a chain of K is as fast as plain decoding; NaN where none is."""
    if cost >= 1:
        return float("nan")
    low, high = 0.0, 1.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (low, middle) if gain(middle, cost, length) >= 1 else (middle, high)
    return high


def staircases(document: dict[str, Any]) -> Figure:
    """Left: what a forward costs by its rows, measured. Right: speed-up by these costs, and with forwards for free."""
    figure = Figure(figsize=(10, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    costs = CostTable.from_json(document["costs"])
    for ((batch, _), cell), colour in zip(sorted(costs.cells.items()), (BLUE, ORANGE), strict=False):
        name = "one text" if batch == 1 else f"{batch} texts at once"
        sizes = sorted(cell.verify)
        left.step(
            sizes,
            [cell.verify[size] / cell.verify_ms(1) for size in sizes],
            "o-",
            where="pre",
            color=colour,
            label=name,
        )
        _speedups(right, cell, colour, name, max(sizes) - 1)
    left.axhline(1, color=GREY, linestyle="--", linewidth=1)
    left.set_xlabel("rows of the forward a text: the root and K drafts")
    left.set_ylabel("time over a forward of one row")
    left.set_title("The formula takes this to be 1 (dashed)")
    left.set_ylim(bottom=0)
    left.legend(fontsize="small")
    right.axhline(1, color="black", linewidth=1)
    right.set_xlabel("K, drafted tokens a turn")
    right.set_ylabel("predicted speed-up, α = 0.6")
    right.set_title("Dashed: the same draft step, rows for free")
    right.legend(fontsize="small")
    return figure


def _speedups(axis: Any, cell: TurnCosts, colour: str, name: str, longest: int) -> None:
    lengths = range(longest + 1)
    free = TurnCosts({1: cell.verify_ms(1), longest + 1: cell.verify_ms(1)}, cell.draft_step, cell.draft_turn)
    for costs, style in ((cell, "o-"), (free, "--")):
        values = [speedup(chain_tokens(0.6, length), costs, length) for length in lengths]
        axis.plot(lengths, values, style, color=colour, markersize=3, label=name if costs is cell else None)
