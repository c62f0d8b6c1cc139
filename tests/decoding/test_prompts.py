"""A prompts file is read whole, or refused by file and line before anything is decoded."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from outpace.decoding.prompts import Entry, in_category, read_prompts
from outpace.errors import UsageError


def written(folder: Path, *lines: object) -> Path:
    path = folder / "prompts.jsonl"
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines), "utf-8")
    return path


CHAT = [{"role": "system", "content": ""}, {"role": "user", "content": "hello"}]


def test_every_kind_of_line(tmp_path: Path) -> None:
    """Other fields are left alone, blank lines are no entries, and ids are compared as words."""
    path = written(
        tmp_path,
        {"question_id": 81, "category": "writing", "turns": ["one", "two"], "reference": ["ignored"]},
        "",
        {"prompt": "say this", "id": "a"},
        {"prompt": [5, 0, 7], "category": None},
        "   ",
        {"messages": CHAT, "id": None},
        {"prompt": "ünï ✓", "question_id": "b", "id": "a"},
    )
    assert read_prompts(path) == [
        Entry("81", 1, "writing", ("one", "two")),
        Entry("a", 3, None, ("say this",)),
        Entry("line 4", 4, None, ([5, 0, 7],)),
        Entry("line 6", 6, None, (CHAT,)),
        Entry("b", 7, None, ("ünï ✓",)),
    ]
    assert [entry.called for entry in read_prompts(path)[:3]] == ["line 1 (id 81)", "line 3 (id a)", "line 4"]


def test_packed_and_marked_files(tmp_path: Path) -> None:
    """gzip by name, and the byte order mark that some editors write."""
    line = json.dumps({"prompt": "é"}, ensure_ascii=False)
    packed = tmp_path / "prompts.jsonl.gz"
    packed.write_bytes(gzip.compress(line.encode()))
    marked = tmp_path / "marked.jsonl"
    marked.write_text(line, "utf-8-sig")
    assert read_prompts(packed) == read_prompts(marked) == [Entry("line 1", 1, None, ("é",))]


FINE: dict[str, Any] = {"prompt": "fine"}

LINES: list[tuple[Any, str]] = [
    ("{", "no JSON: Expecting property name enclosed in double quotes at column 2"),
    ('{"prompt": "x"', "no JSON: Expecting ',' delimiter at column"),
    ("[" * 100000, "no JSON that can be read: maximum recursion depth"),
    ("[1]", "a list; allowed: a JSON object"),
    ("null", "null; allowed: a JSON object"),
    ("3.5", r"3\.5; allowed: a JSON object"),
    ({}, "no prompt; allowed: one of turns, prompt, messages"),
    ({"text": "x"}, "no prompt; allowed: one of turns, prompt, messages"),
    ({"prompt": "x", "turns": ["x"]}, "turns and prompt; allowed: one of"),
    ({"prompt": "x", "turns": ["x"], "messages": CHAT}, "turns and prompt and messages; allowed: one of"),
    ({"turns": "x"}, "a string for its turns; allowed: a list of one string or more"),
    ({"turns": []}, "an empty list for its turns; allowed"),
    ({"turns": None}, "null for its turns; allowed"),
    ({"turns": ["x", ""]}, "an empty string for turn 1; allowed: a string of one character or more"),
    ({"turns": ["x", 3]}, "3 for turn 1; allowed: a string"),
    ({"prompt": ""}, "an empty string for its prompt; allowed: a string or a list of ids, not empty"),
    ({"prompt": []}, "an empty list for its prompt; allowed"),
    ({"prompt": {"a": 1}}, "an object for its prompt; allowed"),
    ({"prompt": True}, "true for its prompt; allowed"),
    ({"prompt": [1, "x"]}, "a string among the ids of its prompt; allowed: whole numbers from 0 on"),
    ({"prompt": [1, -1]}, "-1 among the ids of its prompt"),
    ({"prompt": [1, 2.0]}, r"2\.0 among the ids of its prompt"),
    ({"prompt": [True]}, "true among the ids of its prompt"),
    ({"prompt": "half \ud83d"}, r"half a character \(\\ud83d\) in its prompt; allowed: whole ones"),
    ({"messages": []}, "an empty list for its messages; allowed: a list of one message or more"),
    ({"messages": {"role": "user"}}, "an object for its messages; allowed"),
    ({"messages": [*CHAT, "x"]}, "a string for message 2; allowed: an object"),
    ({"messages": [{"role": "user", "content": ["x"]}]}, "a list for the content of message 0; allowed: a string"),
    ({"messages": [{"role": "user", "content": "x", "tool_calls": {}}]}, "an empty object for the tool_calls of mes"),
    ({"prompt": "x", "id": True}, "true for its id; allowed: a string or a whole number"),
    ({"prompt": "x", "question_id": 1.5}, r"1\.5 for its question_id; allowed: a string or a whole number"),
    ({"prompt": "x", "id": ""}, "an empty string for its id; allowed"),
    ({"prompt": "x", "category": 3}, "3 for its category; allowed: a string"),
]


@pytest.mark.parametrize(("line", "words"), LINES, ids=lambda value: str(value)[:40])
def test_a_wrong_line_is_named(line: Any, words: str, tmp_path: Path) -> None:
    """By its number in the file, blank lines counted, and by what is wrong with it."""
    path = written(tmp_path, FINE, "", line, FINE)
    with pytest.raises(UsageError, match=rf"^line 3 of {path} (is|has) {words}"):
        read_prompts(path)


@pytest.mark.parametrize("missing", ["role", "content"])
def test_a_message_without_a_part_is_named(missing: str, tmp_path: Path) -> None:
    message = {name: "user" for name in ("role", "content") if name != missing}
    path = written(tmp_path, {"messages": [*CHAT, message]})
    with pytest.raises(UsageError, match=f"^message 2 in line 1 of {path} has no {missing}; allowed: role and content"):
        read_prompts(path)


def test_ids_that_are_taken(tmp_path: Path) -> None:
    """3 and "3" are one id, and so is a name that lines without one have."""
    for first, second, key in (
        ({"prompt": "x", "id": 3}, {"prompt": "y", "question_id": "3"}, "3"),
        ({"prompt": "x", "id": "line 2"}, {"prompt": "y"}, "line 2"),
    ):
        path = written(tmp_path, first, second)
        with pytest.raises(UsageError, match=f"line 2 of {path} has the id '{key}' of line 1; allowed: an id of its"):
            read_prompts(path)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    empty, latin, folder = tmp_path / "empty.jsonl", tmp_path / "latin.jsonl", tmp_path / "folder"
    empty.write_text("\n  \n")
    latin.write_bytes('{"prompt": "é"}\n'.encode("latin-1"))
    folder.mkdir()
    torn = tmp_path / "torn.jsonl.gz"
    torn.write_bytes(gzip.compress(json.dumps(FINE).encode() * 99)[:-12])
    no_gzip = tmp_path / "plain.jsonl.gz"
    no_gzip.write_text(json.dumps(FINE))
    for path, words in (
        (empty, f"^{empty} has no prompts; allowed: one JSON object a line, with turns, prompt or messages"),
        (tmp_path / "none.jsonl", "^the prompts cannot be read from .*none.jsonl: No such file or directory"),
        (folder, "^the prompts cannot be read from .*folder: Is a directory"),
        (latin, "^the prompts in .*latin.jsonl are no UTF-8 text: "),
        (torn, "^the prompts cannot be read from .*torn.jsonl.gz: Compressed file ended"),
        (no_gzip, "^the prompts cannot be read from .*plain.jsonl.gz: Not a gzipped file"),
    ):
        with pytest.raises(UsageError, match=words):
            read_prompts(path)


def test_categories(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        {"prompt": "a", "category": "maths"},
        {"prompt": "b"},
        {"prompt": "c", "category": "code"},
        {"prompt": "d", "category": "maths"},
    )
    entries = read_prompts(path)
    assert [entry.line for entry in in_category(entries, "maths")] == [1, 4]
    with pytest.raises(UsageError, match="category is 'Maths'; allowed: code, maths"):
        in_category(entries, "Maths")
    with pytest.raises(UsageError, match="category is 'maths'; allowed: none, as no prompt names one"):
        in_category(entries[1:2], "maths")


def test_spec_bench_is_read(data: Path) -> None:
    entries = read_prompts(data / "specbench-dev.jsonl")
    assert len(entries) == 240 and len({entry.category for entry in entries}) == 13
    assert {len(entry.turns) for entry in entries} == {1, 2}
