"""Answered prompts in a file of JSON lines, read, checked and made into samples.

Knows nothing of how they were answered. A line holds what was asked (``user``, or ``messages``, or ``prompt_ids``
alone), the answer (``answer_ids``) and its ``temperature``. Lines of our own hold ``prompt_ids`` beside the words: a
text is then trained as it was answered, whatever becomes of the chat template. A line of ``messages`` without
``answer_ids`` is a dialogue whose answers are the assistant's messages.
"""

import json
import math
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from outpace.decoding.text import Message, Prompt, Text
from outpace.errors import UsageError
from outpace.training.masks import Sample, answered, dialogue

ASKED = ("user", "messages", "prompt_ids")


@dataclass(frozen=True)
class Answer:
    """One line of a corpus.

    Args:
        key: how messages name it: its ``id``, else ``line N``.
        prompt: what was asked; its ids where the line has no words.
        prompt_ids: as it was read by who answered; None where the line does not say.
        answer_ids: what was said; None for a dialogue, whose messages hold the answers.
        temperature: it was drawn at; 0 where the line does not say.
    """

    key: str
    prompt: Prompt
    prompt_ids: tuple[int, ...] | None
    answer_ids: tuple[int, ...] | None
    temperature: float


def read_answers(path: Path) -> list[Answer]:
    """Every line of a corpus; a first line of settings, and blank lines, are passed over.

    Raises:
        UsageError: the file cannot be read or has no answer, or a line is no JSON object, does not say what was asked,
            or has a misshapen part; file and line are named.
    """
    found: list[Answer] = []
    try:
        with path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                where = f"line {number} of {path}"
                record = _record(line, where) if line.strip() else None
                if record is not None and not (number == 1 and "settings" in record):
                    found.append(_answer(record, f"line {number}", where))
    except OSError as error:
        raise UsageError(f"the answers cannot be read from {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"the answers in {path} are no UTF-8 text: {error.reason}") from error
    if not found:
        raise UsageError(f"{path} has no answers; allowed: one JSON object a line, with user and answer_ids")
    return found


def samples_of(text: Text, answers: Sequence[Answer], eos_ids: Sequence[int]) -> list[Sample]:
    """The samples of a corpus: prompts as they were served, and a mask over what was said.

    Args:
        text: the target's tokenizer and chat template.
        answers: from ``read_answers``.
        eos_ids: the ids that end a text of the target; for dialogues.

    Raises:
        UsageError: a prompt or a dialogue cannot be rendered, or its mask is empty or covers all; see ``masks.py``.
    """
    samples, moved = [], []
    for one in answers:
        if one.answer_ids is None:
            assert isinstance(one.prompt, list)
            messages: list[Message] = [part for part in one.prompt if isinstance(part, dict)]
            samples.append(dialogue(text, one.key, messages, eos_ids))
            continue
        own = one.prompt if one.prompt_ids is None else list(one.prompt_ids)
        samples.append(answered(text, one.key, own, one.answer_ids))
        if one.prompt_ids is not None and one.prompt != own and text.encode(one.prompt) != own:
            moved.append(one.key)
    if moved:
        warnings.warn(
            f"{len(moved)} of {len(answers)} prompts, the first of them {moved[0]}, were answered behind other tokens "
            "than the chat template gives now; they are trained as they were answered",
            stacklevel=2,
        )
    return samples


def line_of(answer: Answer, category: str | None) -> dict[str, Any]:
    """The line of an answer, but for its end."""
    words: dict[str, Any] = {}
    if isinstance(answer.prompt, str):
        words = {"user": answer.prompt}
    elif any(isinstance(part, dict) for part in answer.prompt):
        words = {"messages": answer.prompt}
    return {
        "id": answer.key,
        "category": category,
        **words,
        "prompt_ids": None if answer.prompt_ids is None else list(answer.prompt_ids),
        "answer_ids": None if answer.answer_ids is None else list(answer.answer_ids),
        "temperature": answer.temperature,
    }


# ---- reading a line --------------------------------------------------------------------------------------------------


def _record(line: str, where: str) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        hint = None if line.endswith("\n") else "its writing was interrupted: let it be gone on with"
        raise UsageError(f"{where} is no JSON that can be read: {error}", hint=hint) from error
    if not isinstance(record, dict):
        raise UsageError(f"{where} is a {type(record).__name__}; allowed: a JSON object")
    return record


def _answer(record: dict[str, Any], named: str, where: str) -> Answer:
    asked = [name for name in ASKED if record.get(name) is not None]
    if not asked or asked[:2] == ["user", "messages"]:
        raise UsageError(f"{where} has {' and '.join(asked) or 'no prompt'}; allowed: one of {', '.join(ASKED)}")
    prompt_ids = _ids(record.get("prompt_ids"), f"the prompt_ids of {where}")
    answer_ids = _ids(record.get("answer_ids"), f"the answer_ids of {where}")
    prompt: Prompt
    if asked[0] == "user":
        if not isinstance(record["user"], str):
            raise UsageError(f"{where} has {record['user']!r} for its user; allowed: a string")
        prompt = record["user"]
    elif asked[0] == "messages":
        prompt = list(_messages(record["messages"], where))
    else:
        prompt = list(prompt_ids or ())
    if answer_ids is None and asked[0] != "messages":
        raise UsageError(f"{where} has no answer_ids; allowed: ids, or a dialogue as messages")
    temperature = record.get("temperature", 0.0)
    if not isinstance(temperature, int | float) or not (math.isfinite(temperature) and temperature >= 0):
        raise UsageError(f"{where} has {temperature!r} for its temperature; allowed: 0 or more")
    key = record.get("id")
    return Answer(named if key is None else str(key), prompt, prompt_ids, answer_ids, float(temperature))


def _ids(value: Any, what: str) -> tuple[int, ...] | None:
    if value is None:
        return None
    if not isinstance(value, list) or not value:
        raise UsageError(f"{what} are {value!r}; allowed: a list of one id or more")
    for token in value:
        if not isinstance(token, int) or isinstance(token, bool) or not 0 <= token <= torch.iinfo(torch.int32).max:
            raise UsageError(f"{what} hold {token!r}; allowed: whole numbers from 0 on")
    return tuple(value)


def _messages(value: Any, where: str) -> Iterator[Message]:
    if not isinstance(value, list) or not value:
        raise UsageError(f"{where} has {value!r} for its messages; allowed: a list of one message or more")
    for place, message in enumerate(value):
        if not isinstance(message, dict) or not all(isinstance(message.get(name), str) for name in ("role", "content")):
            raise UsageError(f"message {place} of {where} lacks a role or a content; allowed: both, as strings")
        yield {"role": message["role"], "content": message["content"]}
