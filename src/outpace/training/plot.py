"""A picture of a training: loss, acceptance and tau against the tokens that were read.

Knows nothing of training: it draws what the log says. It needs matplotlib, which only those install who want pictures.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from outpace.errors import UsageError
from outpace.models.staging import disk_errors
from outpace.training.ledger import read_ledger

POINTS = 150
"""The most points of a line: each is the mean of as many steps as that takes."""
PANELS = (("loss", "loss"), ("conditional", "accepted, given that\nall before it were"), ("tau", "tau, texts as given"))
"""Figures of the log from the top down, and what stands beside them."""


def plot(log: Path, picture: Path, title: str) -> None:
    """Draw a log: a line for every token of a draft, and a dot where held-out texts were measured.

    Args:
        log: of a training.
        picture: the PNG file to be written, whole or not at all.
        title: what stands above.

    Raises:
        UsageError: matplotlib is not installed, or the log has no step that taught anything.
        WeightsError: the file cannot be written.
    """
    try:
        from matplotlib import colormaps
        from matplotlib.figure import Figure
        from matplotlib.ticker import EngFormatter
    except ImportError as error:
        raise UsageError(
            "a picture of the training needs matplotlib, which is not installed", hint="pip install 'outpace[plot]'"
        ) from error
    steps, held = _read(log)
    depth, size = len(steps[0]["loss"]), math.ceil(len(steps) / POINTS)
    figure = Figure(figsize=(8, 8), layout="constrained")
    axes = figure.subplots(len(PANELS), 1, sharex=True)
    figure.suptitle(title)
    for axis, (name, label) in zip(axes, PANELS, strict=True):
        places: list[int | None] = [None] if name == "tau" else [*range(depth)]
        for place in places:
            colour = colormaps["viridis"](0.85 * (place or 0) / max(1, depth - 1))
            words = "" if place is None else f"token {place + 1}"
            axis.plot(*_curve(steps, size, name, place), color=colour, linewidth=1.5, label=words)
            axis.plot(*_curve(held, 1, name, place), "o", color=colour, markeredgecolor="white", markersize=7)
        axis.set_ylabel(label)
        axis.grid(alpha=0.3)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].legend(ncols=depth, fontsize="small", frameon=False)
    axes[0].set_title("lines: batches that were trained on; dots: texts that were held out", fontsize="small")
    axes[1].set_ylim(0, 1)
    axes[-1].set_xlabel("tokens read")
    axes[-1].xaxis.set_major_formatter(EngFormatter())
    growing = picture.with_name(f".{picture.name}.growing")
    with disk_errors(picture.parent):
        figure.savefig(growing, format="png", dpi=120)
        growing.replace(picture)


def _read(log: Path) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The figures of steps, and of what was held out, each with the tokens that were read by then."""
    lines = read_ledger(log)
    steps = [line for line in lines if line.get("tau") is not None]
    if not steps:
        raise UsageError(f"{log} has no step that could be drawn")
    tokens = {line["step"]: line["tokens"] for line in lines if "tokens" in line}
    told = [line for line in lines if "validation" in line and line["step"] in tokens]
    return steps, [{**line["validation"], "tokens": tokens[line["step"]]} for line in told]


def _curve(
    lines: Sequence[Mapping[str, Any]], size: int, name: str, place: int | None
) -> tuple[list[float], list[float]]:
    """Means over so many lines, against the tokens at their ends; what is None counts nowhere."""
    found: list[tuple[float, float]] = []
    for start in range(0, len(lines), size):
        part = lines[start : start + size]
        values = [line[name] if place is None else line[name][place] for line in part]
        known = [value for value in values if value is not None]
        if known:
            found.append((float(part[-1]["tokens"]), sum(known) / len(known)))
    return [x for x, _ in found], [y for _, y in found]
