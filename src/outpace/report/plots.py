"""PNG plots for people who write reports, each drawn where there is data for it.

Knows nothing of where figures come from. It needs matplotlib, which only those install who want pictures. Colours are
of Okabe and Ito, and every series has a mark or a line style of its own, so that none depends on colour.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from outpace.decoding.costs import CostTable
from outpace.errors import UsageError
from outpace.models.staging import disk_errors
from outpace.report.reading import Bench, Trace, apart
from outpace.report.summary import summary
from outpace.verification.expectation import TurnCosts, best_k, chain_tokens, speedup

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#555555")
MARKS = ("o", "s", "^", "D", "v", "P", "X")
LINES = ("-", "--", ":", "-.")
CONTEXT = 256
"""Tokens before a turn, where costs depend on them."""
MOST_K = 16
SERIES = 7
"""The most series of one plot; the first ones are drawn."""


def plots(
    folder: Path, traces: Sequence[Trace], benches: Sequence[Bench] = (), costs: Mapping[str, CostTable] | None = None
) -> dict[str, str | None]:
    """Draw what there is data for.

    Args:
        folder: where to; made if missing.
        traces, benches: what was decoded and measured.
        costs: tables of costs by the name that is shown.

    Returns:
        For every plot by the name of its file None where it was drawn, else what it lacks.

    Raises:
        UsageError: matplotlib is not installed.
        WeightsError: a file cannot be written.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise UsageError("plots need matplotlib, which is not installed", hint="pip install 'outpace[plot]'") from error
    summaries = dict(zip(apart([trace.name for trace in traces]), map(summary, traces), strict=True))
    tables = costs or {}
    rows = [row for bench in benches for row in bench.rows]
    drawing: dict[str, tuple[Callable[..., bool], tuple[Any, ...], str]] = {
        "acceptance_by_position.png": (_positions, (summaries, rows), "a draft that was judged"),
        "by_category.png": (_categories, (rows,), "a measurement"),
        "cost_curve.png": (_cost_curve, (summaries, tables), "a cost table, or traces with forwards of two sizes"),
        "best_k.png": (_best_k, (summaries, rows, tables), "an acceptance and costs of a forward and of a draft step"),
        "break_even_batch.png": (_batches, (rows,), "a measurement at two batches"),
    }
    found: dict[str, str | None] = {}
    with disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for name, (draw, given, lacking) in drawing.items():
            figure = Figure(figsize=(7.2, 4.4), layout="constrained")
            found[name] = None if draw(figure, *given) else f"needs {lacking}"
            if found[name] is None:
                growing = folder / f".{name}.growing"
                figure.savefig(growing, format="png", dpi=150, metadata={"Software": None})
                growing.replace(folder / name)
    return found


def _axis(figure: Any, x: str, y: str, *, title: str) -> Any:
    axis = figure.subplots()
    axis.set(xlabel=x, ylabel=y)
    axis.set_title(title, loc="left", fontsize="medium")
    _plain(axis)
    return axis


def _plain(axis: Any, grid: str = "y") -> None:
    axis.grid(axis=grid, alpha=0.3, linewidth=0.6)
    axis.set_axisbelow(True)
    axis.spines[["top", "right"]].set_visible(False)


def _style(place: int) -> dict[str, Any]:
    return {
        "color": COLOURS[place % len(COLOURS)],
        "marker": MARKS[place % len(MARKS)],
        "linestyle": LINES[place % len(LINES)],
        "linewidth": 1.6,
        "markersize": 5,
    }


def _legend(axis: Any, count: int) -> None:
    if count > 1:
        axis.legend(frameon=False, fontsize="small")


def _even(axis: Any, *, upright: bool = False) -> None:
    (axis.axvline if upright else axis.axhline)(1, color="black", linewidth=1, linestyle=(0, (5, 4)))


# ---- acceptance ------------------------------------------------------------------------------------------------------


def _acceptances(summaries: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> dict[str, list[float]]:
    """Acceptance by position, of traces and of what was measured on all prompts."""
    found = {name: [one["rate"] for one in said["positions"]] for name, said in summaries.items()}
    for row in rows:
        if row["category"] == "all" and row["acceptance_by_position"]:
            found.setdefault(_setting(row), row["acceptance_by_position"])
    return {name: values for name, values in found.items() if values}


def _setting(row: Mapping[str, Any]) -> str:
    return f"{row['method']}, {row['tree']}, {row['num_draft_tokens']}, T {row['temperature']:g}"


def _positions(figure: Any, summaries: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> bool:
    found = _acceptances(summaries, rows)
    if not found:
        return False
    title = "Acceptance by position"
    axis = _axis(figure, "position in the draft", "accepted, given that all before were", title=title)
    for place, (name, values) in enumerate(list(found.items())[:SERIES]):
        axis.plot(range(1, len(values) + 1), values, label=name, **_style(place))
        told = [one["interval"] for one in summaries[name]["positions"]] if name in summaries else []
        for at, interval in enumerate(told, 1):
            if interval:
                axis.plot([at, at], interval, color=COLOURS[place % len(COLOURS)], linewidth=1.2)
    axis.set_ylim(0, 1)
    axis.set_xticks(range(1, 1 + max(map(len, found.values()))))
    _legend(axis, len(found))
    return True


def _categories(figure: Any, rows: Sequence[Mapping[str, Any]]) -> bool:
    """Settings that were measured in several categories, or all of them where none was."""
    if not rows:
        return False
    counts = Counter((_setting(row), row["batch"]) for row in rows)
    rows = [row for row in rows if counts[_setting(row), row["batch"]] > 1] or rows
    settings = list(dict.fromkeys((_setting(row), row["batch"]) for row in rows))[:SERIES]
    categories = list(dict.fromkeys(row["category"] for row in rows))
    figure.set_size_inches(8.6, 1.6 + 0.3 * len(categories) * max(1, len(settings) * 0.6))
    left, right = figure.subplots(1, 2, sharey=True)
    for place, setting in enumerate(settings):
        shift = (place - (len(settings) - 1) / 2) * 0.7 / len(settings)
        style = {**_style(place), "linestyle": "none"}
        for row in rows:
            if (_setting(row), row["batch"]) != setting:
                continue
            y = categories.index(row["category"]) + shift
            if row["speedup_ci"]:
                left.plot(row["speedup_ci"], [y, y], color=style["color"], linewidth=1.4)
            left.plot(row["speedup"], y, **style)
            if row["tau"] is not None:
                right.plot(row["tau"], y, **style)
        right.plot([], [], label=f"{setting[0]}, batch {setting[1]}", **style)
    left.set_yticks(range(len(categories)), categories)
    left.invert_yaxis()
    left.set_xlabel("speed-up over plain decoding, 95 % interval")
    right.set_xlabel("tau, tokens a verification forward")
    for axis in (left, right):
        _plain(axis, "x")
        _even(axis, upright=True)
    figure.suptitle("Speed-up and tau by category", x=0.01, ha="left", fontsize="medium")
    if len(settings) > 1:
        figure.legend(loc="outside lower center", frameon=False, fontsize="small", ncols=2)
    return True


# ---- costs -----------------------------------------------------------------------------------------------------------


def _curves(summaries: Mapping[str, Any], tables: Mapping[str, CostTable]) -> dict[str, TurnCosts]:
    """Costs of turns by the name that is shown: of tables by batch, and of traces that have forwards of two sizes."""
    found = {}
    for name, table in tables.items():
        for batch in sorted({batch for batch, _ in table.cells}):
            rows = max(max(costs.verify) for (size, _), costs in table.cells.items() if size == batch)
            found[f"{name}, batch {batch}"] = table.at(batch, CONTEXT, rows)
    for name, said in summaries.items():
        verify = {int(rows): ms for rows, ms in said["costs"]["verify"].items()}
        if 1 in verify and len(verify) > 1:
            found[name] = TurnCosts(verify, said["costs"]["draft_step"] or 0.0)
    return found


def _cost_curve(figure: Any, summaries: Mapping[str, Any], tables: Mapping[str, CostTable]) -> bool:
    found = _curves(summaries, tables)
    if not found:
        return False
    title = "What a forward of the target costs"
    axis = _axis(figure, "rows a sequence: the last token and the draft", "milliseconds", title=title)
    for place, (name, costs) in enumerate(list(found.items())[:SERIES]):
        axis.plot(list(costs.verify), list(costs.verify.values()), label=name, **{**_style(place), "markersize": 3})
    axis.set_ylim(bottom=0)
    _legend(axis, len(found))
    return True


def _best_k(
    figure: Any, summaries: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], tables: Mapping[str, CostTable]
) -> bool:
    """Of chains: a trace's acceptance at its own costs, and every acceptance at the costs of every table."""
    acceptances, costs = _acceptances(summaries, rows), _curves(summaries, tables)
    own = [(name, found, name) for name, found in acceptances.items() if name in costs and summaries[name]["chain"]]
    others = [(name, found, where) for where in costs if where not in summaries for name, found in acceptances.items()]
    pairs = [*own, *others][:SERIES]
    if not pairs:
        return False
    title = "Speed-up by draft length; rings: best K"
    axis = _axis(figure, "draft length K, tokens", "predicted speed-up", title=title)
    for place, (name, found, where) in enumerate(pairs):
        known = costs[where]
        alphas = [*found, *[found[-1]] * MOST_K][:MOST_K]
        longest = min(MOST_K, max(known.verify) - 1)
        values = [speedup(chain_tokens(alphas, k), known, k) for k in range(longest + 1)]
        axis.plot(range(longest + 1), values, label=name if name == where else f"{name}; {where}", **_style(place))
        best = best_k(alphas, known, longest).num_draft_tokens
        axis.plot(best, values[best], "o", markersize=12, fillstyle="none", color=COLOURS[place % len(COLOURS)])
    _even(axis)
    _legend(axis, 2)
    return True


def _batches(figure: Any, rows: Sequence[Mapping[str, Any]]) -> bool:
    measured: dict[str, dict[int, Mapping[str, Any]]] = {}
    for row in rows:
        if row["category"] == "all":
            measured.setdefault(_setting(row), {})[row["batch"]] = row
    measured = {name: some for name, some in measured.items() if len(some) > 1}
    if not measured:
        return False
    title = "Speed-up by batch; crosses: where it stops paying"
    axis = _axis(figure, "sequences at once", "speed-up over plain decoding", title=title)
    for place, (name, some) in enumerate(list(measured.items())[:SERIES]):
        batches, style = sorted(some), _style(place)
        values = [some[batch]["speedup"] for batch in batches]
        axis.plot(batches, values, label=name, **style)
        for batch in batches:
            if some[batch]["speedup_ci"]:
                axis.plot([batch, batch], some[batch]["speedup_ci"], color=style["color"], linewidth=1.2)
        foreseen = [(batch, some[batch]["predicted_speedup"]) for batch in batches if some[batch]["predicted_speedup"]]
        if foreseen:
            axis.plot(*zip(*foreseen, strict=True), color=style["color"], linestyle=":", label=f"{name}, predicted")
        even = crossing(batches, values)
        if even is not None:
            axis.plot(even, 1, "x", color="black", markersize=9, markeredgewidth=2)
            axis.annotate(f"{even:.1f}", (even, 1), xytext=(6, 8), textcoords="offset points", fontsize="small")
    axis.set_xscale("log", base=2)
    ticks = sorted({batch for some in measured.values() for batch in some})
    axis.set_xticks(ticks, [str(batch) for batch in ticks])
    axis.minorticks_off()
    _even(axis)
    _legend(axis, len(measured) + 1)
    return True


def crossing(batches: Sequence[int], speedups: Sequence[float]) -> float | None:
    """The batch behind which the speed-up never rises above 1 again, on straight lines over the logarithm of the batch;
    None where it is above 1 at the last batch, or nowhere."""
    above = [place for place, value in enumerate(speedups) if value > 1]
    if not above or above[-1] == len(speedups) - 1:
        return None
    last = above[-1]
    share = (speedups[last] - 1) / (speedups[last] - speedups[last + 1])
    low, high = math.log2(batches[last]), math.log2(batches[last + 1])
    return float(2 ** (low + share * (high - low)))
