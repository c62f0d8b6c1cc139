"""Prompts to train on: read from files, rid of repetitions and of what is too short or too long.

Knows nothing of models. What measures a drafter must not train it: prompts to avoid are rejected like repetitions.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from outpace.decoding import prompts
from outpace.decoding.prompts import KINDS, QUESTION, Entry
from outpace.decoding.text import Text
from outpace.errors import UsageError

LEAST, MOST = 3, 1024
"""Tokens of a prompt, without what a chat template adds."""


@dataclass(frozen=True)
class Selection:
    """Prompts that may be trained on.

    Args:
        entries: these.
        rejected: how many others there were, by what was wrong with them.
    """

    entries: list[Entry]
    rejected: Counter[str] = field(default_factory=Counter)


def read_prompts(path: Path) -> list[Entry]:
    """Every prompt of a file: ``turns``, a ``prompt``, chat ``messages`` or a ``question``; named after the file.

    Raises:
        UsageError: as for ``decoding.prompts.read_prompts``.
    """
    entries = prompts.read_prompts(path, (*KINDS, QUESTION))
    return [replace(entry, key=f"{path.name}: {entry.key}") for entry in entries]


def select(
    entries: Sequence[Entry], text: Text, *, least: int = LEAST, most: int = MOST, avoid: Sequence[Entry] = ()
) -> Selection:
    """The prompts whose length is within bounds, each once.

    Two prompts are the same where their words are, whatever their case and spaces.

    Args:
        entries: in order; the first of several that are the same stays.
        text: the target's tokenizer.
        least, most: bounds on the tokens of all turns together, without what a chat template adds.
        avoid: prompts that none may be the same as, such as those that the drafter will be measured with.

    Raises:
        UsageError: no length is within the bounds.
    """
    if not 1 <= least <= most:
        raise UsageError(f"prompts of {least} to {most} tokens are asked for; allowed: from 1 up, the lesser one first")
    sieve = Sieve(text, least, most, avoid)
    chosen = [entry for entry in entries if sieve.passes(entry)]
    return Selection(chosen, sieve.rejected)


class Sieve:
    """Lets every prompt pass once, if its length is within bounds; counts the others by what is wrong with them."""

    def __init__(self, text: Text, least: int, most: int, avoid: Sequence[Entry] = ()) -> None:
        self.text, self.least, self.most = text, least, most
        self.avoided = {_same(entry) for entry in avoid}
        self.passed: set[str] = set()
        self.rejected: Counter[str] = Counter()

    def passes(self, entry: Entry) -> bool:
        """Whether this prompt may be trained on; each call counts."""
        reason = self._wrong(entry)
        if reason is not None:
            self.rejected[reason] += 1
        else:
            self.passed.add(_same(entry))
        return reason is None

    def _wrong(self, entry: Entry) -> str | None:
        same = _same(entry)
        if same in self.avoided:
            return "to be avoided"
        if same in self.passed:
            return "repeated"
        tokens = sum(self._tokens(turn) for turn in entry.turns)
        return "too short" if tokens < self.least else "too long" if tokens > self.most else None

    def _tokens(self, turn: prompts.Turn) -> int:
        parts = [turn] if isinstance(turn, str) else [part["content"] for part in turn if isinstance(part, dict)]
        if not parts:
            return len(turn)  # ids
        return sum(len(self.text.tokenizer.encode(part, add_special_tokens=False)) for part in parts)


def _same(entry: Entry) -> str:
    """What two prompts that are the same have in common."""
    spoken = []
    for turn in entry.turns:
        if isinstance(turn, str):
            spoken.append(turn)
        else:
            spoken += [part["content"] if isinstance(part, dict) else str(part) for part in turn]
    return " ".join(" ".join(spoken).casefold().split())
