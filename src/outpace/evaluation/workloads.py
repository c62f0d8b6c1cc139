"""What is asked while measuring: prompts of our own in six categories, or a file of yours.

Knows nothing of how prompts are decoded. Ours stand in ``workloads.jsonl`` beside this file, eight a category, in the
lines of Spec-Bench: question_id, category, turns. Of a prompt with several turns the first is asked.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from outpace.decoding.plan import ALL
from outpace.decoding.prompts import Entry, in_category, read_prompts
from outpace.decoding.text import Text, text_of
from outpace.errors import UsageError
from outpace.models.target import Target

OWN = Path(__file__).with_name("workloads.jsonl")


@dataclass(frozen=True)
class Question:
    """One prompt as the target reads it.

    Args:
        key, category: its name and kind; None where the file names no kind.
        ids: the prompt, through the chat template where there is one.
    """

    key: str
    category: str | None
    ids: list[int]


@dataclass(frozen=True)
class Skipped:
    """A prompt that the target's context has no room for: ``tokens`` are its own, ``line`` where it stands."""

    key: str
    line: int
    tokens: int


def workload(path: Path | None = None, categories: Sequence[str] = (), per_category: int | None = None) -> list[Entry]:
    """The prompts of a file, or ours, in the order of the file.

    Args:
        path: JSON lines, see ``decoding/prompts.py``; None for our own.
        categories: only these; none given: all.
        per_category: at most so many of each, the first ones.

    Raises:
        UsageError: the file cannot be read, a category is not in it or named ``all``, as the row of every prompt is, or
            ``per_category`` is below 1.
    """
    if per_category is not None and per_category < 1:
        raise UsageError(f"per_category is {per_category}; allowed: 1 or more prompts of each category")
    entries = read_prompts(OWN if path is None else path)
    if categories:
        entries = [entry for category in dict.fromkeys(categories) for entry in in_category(entries, category)]
    taken: dict[str | None, int] = {}
    chosen = []
    for entry in entries:
        if entry.category == ALL:
            raise UsageError(
                f"{entry.called} has category {ALL!r}; allowed: another name, or none",
                hint=f"{ALL!r} stands for every prompt of a file",
            )
        taken[entry.category] = taken.get(entry.category, 0) + 1
        if per_category is None or taken[entry.category] <= per_category:
            chosen.append(entry)
    return chosen


def questions(entries: Sequence[Entry], target: Target) -> tuple[list[Question], list[Skipped]]:
    """The first turn of every prompt as ids, and what was left out: prompts that leave no room for a token.

    Raises:
        UsageError: a prompt is text and the target has no tokenizer, a prompt cannot be encoded, or none is left.
    """
    text = None if target.folder is None else text_of(target.folder)
    asked: list[Question] = []
    skipped: list[Skipped] = []
    for entry in entries:
        ids = _ids(entry, text, target)
        if len(ids) < target.max_positions:
            asked.append(Question(entry.key, entry.category, ids))
        else:
            skipped.append(Skipped(entry.key, entry.line, len(ids)))
    if not asked:
        raise UsageError(
            f"every prompt is longer than the context of {target.name!r}, {target.max_positions} tokens with new ones; "
            "allowed: one prompt that is shorter, or more"
        )
    return asked, skipped


def _ids(entry: Entry, text: Text | None, target: Target) -> list[int]:
    first = entry.turns[0]
    if text is not None:
        try:
            return text.encode(first)
        except UsageError as error:
            raise UsageError(f"prompt {entry.key!r} (line {entry.line}): {error.message}", hint=error.hint) from error
    ids = [part for part in first if isinstance(part, int)]
    if len(ids) < len(first):
        raise UsageError(
            f"prompt {entry.key!r} (line {entry.line}) is text and the target {target.name!r} has no tokenizer; "
            "allowed: token ids"
        )
    return ids
