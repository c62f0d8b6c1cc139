"""An output file is gone on with, whatever interrupted the run before, or refused before any work."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from asked import NEW, PROMPTS, all_of, entries_of, lines_of, said_in
from outpace.decoding import jobs
from outpace.decoding.generate import generate
from outpace.decoding.jobs import AnswerLog, Outcome, answer
from outpace.decoding.prompts import Entry
from outpace.errors import UsageError, WeightsError
from outpace.models.target import Target
from outpace.models.transformer import Transformer
from toys import LETTER_VOCAB, Watched, must_fail, reference, spelling


class Killed(Exception):
    """Ends a run as a kill does: nothing is tidied up."""


def interrupted(target: Target, entries: list[Entry], out: Path, after: int, **options: Any) -> None:
    """Stop behind so many written answers."""
    written = 0
    for outcome in answer(target, None, entries, output=out, max_new_tokens=NEW, batch_size=1, **options):
        written += outcome.status == "answered"
        if written == after:
            return


@pytest.fixture
def one_a_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every answer is written as it ends."""


@pytest.mark.usefixtures("one_a_stream")
@pytest.mark.parametrize("cut", [0, 1, 7, -1])
@pytest.mark.parametrize("after", [1, 3])
def test_a_run_goes_on_where_it_was_killed(after: int, cut: int, tiny: Transformer, tmp_path: Path) -> None:
    """What was written is kept; a line that was torn, wherever, is dropped; nothing is asked twice or left out."""
    out, entries = tmp_path / "out.jsonl", entries_of(*PROMPTS)
    interrupted(tiny, entries, out, after)
    whole = out.read_bytes()
    last = whole.splitlines(keepends=True)[-1]
    if cut:
        out.write_bytes(whole + last[:cut])
    watched = Watched(tiny)
    found = {one.entry.key: one.status for one in answer(watched, None, entries, output=out, max_new_tokens=NEW)}
    assert sorted(found.values()) == ["answered"] * (len(PROMPTS) - after) + ["kept"] * after
    assert sum(map(len, watched.prefills)) == len(PROMPTS) - after
    assert said_in(out) == {
        f"q{place}": [reference(tiny, tuple(prompt), NEW)] for place, prompt in enumerate(PROMPTS, 1)
    }
    assert out.read_bytes().startswith(whole)


def case_killed_while_writing(target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However much of the first block or a later one reaches the disk before the end, the next run is right."""
    entries = entries_of(*PROMPTS[:3])
    honest = jobs.os.fsync
    for number, share in ((0, 0.0), (0, 0.4), (0, 0.8), (1, 0.5), (1, 0.99), (2, 0.3)):
        out = tmp_path / f"{number}-{share}.jsonl"
        sizes: list[int] = []

        def dying(
            handle: int, out: Path = out, sizes: list[int] = sizes, number: int = number, share: float = share
        ) -> None:
            honest(handle)
            sizes.append(out.stat().st_size)
            if len(sizes) == number + 1:
                before = sizes[-2] if number else 0
                with out.open("r+b") as file:
                    file.truncate(before + int(share * (sizes[-1] - before)))
                raise Killed

        monkeypatch.setattr(jobs.os, "fsync", dying)
        with pytest.raises(Killed):
            list(answer(target, None, entries, output=out, max_new_tokens=NEW))
        monkeypatch.setattr(jobs.os, "fsync", honest)
        try:
            list(answer(target, None, entries, output=out, max_new_tokens=NEW))
            said = said_in(out)
        except (ValueError, KeyError, IndexError, UsageError) as error:
            raise AssertionError("the file is not what it should be") from error
        assert said == {
            f"q{place}": [reference(target, tuple(prompt), NEW)] for place, prompt in enumerate(PROMPTS[:3], 1)
        }


def test_killed_while_writing(tiny: Transformer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case_killed_while_writing(tiny, tmp_path, monkeypatch)


def test_planted_fault_torn_lines_stay(tiny: Transformer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fault: the next run appends to whatever the file ends with."""

    def carelessly(self: AnswerLog, answered: dict[str, Any]) -> None:
        lines = [answered] if self.whole else [{"format_version": 1, "settings": self.settings}, answered]
        with self.path.open("ab") as file:
            file.write("".join(json.dumps(line) + "\n" for line in lines).encode())
            file.flush()
            jobs.os.fsync(file.fileno())
        self.whole += 1

    monkeypatch.setattr(AnswerLog, "append", carelessly)
    with must_fail():
        case_killed_while_writing(tiny, tmp_path, monkeypatch)


def test_a_seed_is_the_same_in_one_run_and_in_two(tiny: Transformer, tmp_path: Path) -> None:
    """Seeded answers do not depend on what was asked beside them, or before."""
    whole, parts, entries = tmp_path / "whole.jsonl", tmp_path / "parts.jsonl", entries_of(*PROMPTS)
    options: dict[str, Any] = {"temperature": 1.0, "seed": 5, "top_p": 0.9}
    all_of(tiny, entries, whole, **options)
    all_of(tiny, entries[4:], parts, **options, batch_size=3)
    all_of(tiny, entries, parts, **options, batch_size=1)
    assert said_in(parts) == said_in(whole)
    wanted = generate(tiny, None, PROMPTS[0], max_new_tokens=NEW, **options)
    assert said_in(whole)["q1"] == [wanted.token_ids]


# ---- what is refused ------------------------------------------------------------------------------------------------

REFUSED: list[tuple[Any, dict[str, Any], str]] = [
    (([1], [64, 2]), {}, r"line 2 \(id q2\): the prompt holds the id 64; allowed: 0 to 63"),
    (([1], "words"), {}, "the target 'tiny-llama' has no tokenizer; allowed: prompts of token ids"),
    (([1],), {"trace": "t.jsonl"}, r"trace is t\.jsonl; allowed: a trace of one prompt\nhint: leave it out"),
    (([1],), {"batch_size": 0}, "batch_size is 0; allowed"),
    (([1],), {"n": 2}, "unknown option 'n'; allowed"),
]


@pytest.mark.parametrize(("turns", "options", "words"), REFUSED, ids=lambda value: str(value)[:30])
def test_refusals_come_before_any_work(
    turns: Any, options: dict[str, Any], words: str, tiny: Transformer, tmp_path: Path
) -> None:
    """The call refuses, not its first outcome, and the target has read nothing."""
    watched = Watched(tiny)
    with pytest.raises(UsageError, match=words):
        answer(watched, None, entries_of(*turns), output=tmp_path / "out.jsonl", **options)
    assert watched.prefills == [] and not (tmp_path / "out.jsonl").is_file()


def test_an_entry_that_is_no_prompt_is_named(chat_letters: Path, tmp_path: Path) -> None:
    target = spelling([0], prompt=1, vocab=LETTER_VOCAB, folder=chat_letters)
    with pytest.raises(UsageError, match=r"line 2 \(id q2\): the prompt is empty; allowed: one character or more"):
        answer(target, None, entries_of("a", " "))
    target.folder = tmp_path
    with pytest.raises(WeightsError, match="no tokenizer can be read from"):
        answer(target, None, entries_of("a"))


def begun(path: Path, target: Target, **options: Any) -> Path:
    all_of(target, entries_of(*PROMPTS[:2]), path, **options)
    return path


@pytest.mark.parametrize(
    ("before", "now", "words"),
    [
        ({}, {"temperature": 0.5}, r"begun with temperature 'not given', and now it is 0\.5; allowed: the same"),
        ({"seed": 1}, {"seed": 2}, "begun with seed 1, and now it is 2; allowed"),
        ({"logit_bias": {3: -1.0}}, {}, r"begun with logit_bias \{'3': -1\.0\}, and now it is 'not given'"),
        ({}, {"num_draft_tokens": 2}, "begun with num_draft_tokens 3, and now it is 2"),
    ],
)
def test_changed_settings_are_refused(
    before: dict[str, Any], now: dict[str, Any], words: str, tiny: Transformer, tmp_path: Path
) -> None:
    """The file is left as it was; another batch size is no change."""
    out = begun(tmp_path / "out.jsonl", tiny, **before)
    held = out.read_bytes()
    with pytest.raises(UsageError, match=f"{words}.*\nhint: name another output file, or remove this one"):
        all_of(tiny, entries_of(*PROMPTS), out, **now)
    assert out.read_bytes() == held
    all_of(tiny, entries_of(*PROMPTS), out, **before, batch_size=5)
    assert len(said_in(out)) == len(PROMPTS)


def test_another_target_or_drafter_is_refused(tiny: Transformer, tiny_draft: Transformer, tmp_path: Path) -> None:
    out = begun(tmp_path / "out.jsonl", tiny)
    with pytest.raises(UsageError, match="begun with target 'tiny-llama-3', and now it is 'tiny-llama-4'"):
        all_of(tiny_draft, entries_of([1]), out)
    with pytest.raises(UsageError, match="begun with drafter 'lookup', and now it is None"):
        answer(tiny, None, entries_of([1]), output=out, max_new_tokens=NEW, num_draft_tokens=3)


def test_an_id_with_other_words_is_refused(tiny: Transformer, tmp_path: Path) -> None:
    out = begun(tmp_path / "out.jsonl", tiny)
    words = "has an answer to other words under the id 'q2' of line 2; allowed: prompts that keep their ids\nhint: name"
    with pytest.raises(UsageError, match=words):
        all_of(tiny, entries_of(PROMPTS[0], [17]), out)


def test_a_file_of_others_is_left_alone(tiny: Transformer, tmp_path: Path) -> None:
    for number, (held, words) in enumerate(
        (
            (
                b"my notes\n",
                "line 1 of .* is not of outpace's answers; allowed: a new file, or one to go on with\nhint",
            ),
            (b'{"prompt": "x"}\n', "line 1 of .* is not of outpace's answers"),
            (b'{"format_version": 1, "settings": 3}\n', "line 1 of .* is not of outpace's answers"),
            (b'{"format_version": 2, "settings": {}}\n', "was begun with format_version 2, and now it is 1"),
        )
    ):
        out = tmp_path / f"{number}.jsonl"
        out.write_bytes(held)
        with pytest.raises(UsageError, match=words):
            all_of(tiny, entries_of([1]), out)
        assert out.read_bytes() == held
    out = begun(tmp_path / "out.jsonl", tiny)
    out.write_bytes(out.read_bytes() + b"{}\n")
    with pytest.raises(UsageError, match=r"line 4 of .* is not of outpace's answers"):
        all_of(tiny, entries_of([1]), out)


def test_a_file_that_cannot_be_written(tiny: Transformer, tmp_path: Path) -> None:
    for path in (tmp_path / "no" / "out.jsonl", tmp_path):
        with pytest.raises(UsageError, match=r"the answers cannot be written to .*: (No such file|Is a directory)"):
            answer(tiny, None, entries_of([1]), output=path)


def test_settings_name_what_json_cannot_hold(tiny: Transformer, tmp_path: Path) -> None:
    def mine(prefix_ids: Tensor, logits: Tensor) -> Tensor:
        return logits

    out = tmp_path / "out.jsonl"
    options: dict[str, Any] = {"processors": [mine], "logit_bias": {3: float("-inf")}, "stop": ()}
    all_of(tiny, entries_of([1]), out, **options)
    found = lines_of(out)[0]["settings"]
    assert (found["processors"], found["logit_bias"], found["stop"]) == (["mine"], {"3": "-inf"}, [])
    assert "Infinity" not in out.read_text("utf-8")
    assert all_of(tiny, entries_of([1]), out, **options)["q1"].status == "kept"


def test_outcomes_come_as_they_stand(tiny: Transformer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is decoded ahead of the reader, and an iterator that is dropped stops."""
    watched = Watched(tiny)
    outcomes: Iterator[Outcome] = answer(watched, None, entries_of(*PROMPTS), max_new_tokens=2, batch_size=2)
    assert watched.prefills == []
    next(outcomes)
    assert len(watched.prefills) == 1
    del outcomes
