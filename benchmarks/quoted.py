"""Figures that pages quote, each a link to the committed result it stands in; here they are kept equal to it.

    python benchmarks/quoted.py           # what differs; exit code 1 where something does
    python benchmarks/quoted.py --write   # bring all pages up to date

A quoted figure is a link whose title says where in the document it stands:

    [1.34 (1.25 to 1.75)](../benchmarks/results/auto_speed.json "results[category=math;temperature=0].speedup")

A path goes from the top: a name takes an entry, ``[name=value;…]`` the one row of a list in which all of these stand,
``[2]`` the third. An estimate is shown with its interval, a number with three digits, and ``as %`` behind the path as
a percentage. What has not been measured yet is a dash, and has to be filled in once its result is there.
"""

import argparse
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).parents[1]
PAGES = ("docs/*.md", "outputs/*.md", "labs/**/README.md")
QUOTED = re.compile(r'\[([^\[\]]*)\]\(([^()\s]+\.json) "([^"]+)"\)')
STEP = re.compile(r"([^.\[\]]+)|\[([^\]]*)\]")
DASH, PERCENT = "—", " as %"


class Nowhere(LookupError):
    """A path that leads nowhere in its document."""


def pages(root: Path = REPOSITORY) -> list[Path]:
    return sorted(path for pattern in PAGES for path in root.glob(pattern))


def lookup(document: Any, path: str) -> Any:
    """What stands at a path.

    Raises:
        Nowhere: nothing does, or several rows do.
    """
    found = document
    for name, rows in STEP.findall(path):
        if name:
            if not isinstance(found, dict) or name not in found:
                raise Nowhere(f"{path}: there is no {name}")
            found = found[name]
        elif rows.isdecimal():
            found = found[int(rows)]
        else:
            wanted = [one.partition("=")[::2] for one in rows.split(";")]
            found = [row for row in found if all(spelled(row.get(key)) == value for key, value in wanted)]
            if len(found) != 1:
                raise Nowhere(f"{path}: {len(found)} rows are {rows}")
            found = found[0]
    return found


def spelled(value: Any) -> str:
    """A value as a path names it."""
    return f"{value:g}" if isinstance(value, int | float) and not isinstance(value, bool) else str(value)


def shown(value: Any, percent: bool = False) -> str:
    """A value as a page shows it."""
    if isinstance(value, dict):
        low, middle, high = (shown(value[name], percent) for name in ("low", "value", "high"))
        return middle if low == middle == high else f"{middle} ({low} to {high})"
    if value is None:
        return DASH
    if isinstance(value, str):
        return value
    if percent:
        return f"{100 * value:.0f} %"
    return f"{value:,}" if isinstance(value, int) else f"{value:.3g}"


def wanted(page: Path, file: str, path: str) -> str:
    """What a figure has to be: a dash where its document, or its part of it, is not there yet."""
    document = (page.parent / file).resolve()
    if not document.is_file():
        return DASH
    bare = path.removesuffix(PERCENT)
    try:
        return shown(lookup(json.loads(document.read_text("utf-8")), bare), bare != path)
    except Nowhere:
        if bare.startswith("parts."):  # a lab that is measured part by part
            return DASH
        raise


def brought_up(page: Path) -> str:
    """A page with all its figures as they have to be."""
    return QUOTED.sub(lambda one: f'[{wanted(page, one[2], one[3])}]({one[2]} "{one[3]}")', page.read_text("utf-8"))


def quoted(page: Path) -> Iterator[tuple[str, str, str]]:
    """Every figure of a page: as it is shown, its file, its path."""
    for one in QUOTED.finditer(page.read_text("utf-8")):
        yield one[1], one[2], one[3]


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="bring the pages up to date")
    args = parser.parse_args(argv)
    differ = 0
    for page in pages():
        for figure, file, path in quoted(page):
            if figure != (right := wanted(page, file, path)):
                differ += 1
                print(f"{page.relative_to(REPOSITORY)}: {path} is {figure}, and {right} in {file}")
        if args.write and (text := brought_up(page)) != page.read_text("utf-8"):
            page.write_text(text, "utf-8")
    return int(bool(differ) and not args.write)


if __name__ == "__main__":
    sys.exit(main())
