"""outpace bench: does speculation help on these prompts, on this machine? A table with intervals, and a verdict.

Knows nothing of how it is measured; parses, calls, prints.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from inspect import signature
from itertools import product
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table

from outpace.cli.bench_endpoint import APIS, Servers, bench_endpoint, refuse_others
from outpace.cli.bench_load import concurrencies, load_table, loaded, settings_of
from outpace.cli.bench_show import by_setting, number, show
from outpace.cli.generate import Lane, Model, Planned, Trust
from outpace.cli.pair import DRAFTERS, Models, chosen, draft_tokens, passed_over, seconds
from outpace.cli.pull import progress_bar
from outpace.decoding.options import check
from outpace.decoding.plan import NONE, Choice, Plan, PlanOptions
from outpace.decoding.prompts import Entry
from outpace.drafters.budget import TREES
from outpace.drafters.drafter import Drafter
from outpace.drafters.either import Either
from outpace.drafters.load import AUTO
from outpace.errors import UsageError
from outpace.evaluation.benchmark import Protocol, Setting, grouped, measure
from outpace.evaluation.load import BUDGET, ROUNDS
from outpace.evaluation.load_outcome import LoadRow, load_findings
from outpace.evaluation.machine import machine, versions
from outpace.evaluation.outcome import Row, findings, named, parted, rows, verdict
from outpace.evaluation.probe import DEPTH, write_probe
from outpace.evaluation.ties import open_judge
from outpace.evaluation.workloads import Question, questions, workload
from outpace.models import weights
from outpace.models.staging import Progress
from outpace.models.target import Target
from outpace.verification.probabilities import Sampling

FORMAT_VERSION = 1
DRAFTING = ("tokens\na forward", "drafts\naccepted", "turns with\nno draft", "near-ties\nper 1,000")
HOW = (
    "drafted and plain decoding interleaved prompt by prompt; wall time of generate, prefill included; medians of "
    "repeats, then over prompts, or over groups of prompts where several are decoded at once; speed-ups are ratios of "
    "median tokens per second with 95 % intervals of a paired bootstrap"
)

Guesser = Annotated[str | None, typer.Option(help=f"Who drafts: {DRAFTERS}.")]
Counts = Annotated[
    list[str] | None,
    typer.Option(metavar="N|auto", help="Drafts a turn: a number, or auto, the default; may be repeated."),
]
Shapes = Annotated[
    list[str] | None,
    typer.Option(metavar="SHAPE", help=f"How drafts branch: {TREES}; may be repeated."),
]
Heats = Annotated[
    list[float] | None, typer.Option(metavar="NUMBER", help="0, the default, is greedy; may be repeated.")
]
Kinds = Annotated[list[str] | None, typer.Option(metavar="NAME", help="Only these prompts; may be repeated.")]
Loads = Annotated[
    str,
    typer.Option(
        "--concurrency",
        "--batch-size",
        metavar="N[,N...]",
        help="Prompts decoded at once; several numbers, such as 1,2,4,8,16, show where drafting stops paying.",
    ),
]
Address = Annotated[
    str | None,
    typer.Option(metavar="URL", help="Measure this OpenAI-compatible server; the key is read from OPENAI_API_KEY."),
]

Other = Annotated[str | None, typer.Option(metavar="URL", help="A plain server to compare it to.")]
Patience = Annotated[str, typer.Option(help="Without a token for so long, an answer of a server has failed.")]
Probed = Annotated[
    Path | None, typer.Option(help="Measure nothing: draft at every position of plain texts, into this trace.")
]


def bench(
    target: Model = weights.DEFAULT,
    draft: Guesser = None,
    dtype: Annotated[str, typer.Option(help="auto (bf16 where it is native), bf16, fp32 or fp64.")] = "auto",
    device: Annotated[str, typer.Option(help="Where to compute; others than cpu are refused.")] = "cpu",
    lane: Lane = "auto",
    trust_remote_code: Trust = False,
    num_draft_tokens: Counts = None,
    tree: Shapes = None,
    depth: Annotated[int | None, typer.Option(help="The longest path of a tree.")] = None,
    plan: Planned = None,
    rule: Annotated[str | None, typer.Option(help="An acceptance rule by name; the best that fits by default.")] = None,
    temperature: Heats = None,
    top_k: Annotated[int, typer.Option(help="Keep this many most probable tokens; 0 keeps all.")] = 0,
    top_p: Annotated[float, typer.Option(help="Keep the most probable tokens up to this mass; 1 keeps all.")] = 1.0,
    min_p: Annotated[float, typer.Option(help="Drop tokens below this share of the most probable; 0 keeps all.")] = 0.0,
    seed: Annotated[int | None, typer.Option(help="As for generate; a probe without one takes 0.")] = None,
    max_new_tokens: Annotated[int, typer.Option(help="Of each text, at most.")] = 128,
    prompts: Annotated[Path | None, typer.Option(help="Your prompts, JSON lines; ours by default.")] = None,
    category: Kinds = None,
    per_category: Annotated[int | None, typer.Option(help="At most so many prompts of each category.")] = None,
    concurrency: Loads = "1",
    budget: Annotated[str | None, typer.Option(help="Time to measure in: 90s, 1h; 3m, or 15m for loads.")] = None,
    repeats: Annotated[int | None, typer.Option(help="Passes over the prompts, 3; or rounds of a load, 5.")] = None,
    probe: Probed = None,
    endpoint: Address = None,
    baseline_endpoint: Other = None,
    model: Annotated[str | None, typer.Option(help="Its name there; needed where several are served.")] = None,
    api: Annotated[str, typer.Option(help=f"Of the server: {APIS}.")] = "chat",
    timeout: Patience = "60s",
    json_output: Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")] = False,
) -> None:
    """Measure drafted beside plain decoding, on your prompts or ours; or a server, or two of them.

    Exit code 1 where drafting is slower, a text is not the plain one, a prompt does not fit, or a request failed.

    Example: outpace bench --prompts mine.jsonl --num-draft-tokens 4 --budget 5m
    """
    flags = dict(locals())  # by their names, before anything else has one
    refuse_others({name for name, value in flags.items() if value != signature(bench).parameters[name].default})
    given = {"draft": draft, "num-draft-tokens": num_draft_tokens, "tree": tree, "depth": depth, "rule": rule}
    levels, load = concurrencies(concurrency), "," in concurrency or endpoint is not None
    passes = (ROUNDS if load else 3) if repeats is None else repeats
    limit = seconds("budget", (BUDGET if load else "3m") if budget is None else budget)
    protocol = Protocol(limit, passes, levels[0], max_new_tokens, top_k, top_p, min_p, seed)
    heats, entries = temperature or [0.0], partial(workload, prompts, category or (), per_category)
    if endpoint is not None:
        servers = Servers(endpoint, baseline_endpoint, model, api, seconds("timeout", timeout))
        return bench_endpoint(servers, entries(), levels, protocol, heats, prompts, json_output)
    if probe is not None:
        _refuse(num_draft_tokens=num_draft_tokens, tree=tree, depth=depth, rule=rule, budget=budget, repeats=repeats)
        _refuse(plan=plan, temperature=temperature, concurrency=None if levels == [1] else concurrency)
    plans = {one: chosen(plan, given, category, one, heats[0]) if plan else (None, None) for one in levels}
    choices = {level: choice for level, (choice, _) in plans.items()}
    settings, notes = settings_of(choices, lambda choice: _settings(choice, given, heats, protocol))
    choice, planned = plans[next(iter(settings))]
    models = Models(target, dtype, device, lane, trust_remote_code)
    work = _Work(models, choice.drafter if choice else draft, planned, entries(), settings, protocol, probe, load)
    notes += passed_over(planned, choice, [one.category for one in work.entries])
    _report(work, prompts, plan, notes, json_output)


@dataclass(frozen=True)
class _Work:
    """What is to be measured, with whom."""

    models: Models
    guesser: str | None
    planned: Plan | None
    entries: list[Entry]
    settings: dict[int, list[Setting]]
    protocol: Protocol
    probe: Path | None
    load: bool


def _report(work: _Work, prompts: Path | None, plan: Path | None, notes: list[str], json_output: bool) -> None:
    protocol = work.protocol
    with progress_bar() as progress:
        model = work.models.decider(progress, work.planned)
        drafter = work.models.guesser(work.guesser, model)
        asked, skipped = questions(work.entries, model)
        settings = next(iter(work.settings.values()))
        shown: list[Row] = []
        under_load: list[LoadRow] = []
        if work.probe is not None:
            if isinstance(drafter, Either) and work.guesser in (None, AUTO):
                drafter = drafter.model  # a probe is of one drafter
            found, noted = _probed(model, drafter, asked, settings[0], protocol, work.probe, progress)
        elif work.load:
            found, under_load, noted = loaded(model, drafter, asked, work.settings, protocol, progress)
        else:
            found, shown, noted = _measured(model, drafter, asked, settings, protocol, progress)
    said = findings(shown, skipped, model.max_positions) + load_findings(under_load)
    found |= {"skipped": [asdict(one) for one in skipped], "findings": said}
    tables = [load_table(part) for part in by_setting(under_load)] + [table(part) for part in by_setting(shown)]
    show(_document(model, drafter, prompts, plan, found), tables, [*noted, *notes, *said], json_output)
    if said:
        raise typer.Exit(1)


def _settings(
    choice: Choice | None, given: Mapping[str, Any], temperatures: Sequence[float], protocol: Protocol
) -> list[Setting]:
    """What is measured, at every temperature: a plan's choice, or all that the flags say."""
    plain = choice is not None and choice.options["num_draft_tokens"] == 0
    if plain or given["draft"] == NONE:
        who = "the plan decodes plainly here" if plain else f"the drafter is {NONE!r}"
        raise UsageError(f"{who}; allowed: one that drafts", hint="plain decoding is measured anyway")
    ways = product(given["tree"] or ["chain"], given["num-draft-tokens"] or ["auto"])
    shapes = [
        PlanOptions(num_draft_tokens=draft_tokens(count), tree=tree, depth=given["depth"], rule=given["rule"])
        for tree, count in ways
    ]
    shapes = shapes if choice is None else [choice.options]
    settings = [Setting(**shape, temperature=heat) for heat, shape in product(temperatures, shapes)]
    for setting in settings:
        check(protocol.options(setting, setting.temperature))
    return settings


def _measured(
    model: Target,
    drafter: Drafter,
    asked: Sequence[Question],
    settings: Sequence[Setting],
    protocol: Protocol,
    progress: Progress,
) -> tuple[dict[str, Any], list[Row], list[str]]:
    measured = measure(model, drafter, grouped(asked, protocol.concurrency), settings, protocol, progress)
    differ = parted(measured)
    judge = open_judge(model) if differ else None
    shown = rows(measured, drafter.name, judge)
    count = sum(len(group.own) for group in measured.groups)
    done = {
        "prompts": count,
        "prompts_asked": len(asked),
        "passes": measured.repeats,
        "seconds": measured.seconds,
        "judged_in": None if judge is None else judge.dtype,
    }
    notes = []
    if count < len(asked) or measured.repeats < protocol.repeats:
        notes.append(
            f"{count} of {len(asked)} prompts, {measured.repeats} of {protocol.repeats} passes: the budget of "
            f"{protocol.budget_s:g} s held no more"
        )
    if differ and judge is None:
        notes.append("differences from plain texts are not judged: there is no copy in a better precision")
    found = {"protocol": asdict(protocol) | done, "results": [asdict(row) for row in shown], "verdict": verdict(shown)}
    return found, shown, notes


def _probed(
    model: Target,
    drafter: Drafter,
    asked: Sequence[Question],
    setting: Setting,
    protocol: Protocol,
    path: Path,
    progress: Progress,
) -> tuple[dict[str, Any], list[str]]:
    law = Sampling(setting.temperature, protocol.top_k, protocol.top_p, protocol.min_p)
    tokens, seed = protocol.max_new_tokens, protocol.seed or 0
    count = write_probe(path, model, drafter, asked, sampling=law, max_new_tokens=tokens, seed=seed, progress=progress)
    wrote = {"path": str(path), "texts": len(asked), "positions": count, "depth": DEPTH, "seed": seed}
    found = {"protocol": asdict(law) | {"max_new_tokens": tokens}, "results": [], "probe": wrote}
    return found, [f"{count} positions of {len(asked)} texts probed: {path}"]


def _document(
    model: Target, drafter: Drafter, prompts: Path | None, plan: Path | None, found: dict[str, Any]
) -> dict[str, Any]:
    """The JSON document, as ``--json`` prints it."""
    about = {
        "how": HOW,
        "target": model.name,
        "fingerprint": model.fingerprint,
        "dtype": str(model.dtype).removeprefix("torch."),
        "drafter": drafter.name,
        "source": "outpace" if prompts is None else prompts.name,
        "plan": None if plan is None else plan.name,
    }
    top = {"format_version": FORMAT_VERSION, "machine": machine(), "versions": versions()}
    return top | found | {"protocol": about | found["protocol"]}


def table(shown: Sequence[Row]) -> Table:
    """One setting's rows for people: what came of it, and in words."""
    whole = shown[-1]
    lossless = "" if whole.lossless else ", not lossless"
    title = f"{whole.method}, {named(whole)}, {whole.batch} at a time, rule {whole.rule}{lossless}: tokens per second"
    drawn = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    columns = ("category", "prompts", "plain", "drafted", "speed-up", "", *DRAFTING)
    for place, column in enumerate(columns):
        drawn.add_column(column, justify="left" if place in (0, 5) else "right", no_wrap=place in (0, 4))
    for row in shown:
        drawn.add_row(
            row.category,
            str(row.prompts),
            f"{row.baseline_tokens_per_second:.1f}",
            f"{row.tokens_per_second:.1f}",
            row.figure,
            row.words,
            number(row.tau, ".2f"),
            number(row.acceptance, ".0%"),
            number(row.plain_turn_share, ".0%"),
            number(row.near_ties_per_1000, ".2g"),
        )
    return drawn


def _refuse(**given: Any) -> None:
    """A probe drafts chains of its own depth and verifies nothing: options of measuring mean nothing to it."""
    for name, value in given.items():
        if value is None or (name == "temperature" and len(value) == 1):
            continue
        allowed = "one temperature" if name == "temperature" else f"no {name}"
        raise UsageError(f"{name} is {value} beside a probe; allowed there: {allowed}")
