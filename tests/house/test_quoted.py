"""Figures that pages quote are those of the committed results that they link to."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).parents[2]
sys.path.insert(0, str(REPOSITORY / "benchmarks"))

from quoted import DASH, Nowhere, brought_up, lookup, pages, quoted, shown, wanted  # noqa: E402

SPAN = {"value": 1.3412, "low": 1.25, "high": 1.75}
DOCUMENT: dict[str, Any] = {
    "results": [
        {
            "category": "math",
            "temperature": 0.0,
            "speedup": {"value": 1.3412, "low": 1.25, "high": 1.75},
            "turns": 1464,
        },
        {"category": "math", "temperature": 1.5, "speedup": {"value": 0.9, "low": 0.9, "high": 0.9}, "turns": 7},
    ],
    "share": 0.758197,
}


@pytest.mark.parametrize("page", pages(), ids=lambda path: str(path.relative_to(REPOSITORY)))
def test_quoted_figures_are_the_results(page: Path) -> None:
    for figure, file, path in quoted(page):
        assert (page.parent / file).resolve().is_relative_to(REPOSITORY), file
        assert figure == wanted(page, file, path), f"{path} in {file}: run `python benchmarks/quoted.py --write`"


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("results[category=math;temperature=0].speedup", "1.34 (1.25 to 1.75)"),
        ("results[category=math;temperature=1.5].speedup", "0.9"),
        ("results[temperature=0].turns", "1,464"),
        ("results[1].turns", "7"),
        ("share", "0.758"),
    ],
)
def test_a_path_finds_its_figure(path: str, told: str) -> None:
    assert shown(lookup(DOCUMENT, path)) == told


def test_shares_are_shown_as_percentages() -> None:
    assert shown(lookup(DOCUMENT, "share"), percent=True) == "76 %"


@pytest.mark.parametrize("path", ["results[category=math].turns", "results[category=art].turns", "nothing"])
def test_a_path_that_leads_nowhere_is_named(path: str) -> None:
    with pytest.raises(Nowhere, match=r"rows are category=|there is no nothing"):
        lookup(DOCUMENT, path)


def test_a_page_is_brought_up_to_date(tmp_path: Path) -> None:
    """A stale figure is replaced; what is not measured yet is a dash, and is filled in once it is."""
    page = tmp_path / "page.md"
    page.write_text('a [9](found.json "share"), b [x](later.json "parts.a.b"), c [none](found.json "parts.a")', "utf-8")
    (tmp_path / "found.json").write_text(json.dumps(DOCUMENT), "utf-8")
    wanted_text = f'a [0.758](found.json "share"), b [{DASH}](later.json "parts.a.b"), c [{DASH}](found.json "parts.a")'
    assert brought_up(page) == wanted_text
    (tmp_path / "later.json").write_text(json.dumps({"parts": {"a": {"b": 2}}}), "utf-8")
    assert 'b [2](later.json "parts.a.b")' in brought_up(page)
