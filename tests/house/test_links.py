"""Links of all pages lead somewhere: to a file of the repository, and to a heading where they name one."""

import re
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
PATTERNS = ("*.md", "docs/*.md", "labs/**/*.md", "outputs/*.md", "benchmarks/*.md", "heads/*.md", "examples/*.md")
PAGES = sorted(path for pattern in PATTERNS for path in REPOSITORY.glob(pattern))
LINK = re.compile(r"\]\(([^()\s]+)(?: \"[^\"]*\")?\)")
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


def links(text: str) -> list[str]:
    """Where the links of a page lead, those of fences and of other places of the network left out."""
    return [link for link in LINK.findall(FENCE.sub("", text)) if "://" not in link and not link.startswith("mailto:")]


def anchors(text: str) -> set[str]:
    """The names of a page's headings, as GitHub makes them."""
    heads = re.findall(r"^#+ (.+)$", FENCE.sub("", text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


def leads_nowhere(page: Path, link: str) -> bool:
    file, _, anchor = link.partition("#")
    there = (page.parent / file).resolve() if file else page
    if there.parent.name == "figures":  # of a lab that was not run yet
        return (there.parents[1] / "results.json").is_file() and not there.is_file()
    if not there.exists():
        return there.name != "results.json"
    return bool(anchor) and anchor not in anchors(there.read_text("utf-8"))


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(REPOSITORY)))
def test_links_lead_somewhere(page: Path) -> None:
    """A result that is not there yet is quoted as a dash, which ``test_quoted`` looks after."""
    assert [link for link in links(page.read_text("utf-8")) if leads_nowhere(page, link)] == []


def test_the_reader_finds_links_and_headings(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# A page: one\n[a](#a-page-one) [b](b.md) [c](#c)\n```\n[d](d.md)\n```\n[e](https://e)\n", "utf-8")
    found = links(page.read_text("utf-8"))
    assert found == ["#a-page-one", "b.md", "#c"]
    assert [link for link in found if leads_nowhere(page, link)] == ["b.md", "#c"]
