"""Every prompt is answered once, as its own plain text; a run that was stopped becomes what it would have become."""

import json
from pathlib import Path
from typing import Any

import pytest

from chats import BARE, EOS, chat_model, chat_text, chatter
from outpace.decoding.prompts import Entry
from outpace.decoding.text import Text
from outpace.errors import UsageError
from outpace.training import answers as module
from outpace.training.answers import Report, answer
from outpace.training.corpus import read_answers, samples_of
from toys import Watched, must_fail, reference

NEW = 12
CHAT = [
    {"role": "system", "content": "s"},
    {"role": "user", "content": "a"},
    {"role": "assistant", "content": "of someone else"},
    {"role": "user", "content": "b"},
]


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Text:
    return chat_text(tmp_path_factory.mktemp("chat"))


@pytest.fixture(scope="module")
def model() -> Any:
    return chat_model()


def entries_of(*turns: Any) -> list[Entry]:
    return [
        Entry(f"q{place}", place, f"kind {place}", one if isinstance(one, tuple) else (one,))
        for place, one in enumerate(turns, 1)
    ]


MANY = entries_of("hello", ("one", "two", "three"), CHAT, [5, 6, 7], "a longer question, is it not?")


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def answers_in(path: Path) -> dict[str, dict[str, Any]]:
    _, *lines = lines_of(path)
    found = {line["id"]: line for line in lines}
    assert len(found) == len(lines), "a prompt was answered twice"
    return found


def run(target: Any, text: Text, entries: list[Entry], path: Path, **options: Any) -> Report:
    return answer(target, text, entries, path, **({"max_new_tokens": NEW, "batch_size": 3} | options))


def test_greedy_answers_are_the_targets(model: Any, text: Text, tmp_path: Path) -> None:
    """Each behind its own prompt, later turns behind the target's own answers; written as they were asked."""
    path = tmp_path / "answers.jsonl"
    report = run(model, text, MANY, path)
    found = answers_in(path)
    assert set(found) == {"q1", "q2", "q2 turn 2", "q2 turn 3", "q3", "q3 turn 2", "q4", "q5"}
    assert (report.answered, report.kept, report.too_long, report.failed) == (8, 0, [], {})
    assert report.new_tokens == sum(len(line["answer_ids"]) for line in found.values())
    said = {key: text.decode(line["answer_ids"]) for key, line in found.items()}
    asked: dict[str, Any] = {
        "q1": "hello",
        "q2": "one",
        "q2 turn 2": [("user", "one"), ("assistant", said["q2"]), ("user", "two")],
        "q3": [("system", "s"), ("user", "a")],
        "q3 turn 2": [("system", "s"), ("user", "a"), ("assistant", said["q3"]), ("user", "b")],
        "q4": [5, 6, 7],
    }
    for key, line in found.items():
        assert line["answer_ids"] == reference(model, tuple(line["prompt_ids"]), NEW, (EOS,)), key
        assert line["temperature"] == 0 and line["finish_reason"] in ("stop", "length")
        assert line["category"] == f"kind {key[1]}"
    for key, prompt in asked.items():
        messages = isinstance(prompt, list) and isinstance(prompt[0], tuple)
        prompt = [{"role": role, "content": words} for role, words in prompt] if messages else prompt
        assert found[key]["prompt_ids"] == text.encode(prompt), key
        name = "messages" if messages else "user" if isinstance(prompt, str) else "prompt_ids"
        assert found[key][name] == prompt and ("user" in found[key]) == isinstance(prompt, str)


def test_what_is_written_can_be_trained_on(model: Any, text: Text, tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    run(model, text, MANY, path, temperatures=(0.0, 1.0))
    found = answers_in(path)
    for answered, sample in zip(read := read_answers(path), samples_of(text, read, [EOS]), strict=True):
        line = found[answered.key]
        assert sample.ids.tolist() == line["prompt_ids"] + line["answer_ids"]
        assert sample.loss_mask.tolist() == [False] * len(line["prompt_ids"]) + [True] * len(line["answer_ids"])
        assert answered.temperature == line["temperature"]


def test_answers_end_where_the_target_ends(text: Text, tmp_path: Path) -> None:
    target = chatter(end=3.0)
    run(target, text, entries_of(*"abcdefgh"), tmp_path / "a.jsonl", temperatures=(1.0,), max_new_tokens=200)
    for line in answers_in(tmp_path / "a.jsonl").values():
        assert line["finish_reason"] == "stop" and line["answer_ids"].index(EOS) == len(line["answer_ids"]) - 1


def test_temperatures_are_mixed_by_name(model: Any, text: Text, tmp_path: Path) -> None:
    """Every prompt keeps its own, whatever is asked beside it; the shares are near. False alarm: of 300 prompts at
    three temperatures, fewer than 60 at one of them has a chance below 1e-6."""
    entries = entries_of(*[f"w{place}" for place in range(300)])
    options = {"temperatures": (0.0, 0.5, 1.5), "max_new_tokens": 1, "batch_size": 64}
    run(model, text, entries, tmp_path / "a.jsonl", **options)
    found = {key: line["temperature"] for key, line in answers_in(tmp_path / "a.jsonl").items()}
    for temperature in (0.0, 0.5, 1.5):
        assert sum(value == temperature for value in found.values()) >= 60
    run(model, text, entries[200:], tmp_path / "b.jsonl", **options)
    alone = {key: line["temperature"] for key, line in answers_in(tmp_path / "b.jsonl").items()}
    assert alone.items() <= found.items()


class Stopped(Exception):
    pass


@pytest.mark.parametrize("after", [1, 3, 5, 7])
def test_a_run_that_was_stopped_is_gone_on_with(after: int, model: Any, text: Text, tmp_path: Path) -> None:
    """Not an answer is asked for again, and the sampled ones are what they would have been."""
    options = {"temperatures": (0.0, 1.0, 2.0), "seed": 8}
    run(model, text, MANY, tmp_path / "whole.jsonl", **options)
    path = tmp_path / "stopped.jsonl"

    def stop(done: int, total: int, what: str) -> None:
        if done == after:
            raise Stopped

    with pytest.raises(Stopped):
        run(model, text, MANY, path, progress=stop, **options)
    stood = path.read_bytes()
    assert len(answers_in(path)) == after
    path.write_bytes(stood + b'{"id": "q')  # a line that was torn
    watched = Watched(model)
    report = run(watched, text, MANY, path, **options)
    assert path.read_bytes().startswith(stood)
    assert (report.kept, report.answered) == (after, 8 - after)
    assert sum(map(len, watched.prefills)) == 8 - after
    assert answers_in(path) == answers_in(tmp_path / "whole.jsonl")
    again = Watched(model)
    assert run(again, text, MANY, path, **options).kept == 8 and again.prefills == []


def test_limits(model: Any, text: Text, tmp_path: Path) -> None:
    """An answer has the room that the limit leaves; a prompt that leaves none is counted and named, and not cut."""
    entries = entries_of("a", "b" * 40)
    short, long = (len(text.encode(one.turns[0])) for one in entries)
    report = run(model, text, entries, tmp_path / "a.jsonl", limit=short + 5)
    assert report.too_long == ["q2"] and list(answers_in(tmp_path / "a.jsonl")) == ["q1"]
    assert len(answers_in(tmp_path / "a.jsonl")["q1"]["answer_ids"]) <= 5
    report = run(model, text, entries, tmp_path / "b.jsonl", limit=long + 1)
    assert report.too_long == [] and len(answers_in(tmp_path / "b.jsonl")["q2"]["answer_ids"]) == 1
    tight = chat_model(max_position_embeddings=long)
    assert run(tight, text, entries, tmp_path / "c.jsonl", limit=10**6).too_long == ["q2"]
    talk = entries_of(("a", "b" * 40))
    assert run(model, text, talk, tmp_path / "d.jsonl", limit=long).too_long == ["q1 turn 2"]


def test_a_failing_prompt_is_named(text: Text, tmp_path: Path) -> None:
    target = chatter()
    honest = target.logits_of

    def broken(ids: Any) -> Any:
        rows = honest(ids).clone()
        rows[(ids == text.encode("!", raw=True)[0]).any(1)] = float("nan")
        return rows

    target.logits_of = broken
    report = run(target, text, entries_of("fine", "not!"), tmp_path / "a.jsonl")
    assert list(answers_in(tmp_path / "a.jsonl")) == ["q1"]
    assert list(report.failed) == ["q2"] and "are no distribution" in report.failed["q2"]


def test_without_a_template_turns_are_joined(tmp_path: Path, model: Any) -> None:
    text = chat_text(tmp_path / "none", None)
    run(model, text, entries_of(("one", "two")), tmp_path / "a.jsonl")
    found = answers_in(tmp_path / "a.jsonl")
    assert found["q1"]["user"] == "one" and found["q1"]["prompt_ids"] == text.encode("one", raw=True)
    assert found["q1 turn 2"]["user"] == f"one\n{text.decode(found['q1']['answer_ids'])}\ntwo"
    with pytest.raises(UsageError, match=r"line 1 .id q1.: chat messages were given and the tokenizer has no chat"):
        run(model, text, entries_of(CHAT), tmp_path / "b.jsonl")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperatures": ()}, "no temperature is given; allowed: one or more, 0 for greedy"),
        ({"temperatures": (0.0, -1.0)}, "temperature is -1.0"),
        ({"max_new_tokens": 0}, "max_new_tokens is 0; allowed: 1 or more"),
        ({"batch_size": 0}, "batch_size is 0; allowed: 1 or more"),
        ({"limit": -3}, "limit is -3; allowed: 1 or more"),
        ({"limit": 0}, "limit is 0; allowed: 1 or more"),
        ({"entries": [*MANY, MANY[0]]}, "two prompts are named 'q1'; allowed: a name of its own for each"),
        ({"entries": entries_of(" ")}, "the prompt is empty"),
        ({"entries": entries_of([{"role": "assistant", "content": "a"}])}, r"line 1 .id q1.: nobody asks anything"),
    ],
)
def test_what_is_refused_before_any_work(
    options: dict[str, Any], message: str, model: Any, text: Text, tmp_path: Path
) -> None:
    watched = Watched(model)
    with pytest.raises(UsageError, match=message):
        run(watched, text, **({"entries": MANY, "path": tmp_path / "a.jsonl"} | options))
    assert watched.prefills == [] and not (tmp_path / "a.jsonl").exists()


def test_files_that_are_refused(model: Any, text: Text, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    run(model, text, entries_of("a"), path)
    for options, name in (
        ({"max_new_tokens": 5}, "max_new_tokens 12, and now it is 5"),
        ({"temperatures": (0.5,)}, r"temperatures \[0.0\], and now it is \[0.5\]"),
        ({"seed": 1}, "seed 0, and now it is 1"),
    ):
        with pytest.raises(UsageError, match=f"a.jsonl was begun with {name}"):
            run(model, text, entries_of("a"), path, **options)
    with pytest.raises(UsageError, match=r"a.jsonl was begun with target .*, and now it is 'tiny-llama-4'"):
        run(chat_model(seed=4), text, entries_of("a"), path)
    with pytest.raises(UsageError, match=r"a.jsonl has an answer to other tokens under the name 'q1'"):
        run(model, text, entries_of("b"), path)
    with pytest.raises(UsageError, match=r"a.jsonl has an answer to other tokens under the name 'q1'"):
        run(model, chat_text(tmp_path / "other", BARE), entries_of("a"), path)
    path.write_text('{"settings": {}}\nnothing\n', "utf-8")
    with pytest.raises(UsageError, match=r"line 1 of .*a.jsonl|was begun with"):
        run(model, text, entries_of("a"), path)
    with pytest.raises(UsageError, match="the answers cannot be written to"):
        run(model, text, entries_of("a"), tmp_path / "missing" / "a.jsonl")


def test_planted_faults(model: Any, text: Text, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Later turns that do not see the target's own answers; draws that depend on the company."""
    monkeypatch.setattr(module, "_next_turn", lambda text, one, ids: [])
    with must_fail():
        test_greedy_answers_are_the_targets(model, text, tmp_path)
    monkeypatch.undo()
    honest = module.seed_of
    numbers = iter(range(10**6))
    monkeypatch.setattr(module, "seed_of", lambda *parts: next(numbers) if parts[-1] == "answer" else honest(*parts))
    (tmp_path / "again").mkdir()
    with must_fail():
        test_a_run_that_was_stopped_is_gone_on_with(3, model, text, tmp_path / "again")
