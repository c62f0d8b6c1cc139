"""Our prompts are enough, varied and our own; a user's file is cut as asked; what does not fit is skipped by name."""

import json
import re
from collections import Counter
from pathlib import Path

import pytest
import torch

from outpace.errors import UsageError
from outpace.evaluation.workloads import OWN, Question, Skipped, questions, workload
from outpace.models.function import FunctionTarget
from toys import LETTER_VOCAB, must_fail, spelling

CATEGORIES = ("chat", "code", "summary", "extraction", "maths", "creative")
RUN = 8
"""So many words in a row that are the same are no accident."""


def words(text: str) -> list[str]:
    return re.findall(r"[a-z0-9']+", text.lower())


def runs(text: str) -> set[tuple[str, ...]]:
    said = words(text)
    return {tuple(said[place : place + RUN]) for place in range(len(said) - RUN + 1)}


def target(folder: Path | None, context: int = 100_000) -> FunctionTarget:
    return spelling([1, 2, 3], prompt=1, vocab=LETTER_VOCAB, name="spelling", folder=folder, max_positions=context)


def test_eight_prompts_or_more_in_each_of_six_categories() -> None:
    counted = Counter(entry.category for entry in workload())
    assert tuple(counted) == CATEGORIES and min(counted.values()) >= 8


def test_lines_are_those_of_spec_bench() -> None:
    records = [json.loads(line) for line in OWN.read_text("utf-8").splitlines()]
    assert all(list(record) == ["question_id", "category", "turns"] for record in records)
    assert [record["question_id"] for record in records] == list(range(1, len(records) + 1))


def test_summary_and_extraction_have_something_to_read() -> None:
    for entry in workload(categories=["summary", "extraction"]):
        passage = str(entry.turns[0]).partition("\n\n")[2]
        assert 120 <= len(words(passage)) <= 250, entry.key


def too_alike(texts: list[str], others: list[str]) -> set[tuple[str, ...]]:
    """Runs of words that stand in both lists."""
    return set().union(*map(runs, texts)) & set().union(*map(runs, others))


def test_no_prompt_repeats_another() -> None:
    texts = [str(entry.turns[0]) for entry in workload()]
    for place, text in enumerate(texts):
        assert not too_alike([text], texts[:place] + texts[place + 1 :])
    with must_fail():  # planted: one prompt quotes another
        assert not too_alike([texts[0]], [f"As somebody asked: {texts[0]}", *texts[1:]])


def test_no_prompt_is_of_spec_bench(data: Path) -> None:
    """What is measured with must be ours to give away."""
    lines = (data / "specbench-dev.jsonl").read_text("utf-8").splitlines()
    theirs = [turn for line in lines for turn in json.loads(line)["turns"]]
    assert not too_alike([str(entry.turns[0]) for entry in workload()], theirs)


def test_a_file_of_yours_is_cut_as_asked(tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    kinds = ["a", "b", "a", "a", None, None]
    lines = [{"prompt": f"say {place}"} | ({"category": kind} if kind else {}) for place, kind in enumerate(kinds)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
    assert [entry.line for entry in workload(path)] == [1, 2, 3, 4, 5, 6]
    assert [entry.line for entry in workload(path, per_category=1)] == [1, 2, 5]
    assert [entry.line for entry in workload(path, ["b", "a", "b"], 2)] == [2, 1, 3]
    with pytest.raises(UsageError, match="category is 'c'; allowed: a, b"):
        workload(path, ["a", "c"])
    with pytest.raises(UsageError, match="per_category is 0; allowed: 1 or more"):
        workload(path, per_category=0)


def test_a_category_is_not_called_as_the_row_of_every_prompt_is(tmp_path: Path) -> None:
    """It would be lost behind that row; one that is not asked for does no harm."""
    path = tmp_path / "mine.jsonl"
    kinds = ("code", "all")
    path.write_text("".join(json.dumps({"prompt": "say", "category": kind}) + "\n" for kind in kinds), "utf-8")
    with pytest.raises(UsageError, match=r"line 2.* has category 'all'; allowed: another name, or none"):
        workload(path)
    assert [entry.line for entry in workload(path, ["code"])] == [1]


def test_a_prompt_longer_than_the_context_is_skipped_by_name(tmp_path: Path, letters: Path) -> None:
    """The last id that fits leaves room for one new token."""
    path = tmp_path / "mine.jsonl"
    path.write_text('{"prompt": "abcd", "id": "fits"}\n\n{"prompt": "abcde", "id": "long"}\n', "utf-8")
    asked, skipped = questions(workload(path), target(letters, context=5))
    assert asked == [Question("fits", None, [0, 1, 2, 3])]
    assert skipped == [Skipped("long", 3, 5)]
    with pytest.raises(UsageError, match="every prompt is longer than the context of 'spelling', 4 tokens with new"):
        questions(workload(path), target(letters, context=4))


def test_the_first_turn_is_asked(tmp_path: Path, letters: Path) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_text('{"turns": ["ab", "cd"], "category": "x", "question_id": 7}\n', "utf-8")
    assert questions(workload(path), target(letters))[0] == [Question("7", "x", [0, 1])]


def test_ids_need_no_tokenizer_and_words_do(tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_text('{"prompt": [3, 1, 2]}\n', "utf-8")
    assert questions(workload(path), target(None))[0] == [Question("line 1", None, [3, 1, 2])]
    path.write_text('{"prompt": "abc"}\n', "utf-8")
    message = r"prompt 'line 1' \(line 1\) is text and the target 'spelling' has no tokenizer; allowed: token ids"
    with pytest.raises(UsageError, match=message):
        questions(workload(path), target(None))


def test_a_prompt_that_cannot_be_encoded_is_named(tmp_path: Path, letters: Path) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_text('{"prompt": "abc"}\n{"prompt": "  ", "id": "blank"}\n', "utf-8")
    with pytest.raises(UsageError, match=r"prompt 'blank' \(line 2\): the prompt is empty; allowed: one character"):
        questions(workload(path), target(letters))


def test_our_prompts_reach_a_target(chat_letters: Path) -> None:
    """Every one of them passes through a chat template, the user's turn in it."""
    asked, skipped = questions(workload(per_category=2), target(chat_letters))
    assert len(asked) == 12 and not skipped
    assert all(torch.tensor(question.ids).max() < LETTER_VOCAB for question in asked)
