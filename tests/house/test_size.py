"""Files of a few screens, functions of one: the limits as data."""

import ast
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
FILE_LINES, FUNCTION_LINES = 400, 60
FOLDERS = ("src", "tests", "code", "labs", "examples", "benchmarks")


def too_long(path: Path) -> list[str]:
    """What is over a limit in one file; a function counts from its ``def``, decorators apart."""
    text = path.read_text("utf-8")
    found = [f"{len(text.splitlines())} lines; allowed: {FILE_LINES}"] if len(text.splitlines()) > FILE_LINES else []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if length > FUNCTION_LINES:
                found.append(f"{node.name} has {length} lines; allowed: {FUNCTION_LINES}")
    return found


@pytest.mark.parametrize("folder", FOLDERS)
def test_sizes(folder: str) -> None:
    over = {str(path): found for path in sorted((REPOSITORY / folder).rglob("*.py")) if (found := too_long(path))}
    assert over == {}


def test_the_check_finds_what_is_too_long(tmp_path: Path) -> None:
    path = tmp_path / "long.py"
    path.write_text("class A:\n    def f(self):\n" + "        pass\n" * 60, "utf-8")
    assert too_long(path) == ["f has 61 lines; allowed: 60"]
    path.write_text("x = 1\n" * 401, "utf-8")
    assert too_long(path) == ["401 lines; allowed: 400"]
    path.write_text("def f():\n" + "    pass\n" * 59, "utf-8")
    assert too_long(path) == []
