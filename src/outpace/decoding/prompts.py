"""Files of many prompts: JSON lines with ``turns``, a ``prompt`` or chat ``messages``, read and checked as a whole.

Knows nothing of models: what an entry's words become is the tokenizer's business.
"""

import gzip
import json
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from io import TextIOWrapper
from pathlib import Path
from typing import Any

from outpace.decoding.text import Message
from outpace.errors import UsageError

KINDS = ("turns", "prompt", "messages")
QUESTION = "question"
"""What GSM8K and its like call the prompt."""
NAMES = ("question_id", "id")
Turn = str | list[int] | list[Message]


@dataclass(frozen=True)
class Entry:
    """One line of a prompts file.

    Args:
        key: its ``question_id`` or ``id`` as a string, else ``line N``; no two entries share it.
        line: where it stands in the file, from 1.
        category: what kind of prompt it is, where the file says so.
        turns: what the user says, one after the other, an answer behind each; several only where all are strings. A
            list of ids is one turn, and so are chat messages.
    """

    key: str
    line: int
    category: str | None
    turns: tuple[Turn, ...]

    @property
    def called(self) -> str:
        """How a message names the entry: by its line, and by its id where it has one."""
        where = f"line {self.line}"
        return where if self.key == where else f"{where} (id {self.key})"


def read_prompts(path: Path, kinds: Sequence[str] = KINDS) -> list[Entry]:
    """Every prompt of a file of JSON lines; other fields than these are left alone.

    Blank lines are skipped, and a first line of settings, with which files of our own begin.

    A line holds one of ``turns`` (strings, as in Spec-Bench), ``prompt`` (a string or a list of ids) and ``messages``
    (objects with ``role`` and ``content``), and may hold ``question_id`` or ``id``, and ``category``.

    Args:
        path: the file; one that ends in ``.gz`` is unpacked.
        kinds: which of these, and of ``question`` (a string), a line may hold.

    Raises:
        UsageError: the file cannot be read or has no prompt, or a line is no JSON object, has none or several of the
            kinds, an empty or misshapen one, or the id of an earlier line; file and line are named.
    """
    entries: list[Entry] = []
    lines: dict[str, int] = {}
    try:
        with _opened(path) as file:
            for line, text in enumerate(file, 1):
                if not text.strip():
                    continue
                entry = _entry(text, line, f"line {line} of {path}", kinds)
                if entry is None:
                    continue
                if entry.key in lines:
                    raise UsageError(
                        f"line {line} of {path} has the id {entry.key!r} of line {lines[entry.key]}; "
                        "allowed: an id of its own, or none"
                    )
                lines[entry.key] = line
                entries.append(entry)
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UsageError(f"the prompts cannot be read from {path}: {reason}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"the prompts in {path} are no UTF-8 text: {error.reason}") from error
    if not entries:
        raise UsageError(f"{path} has no prompts; allowed: one JSON object a line, with turns, prompt or messages")
    return entries


def in_category(entries: Sequence[Entry], category: str) -> list[Entry]:
    """The entries of one category.

    Raises:
        UsageError: there is none; the message lists the categories there are.
    """
    chosen = [entry for entry in entries if entry.category == category]
    if not chosen:
        there = sorted({entry.category for entry in entries if entry.category is not None})
        raise UsageError(f"category is {category!r}; allowed: {', '.join(there) or 'none, as no prompt names one'}")
    return chosen


def _opened(path: Path) -> TextIOWrapper:
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8-sig")
    return path.open(encoding="utf-8-sig")


def _entry(text: str, line: int, where: str, allowed: Sequence[str]) -> Entry | None:
    try:
        record: Any = json.loads(text.rstrip())
    except json.JSONDecodeError as error:
        raise UsageError(f"{where} is no JSON: {error.msg} at column {error.colno}") from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{where} is no JSON that can be read: {error}") from error
    if not isinstance(record, dict):
        raise UsageError(f"{where} is {_kind(record)}; allowed: a JSON object")
    if line == 1 and "settings" in record:
        return None
    kinds = [kind for kind in allowed if kind in record]
    if len(kinds) != 1:
        raise UsageError(f"{where} has {' and '.join(kinds) or 'no prompt'}; allowed: one of {', '.join(allowed)}")
    category = record.get("category")
    if category is not None:
        _check_words(category, "its category", where)
    read = {"turns": _turns, "prompt": _prompt, "messages": _messages, QUESTION: _question}[kinds[0]]
    return Entry(_key(record, line, where), line, category, read(record[kinds[0]], where))


def _key(record: dict[str, Any], line: int, where: str) -> str:
    for name in NAMES:
        key = record.get(name)
        if key is None:
            continue
        if isinstance(key, str):
            _check_words(key, f"its {name}", where)
        elif not isinstance(key, int) or isinstance(key, bool):
            raise UsageError(f"{where} has {_kind(key)} for its {name}; allowed: a string or a whole number")
        return str(key)
    return f"line {line}"


def _turns(value: Any, where: str) -> tuple[Turn, ...]:
    if not isinstance(value, list) or not value:
        raise UsageError(f"{where} has {_kind(value)} for its turns; allowed: a list of one string or more")
    for place, turn in enumerate(value):
        _check_words(turn, f"turn {place}", where)
    return tuple(value)


def _prompt(value: Any, where: str) -> tuple[Turn, ...]:
    if not isinstance(value, str | list) or not value:
        raise UsageError(f"{where} has {_kind(value)} for its prompt; allowed: a string or a list of ids, not empty")
    if isinstance(value, str):
        _check_words(value, "its prompt", where)
        return (value,)
    for part in value:
        if not isinstance(part, int) or isinstance(part, bool) or part < 0:
            raise UsageError(f"{where} has {_kind(part)} among the ids of its prompt; allowed: whole numbers from 0 on")
    return (value,)


def _question(value: Any, where: str) -> tuple[Turn, ...]:
    _check_words(value, "its question", where)
    return (value,)


def _messages(value: Any, where: str) -> tuple[Turn, ...]:
    if not isinstance(value, list) or not value:
        raise UsageError(f"{where} has {_kind(value)} for its messages; allowed: a list of one message or more")
    for place, message in enumerate(value):
        if not isinstance(message, dict):
            raise UsageError(f"{where} has {_kind(message)} for message {place}; allowed: an object")
        missing = [name for name in ("role", "content") if name not in message]
        if missing:
            raise UsageError(f"message {place} in {where} has no {missing[0]}; allowed: role and content")
        for name, part in message.items():
            _check_words(part, f"the {name} of message {place}", where, empty=True)
    return (value,)


def _check_words(value: Any, what: str, where: str, *, empty: bool = False) -> None:
    if not isinstance(value, str) or not (value or empty):
        least = "" if empty else " of one character or more"
        raise UsageError(f"{where} has {_kind(value)} for {what}; allowed: a string{least}")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        code = ord(value[error.start])
        raise UsageError(f"{where} has half a character (\\u{code:04x}) in {what}; allowed: whole ones") from error


def _kind(value: Any) -> str:
    """What a JSON value is, for a message."""
    if value is None:
        return "null"
    if isinstance(value, bool | int | float):
        return json.dumps(value)
    word = "string" if isinstance(value, str) else "list" if isinstance(value, list) else "object"
    if not value:
        return f"an empty {word}"
    return f"an {word}" if word == "object" else f"a {word}"
