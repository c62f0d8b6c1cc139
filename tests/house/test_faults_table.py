"""The table of faults names every file of tests/faults, and every file it names is there."""

import re
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
ROW = re.compile(r"^\| (\d+) \| (.+) \| (.+) \|$", re.MULTILINE)
FILE = re.compile(r"`([\w/]+\.py)`")
ELSEWHERE = "see tests/faults"


def wrong(table: str, repository: Path) -> list[str]:
    """What is amiss with a table: rows out of order, cells that say nothing, files that are missing on either side."""
    rows = ROW.findall(table)
    numbers = [int(number) for number, _, _ in rows]
    found = [] if numbers == sorted(set(numbers)) else ["the numbers do not rise"]
    named: set[str] = set()
    for number, _, cell in rows:
        files = FILE.findall(cell)
        named.update(files)
        if not files and not re.fullmatch(r"later: .{8,}", cell) and cell != ELSEWHERE:
            found.append(f"row {number} names neither a file nor a reason")
        strange = [file for file in files if (own := re.search(r"faults/test_(\d+)_", file)) and own[1] != number]
        found += [f"row {number} names {file}" for file in strange]
    found += [f"{file} is not there" for file in sorted(named) if not (repository / file).is_file()]
    there = {f"tests/faults/{path.name}" for path in (repository / "tests" / "faults").glob("test_*.py")}
    return found + [f"{file} is not in the table" for file in sorted(there - named)]


def test_table_and_folder_agree() -> None:
    table = (REPOSITORY / "docs" / "FAULTS.md").read_text("utf-8")
    assert len(ROW.findall(table)) > 80
    assert wrong(table, REPOSITORY) == []


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ("| 01 | a | `tests/faults/test_01_a.py` |", []),
        ("| 01 | a | `tests/faults/test_01_a.py` |\n| 02 | b | later: no server yet |", []),
        ("| 01 | a | later |", ["row 01 names neither a file nor a reason", "tests/faults/test_01_a.py is not in the"]),
        ("| 02 | a | `tests/faults/test_01_a.py` |", ["row 02 names tests/faults/test_01_a.py"]),
        ("| 01 | a | `tests/faults/test_01_a.py`, `tests/b.py` |", ["tests/b.py is not there"]),
        ("| 01 | a | `tests/faults/test_01_a.py` |\n| 01 | b | see tests/faults |", ["the numbers do not rise"]),
    ],
)
def test_the_check_finds_what_is_wrong(table: str, words: list[str], tmp_path: Path) -> None:
    (tmp_path / "tests" / "faults").mkdir(parents=True)
    (tmp_path / "tests" / "faults" / "test_01_a.py").touch()
    found = wrong(table, tmp_path)
    assert len(found) == len(words) and all(map(str.startswith, found, words))
