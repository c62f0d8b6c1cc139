"""A corpus is read whole or refused by file and line; a text is trained as it was answered."""

import json
import warnings
from pathlib import Path
from typing import Any

import pytest

from chats import BARE, EOS, chat_text
from outpace.decoding.text import Text
from outpace.errors import UsageError
from outpace.training.corpus import Answer, line_of, read_answers, samples_of

CHAT = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Text:
    return chat_text(tmp_path_factory.mktemp("chat"))


def written(path: Path, *lines: Any) -> Path:
    path.write_text("".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines), "utf-8")
    return path


def test_every_kind_of_line(tmp_path: Path) -> None:
    path = written(
        tmp_path / "a.jsonl",
        {"format_version": 1, "settings": {"seed": 1}},
        {"user": "hi", "answer_ids": [1, 2], "temperature": 0.6},
        "",
        {"id": "b", "messages": CHAT[:1], "answer_ids": [3]},
        {"id": 7, "prompt_ids": [4, 5], "answer_ids": [6], "temperature": 1},
        {"id": "d", "messages": CHAT, "category": "chat", "answer_ids": None},
        {"id": "e", "user": "hi", "prompt_ids": [8], "answer_ids": [9]},
    )
    assert read_answers(path) == [
        Answer("line 2", "hi", None, (1, 2), 0.6),
        Answer("b", CHAT[:1], None, (3,), 0.0),
        Answer("7", [4, 5], (4, 5), (6,), 1.0),
        Answer("d", CHAT, None, None, 0.0),
        Answer("e", "hi", (8,), (9,), 0.0),
    ]


def test_a_line_is_read_as_it_was_written(tmp_path: Path) -> None:
    wanted = [
        Answer("a", "hi", (1, 2), (3,), 0.5),
        Answer("b", CHAT[:1], (4,), (5,), 0.0),
        Answer("c", [6], (6,), (7, 8), 1.0),
        Answer("d", CHAT, None, None, 0.0),
    ]
    path = written(tmp_path / "a.jsonl", *[line_of(one, "kind") for one in wanted])
    assert read_answers(path) == wanted


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 1 of .*a.jsonl is no JSON that can be read"),
        ("[1]", "line 1 of .*a.jsonl is a list; allowed: a JSON object"),
        ({"answer_ids": [1]}, "has no prompt; allowed: one of user, messages, prompt_ids"),
        ({"user": "a", "messages": CHAT, "answer_ids": [1]}, "has user and messages; allowed: one of"),
        ({"user": 3, "answer_ids": [1]}, "has 3 for its user; allowed: a string"),
        ({"user": "a"}, "has no answer_ids; allowed: ids, or a dialogue as messages"),
        ({"user": "a", "answer_ids": []}, r"the answer_ids of line 1 of .* are \[\]; allowed: a list of one id"),
        ({"user": "a", "answer_ids": [1, -1]}, "the answer_ids of line 1 of .* hold -1; allowed: whole numbers"),
        ({"user": "a", "answer_ids": [True]}, "hold True; allowed: whole numbers from 0 on"),
        ({"user": "a", "answer_ids": [2**31]}, "hold 2147483648; allowed: whole numbers"),
        ({"user": "a", "answer_ids": [1], "prompt_ids": "x"}, "the prompt_ids of line 1 of .* are 'x'"),
        ({"user": "a", "answer_ids": [1], "temperature": -1}, "has -1 for its temperature; allowed: 0 or more"),
        ({"messages": [], "answer_ids": [1]}, r"has \[\] for its messages; allowed: a list of one message"),
        ({"messages": [{"role": "user"}], "answer_ids": [1]}, "message 0 of line 1 of .* lacks a role or a content"),
    ],
)
def test_lines_that_are_refused(line: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=message):
        read_answers(written(tmp_path / "a.jsonl", line))


def test_files_that_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"the answers cannot be read from .*none.jsonl: No such file"):
        read_answers(tmp_path / "none.jsonl")
    with pytest.raises(UsageError, match="has no answers; allowed: one JSON object a line"):
        read_answers(written(tmp_path / "empty.jsonl", {"settings": {}}))
    (tmp_path / "bytes.jsonl").write_bytes(b"\xff\n")
    with pytest.raises(UsageError, match="are no UTF-8 text"):
        read_answers(tmp_path / "bytes.jsonl")
    torn = written(tmp_path / "torn.jsonl", {"user": "a", "answer_ids": [1]})
    torn.write_text(torn.read_text("utf-8") + '{"user": "b', "utf-8")
    with pytest.raises(UsageError, match=r"(?s)line 2 of .*hint: its writing was interrupted"):
        read_answers(torn)


def test_samples(text: Text) -> None:
    """Words go through the template; ids that were written down are taken as they are; dialogues are masked by turn."""
    answers = [
        Answer("a", "hi", None, (1, 2), 0.0),
        Answer("b", [4, 5], (4, 5), (6,), 0.0),
        Answer("c", CHAT, None, None, 0.0),
    ]
    first, second, third = samples_of(text, answers, [EOS])
    assert first.ids.tolist() == [*text.encode("hi"), 1, 2] and int(first.loss_mask.sum()) == 2
    assert second.ids.tolist() == [4, 5, 6] and second.loss_mask.tolist() == [False, False, True]
    assert text.decode(third.ids[third.loss_mask].tolist()) == "b"


def test_a_template_that_changed_is_noticed(text: Text, tmp_path: Path) -> None:
    """The ids that were served are trained on; those of the words as they render now would be others."""
    served = text.encode("hi")
    answers = [Answer(str(place), "hi", tuple(served), (1,), 0.0) for place in range(3)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        samples_of(text, answers, [EOS])
    other = chat_text(tmp_path, BARE)
    with pytest.warns(UserWarning, match="3 of 3 prompts, the first of them 0, were answered behind other tokens than"):
        samples = samples_of(other, answers, [EOS])
    assert [sample.ids.tolist() for sample in samples] == [[*served, 1]] * 3


@pytest.mark.real
def test_the_given_corpus(data: Path) -> None:
    """Every line can be trained on, and its answers are as many as its README says that they may be."""
    from outpace.decoding.text import text_of
    from outpace.models.weights import find_weights

    folder = find_weights(offline=True)
    answers = read_answers(data / "smollm2-answers.jsonl")
    assert len(answers) > 3000 and max(len(one.answer_ids or ()) for one in answers) <= 320
    text = text_of(folder)
    some = answers[::40]
    samples = samples_of(text, some, [2])
    for one, sample in zip(some, samples, strict=True):
        assert sample.ids[sample.loss_mask].tolist() == list(one.answer_ids or ())
        assert text.decode(sample.ids[~sample.loss_mask].tolist()).rstrip().endswith("assistant")
