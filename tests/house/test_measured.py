"""Every figure of the README's table stands in a committed result."""

import sys
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]


def test_the_table_is_the_results() -> None:
    sys.path.insert(0, str(REPOSITORY / "benchmarks"))
    from table import CLOSE, OPEN, table

    readme = (REPOSITORY / "README.md").read_text("utf-8")
    drawn = readme[readme.index(OPEN) : readme.index(CLOSE) + len(CLOSE)]
    assert drawn == table(), "run `python benchmarks/table.py --write`"
