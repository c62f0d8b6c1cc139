"""The paper index knows every paper the code names, and every file it names is there."""

import ast
import re
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
PACKAGE = REPOSITORY / "src" / "outpace"
IDENTIFIER = re.compile(r"\b\d{4}\.\d{5}\b")


def cited(source: str) -> set[str]:
    """arXiv identifiers in the strings of a module: docstrings of attributes included, numbers of the code excluded."""
    strings = [node.value for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Constant)]
    return {found for text in strings if isinstance(text, str) for found in IDENTIFIER.findall(text)}


def index() -> str:
    return (REPOSITORY / "docs" / "PAPERS.md").read_text("utf-8")


def test_every_file_in_the_index_is_there() -> None:
    named = set(re.findall(r"`([\w/]+\.py)`", index()))
    assert named and {where for where in named if not (PACKAGE / where).exists()} == set()


def test_every_paper_in_the_code_is_in_the_index() -> None:
    known = set(IDENTIFIER.findall(index()))
    for path in sorted(PACKAGE.rglob("*.py")):
        assert cited(path.read_text("utf-8")) <= known, path.relative_to(PACKAGE)


def test_the_reader_finds_identifiers() -> None:
    assert cited('"""As in 2211.17192."""\nx = 1234.56789\n') == {"2211.17192"}
