"""outpace pull: bring weights here and say where they are.

Knows nothing of how they are found; parses, calls, prints.
"""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from outpace.models import staging, weights


@contextmanager
def progress_bar() -> Iterator[staging.Progress]:
    """A bar on stderr for whoever takes a progress: shown on a terminal, and gone when the work is done."""
    console = Console(stderr=True)
    columns = TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn()
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=None, visible=False)

        def show(done: int, total: int, what: str) -> None:
            if bar.tasks[task].description != what:  # another step: its speed is not that of the last one
                bar.reset(task, description=what, visible=True)
            bar.update(task, completed=done, total=total or None)

        yield show


def pull(
    name: Annotated[
        str, typer.Argument(help="smollm2 (the embedded default), a folder, or a Hugging Face id org/name")
    ] = weights.DEFAULT,
    json_output: Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")] = False,
) -> None:
    """Bring weights here.

    They are put into the cache, checked, and ready for every other command.

    Example: outpace pull smollm2
    """
    with progress_bar() as progress:
        pulled = weights.pull(name, progress)
    if json_output:
        document = {"format_version": 1, "name": pulled.name, "path": str(pulled.path.absolute())}
        document |= {"source": pulled.source, "sha256": pulled.sha256}
        sys.stdout.write(json.dumps(document, indent=2) + "\n")
    else:
        origin = {"cache": "already here", "folder": "a folder of yours"}.get(
            pulled.source, f"from the {pulled.source}"
        )
        typer.echo(f"{pulled.name}: {pulled.path} ({origin}, sha256 {pulled.sha256[:12]})")
