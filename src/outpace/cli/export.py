"""outpace export: write a trained drafter in the layout of an engine or of another trainer.

Knows nothing of layouts; parses, calls, prints.
"""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from outpace.export import formats

FORMAT_VERSION = 1


def export(
    card: Annotated[str, typer.Argument(help="A drafter: its folder, or a Hugging Face id org/name.")],
    to: Annotated[str, typer.Option(metavar="LAYOUT", help=f"{', '.join(formats.LAYOUTS)}.")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where to write it: a folder that is new or empty.")],
    json_output: Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")] = False,
) -> None:
    """Write a drafter for another engine.

    Weights stay as they are, bit for bit. What a layout cannot carry is refused by name, and nothing is written then.

    Example: outpace export my-head --to sglang --out my-head-sglang
    """
    done = formats.export(card, to, out)
    if json_output:
        document = {"format_version": FORMAT_VERSION, "card": card, "to": done.to, "path": str(done.path.absolute())}
        document |= {"target": done.target, "tensors": done.tensors, "files": done.files}
        sys.stdout.write(json.dumps(document, indent=2) + "\n")
    else:
        size = sum(done.files.values()) / 1e6
        typer.echo(f"{done.path}: {done.tensors} tensors, {size:.1f} MB, for {done.target}, in the layout of {done.to}")
