"""The document itself: valid, closed to the network, the same every time, and equal to the trace it was made of."""

import base64
import hashlib
import html.parser
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from outpace.errors import UsageError
from outpace.report import page as page_module
from outpace.report.page import EXAMPLES, PARTS, SCRIPTS, page, part, stored, words, write
from outpace.report.reading import Trace, read_trace

HOSTILE = "</script><script>alert(1)</script><!-- &lt; \u2028 \u202e \x00 {{data}}"
VOID = {"meta", "input", "br", "img", "link", "hr"}


class Reader(html.parser.HTMLParser):
    """Elements in order, their attributes, and what script and style elements hold; complains of what is not closed."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.raw: dict[str, list[str]] = {"script": [], "style": []}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)
            self.raw.get(tag, []).append("")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, f"</{tag}> closes nothing"

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] in self.raw:
            self.raw[self.open[-1]][-1] += data


def read(text: str) -> Reader:
    reader = Reader()
    reader.feed(text)
    reader.close()
    assert reader.open == []
    return reader


@pytest.fixture(scope="module")
def examples() -> list[Trace]:
    return [read_trace(path) for path in EXAMPLES]


@pytest.fixture(scope="module")
def text(examples: list[Trace]) -> str:
    return page(examples)


def data_of(text: str) -> Any:
    return json.loads(read(text).raw["script"][0])


def test_the_document_is_whole(text: str) -> None:
    """Every element is closed, every id is there once, and what is referred to exists."""
    reader = read(text)
    ids = [attributes["id"] for _, attributes in reader.elements if "id" in attributes]
    assert len(ids) == len({*ids})
    for tag, attributes in reader.elements:
        for name in ("aria-labelledby", "for"):
            assert attributes.get(name, ids[0]) in ids, (tag, attributes)
        if (link := attributes.get("href") or "#").startswith("#"):
            assert link == "#" or link[1:] in ids
        assert "style" not in attributes and not any(name.startswith("on") for name in attributes)
    assert text.startswith("<!doctype html>") and reader.elements[0] == ("html", {"lang": "en", "data-theme": "auto"})


def test_the_policy_allows_these_parts_and_no_network(text: str) -> None:
    reader = read(text)
    [policy] = [a["content"] for tag, a in reader.elements if a.get("http-equiv") == "Content-Security-Policy"]
    rules = dict(rule.strip().split(" ", 1) for rule in str(policy).split(";"))
    assert rules["default-src"] == rules["connect-src"] == rules["base-uri"] == rules["form-action"] == "'none'"
    for name, source in (("script-src", reader.raw["script"][1]), ("style-src", reader.raw["style"][0])):
        assert rules[name] == f"'sha256-{base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()}'"
    assert "unsafe" not in str(policy)


def test_nothing_is_fetched(text: str) -> None:
    """The one address is the name of SVG, which nobody opens."""
    addresses = {*re.findall(r"\b\w+://[^\s\"'<>`;]+", text)}
    assert addresses == {"http://www.w3.org/2000/svg"}
    assert not re.search(r"<(link|img|iframe|object|embed|base)\b|@import|url\((?!#)", text)
    assert not re.search(r"\b(fetch|XMLHttpRequest|WebSocket|innerHTML|outerHTML|eval|document\.write)\b", text)


def test_the_page_is_small(examples: list[Trace]) -> None:
    """The promise: below 400 kB without traces, and each part is a file that can be read in a sitting."""
    bare = len(page([], benches=[], plans=[_plan()]).encode())
    assert bare < 400_000
    for name in SCRIPTS:
        assert len(part(f"{name}.js").splitlines()) <= 400


def _plan() -> Any:
    from outpace.report.planned import Shown

    return Shown("plan.toml", "smollm2", None, [], [])


def test_the_same_traces_give_the_same_bytes(examples: list[Trace], text: str) -> None:
    assert page([read_trace(path) for path in EXAMPLES]) == text


def test_hostile_texts_cannot_leave_their_block(examples: list[Trace]) -> None:
    """Ends of scripts, comments, line separators and placeholders in names, notes and pieces come back as they were."""
    trace = examples[0]
    pieces = dict.fromkeys(trace.pieces, HOSTILE)
    made = page([replace(trace, name=HOSTILE, note=HOSTILE, drafter=HOSTILE, target=HOSTILE, pieces=pieces)])
    assert len(read(made).raw["script"]) == 2
    assert "\u2028" not in made and "\x00" not in made and "alert(1)</script>" not in made
    [story] = data_of(made)["stories"]
    assert {story[name] for name in ("name", "note", "drafter", "target")} == {HOSTILE}
    assert {*story["pieces"]["texts"]} == {HOSTILE}


def test_an_escape_that_forgets_the_bracket_is_noticed(monkeypatch: pytest.MonkeyPatch, examples: list[Trace]) -> None:
    """The control: with JSON as it comes, the reader finds elements that nobody wrote."""
    monkeypatch.setattr(page_module, "stored", lambda data: json.dumps(data))
    with pytest.raises((AssertionError, IndexError, ValueError)):
        made = page([replace(examples[0], note=HOSTILE)])
        assert len(read(made).raw["script"]) == 2


@pytest.mark.parametrize("value", ["</script>", "<!--", "a\u2028b", "\ud800", "\x7f\x1f", "&", "日本 שלום"])
def test_stored_values_come_back(value: str) -> None:
    found = stored({"value": value})
    assert json.loads(found) == {"value": value}
    assert not re.search("[<>&\u2028\u2029\ud800-\udfff\x00-\x1f\x7f]", found)


def test_the_page_holds_the_traces_numbers(examples: list[Trace], text: str) -> None:
    """At temperature 1 every probability, coin, token and time of the record stands in the page, to four digits."""
    trace, story = examples[0], data_of(text)["stories"][0]
    [run] = story["runs"]
    ids = story["pieces"]["ids"]
    assert len(run["turns"]) == len(trace.records)
    assert run["said"] == [trace.pieces[token] for record in trace.records for token in record.emitted]
    for record, turn in zip(trace.records, run["turns"], strict=True):
        assert (turn["start"], turn["rule"], turn["path"]) == (record.start, record.rule, record.path)
        assert [ids[node[1]] for node in turn["nodes"]] == record.tokens
        assert [node[0] for node in turn["nodes"]] == record.parents
        assert [node[2] for node in turn["nodes"]] == pytest.approx(record.draft_probs, rel=1e-3)
        assert [node[3] for node in turn["nodes"]] == pytest.approx(record.target_probs, rel=2e-3, abs=1e-12)
        assert [test[5] for test in turn["tests"]] == pytest.approx(record.coins[: len(turn["tests"])], rel=1e-3)
        assert ids[turn["end"]["piece"]] == record.next_token and turn["explained"]
        assert turn["ms"] == [round(1e3 * record.seconds[name], 2) for name in ("draft", "verify", "other")]


def test_every_turn_of_the_examples_is_explained(text: str) -> None:
    """The examples show what the page is for: three rules, and both ways in which a turn with a draft ends."""
    stories = data_of(text)["stories"]
    turns = [turn for story in stories for run in story["runs"] for turn in run["turns"]]
    assert all(turn["explained"] for turn in turns)
    assert {turn["rule"] for turn in turns} >= {"rejection", "tree-rejection", "greedy"}
    assert {turn["end"]["kind"] for turn in turns} >= {"plain", "correction"}
    assert all(story["words"] for story in stories)


def test_languages_say_the_same_things() -> None:
    """Both have every key, with the same names to fill in, and every word that template and script ask for is there."""
    english, chinese = words()["en"], words()["zh"]
    assert english.keys() == chinese.keys()
    for key, said in english.items():
        assert {*re.findall(r"\{(\w+)\}", said)} == {*re.findall(r"\{(\w+)\}", chinese[key])}, key
    sources = "".join(part(f"{name}.js") for name in SCRIPTS) + part("page.html")
    asked = {
        *re.findall(r'\bsay\("([\w.-]+)"', sources),
        *re.findall(r'data-(?:word|label)[=:]\s*"([\w.-]+)"', sources),
    }
    assert asked <= english.keys()
    formed = re.findall(r"`([a-z.]+)\$\{", sources)  # such as `verdict.${kind}`
    unused = [key for key in english if f'"{key}"' not in sources and not key.startswith(tuple(formed))]
    assert unused == []


def test_the_page_opens_in_the_language_that_was_asked_for() -> None:
    made = page([], plans=[_plan()], language="zh")
    assert read(made).elements[0][1]["lang"] == "zh-CN" and "<title>投机解码" in made
    with pytest.raises(UsageError, match=r"language is 'fr'; allowed: en, zh"):
        page([], plans=[_plan()], language="fr")
    with pytest.raises(UsageError, match="there is nothing to show; allowed: a trace, a plan or a measurement"):
        page([])


def test_a_page_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_text("older", "utf-8")
    write(path, "new")
    assert path.read_text("utf-8") == "new" and [*tmp_path.iterdir()] == [path]
    with pytest.raises(UsageError, match=r"the page cannot be written to .*none.page.html: No such file"):
        write(tmp_path / "none" / "page.html", "new")
    with pytest.raises(UsageError, match="the page cannot be written to /"):
        write(Path("/"), "new")


def test_parts_are_shipped() -> None:
    """All parts lie beside the code, as package data does."""
    shipped = {path.name for path in PARTS.iterdir()}
    sources = {f"{name}.js" for name in SCRIPTS} | {"page.html", "page.css", "words.json"}
    assert shipped == sources | {path.name for path in EXAMPLES}
