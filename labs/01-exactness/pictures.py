"""The figures of exercise 1.

Knows nothing of how anything was found.
"""

from typing import Any

import numpy as np
from chance import Law, floor, perfect
from common import BLUE, GREEN, GREY, ORANGE, RED
from matplotlib.figure import Figure

COLOURS = (GREEN, ORANGE, RED, GREY)
BOUND, SAMPLES, PAIRS = 0.01, 10_000, 4_000


def floors(found: dict[str, Any], laws: dict[str, Law]) -> Figure:
    """Left: pairs of perfect samplers at 10,000 samples. Right: how their distance falls with samples."""
    figure = Figure(figsize=(10, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    rng = np.random.default_rng(0)
    for (name, law), colour in zip(laws.items(), COLOURS, strict=False):
        left.hist(perfect(law, SAMPLES, PAIRS, rng), bins=60, density=True, color=colour, alpha=0.7, label=name)
    left.axvline(BOUND, color="black", linestyle="--")
    left.set_ylim(top=1.2 * left.get_ylim()[1])
    left.annotate("the lesson's 0.01", (BOUND, 0.98), (4, 0), ("data", "axes fraction"), "offset points", va="top")
    left.set_xlim(left=0)
    left.set_yticks([])
    left.set_xlabel("TV of two perfect samplers, 10,000 samples of each")
    left.set_title("Most perfect samplers miss the lesson's bound")
    left.legend(title="cells", fontsize="small")
    sizes = np.logspace(3, 8, 60)
    for (name, law), colour in zip(laws.items(), COLOURS, strict=False):
        right.loglog(sizes, [floor(law, int(size)) for size in sizes], color=colour, label=f"{name} cells")
    others = [one for one in found["chance"] if one["cells"] not in laws]
    if others:
        right.loglog(
            [one["samples"] for one in others],
            [one["floor"] for one in others],
            "s:",
            color=GREY,
            label=f"one token of the default,\n{others[0]['cells']} cells",
        )
    right.axhline(BOUND, color="black", linestyle="--")
    right.set_xlabel("samples of each")
    right.set_ylabel("TV on average")
    right.set_title("The noise floor falls with the square root of the samples")
    right.legend(fontsize="small")
    return figure


def verdicts(found: dict[str, Any]) -> Figure:
    """TV beside plain sampling against the samples: honest rules fall with the floor, faults stay where they are."""
    figure = Figure(figsize=(7.5, 4.5), layout="constrained")
    axis = figure.subplots()
    rows = found["samplers"]
    sizes = sorted({one["samples"] for one in rows})
    floor_by = {one["samples"]: one["floor"] for one in rows}
    axis.loglog(sizes, [floor_by[size] for size in sizes], color="black", label="two perfect samplers, on average")
    names = list(dict.fromkeys(one["sampler"] for one in rows))
    for place, name in enumerate(names):
        own = [one for one in rows if one["sampler"] == name]
        colour = (BLUE, GREEN, GREY, RED, ORANGE)[place % 5]
        shift = 1 + 0.06 * (place - 2)  # side by side, or the honest ones would hide each other
        x, y = [one["samples"] * shift for one in own], [one["tv"]["512"] for one in own]
        axis.loglog(x, y, "o" if own[0]["honest"] else "X", color=colour, markersize=8, label=name)
        if not own[0]["honest"]:
            axis.axhline(own[0]["exact_tv"], color=colour, linestyle=":", linewidth=1.5)
    axis.axhline(BOUND, color=GREY, linestyle="--", linewidth=1)
    axis.annotate("the lesson's 0.01", (sizes[0], BOUND), (0, 4), "data", "offset points", fontsize="small")
    axis.set_xlabel("samples of each")
    axis.set_ylabel("TV beside plain sampling, 512 cells")
    axis.set_title("Honest rules fall with the noise floor; faults stay (dotted: their exact TV)")
    axis.legend(fontsize="small")
    axis.yaxis.set_minor_formatter(lambda value, _: f"{value:g}" if f"{value:.0e}"[0] in "25" else "")
    axis.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    return figure
