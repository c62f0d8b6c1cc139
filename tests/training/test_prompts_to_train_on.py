"""Prompts are read from files of every kind; each passes once, within bounds, and what is to be avoided never."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chats import chat_text
from outpace.decoding.prompts import Entry
from outpace.decoding.text import Text
from outpace.errors import UsageError
from outpace.training.prompts import read_prompts, select


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Text:
    return chat_text(tmp_path_factory.mktemp("chat"))


def written(path: Path, *lines: Any) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
    return path


CHAT = [{"role": "system", "content": "s"}, {"role": "user", "content": "hello"}]


def test_every_kind_of_line(tmp_path: Path) -> None:
    """Named after the file, so that prompts of several files keep names of their own."""
    path = written(
        tmp_path / "some.jsonl",
        {"turns": ["one", "two"], "category": "writing", "question_id": 4},
        {"prompt": "three"},
        {"messages": CHAT},
        {"question": "How many?", "answer": "Five."},
    )
    assert read_prompts(path) == [
        Entry("some.jsonl: 4", 1, "writing", ("one", "two")),
        Entry("some.jsonl: line 2", 2, None, ("three",)),
        Entry("some.jsonl: line 3", 3, None, (CHAT,)),
        Entry("some.jsonl: line 4", 4, None, ("How many?",)),
    ]


def test_settings_of_a_file_of_our_own_are_passed_over(tmp_path: Path) -> None:
    path = written(tmp_path / "own.jsonl", {"format_version": 1, "settings": {"seed": 3}}, {"prompt": "a"})
    assert [entry.turns for entry in read_prompts(path)] == [("a",)]
    path = written(tmp_path / "other.jsonl", {"prompt": "a"}, {"settings": {}})
    with pytest.raises(UsageError, match=r"line 2 of .*other.jsonl has no prompt; allowed: one of turns, prompt"):
        read_prompts(path)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ({"question": ""}, "has an empty string for its question; allowed: a string of one character or more"),
        ({"question": ["a"]}, "has a list for its question"),
        ({"question": "a", "prompt": "b"}, "has prompt and question; allowed: one of"),
        ({"answer": "a"}, "has no prompt; allowed: one of turns, prompt, messages, question"),
    ],
)
def test_lines_that_are_refused(line: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=message):
        read_prompts(written(tmp_path / "bad.jsonl", {"prompt": "fine"}, line))


def entry(*turns: Any, key: str = "k") -> Entry:
    return Entry(key, 1, None, turns)


letters = st.text("ab \n", max_size=5)


@given(st.lists(letters, max_size=20), st.integers(1, 3), st.integers(0, 3), st.lists(letters, max_size=4))
def test_each_passes_once_and_within_bounds(
    text: Text, words: list[str], least: int, more: int, avoided: list[str]
) -> None:
    """By the plain words of the rule; every prompt either stands or is counted under what is wrong with it."""
    entries = [entry(one, key=f"{place}") for place, one in enumerate(words)]
    found = select(entries, text, least=least, most=least + more, avoid=[entry(one) for one in avoided])
    seen: set[str] = set()
    wrong: Counter[str] = Counter()
    wanted = []
    for one in entries:
        same = " ".join(one.turns[0].lower().split())
        if same in {" ".join(each.lower().split()) for each in avoided}:
            wrong["to be avoided"] += 1
        elif same in seen:
            wrong["repeated"] += 1
        elif len(one.turns[0]) < least:
            wrong["too short"] += 1
        elif len(one.turns[0]) > least + more:
            wrong["too long"] += 1
        else:
            seen.add(same)
            wanted.append(one)
    assert found.entries == wanted and found.rejected == wrong
    assert len(found.entries) + found.rejected.total() == len(entries)


def test_turns_messages_and_ids_are_compared_and_measured(text: Text) -> None:
    """All turns count, whatever they are written as; ids are compared as they are."""
    talk = [{"role": "user", "content": "One"}, {"role": "user", "content": "two"}]
    entries = [entry("one", "TWO"), entry("one two"), entry(talk), entry([1, 2, 3]), entry([1, 2, 3]), entry([1, 2])]
    found = select(entries, text, least=3, most=6)
    assert found.entries == [entries[0], entries[3]]
    assert found.rejected == {"repeated": 3, "too short": 1}
    assert select(entries[:1], text, least=1, most=5).rejected == {"too long": 1}


@pytest.mark.parametrize(("least", "most"), [(0, 5), (6, 5)])
def test_bounds_that_are_refused(least: int, most: int, text: Text) -> None:
    with pytest.raises(UsageError, match=f"prompts of {least} to {most} tokens are asked for; allowed: from 1 up"):
        select([], text, least=least, most=most)
