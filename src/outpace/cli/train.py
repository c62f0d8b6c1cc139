"""outpace train: teach a drafter what its target says.

Knows nothing of training; parses, calls, prints.
"""

import json
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from outpace.cli.pull import progress_bar
from outpace.drafters.load import cached_place
from outpace.errors import UsageError
from outpace.models.load import load_target
from outpace.models.staging import silent

FORMAT_VERSION = 1

# Flags of every method.
Asked = Annotated[Path, typer.Option("--recipe", help="What to do: a TOML file, such as those in recipes/.")]
Out = Annotated[Path, typer.Option(help="The folder of the drafter; what is made on the way lies beside it.")]
Kept = Annotated[
    Path | None,
    typer.Option("--out", help="The folder of the drafter; by default one in the cache, which --draft small finds."),
]
Other = Annotated[str | None, typer.Option("--target", help="Another target than the recipe's.")]
Files = Annotated[
    list[Path] | None,
    typer.Option("--data", help="Answers or prompts (JSON lines) in place of the recipe's data; may be repeated."),
]
Begun = Annotated[
    str | None,
    typer.Option("--from", metavar="HEAD", help="Train this head on, by folder or id, in place of a fresh one."),
]
Recorded = Annotated[
    Path | None, typer.Option("--features", help="Where recorded features lie; several trainings share it.")
]
Planned = Annotated[bool, typer.Option("--plan", help="Measure a step, say what all would take, and write nothing.")]
Resumed = Annotated[bool, typer.Option("--resume", help="Go on with a training that was interrupted.")]
Shown = Annotated[Path | None, typer.Option(metavar="DIR", help="Show the log in TensorBoard too, from this folder.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")]


def eagle3(
    recipe: Asked,
    out: Out,
    target: Other = None,
    data: Files = None,
    begin_with: Begun = None,
    features: Recorded = None,
    plan: Planned = False,
    resume: Resumed = False,
    tensorboard: Shown = None,
    json_output: Json = False,
) -> None:
    """Train an EAGLE-3 head for a target.

    Data is read, or made up and answered by the target; its features are recorded; the head is trained and written
    with its card. Interrupted, it finishes its step and keeps it: go on with --resume.

    Example: outpace train eagle3 --recipe recipes/eagle3-smollm2.toml --out head
    """
    flags = Flags(recipe, out, target, data, features, plan, resume, tensorboard, json_output)
    _train("eagle3", flags, begin_with=begin_with)


def eagle1(
    recipe: Asked,
    out: Out,
    target: Other = None,
    data: Files = None,
    begin_with: Begun = None,
    features: Recorded = None,
    plan: Planned = False,
    resume: Resumed = False,
    tensorboard: Shown = None,
    json_output: Json = False,
) -> None:
    """Train an EAGLE-1 head for a target; it drafts the trees of EAGLE-2 too.

    As for EAGLE-3: data is gathered, the target's last states are recorded, the head is trained and written with its
    card. Interrupted, it finishes its step and keeps it: go on with --resume.

    Example: outpace train eagle1 --recipe recipes/eagle1-smollm2.toml --out head
    """
    flags = Flags(recipe, out, target, data, features, plan, resume, tensorboard, json_output)
    _train("eagle1", flags, begin_with=begin_with)


def medusa(
    recipe: Asked,
    out: Out,
    target: Other = None,
    data: Files = None,
    begin_with: Begun = None,
    features: Recorded = None,
    plan: Planned = False,
    resume: Resumed = False,
    tensorboard: Shown = None,
    json_output: Json = False,
) -> None:
    """Train Medusa heads for a target, which stays as it is.

    As for EAGLE-3: data is gathered, the target's last states are recorded, the heads are trained and written with
    their card, with the rates that a static tree is made for. Interrupted, it finishes its step and keeps it: go on
    with --resume.

    Example: outpace train medusa --recipe recipes/medusa-smollm2.toml --out heads
    """
    flags = Flags(recipe, out, target, data, features, plan, resume, tensorboard, json_output)
    _train("medusa", flags, begin_with=begin_with)


def distil(
    recipe: Asked,
    out: Kept = None,
    target: Other = None,
    data: Files = None,
    begin_with: Annotated[
        str | None,
        typer.Option("--from", metavar="MODEL", help="Train this model on, by folder or id; the recipe gives no size."),
    ] = None,
    features: Recorded = None,
    plan: Planned = False,
    resume: Resumed = False,
    tensorboard: Shown = None,
    json_output: Json = False,
) -> None:
    """Distil a target into a small model that drafts for it.

    As for EAGLE-3: data is gathered, the target's last states are recorded, and a small model with the target's
    tokenizer is trained and written with its card, as a folder that other engines open too. Without --out it is put
    where `--draft small` finds it. Interrupted, it finishes its step and keeps it: go on with --resume.

    Example: outpace train distil --recipe recipes/distil-smollm2.toml
    """
    flags = Flags(recipe, out, target, data, features, plan, resume, tensorboard, json_output)
    _train("distil", flags, begin_with=begin_with)


# ---- one body for all ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Flags:
    """What was asked for, by the flags of every method; without ``out`` it is for the cache."""

    recipe: Path
    out: Path | None
    target: str | None
    data: list[Path] | None
    features: Path | None
    plan: bool
    resume: bool
    tensorboard: Path | None
    json_output: bool


def _train(method: str, flags: Flags, **head: Any) -> None:
    """The verb of a method; what flags of its own say, and is not None, stands in place of its recipe's ``[head]``."""
    require_room, processes, methods = _doors()
    chosen = _recipe(method, flags, head)
    out, what = flags.out or cached_place(chosen.target), methods[method]
    work = out.resolve().with_name(f"{out.resolve().name}.training")
    recorded = flags.features or work / "features"
    require_room(chosen, out, work, flags.resume or flags.plan)
    everyone = processes()
    if flags.plan and not everyone.is_main_process:
        return
    with _notices(), _leaving(everyone):
        if flags.plan:
            found = _forecast(chosen, work, recorded, everyone)
        else:
            found = _trained(chosen, out, work, recorded, everyone, flags.resume, flags.tensorboard)
    if not everyone.is_main_process:
        return
    if flags.json_output:
        sys.stdout.write(json.dumps({"format_version": FORMAT_VERSION, **found}, indent=2) + "\n")
    elif flags.plan:
        Console(highlight=False).print(table(found, what.article, what.what))
    else:
        measured = "" if found["tau"] is None else f"; on prompts that were held out its tau is {found['tau']:.2f}"
        typer.echo(f"{out}: trained in {found['steps']} steps{measured}")


def _doors() -> tuple[Any, Any, Any]:
    """What checks the place of a training, what knows its processes, and the methods; they take seconds to import."""
    try:
        from outpace.training.course import require_room
        from outpace.training.methods import METHODS
        from outpace.training.processes import processes
    except ModuleNotFoundError as error:
        if error.name != "accelerate":
            raise
        raise UsageError(
            "training needs accelerate, which is not installed", hint="pip install 'outpace[train]'"
        ) from error
    return require_room, processes, METHODS


def _recipe(method: str, flags: Flags, head: Mapping[str, Any]) -> Any:
    """The recipe, with what the flags say in place of its own."""
    from outpace.training.gather import is_answered
    from outpace.training.recipe import Recipe

    chosen = Recipe.read(flags.recipe)
    if chosen.method != method:
        raise UsageError(
            f"the method of the recipe {flags.recipe} is {chosen.method!r}; allowed: {method!r}, as the verb says",
            hint=f"outpace train {chosen.method} takes this recipe",
        )
    if flags.data:
        answered = tuple(str(file) for file in flags.data if is_answered(file))
        asked = tuple(str(file) for file in flags.data if str(file) not in answered)
        chosen = chosen.with_changes("data", answers=answered, prompts=asked, invent=0)
    if said := {name: value for name, value in head.items() if value is not None}:
        chosen = chosen.with_changes("head", **said)
    return chosen if flags.target is None else replace(chosen, target=flags.target)


def _forecast(recipe: Any, work: Path, features: Path, everyone: Any) -> dict[str, Any]:
    from outpace.training.forecast import forecast

    with _progress(everyone) as progress:
        model = load_target(recipe.target, dtype=recipe.dtype, progress=progress)
        found = forecast(recipe, model, work, features, progress, everyone)
    return {"target": recipe.target, **asdict(found)}


def _trained(
    recipe: Any, out: Path, work: Path, features: Path, everyone: Any, resume: bool, tensorboard: Path | None
) -> dict[str, Any]:
    from outpace.training.board import Board
    from outpace.training.course import prepare, run
    from outpace.training.ledger import LOG

    board = None if tensorboard is None else Board(tensorboard, work / LOG)
    try:
        with _progress(everyone) as progress:
            model = load_target(recipe.target, dtype=recipe.dtype, progress=progress)
            course = prepare(recipe, model, work, features, progress, everyone)
        with _watched(everyone, board) as watch:
            trained, card = run(course, recipe, out, work, resume=resume, accelerator=everyone, watch=watch)
    except KeyboardInterrupt:
        if everyone.is_main_process:
            typer.echo(f"outpace: what was done is kept in {work}; go on with --resume", err=True)
        raise
    everyone.wait_for_everyone()
    return {
        "path": str(out.absolute()),
        "target": recipe.target,
        "steps": trained.place.step,
        "tau": card.tau,
        "acceptance_by_position": card.acceptance_by_position,
    }


# ---- what is seen on the way -----------------------------------------------------------------------------------------


@contextmanager
def _notices() -> Iterator[None]:
    """Each warning as a line on stderr."""
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_, **__: typer.echo(f"outpace: {message}", err=True)
        yield


@contextmanager
def _leaving(everyone: Any) -> Iterator[None]:
    """Processes that talked to each other part in order, whatever happened: one that just ends may abort the others."""
    try:
        yield
    finally:
        everyone.end_training()


def _progress(everyone: Any) -> Any:
    """The bar of the first process; the others work in silence."""
    return progress_bar() if everyone.is_main_process else nullcontext(silent)


@contextmanager
def _watched(everyone: Any, board: Any) -> Iterator[Any]:
    """Who is told of every step: a bar and a board in the first process, and nobody in the others."""
    if not everyone.is_main_process:
        yield None
        return
    with _bar() as show, nullcontext() if board is None else closing(board):

        def watch(report: Any) -> None:
            show(report)
            if board is not None:
                board(report)

        yield watch


@contextmanager
def _bar() -> Iterator[Any]:
    """A bar on stderr with the figures of training; without a terminal, a line now and then."""
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task("training", total=None)

        def show(report: Any) -> None:
            counts = report.counts
            rates = " ".join("-" if rate is None else f"{rate:.2f}" for rate in counts.conditional)
            loss = counts.loss[0]
            words = (
                f"epoch {report.place.epoch}/{report.epochs} loss {loss if loss is None else round(loss, 2)} "
                f"accepted {rates} tau {counts.tau or 1:.2f} {report.tokens_per_second:.0f} tokens/s"
            )
            bar.update(task, total=report.steps, completed=report.place.step, description=words)
            if not console.is_terminal and report.place.step % 10 == 0:
                console.print(
                    f"step {report.place.step}/{report.steps} {words} {report.seconds_left / 60:.0f} min left"
                )

        yield show


# ---- what is said at the end -----------------------------------------------------------------------------------------


def table(found: Mapping[str, Any], article: str, what: str) -> Table:
    """A forecast for people, of what is trained; all of it stands in the document of ``--json``."""
    given = {name: f"{value:,}" if isinstance(value, int) else value for name, value in found.items()}
    coming = found["to_answer"] > 0
    most = "at most " if coming else ""
    shares = "" if found["processes"] == 1 else f" in each of {found['processes']} processes"
    memory = "not told by this system" if found["memory_bytes"] is None else _size(found["memory_bytes"])
    on_device = f", {_size(found['device_bytes'])} on {found['device']}" if found["device_bytes"] else ""
    times = {"answers": found["answering_s"], "features": found["recording_s"], "steps": found["training_s"]}
    lines = {
        "prompts": f"{given['to_invent']} to invent, {given['to_answer']} to answer" if coming else "none to answer",
        "samples": f"{most}{given['samples']}, {given['held_out']} of them held out; {given['left_out']} left out",
        "tokens": f"{most}{given['tokens']}, {given['answer_tokens']} of them answers'",
        what.split()[-1]: f"{given['parameters']} weights",
        "steps": f"{most}{given['steps']}, {found['step_s']:.2f} s each on {found['device']}{shares}",
        "disk": f"{_size(found['missing_bytes'])} of {_size(found['feature_bytes'])} for features still to write, "
        f"{_size(found['checkpoint_bytes'])} for checkpoints; {_size(found['free_bytes'])} are free",
        "memory": memory + on_device,
        "time": f"{most}{_span(sum(times.values()))}: "
        + ", ".join(f"{name} {_span(seconds)}" for name, seconds in times.items()),
    }
    title = escape(f"{article} {what} for {found['target']}".lstrip())
    shown = Table(title=title, title_justify="left", box=box.SIMPLE)
    shown.show_header = False
    shown.add_column(no_wrap=True)
    shown.add_column()
    for name, words in lines.items():
        shown.add_row(name, escape(words))
    return shown


def _size(number: int) -> str:
    return f"{number / 1e9:.1f} GB" if number >= 1e8 else f"{number / 1e6:.1f} MB"


def _span(seconds: float) -> str:
    minutes = round(seconds / 60)
    if minutes >= 60:
        return f"{minutes // 60} h {minutes % 60} min"
    return f"{minutes} min" if seconds >= 100 else f"{seconds:.0f} s"
