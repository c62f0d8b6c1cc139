"""Floor 7: the door. One verb per file; parses, calls, prints; no logic."""

import errno
import functools
import sys
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import typer

from outpace.cli.bench import bench
from outpace.cli.check import check
from outpace.cli.emit import emit
from outpace.cli.export import export
from outpace.cli.generate import generate
from outpace.cli.pull import pull
from outpace.cli.report import report
from outpace.cli.train import distil, eagle1, eagle3, medusa
from outpace.cli.tune import tune
from outpace.errors import OutpaceError

Given = ParamSpec("Given")
Returned = TypeVar("Returned")


def guarded(verb: Callable[Given, Returned]) -> Callable[Given, Returned]:
    """A verb whose errors are one sentence and a hint on stderr: exit code 2, or 130 for an interrupt."""

    @functools.wraps(verb)
    def run(*args: Given.args, **options: Given.kwargs) -> Returned:
        try:
            return verb(*args, **options)
        except OutpaceError as error:
            typer.echo(f"outpace: {error}", err=True)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS, errno.EPIPE):
                raise
            typer.echo(f"outpace: {error.strerror}: {error.filename or 'standard output'}", err=True)
        except KeyboardInterrupt:
            typer.echo("outpace: interrupted", err=True)
            raise typer.Exit(130) from None
        raise typer.Exit(2)

    return run


app = typer.Typer(
    help="A language model speaks faster and says the same words.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_show_locals=False,
    rich_markup_mode=None,
)
for verb in (bench, check, emit, export, generate, pull, report, tune):
    app.command()(guarded(verb))

methods = typer.Typer(help="Teach a drafter what its target says.", no_args_is_help=True, rich_markup_mode=None)
for method in (eagle3, eagle1, medusa, distil):
    methods.command()(guarded(method))
app.add_typer(methods, name="train")


def main() -> None:
    """The command ``outpace``."""
    sys.stdout.reconfigure(errors="replace")  # type: ignore[union-attr]  # a pipe may not know every character
    app()
