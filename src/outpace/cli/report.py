"""outpace report: one HTML page, and pictures, from traces, plans and measurements.

Knows nothing of pages; parses, calls, prints.
"""

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from outpace.cli.pull import progress_bar
from outpace.errors import UsageError
from outpace.report.page import EXAMPLES, LANGUAGES, page, write
from outpace.report.planned import read_plan
from outpace.report.plots import plots as draw
from outpace.report.reading import apart, read_bench, read_cost_table, read_trace
from outpace.report.summary import summary

FORMAT_VERSION = 1
Files = list[Path] | None


def report(
    out: Annotated[Path, typer.Option(metavar="FILE", help="The page to write.")],
    trace: Annotated[Files, typer.Option(help="What generate --trace wrote; may be repeated.")] = None,
    plan: Annotated[Files, typer.Option(help="A plan, or what tune --json printed; may be repeated.")] = None,
    bench: Annotated[Files, typer.Option(help="What bench --json printed; may be repeated.")] = None,
    costs: Annotated[Files, typer.Option(help="A cost table, for the pictures; may be repeated.")] = None,
    example: Annotated[bool, typer.Option("--example", help="Show the traces that come with outpace.")] = False,
    plots: Annotated[Path | None, typer.Option(metavar="DIR", help="Draw PNG pictures into this folder.")] = None,
    language: Annotated[str, typer.Option(help=f"The page opens in: {', '.join(LANGUAGES)}.")] = "en",
    json_output: Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")] = False,
) -> None:
    """Show turns, figures and plans in one page.

    The page is one file that needs no network. It steps through every turn: what was drafted, what the target gave it,
    the coin, and what came of it.

    Example: outpace report --example --out figure.html
    """
    paths = [*(EXAMPLES if example else ()), *(trace or ())]
    if not (paths or plan or bench):
        raise UsageError("nothing was given to show; allowed: --trace, --plan, --bench or --example")
    traces = [read_trace(path) for path in paths]
    benches = [read_bench(path) for path in bench or ()]
    plans = [read_plan(path) for path in plan or ()]
    named = apart([path.name for path in costs or ()])
    tables = dict(zip(named, map(read_cost_table, costs or ()), strict=True))
    with progress_bar() as progress:
        text = page(traces, plans=plans, benches=benches, language=language, progress=progress)
        drawn = {} if plots is None else draw(plots, traces, benches, tables)
    write(out, text)
    lacking = {name: why for name, why in drawn.items() if why is not None}
    if json_output:
        document: dict[str, Any] = {"format_version": FORMAT_VERSION, "page": str(out.absolute())}
        document |= {"bytes": len(text.encode()), "traces": [summary(one) | {"name": one.name} for one in traces]}
        document |= {"plots": [name for name in drawn if name not in lacking], "lacking": lacking}
        sys.stdout.write(json.dumps(document, indent=2) + "\n")
        return
    counts = f"{len(traces)} traces, {len(plans)} plans, {len(benches)} measurements"
    typer.echo(f"{out}: {len(text.encode()) / 1e3:.0f} kB, {counts}")
    for name in drawn:
        typer.echo(f"{name}: {lacking[name]}" if name in lacking else f"{plots}/{name}", err=name in lacking)
