"""How every kind of bench shows what it found: one JSON document, or tables, notes and a sentence.

Knows nothing of what was measured.
"""

import json
import sys
from collections.abc import Sequence
from typing import Any, TypeVar

from rich.console import Console
from rich.table import Table

from outpace.evaluation.outcome import Row, named

WIDTH = 110  # of a table, at least
Shown = TypeVar("Shown", bound=Row)


def show(whole: dict[str, Any], tables: Sequence[Table], notes: Sequence[str], json_output: bool) -> None:
    """The document on stdout, or the tables and the verdict; notes go to stderr in both cases."""
    errors = Console(stderr=True, highlight=False, soft_wrap=True, markup=False)
    screen = Console(width=max(WIDTH, Console().width), highlight=False, markup=False)
    if json_output:
        sys.stdout.write(json.dumps(whole, indent=2) + "\n")
    else:
        for table in tables:
            screen.print(table)
    for note in notes:
        errors.print(note)
    if not json_output and "verdict" in whole:
        screen.print(whole["verdict"], style="bold", soft_wrap=True)


def by_setting(shown: Sequence[Shown]) -> list[list[Shown]]:
    """The rows of every setting, in the order given."""
    return [[row for row in shown if named(row) == name] for name in dict.fromkeys(map(named, shown))]


def number(value: float | None, form: str, unit: str = "") -> str:
    """A figure of a table, or a dash where there is none."""
    return "-" if value is None else format(value, form) + unit
