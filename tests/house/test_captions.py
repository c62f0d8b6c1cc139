"""Every module has its caption, and the README draws the house as it stands."""

import runpy
from pathlib import Path

import pytest

HOUSE = Path(__file__).parent
CAPTIONS = runpy.run_path(str(HOUSE / "captions.py"))
PACKAGE: Path = CAPTIONS["PACKAGE"]
MODULES = sorted(PACKAGE.rglob("*.py"))


def is_caption(line: str) -> bool:
    """One sentence that fits the line of its docstring, and ends."""
    return 10 <= len(line) <= 117 and (line[0].isupper() or line.startswith("outpace")) and line.endswith(".")


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_every_module_has_its_caption(path: Path) -> None:
    assert is_caption(CAPTIONS["caption"](path)), "the first line of the docstring is one whole sentence"


def test_the_readme_draws_the_house() -> None:
    readme = (CAPTIONS["REPOSITORY"] / "README.md").read_text("utf-8")
    assert CAPTIONS["written"](readme) == CAPTIONS["drawing"](), "run: python tests/house/captions.py --write"


def test_the_drawing_follows_the_files(tmp_path: Path) -> None:
    """A planted house is drawn as it is; a changed caption changes the drawing."""
    (tmp_path / "room").mkdir()
    sources = {
        "__init__.py": "The door.",
        "errors.py": "Faults.\n\nMore.",
        "room/__init__.py": "A room.",
        "room/a.py": "A noun.",
    }
    for where, text in sources.items():
        (tmp_path / where).write_text(f'"""{text}"""\n', "utf-8")
    drawn = CAPTIONS["drawing"](tmp_path).splitlines()
    assert drawn[3:-2] == [
        "├── __init__.py  The door.",
        "├── errors.py    Faults.",
        "└── room/        A room.",
        "    └── a.py     A noun.",
    ]
    (tmp_path / "errors.py").write_text('"""Others."""\n', "utf-8")
    assert CAPTIONS["drawing"](tmp_path).splitlines()[4] == "├── errors.py    Others."


@pytest.mark.parametrize("line", ["", "no capital letter here.", "No end to this one", "Short.", "A" * 120 + "."])
def test_what_is_no_caption(line: str) -> None:
    assert not is_caption(line)
