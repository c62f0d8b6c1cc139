"""Prompts of the target's own: said in the user's slot behind an opening, ended, each once, and by shares."""

import itertools
import json
import math
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chats import BARE, EOS, EOT, LETTERS, PLAIN, chat_text, chatter
from outpace.decoding.loop import Request
from outpace.decoding.prompts import Entry
from outpace.decoding.text import Text
from outpace.errors import UsageError
from outpace.training import inventions as module
from outpace.training.continuations import continuations, seed_of
from outpace.training.inventions import Kind, invent_prompts, read_kinds, shares
from outpace.training.masks import user_slot
from outpace.verification.probabilities import Sampling
from toys import Watched, must_fail

KINDS = (
    Kind("free", 2.0, ("",)),
    Kind("ask", 3.0, ("How", "Why do")),
    Kind("read", 1.0, ("Text: ",), behind=("\n\nQ:", "\n\nSay"), least=12),
)
SLACK = {"most": 120, "batch_size": 8, "temperature": 1.0, "top_p": 1.0}


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Text:
    return chat_text(tmp_path_factory.mktemp("plain"), PLAIN)


def invented(target: Any, text: Text, count: int, path: Path | None = None, **options: Any) -> list[Entry]:
    return invent_prompts(target, text, count, path, **({"kinds": KINDS, "seed": 5} | SLACK | options)).entries


def test_prompts_are_said_in_the_slot_of_the_user(text: Text) -> None:
    """The first forward reads the template up to the user's words and an opening behind it; nothing else is read."""
    watched = Watched(chatter())
    read: list[list[int]] = []
    honest = watched.target.prefill

    def noted(state: Any, ids: Any, lengths: list[int], taps: Any = ()) -> Any:
        read.extend(row[:length] for row, length in zip(ids.tolist(), lengths, strict=True))
        return honest(state, ids, lengths, taps)

    watched.target.prefill = noted  # type: ignore[method-assign]
    entries = invented(watched, text, 12)
    before = user_slot(text)[0]
    assert all(row[: len(before)] == before for row in read)
    starts = {text.decode(row[len(before) :]) for row in read}
    assert {"", "How", "Why do", "Text: "} <= starts
    assert all("\n\n" in start for start in starts - {"", "How", "Why do", "Text: "})
    openings = {"free": ("",), "ask": ("How", "Why do"), "read": ("Text:",)}
    for entry in entries:
        words = entry.turns[0]
        assert isinstance(words, str) and words == words.strip() and words.startswith(openings[str(entry.category)])
        assert set(words) <= set(LETTERS)
    questions = [entry.turns[0] for entry in entries if entry.category == "read"]
    assert len(questions) == 2
    for words in questions:
        passage, _, behind = str(words).partition("\n\n")
        assert len(passage) >= len("Text:") + 11 and behind.startswith(("Q:", "Say"))
    assert {len(entry.turns) for entry in entries} == {1}


def test_an_attempt_is_a_draw_of_the_target(text: Text) -> None:
    """The same ids as its own continuation, word for word, whatever else was made up beside it."""
    target = chatter()
    [one] = [entry for entry in invented(target, text, 12) if entry.key == "ask 1"]
    before = user_slot(text)[0]
    for opening in ("How", "Why do"):
        ids = before + text.encode(opening, raw=True)
        seed = seed_of(5, "ask 1", "prompt")
        request = Request(ids, Sampling(1.0), 120 - len(opening), (EOS, EOT), seed)
        [said] = continuations(target, [request], 1)
        if one.turns[0] == (opening + text.decode(said.ids)).strip():
            return
    raise AssertionError("no opening gives this prompt")


def test_the_batch_does_not_matter(text: Text) -> None:
    target = chatter()
    assert invented(target, text, 20, batch_size=3) == invented(target, text, 20, batch_size=64)
    assert invented(target, text, 20, seed=6) != invented(target, text, 20)


def test_a_template_without_special_tokens(tmp_path: Path) -> None:
    """What it writes behind a user's words ends them; an end of the text does, too."""
    text = chat_text(tmp_path, BARE)
    target = chatter(end=-30.0)
    logits_of = target.logits_of

    def header(ids: Any) -> Any:
        rows = logits_of(ids).clone()
        for row, line in enumerate(ids.tolist()):
            tail = text.decode(line)
            for step, letter in enumerate("\n[assistant]"):
                if step and tail.endswith("\n[assistant]"[:step]):
                    rows[row, -1] = -30.0
                    rows[row, -1, LETTERS.index(letter)] = 30.0
        rows[..., LETTERS.index("\n")] += 2.0
        return rows

    target.logits_of = header
    entries = invented(target, text, 4, kinds=KINDS[:2], most=60)
    assert entries and not any("[assistant]" in str(entry.turns[0]) for entry in entries)


@given(st.lists(st.floats(0.01, 9.0), min_size=1, max_size=9), st.integers(1, 500))
def test_shares(weights: list[float], count: int) -> None:
    found = shares(weights, count)
    assert sum(found) == count
    assert all(abs(few - count * weight / math.fsum(weights)) < 1 for few, weight in zip(found, weights, strict=True))


def test_kinds_come_by_their_shares(text: Text) -> None:
    entries = invented(chatter(), text, 30)
    assert Counter(entry.category for entry in entries) == {"free": 10, "ask": 15, "read": 5}
    words = [entry.turns[0] for entry in entries]
    assert len(set(words)) == len(words)


def test_what_is_rejected_is_counted(text: Text) -> None:
    """Too short, to be avoided, without an end; what is then missing is made up for, or given up with a notice."""
    target = chatter()
    plain = invent_prompts(target, text, 12, kinds=KINDS, seed=5, **SLACK)
    again = invent_prompts(target, text, 12, kinds=KINDS, seed=5, avoid=plain.entries[:4], **SLACK)
    assert again.rejected["to be avoided"] == 4 and len(again.entries) == 12
    assert not {entry.turns for entry in plain.entries[:4]} & {entry.turns for entry in again.entries}
    longer = invent_prompts(target, text, 6, kinds=KINDS[:2], seed=5, least=20, **SLACK)
    assert longer.rejected["too short"] and min(len(str(entry.turns[0])) for entry in longer.entries) >= 20
    with pytest.warns(UserWarning, match=r"5 prompts too few were invented.*free lacks 2, ask lacks 3"):
        none = invent_prompts(chatter(end=-30.0), text, 5, kinds=KINDS[:2], seed=5, **(SLACK | {"most": 20}))
    assert none.entries == [] and none.rejected["no end, or no text"] >= 5 * module.TRIES


class Stopped(Exception):
    pass


def test_a_run_that_was_stopped_is_gone_on_with(text: Text, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounds that stand are kept; the whole is what one run would have made."""
    monkeypatch.setattr(module, "ROUND", 1)
    target, path = chatter(), tmp_path / "prompts.jsonl"
    calls: list[int] = []

    def stop(done: int, total: int, what: str) -> None:
        calls.append(done)
        if len(calls) == 3:
            raise Stopped

    with pytest.raises(Stopped):
        invented(target, text, 30, path, progress=stop)
    stood = path.read_text("utf-8")
    assert 0 < calls[2] < 30 and len(stood.splitlines()) == 1 + calls[2]
    path.write_text(stood + '{"id": "ask 9', "utf-8")  # a line that was torn
    entries = invented(target, text, 30, path)
    assert path.read_text("utf-8").startswith(stood)
    lines = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    assert [line["prompt"] for line in lines[1:]] == [entry.turns[0] for entry in entries]
    whole = invented(target, text, 30, tmp_path / "whole.jsonl")
    assert {entry.key: entry.turns for entry in entries} == {entry.key: entry.turns for entry in whole}
    asked = Watched(target)
    assert {entry.key for entry in invented(asked, text, 30, path)} == {entry.key for entry in whole}
    assert asked.prefills == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"count": 0}, "count is 0; allowed: 1 or more"),
        ({"batch_size": 0}, "batch_size is 0; allowed: 1 or more"),
        ({"least": 9, "most": 8}, "prompts of 9 to 8 tokens are asked for"),
        ({"temperature": -1.0}, "temperature is -1.0"),
        ({"top_p": 0.0}, "top_p is 0.0"),
    ],
)
def test_what_is_refused(options: dict[str, Any], message: str, text: Text) -> None:
    options = {"count": 3, "kinds": KINDS} | options
    with pytest.raises(UsageError, match=message):
        invent_prompts(chatter(), text, options.pop("count"), **options)


def test_files_that_are_refused(text: Text, tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    invented(chatter(), text, 3, path)
    with pytest.raises(UsageError, match=r"prompts.jsonl was begun with seed 5, and now it is 6"):
        invented(chatter(), text, 3, path, seed=6)
    with pytest.raises(UsageError, match=r"line 2 of .*prompts.jsonl is no invented prompt of kinds ask"):
        invented(chatter(), text, 3, path, kinds=KINDS[1:2])
    (tmp_path / "other").write_text('{"prompt": "a"}\n', "utf-8")
    with pytest.raises(UsageError, match=r"line 1 of .*other is not of outpace's prompts"):
        invented(chatter(), text, 3, tmp_path / "other")
    with pytest.raises(UsageError, match="has no chat template, so there is no user's turn"):
        invented(chatter(), chat_text(tmp_path / "bare", None), 3)


WANTED = {"chat", "code", "maths", "summary", "passage-summary", "passage-question", "translation", "roleplay"}


def test_our_own_openings() -> None:
    """They cover what the target is asked; a passage is long, and something is asked about it."""
    kinds = read_kinds()
    named = {kind.name: kind for kind in kinds}
    assert WANTED | {"extraction", "free"} <= set(named) and len(named) == len(kinds)
    assert math.fsum(kind.share for kind in kinds) == pytest.approx(1)
    for kind in kinds:
        assert len(set(kind.openings)) == len(kind.openings)
        assert not any(opening.endswith(" ") for opening in kind.openings), "a space would part a word from its tokens"
    assert all(named[name].behind and named[name].least >= 100 for name in named if name.startswith("passage"))


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ("", "has no kinds"),
        ("kinds = 3", "has no kinds"),
        ("[[kinds]", "the openings cannot be read"),
        ('[[kinds]]\nname = "a"\nshare = 1', "kind 1 of .*: 'openings' is missing; allowed:"),
        ('[[kinds]]\nname = "a"\nshare = 1\nopenings = [""]\nopening = "x"', "'opening' is unknown"),
        ('[[kinds]]\nname = "a"\nshare = 0\nopenings = [""]', "allowed: a name, a share above 0"),
        ('[[kinds]]\nname = "a"\nshare = 1\nopenings = []', "openings and behind as lists of strings"),
        ('[[kinds]]\nname = "a"\nshare = 1\nopenings = [1]', "openings and behind as lists of strings"),
        ('[[kinds]]\nname = "a"\nshare = 1\nopenings = [""]\nleast = -1', "allowed: a name, a share"),
    ],
)
def test_openings_that_are_refused(said: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "openings.toml").write_text(said, "utf-8")
    with pytest.raises(UsageError, match=message):
        read_kinds(tmp_path / "openings.toml")


def test_planted_faults(text: Text, monkeypatch: pytest.MonkeyPatch) -> None:
    """A slot that is opened for the assistant; draws without names of their own."""
    honest = module.user_slot
    monkeypatch.setattr(module, "user_slot", lambda text: (text.encode("hi"), honest(text)[1]))
    with must_fail():
        test_prompts_are_said_in_the_slot_of_the_user(text)
    monkeypatch.setattr(module, "user_slot", honest)
    numbers = itertools.count()
    monkeypatch.setattr(module, "seed_of", lambda *parts: next(numbers))
    with must_fail():
        test_the_batch_does_not_matter(text)
