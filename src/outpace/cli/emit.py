"""outpace emit: a plan as the settings of the engine that serves.

Knows nothing of engines; parses, calls, prints.
"""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from outpace.decoding.plan import ALL, Plan
from outpace.engines.emission import Emission
from outpace.engines.emit import ENGINES, emit_pair
from outpace.engines.emit import emit as emit_plan
from outpace.engines.guesser import KINDS
from outpace.errors import UsageError


def emit(
    engine: Annotated[str, typer.Option(metavar="NAME", help=f"{', '.join(ENGINES)}.")],
    plan: Annotated[Path | None, typer.Option(help="What to do: a plan, as `outpace tune` writes it.")] = None,
    engine_version: Annotated[str | None, typer.Option(metavar="V", help="Of those known; the newest one.")] = None,
    category: Annotated[str, typer.Option(metavar="NAME", help="Whose choices of the plan.")] = ALL,
    batch: Annotated[int | None, typer.Option(metavar="N", help="Only this batch size; all by default.")] = None,
    temperature: Annotated[float, typer.Option(help="At which you will sample; 0 is greedy.")] = 0.0,
    target: Annotated[str | None, typer.Option(metavar="ID", help="Without a plan: whose published drafter.")] = None,
    draft: Annotated[str | None, typer.Option(metavar="ID", help="Without a plan: another drafter.")] = None,
    kind: Annotated[
        str | None, typer.Option(help=f"What a drafter is that is not on this machine: {', '.join(KINDS[1:])}.")
    ] = None,
    json_output: Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")] = False,
) -> None:
    """Print a plan's settings for an engine: a shell script, or a Python program where the engine is a library.

    What the engine cannot do is said on stderr, with what is emitted instead. Nothing is run or written.

    Example: outpace emit --engine vllm --plan plan.toml
    """
    if (plan is None) == (target is None):
        raise UsageError("both --plan and --target were given, or neither; allowed: one of them")
    if plan is not None:
        if draft is not None:
            raise UsageError(f"--draft is {draft} and --plan was given; allowed: with --target")
        done = emit_plan(
            Plan.read(plan), engine, engine_version, category=category, batch=batch, temperature=temperature, kind=kind
        )
    else:
        done = emit_pair(str(target), engine, engine_version, drafter=draft, kind=kind)
    _show(done, json_output)


def _show(done: Emission, json_output: bool) -> None:
    if json_output:
        sys.stdout.write(json.dumps(done.document, indent=2) + "\n")
        return
    sys.stdout.write(done.script)
    errors = Console(stderr=True, highlight=False, soft_wrap=True, markup=False)
    errors.print(f"for {done.engine} {done.version}")
    for note in done.notes:
        errors.print(f"note: {note}")
    for one in done.cannot:
        errors.print(f"cannot: {one.what}\n  instead: {one.nearest}")
