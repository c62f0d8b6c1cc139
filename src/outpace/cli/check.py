"""outpace check: is drafting lossless on this pair? One table, one sentence, exit code 0 or 1.

Knows nothing of what is checked; parses, calls, prints.
"""

import json
import sys
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from outpace.cli.generate import Lane, Model, Trust
from outpace.cli.pair import DRAFTERS, Models
from outpace.cli.pull import progress_bar
from outpace.drafters.budget import TREES, Branching
from outpace.evaluation.exactness import check_options, check_pair
from outpace.evaluation.pair import Report
from outpace.models import weights
from outpace.verification.rules import rule_named

FORMAT_VERSION = 1
LEGIBLE = 20  # columns below which details are left out


def check(
    target: Model = weights.DEFAULT,
    draft: Annotated[str | None, typer.Option(help=f"Who drafts: {DRAFTERS}.")] = None,
    dtype: Annotated[str, typer.Option(help="auto (bf16 where it is native), bf16, fp32 or fp64.")] = "auto",
    device: Annotated[str, typer.Option(help="Where to compute; others than cpu are refused.")] = "cpu",
    lane: Lane = "auto",
    trust_remote_code: Trust = False,
    num_draft_tokens: Annotated[int, typer.Option(help="Drafts a turn, 1 or more.")] = 4,
    tree: Annotated[str, typer.Option(help=f"How drafts branch: {TREES}.")] = "chain",
    rule: Annotated[str | None, typer.Option(help="An acceptance rule by name; the best that fits by default.")] = None,
    temperature: Annotated[
        list[float] | None,
        typer.Option(metavar="NUMBER", help="A further temperature besides 0, 0.5, 1 and 1.5; may be repeated."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Of all that is left to chance.")] = 0,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer texts: finds large faults only.")] = False,
    json_output: Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")] = False,
) -> None:
    """Check that decoding with drafts is lossless on your pair.

    Texts, laws, caches and masks are checked, and ten faults planted that must be found. Exit code 1 where one is not.

    Example: outpace check --target smollm2 --draft lookup
    """
    branching = Branching.parse(tree)
    check_options(rule, num_draft_tokens, temperature or ())
    models = Models(target, dtype, device, lane, trust_remote_code)
    with progress_bar() as progress:
        model = models.decider(progress)
        report = check_pair(
            model,
            models.guesser(draft, model),
            rule=rule,
            branching=branching,
            num_draft_tokens=num_draft_tokens,
            temperatures=temperature or (),
            seed=seed,
            quick=quick,
            progress=progress,
        )
    if json_output:
        sys.stdout.write(json.dumps(document(report), indent=2) + "\n")
    else:
        screen = Console(highlight=False)
        screen.print(table(report, screen.width))
        for line in findings(report):
            screen.print(escape(line), soft_wrap=True)
        screen.print(escape(sentence(report)), soft_wrap=True)
    if not report.lossless:
        raise typer.Exit(1)


def document(report: Report) -> dict[str, Any]:
    """The JSON document of a report, as ``--json`` prints it."""
    return {
        "format_version": FORMAT_VERSION,
        "lossless": report.lossless,
        "target": report.target,
        "drafter": report.drafter,
        "rule": report.rule,
        "false_alarm": report.false_alarm,
        "checks": [asdict(one) for one in report.checks],
    }


def table(report: Report, width: int) -> Table:
    """One line a check, the details where there is room; what does not fit stands in the document of ``--json``."""
    title = f"{report.target} with drafts of {report.drafter}"
    shown = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    names = max((len(one.name) for one in report.checks), default=0)
    widths = {"": 5, "kind": 8, "check": names, "measured": 8, "limit": 8}
    for name, wide in widths.items():
        shown.add_column(name, no_wrap=True, overflow="ellipsis", width=wide)
    room = width - sum(widths.values()) - 3 * len(widths)
    if room >= LEGIBLE:
        shown.add_column("detail", no_wrap=True, overflow="ellipsis", width=room)
    for one in report.checks:
        mark = "[green]ok[/]" if one.passed else "[red]FAILS[/]"
        figures = f"{one.statistic:.2g}", f"{one.threshold:.2g}"
        details = [escape(one.detail)] if room >= LEGIBLE else []
        shown.add_row(mark, one.kind, escape(one.name), *figures, *details)
    return shown


def findings(report: Report) -> list[str]:
    """What failed, each in a line of its own, in full."""
    return [f"{one.name}: {one.detail}" for one in report.checks if not one.passed]


def sentence(report: Report) -> str:
    """The answer in words."""
    failed = [one for one in report.checks if not one.passed]
    planted = [one for one in report.checks if one.kind == "control"]
    found = sum(one.passed for one in planted)
    count = f"{len(report.checks) - len(planted)} checks, {found} of {len(planted)} planted faults found"
    if not failed:
        return f"lossless: yes ({count}; a flawless pair fails with probability {report.false_alarm:.0e} at most)"
    wrong = [one.name for one in failed if one.kind != "control"]
    if not wrong:
        return f"lossless: not shown ({count}; missed: {'; '.join(one.name for one in failed)})"
    lossy = "" if rule_named(report.rule).lossless else f"; {report.rule} is a lossy rule"
    return f"lossless: no ({count}; failed: {'; '.join(wrong)}{lossy})"
