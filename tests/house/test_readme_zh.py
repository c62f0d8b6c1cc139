"""The Chinese README shows the commands and programs of README.md, in their order."""

import re
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
DRAWN = re.compile(r"<!-- captions -->.*?<!-- /captions -->", re.DOTALL)
"""The tree of captions stands in README.md alone, which the Chinese page links to."""


def fences(text: str) -> list[tuple[str, str]]:
    """The language and body of every fence but the drawn tree."""
    return FENCE.findall(DRAWN.sub("", text))


def difference(ours: list[tuple[str, str]], theirs: list[tuple[str, str]]) -> str:
    """The first block in which two pages differ, as it has to be copied; empty where they agree."""
    for place in range(max(len(ours), len(theirs))):
        left, right = (page[place : place + 1] for page in (ours, theirs))
        if left != right:
            shown = "".join(f"```{language}\n{body}```" for language, body in left) or "nothing"
            return f"block {1 + place} of README.md is:\n{shown}"
    return ""


def page(name: str) -> str:
    return (REPOSITORY / name).read_text("utf-8")


def test_the_chinese_page_shows_the_same_blocks() -> None:
    wanted = difference(fences(page("README.md")), fences(page("README.zh-CN.md")))
    assert not wanted, f"README.zh-CN.md differs: {wanted}"


def test_a_block_that_was_changed_added_or_left_out_is_found() -> None:
    blocks = [("bash", "outpace pull\n"), ("python", "x = 1\n")]
    assert not difference(blocks, list(blocks))
    assert "x = 1" in difference(blocks, [blocks[0], ("python", "x = 2\n")])
    assert "x = 1" in difference(blocks, blocks[:1])
    assert "nothing" in difference(blocks[:1], blocks)
    assert "outpace pull" in difference(blocks, blocks[::-1])


def test_the_drawn_tree_counts_as_no_block() -> None:
    text = "```bash\na\n```\n<!-- captions -->\n```text\ntree\n```\n<!-- /captions -->\n```python\nb\n```\n"
    assert fences(text) == [("bash", "a\n"), ("python", "b\n")]
