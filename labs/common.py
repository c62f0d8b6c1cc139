"""What the labs share: two flags, results on disk, pictures in one style.

Knows nothing of what is found.
"""

import argparse
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, is_dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.figure import Figure

from outpace.evaluation.machine import machine, versions

FORMAT_VERSION = 1
OPEN, CLOSE = "<!-- results -->\n", "\n<!-- /results -->"
"""Around what a lab writes into its README: its figures stand nowhere else."""
HEAD = Path(__file__).parents[1] / "heads" / "eagle3-smollm2"
BLUE, ORANGE, GREEN, RED, GREY = "#0072b2", "#e69f00", "#009e73", "#d55e00", "#777777"
"""Colours that the colour-blind tell apart (Okabe and Ito)."""
STYLE = {
    "axes.grid": True,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlesize": "medium",
    "font.size": 10,
    "grid.alpha": 0.3,
    "legend.frameon": False,
}


def arguments(doc: str | None, lab: str) -> argparse.ArgumentParser:
    """A parser with the flags that every lab has; its help is the script's docstring, and ``lab`` the lab's file."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="tiny settings: seconds, and no claim")
    parser.add_argument("--out", type=Path, help="where results.json and figures go; beside the script by default")
    parser.set_defaults(lab=Path(lab).parent)
    return parser


def finish(
    args: argparse.Namespace,
    found: Mapping[str, Any],
    figures: Mapping[str, Callable[[], Figure]],
    summary: Callable[[Mapping[str, Any]], str] | None = None,
) -> None:
    """Write results and figures, each whole or not at all. A small run without ``--out`` writes nothing.

    Args:
        found: what the lab found; numbers are written with six digits.
        figures: a function that draws each, by name.
        summary: turns what was written into the text between the marks of the lab's README, which is put there when
            the results lie beside it.
    """
    if args.small and args.out is None:
        print("a small run: nothing was written; --out says where to", file=sys.stderr)
        return
    out: Path = args.out or args.lab
    (out / "figures").mkdir(parents=True, exist_ok=True)
    for name, draw in figures.items():
        with rc_context(STYLE):
            figure = draw()
            _whole(out / "figures" / f"{name}.png", partial(figure.savefig, dpi=120))
    written = write(out / "results.json", args, found)
    if args.out is None and summary is not None:
        readme = (out / "README.md").read_text("utf-8")
        filled = readme.replace(f"{OPEN}{block(readme)}{CLOSE}", f"{OPEN}{summary(written)}{CLOSE}")
        _whole(out / "README.md", lambda path: path.write_text(filled, "utf-8"))
    print(f"written: {out / 'results.json'} and {len(figures)} figures", file=sys.stderr)


def write(path: Path, args: argparse.Namespace, found: Mapping[str, Any]) -> Mapping[str, Any]:
    """Write what was found with when, where, with what and how; returns what was written."""
    document: Mapping[str, Any] = plain(
        {
            "format_version": FORMAT_VERSION,
            "script": f"labs/{args.lab.resolve().name}/lab.py",
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "machine": machine(),
            "versions": versions(),
            "settings": {name: value for name, value in vars(args).items() if name not in ("out", "lab")},
            **found,
        }
    )
    _whole(path, lambda growing: growing.write_text(json.dumps(document, indent=1) + "\n", "utf-8"))
    return document


def block(readme: str) -> str:
    """What stands between the two marks of a README."""
    return readme.partition(OPEN)[2].partition(CLOSE)[0]


def _whole(path: Path, write: Callable[[Path], Any]) -> None:
    growing = path.with_name(f".{os.getpid()}.{path.name}")
    write(growing)
    os.replace(growing, path)


def plain(value: Any) -> Any:
    """Data for JSON: dataclasses as dictionaries, floats to six digits."""
    if is_dataclass(value) and not isinstance(value, type):
        return plain(asdict(value))
    if isinstance(value, Mapping):
        return {str(key): plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value


def heading(text: str) -> None:
    """Above what is printed."""
    print(f"\n{text}\n{'-' * len(text)}")


def table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Columns of equal width, the first one to the left; floats with three digits that mean something."""
    words = [[f"{cell:.3g}" if isinstance(cell, float) else str(cell) for cell in row] for row in [columns, *rows]]
    widths = [max(len(row[place]) for row in words) for place in range(len(columns))]
    for row in words:
        cells = [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        print("  ".join(cells).rstrip())
