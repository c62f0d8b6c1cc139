"""The figures of this lab, each from one part of its results.

Knows nothing of how they were measured.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from common import BLUE, GREEN, GREY, ORANGE, RED
from matplotlib.axes import Axes
from matplotlib.figure import Figure

Rows = Sequence[Mapping[str, Any]]
COLOURS = (BLUE, ORANGE, GREEN, RED, GREY, "#56b4e9", "#cc79a7", "#f0e442")
RULES = {
    "rejection, a drawn token": BLUE,
    "match, the three likeliest": GREEN,
    "match, the likeliest token": ORANGE,
    "match, a drawn token": RED,
    "match, the token found": GREY,
}


def line(axis: Axes, rows: Rows, x: str, y: str, label: str, colour: str, style: str = "-") -> None:
    """A line of estimates with their intervals, from left to right."""
    ordered = sorted(rows, key=lambda row: row[x])
    spans = [row[y] for row in ordered]
    bars = [[one["value"] - one["low"] for one in spans], [one["high"] - one["value"] for one in spans]]
    xs, values = [row[x] for row in ordered], [one["value"] for one in spans]
    axis.errorbar(xs, values, bars, color=colour, linestyle=style, marker="o", markersize=4, capsize=2, label=label)


def grouped(rows: Rows, name: str) -> dict[str, list[Mapping[str, Any]]]:
    found: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        found.setdefault(str(row[name]), []).append(row)
    return found


def law(rows: Rows) -> Figure:
    """α against temperature, a panel a drafter: solid on one text, dashed on texts of their own temperature."""
    drafters = [name for name in grouped(rows, "drafter") if name not in ("target", "lookup")]
    figure = Figure(figsize=(4.2 * len(drafters), 4.2), layout="constrained")
    axes = figure.subplots(1, len(drafters), sharey=True, squeeze=False)[0]
    for axis, name in zip(axes, drafters, strict=True):
        for rule, mine in grouped([row for row in rows if row["drafter"] in (name, "lookup")], "rule").items():
            texts = grouped(mine, "text")
            line(axis, texts["said at 1"], "temperature", "alpha", rule, RULES[rule])
            if "said at its own" in texts:
                line(axis, texts["said at its own"], "temperature", "alpha", "", RULES[rule], "--")
        top = [row for row in rows if row["drafter"] == "target" and row["text"] == "said at 1"]
        line(axis, top, "temperature", "alpha", "the target's likeliest token", "black", ":")
        axis.set(title=f"draft: {name}", xlabel="temperature", ylim=(0, 1.02))
    axes[0].set_ylabel("α: chance that a drafted token is accepted")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, fontsize="small")
    figure.suptitle(
        "solid: all temperatures on the text said at 1; dashed: on texts of their own temperature", fontsize="small"
    )
    return figure


def panels(rows: Rows, x: str, y: str, label: str) -> Figure:
    """A panel a drafter, a line a way of drafting; where nothing is gained stands a black line."""
    by_drafter = {name: grouped(mine, "way") for name, mine in grouped(rows, "drafter").items()}
    figure = Figure(figsize=(4.2 * len(by_drafter), 4.6), layout="constrained")
    axes = figure.subplots(1, len(by_drafter), sharey=True, squeeze=False)[0]
    for axis, (name, ways) in zip(axes, by_drafter.items(), strict=True):
        for colour, (way, mine) in zip(COLOURS, ways.items(), strict=False):
            line(axis, mine, x, y, way.removeprefix(f"{name}, "), colour, "--" if "controller" in way else "-")
        axis.axhline(1.0, color="black", linewidth=1)
        axis.set(title=f"draft: {name}", xlabel=x)
        axis.legend(fontsize="x-small")
    axes[0].set_ylabel(label)
    return figure


def load(rows: Rows) -> Figure:
    figure = panels(rows, "batch", "speedup", "speed against plain decoding")
    ticks = sorted({row["batch"] for row in rows})
    for axis in figure.axes:
        axis.set_xscale("log", base=2)
        axis.set_xticks(ticks, [str(one) for one in ticks])
        axis.set_xlabel("prompts decoded at once")
    return figure


def size(rows: Rows) -> Figure:
    """What a draft costs beside its size, and the best speed-up that its cost leaves."""
    drafts = rows[0]["drafts"]
    figure = Figure(figsize=(10, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    millions = [one["parameters"] / 1e6 for one in drafts]
    left.plot(millions, [one["c"] for one in drafts], "o-", color=BLUE, label="c: a draft's step / a plain step")
    left.plot(
        millions, [one["break_even_alpha"]["4"] for one in drafts], "s--", color=RED, label="α to break even, K 4"
    )
    left.set(xscale="log", xlabel="million weights of the draft", ylim=(0, None))
    left.legend(fontsize="small")
    for place, best in enumerate(drafts[0]["best"]):
        gains = [one["best"][place]["speedup"] for one in drafts]
        right.plot(millions, gains, "o-", color=COLOURS[place], label=f"α = {best['alpha']}")
    right.axhline(1.0, color="black", linewidth=1)
    right.set(xscale="log", xlabel="million weights of the draft", ylabel="speed-up at the best K, predicted")
    right.legend(fontsize="small")
    return figure


def control(rows: Rows) -> Figure:
    """The controller by category: beside plain decoding where nothing pays, beside the best chain where much does."""
    figure = Figure(figsize=(10, 0.3 * len(rows) / 2 + 2), layout="constrained")
    axes = figure.subplots(1, 2)
    pairs = ((1.5, "auto_against_plain", 0.97), (0.0, "auto_against_best_fixed", 0.95))
    for axis, (temperature, name, gate) in zip(axes, pairs, strict=True):
        own = [row for row in rows if row["temperature"] == temperature]
        labels = [f"{row['category']}, {row['drafter']}" for row in own]
        spans = [row[name] for row in own]
        bars = [[one["value"] - one["low"] for one in spans], [one["high"] - one["value"] for one in spans]]
        axis.errorbar([one["value"] for one in spans], labels, xerr=bars, fmt="o", color=BLUE, capsize=2)
        axis.axvline(gate, color=RED, linestyle="--", label=f"asked for: {gate:g}")
        axis.set(title=f"temperature {temperature:g}", xlabel=name.replace("_", " "))
        axis.legend(fontsize="small")
    return figure


def figures(parts: Mapping[str, Rows]) -> dict[str, Callable[[], Figure]]:
    """A function that draws each, by name, of the parts that there are."""
    drawn: dict[str, Callable[[Rows], Figure]] = {
        "law": law,
        "counts": lambda rows: panels(rows, "temperature", "tau", "tau: tokens a forward"),
        "speed": lambda rows: panels(rows, "temperature", "speedup", "speed against plain decoding"),
        "load": load,
        "size": size,
        "control": control,
    }
    return {name: lambda name=name: drawn[name](parts[name]) for name in drawn if name in parts}  # type: ignore[misc]
