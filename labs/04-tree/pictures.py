"""The figures of exercise 4.

Knows nothing of how anything was decoded.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from common import BLUE, GREEN, GREY, ORANGE
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure


def mask(example: Mapping[str, Any]) -> Figure:
    """Who sees whom in one real draft, rows and columns as the verifier has them; green: the accepted path."""
    parents, words = example["parents"], [_shown(word) for word in example["words"]]
    seen = np.zeros((len(parents) + 1, len(parents) + 2), int)
    seen[:, :2] = 1  # everybody sees the text before, and the root
    for node, parent in enumerate(parents):
        if parent >= 0:
            seen[node + 1, 2:] = seen[parent + 1, 2:]
        seen[node + 1, node + 2] = 1
    for node in [-1, *example["path"]]:
        seen[node + 1] *= 2
    size = 1.6 + 0.34 * len(parents)
    figure = Figure(figsize=(size + 1.4, size + 0.6), layout="constrained")
    axis = figure.subplots()
    axis.imshow(seen, cmap=ListedColormap(["white", BLUE, GREEN]), vmin=0, vmax=2)
    names = ["the root", *words]
    axis.set_xticks(range(len(parents) + 2), ["all text before", *names], rotation=90, fontsize="small")
    axis.set_yticks(range(len(parents) + 1), names, fontsize="small")
    axis.set_xticks(np.arange(-0.5, len(parents) + 2), minor=True)
    axis.set_yticks(np.arange(-0.5, len(parents) + 1), minor=True)
    axis.grid(False, which="major")
    axis.grid(True, which="minor", color=GREY, linewidth=0.5, alpha=1)
    axis.tick_params(which="minor", length=0)
    axis.spines[:].set_visible(True)
    axis.xaxis.tick_top()
    axis.set_title("A row sees the coloured columns; green: the accepted path", fontsize="medium", pad=10)
    return figure


def trees(examples: Sequence[Mapping[str, Any]]) -> Figure:
    """Real drafts as trees: green what was accepted, blue the target's own token behind it."""
    heights = [1.5 + _leaves(one["parents"]) for one in examples]
    figure = Figure(figsize=(10, 0.36 * sum(heights) + 0.4), layout="constrained")
    axes = np.atleast_1d(figure.subplots(len(examples), 1, height_ratios=heights))
    for axis, example in zip(axes, examples, strict=True):
        _tree(axis, example)
    return figure


def _tree(axis: Any, example: Mapping[str, Any]) -> None:
    path = example["path"]
    parents = [*example["parents"], path[-1] if path else -1]  # the target's own token is one node more
    words, own = [*example["words"], example["next"]], len(example["parents"])
    depths = {-1: 0}
    for node, parent in enumerate(parents):
        depths[node] = depths[parent] + 1
    heights = _heights(parents)
    for node, parent in enumerate(parents):
        colour = BLUE if node == own else GREEN if node in path else GREY
        x, y = (depths[parent], depths[node]), (heights[parent], heights[node])
        axis.plot(x, y, color=colour, linewidth=1 if colour == GREY else 3, zorder=1)
        _box(axis, depths[node], heights[node], words[node], colour)
    _box(axis, 0, heights[-1], example["root"], "black")
    asked = example["prompt"].replace("$", r"\$")
    axis.set_title(f"temperature {example['temperature']:g}, asked: {asked}", fontsize="small")
    axis.set_xlim(-0.3, 5.3)
    axis.set_ylim(min(heights.values()) - 0.6, max(heights.values()) + 0.6)
    axis.set_axis_off()


def _box(axis: Any, x: float, y: float, word: str, colour: str) -> None:
    box = {"boxstyle": "round", "facecolor": "white", "edgecolor": colour}
    axis.text(x, y, _shown(word), ha="center", va="center", fontsize="small", bbox=box)


def _heights(parents: Sequence[int]) -> dict[int, float]:
    """Where each node stands, the first child uppermost: leaves in order, parents amid their children."""
    heights: dict[int, float] = {}
    rows = iter(range(0, -len(parents) - 1, -1))

    def place(node: int) -> float:
        below = [place(child) for child, parent in enumerate(parents) if parent == node]
        heights[node] = sum(below) / len(below) if below else float(next(rows))
        return heights[node]

    place(-1)
    return heights


def _leaves(parents: Sequence[int]) -> int:
    return sum(node not in parents for node in range(len(parents)))


def _shown(word: str) -> str:
    """A token as it can be read: spaces and line ends have signs, and the end of the text has a name."""
    return word.replace(" ", "␣").replace("\n", "↵").replace("$", r"\$") or "(end)"


def taus(found: Mapping[str, Any]) -> Figure:
    """Tokens a forward of every shape, and by whom accepted tokens were chosen."""
    figure = Figure(figsize=(10, 4), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    rows = found["results"]
    temperatures = sorted({one["temperature"] for one in rows})
    names = list(dict.fromkeys(one["shape"] for one in rows))
    for place, temperature in enumerate(temperatures):
        own = {one["shape"]: one["tau"] for one in rows if one["temperature"] == temperature}
        at = np.arange(len(names)) + 0.4 * (place - 0.5)
        values = [own[name].value for name in names]
        errors = [[value - own[name].low for value, name in zip(values, names, strict=True)]]
        errors.append([own[name].high - value for value, name in zip(values, names, strict=True)])
        colour = (BLUE, ORANGE)[place % 2]
        bars = left.bar(at, values, 0.36, yerr=errors, color=colour, label=f"temperature {temperature:g}", capsize=3)
        left.bar_label(bars, [f"{value:.2f}" for value in values], label_type="center", color="white", fontsize="small")
    left.set_xticks(range(len(names)), [name.replace(", ", ",\n") for name in names], fontsize="small")
    left.axhline(1, color="black", linewidth=1)
    left.set_ylabel("tokens a forward")
    left.set_title("A tree beside chains of equal depth and of equal nodes")
    left.legend(fontsize="small", loc="upper left")
    left.set_ylim(top=1.15 * max(one["tau"].high for one in rows))
    left.grid(False, axis="x")
    for place, temperature in enumerate(temperatures):
        counts = next(
            one["by_rank"] for one in rows if one["temperature"] == temperature and one["shape"] == found["shown"]
        )
        shares = np.array(counts[:3]) / max(1, sum(counts))
        at = np.arange(len(shares)) + 0.4 * (place - 0.5)
        bars = right.bar(at, shares, 0.36, color=(BLUE, ORANGE)[place % 2])
        right.bar_label(bars, [f"{share:.0%}" for share in shares], fontsize="small")
    right.set_xticks(range(3), ["first", "second", "third"])
    right.set_xlabel("which of its drafter's choices it was")
    right.set_ylabel("share of accepted tokens")
    right.set_title(f"What siblings bring: {found['shown']}")
    right.grid(False, axis="x")
    return figure
