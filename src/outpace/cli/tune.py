"""outpace tune: which drafter, how many drafts and of what shape, by category and load, or none; and why.

Knows nothing of how it is found out; parses, calls, prints.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, astuple
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from outpace.cli.bench import Heats, Kinds
from outpace.cli.bench_load import concurrencies
from outpace.cli.bench_show import number
from outpace.cli.generate import Lane, Model, Trust
from outpace.cli.pair import Models, seconds
from outpace.cli.pull import progress_bar
from outpace.decoding.assumed import EXAMPLE
from outpace.decoding.cost_file import COSTS, read_costs
from outpace.decoding.costs import CostTable
from outpace.decoding.plan import ALL, NONE
from outpace.drafters.drafter import Drafter
from outpace.drafters.load import at_hand
from outpace.errors import OutpaceError, UsageError
from outpace.evaluation.machine import machine, versions
from outpace.evaluation.workloads import questions, workload
from outpace.models import weights
from outpace.models.target import Target
from outpace.tuning.candidates import Candidate
from outpace.tuning.conclusion import Row, Tuned, conclude
from outpace.tuning.joined import model_name, with_joined
from outpace.tuning.search import Searched, search
from outpace.tuning.task import Task

FORMAT_VERSION = 1
WIDTH = 130  # of the table, at least
COLUMNS = ("setting", "prompts", "predicted", "speed-up", "tok/s", "ms a token", "tau", "accepted", "")
HOW = (
    "traces of a few prompts, replayed to prune; then drafted and plain decoding interleaved prompt by prompt, the "
    "better half going on from round to round; wall time of generate, prefill included; speed-ups are ratios of "
    "medians over prompts, or over groups of prompts decoded at once, with 95 % intervals of a paired bootstrap"
)

Guessers = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME",
        help="Who may draft, may be repeated: lookup, eagle3 for the head that comes with outpace, small, or the "
        "folder or id of a head or of a smaller model. By default all of these that are at hand. Beside lookup each of "
        "the others is tried joined with it too; lookup+NAME is such a pair alone.",
    ),
]
Loads = Annotated[
    str, typer.Option("--concurrency", "--batch-size", metavar="N[,N]", help="Prompts decoded at once, such as 1,4,16.")
]

Bound = Annotated[float | None, typer.Option(metavar="MS", help="For goodput: what a sequence may wait for a token.")]


def tune(
    target: Model = weights.DEFAULT,
    draft: Guessers = None,
    dtype: Annotated[str, typer.Option(help="auto (bf16 where it is native), bf16, fp32 or fp64.")] = "auto",
    device: Annotated[str, typer.Option(help="Where to compute; others than cpu are refused.")] = "cpu",
    lane: Lane = "auto",
    trust_remote_code: Trust = False,
    goal: Annotated[str, typer.Option(help="latency, throughput, or goodput within --latency-bound.")] = "latency",
    latency_bound: Bound = None,
    concurrency: Loads = "1",
    rule: Annotated[str | None, typer.Option(help="An acceptance rule by name; the best that fits by default.")] = None,
    temperature: Heats = None,
    top_k: Annotated[int, typer.Option(help="Keep this many most probable tokens; 0 keeps all.")] = 0,
    top_p: Annotated[float, typer.Option(help="Keep the most probable tokens up to this mass; 1 keeps all.")] = 1.0,
    min_p: Annotated[float, typer.Option(help="Drop tokens below this share of the most probable; 0 keeps all.")] = 0.0,
    seed: Annotated[int | None, typer.Option(help="As for generate.")] = None,
    max_new_tokens: Annotated[int, typer.Option(help="Of each text, at most.")] = 128,
    prompts: Annotated[Path | None, typer.Option(help="Your prompts, JSON lines; ours by default.")] = None,
    category: Kinds = None,
    per_category: Annotated[int | None, typer.Option(help="At most so many prompts of each category.")] = None,
    budget: Annotated[str, typer.Option(help="Time to search in: 90s, 20m, 1h.")] = "5m",
    costs: Annotated[str | None, typer.Option(help=f"Of another machine; all is then predicted: {COSTS}.")] = None,
    out: Annotated[Path | None, typer.Option(help="Write the plan here (TOML).")] = None,
    json_output: Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")] = False,
) -> None:
    """Find out whether drafting pays, with which drafter and how, on your prompts, and say why.

    Plain decoding is a candidate like any other. An interrupt writes what stands. Exit code 1 where a drafter could not
    take part or a prompt does not fit the context.

    Example: outpace tune --prompts mine.jsonl --budget 5m --out plan.toml
    """
    loads, heats, limit = tuple(concurrencies(concurrency)), tuple(temperature or [0.0]), seconds("budget", budget)
    task = Task(goal, latency_bound, loads, heats, limit, rule, max_new_tokens, top_k, top_p, min_p, seed)
    models = Models(target, dtype, device, lane, trust_remote_code)
    entries = workload(prompts, category or (), per_category)
    with progress_bar() as progress:
        model = models.decider(progress)
        drafters, missing = _open(models, model, draft)
        asked, skipped = questions(entries, model)
        given = None if costs is None else _given(costs, model, drafters)
        searched = search(model, drafters, asked, task, costs=given, progress=progress)
    tuned = conclude(searched, model)
    if out is not None:
        tuned.plan.write(out)
    findings = [*missing, *searched.notes]
    findings += [f"prompt {one.key!r} (line {one.line}) is longer than the context and was skipped" for one in skipped]
    about = {"source": "outpace" if prompts is None else prompts.name, "costs": costs, "findings": findings}
    if json_output:
        whole = document(tuned, searched, model, list(drafters), about)
        sys.stdout.write(json.dumps(whole, indent=2, ensure_ascii=False) + "\n")
    else:
        _show(tuned, searched)
    _tell(findings, searched, out)
    if searched.interrupted:
        raise typer.Exit(130)
    if findings:
        raise typer.Exit(1)


def _open(models: Models, target: Target, named: Sequence[str] | None) -> tuple[dict[str, Drafter], list[str]]:
    """The drafters by name, lookup joined with others besides, and a sentence for each that cannot be opened; the
    others go on.

    Raises:
        UsageError: one is named twice.
    """
    names = at_hand(target) if named is None else [name for name in named if name != NONE]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"--draft names {name!r} twice; allowed: once")
    found: dict[str, Drafter] = {}
    missing = []
    for name in names:
        try:
            found[name] = models.guesser(name, target)
        except OutpaceError as error:
            missing.append(f"{name} cannot be opened: {error.message}")
    return with_joined(found), missing


def _given(spec: str, target: Target, drafters: Mapping[str, Drafter]) -> dict[str, CostTable]:
    """The costs of every drafter.

    Raises:
        UsageError: a file, which holds those of one drafter, and several drafters; or as for ``read_costs``.
    """
    apart = len({model_name(name, drafter) for name, drafter in drafters.items()})
    if apart > 1 and not spec.startswith("assumed:"):
        raise UsageError(
            f"the costs {spec} hold one drafter's steps, and {apart} may draft; allowed: a single --draft, or {EXAMPLE}"
        )
    return {name: read_costs(spec, target, drafter) for name, drafter in drafters.items()}


def document(
    tuned: Tuned, searched: Searched, target: Target, drafters: Sequence[str], about: Mapping[str, Any]
) -> dict[str, Any]:
    """The JSON document, as ``--json`` prints it."""
    protocol = {
        "how": HOW,
        "target": target.name,
        "fingerprint": target.fingerprint,
        "dtype": str(target.dtype).removeprefix("torch."),
        "drafters": list(drafters),
        "seconds": searched.seconds,
        "interrupted": searched.interrupted,
    }
    reasons = [asdict(one.level) | {"category": one.category, "sentences": one.sentences} for one in tuned.reasons]
    alike = [asdict(level) | {"categories": names} for level, names in tuned.alike.items()]
    return {
        "format_version": FORMAT_VERSION,
        "machine": machine(),
        "versions": versions(),
        "protocol": protocol | asdict(searched.task) | dict(about),
        "plan": asdict(tuned.plan),
        "candidates": [asdict(row) for row in tuned.candidates],
        "reasons": reasons,
        "loads": tuned.loads,
        "alike": alike,
    }


def _show(tuned: Tuned, searched: Searched) -> None:
    """For people: by load a table of what was measured, then the reasons."""
    screen = Console(width=max(WIDTH, Console().width), highlight=False, markup=False)
    for found in searched.levels:
        here = [row for row in tuned.candidates if (row.batch, row.temperature) == astuple(found.level)]
        measured = [row for row in here if row.category == ALL and (row.prompts or row.predicted is not None)]
        screen.print(table(sorted(measured, key=_order), found.level.words))
        for reason in tuned.reasons:
            if reason.level == found.level:
                screen.print()
                screen.print(f"{reason.category}: {reason.sentences[0]}", style="bold", soft_wrap=True)
                for sentence in reason.sentences[1:]:
                    screen.print(f"  {sentence}", soft_wrap=True)
        if tuned.alike[found.level]:
            screen.print(f"\nNo choice of their own: {', '.join(tuned.alike[found.level])}.", soft_wrap=True)
        screen.print()
    for sentence in tuned.loads:
        screen.print(sentence, soft_wrap=True)


def table(rows: Sequence[Row], title: str) -> Table:
    """What was measured and predicted of all prompts at one load."""
    drawn = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    for place, column in enumerate(COLUMNS):
        drawn.add_column(column, justify="left" if place in (0, len(COLUMNS) - 1) else "right", no_wrap=True)
    for row in rows:
        interval = "" if row.speedup_ci is None else f" [{row.speedup_ci[0]:.2f}, {row.speedup_ci[1]:.2f}]"
        drawn.add_row(
            Candidate(row.drafter, row.num_draft_tokens, row.tree, row.depth, row.rule).label,
            str(row.prompts or "-"),
            number(row.predicted, ".2f"),
            "-" if row.speedup is None else f"{row.speedup:.2f}x{interval}",
            number(row.tokens_per_second, ".1f"),
            number(row.ms_per_token, ".1f"),
            number(row.tau, ".2f"),
            number(row.acceptance, ".0%"),
            "" if row.fate in ("measured", "not measured") else row.fate,
        )
    return drawn


def _order(row: Row) -> tuple[float, float]:
    """The fastest first, those measured before those promised."""
    return -(row.speedup or 0.0), -(row.predicted or 0.0)


def _tell(findings: Sequence[str], searched: Searched, out: Path | None) -> None:
    errors = Console(stderr=True, highlight=False, soft_wrap=True, markup=False)
    for finding in findings:
        errors.print(finding)
    if searched.interrupted:
        errors.print("outpace: interrupted; this is what stands")
    errors.print(f"{searched.seconds:.0f} s" + ("" if out is None else f"; the plan is in {out}"))
