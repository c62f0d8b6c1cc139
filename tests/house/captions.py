"""Draw the package as a tree of captions, and keep the README's drawing equal to it.

    python tests/house/captions.py --write

A caption is the first line of a module's docstring; a room's stands in its ``__init__.py``.
"""

import ast
import sys
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
PACKAGE = REPOSITORY / "src" / "outpace"
OPEN, CLOSE = "<!-- captions -->", "<!-- /captions -->"


def caption(path: Path) -> str:
    """The first line of a module's docstring; empty when there is none."""
    return (ast.get_docstring(ast.parse(path.read_text("utf-8"))) or "").partition("\n")[0]


def lines(folder: Path, indent: str = "") -> list[tuple[str, str]]:
    """``(drawn name, caption)`` of a folder's modules and rooms, in alphabetical order, files before rooms."""
    files = sorted(path for path in folder.glob("*.py") if indent == "" or path.name != "__init__.py")
    rooms = sorted(path.parent for path in folder.glob("*/__init__.py"))
    drawn = []
    for place in (entries := [*files, *rooms]):
        last = place == entries[-1]
        name = indent + ("└── " if last else "├── ") + place.name
        if place.is_dir():
            drawn.append((f"{name}/", caption(place / "__init__.py")))
            drawn += lines(place, indent + ("    " if last else "│   "))
        else:
            drawn.append((name, caption(place)))
    return drawn


def drawing(package: Path = PACKAGE) -> str:
    """The block that stands between the two marks of the README."""
    entries = lines(package)
    width = max(len(name) for name, _ in entries)
    body = "\n".join(f"{name:<{width}}  {text}".rstrip() for name, text in entries)
    return f"{OPEN}\n```text\nsrc/outpace/\n{body}\n```\n{CLOSE}"


def written(readme: str) -> str:
    """The block that stands in a README now, marks included; empty when a mark is missing."""
    start, end = readme.find(OPEN), readme.find(CLOSE)
    return readme[start : end + len(CLOSE)] if 0 <= start < end else ""


def main() -> None:
    path = REPOSITORY / "README.md"
    readme = path.read_text("utf-8")
    old = written(readme)
    if not old:
        sys.exit(f"README.md has no {OPEN} … {CLOSE}")
    if "--write" in sys.argv[1:]:
        path.write_text(readme.replace(old, drawing()), "utf-8")
    else:
        print(drawing())


if __name__ == "__main__":
    main()
