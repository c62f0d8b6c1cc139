"""outpace train: teach a drafter what its target says.

Knows nothing of training; parses, calls, prints.
"""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from outpace.cli.pull import progress_bar
from outpace.models.load import load_target

FORMAT_VERSION = 1


def eagle3(
    recipe: Annotated[Path, typer.Option(help="What to do: a TOML file, such as those in recipes/.")],
    out: Annotated[Path, typer.Option(help="The folder of the drafter; what is made on the way lies beside it.")],
    target: Annotated[str | None, typer.Option(help="Another target than the recipe's.")] = None,
    data: Annotated[
        list[Path] | None,
        typer.Option(help="Answers or prompts (JSON lines) in place of the recipe's data; may be repeated."),
    ] = None,
    features: Annotated[
        Path | None, typer.Option(help="Where recorded features lie; several trainings share it.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with a training that was interrupted.")] = False,
    json_output: Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")] = False,
) -> None:
    """Train an EAGLE-3 head for a target.

    Data is read, or made up and answered by the target; its features are recorded; the head is trained and written
    with its card. Interrupted, it finishes its step and keeps it: go on with --resume.

    Example: outpace train eagle3 --recipe recipes/eagle3-smollm2.toml --out my-drafter
    """
    from outpace.training.course import prepare, run  # accelerate takes seconds to import
    from outpace.training.gather import is_answered
    from outpace.training.recipe import Recipe

    chosen = Recipe.read(recipe)
    if data:
        answered = tuple(str(path) for path in data if is_answered(path))
        asked = tuple(str(path) for path in data if str(path) not in answered)
        chosen = chosen.with_changes("data", answers=answered, prompts=asked, invent=0)
    work = out.with_name(f"{out.name}.training")
    with progress_bar() as progress:
        model = load_target(target or chosen.target, dtype=chosen.dtype, progress=progress)
        course = prepare(chosen, model, work, features or work / "features", progress)
    with _bar() as watch:
        trained, _ = run(course, chosen, out, work, resume=resume, watch=watch)
    document = {"format_version": FORMAT_VERSION, "path": str(out.absolute()), "steps": trained.place.step}
    if json_output:
        sys.stdout.write(json.dumps(document, indent=2) + "\n")
    else:
        typer.echo(f"{out}: trained in {trained.place.step} steps")


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
