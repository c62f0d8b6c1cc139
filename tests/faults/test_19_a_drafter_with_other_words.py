"""19: a drafter with another tokenizer is given the target's positions, or begins its text anew every round."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from outpace.decoding.generate import generate
from outpace.drafters import small
from outpace.drafters.budget import Budget, Kind
from outpace.drafters.drafter import Proposal, chains
from outpace.drafters.small import Small
from outpace.errors import UsageError
from outpace.models.function import FunctionTarget
from outpace.models.target import padded
from toys import must_fail, spelling

SONG = "ab cd ef ab cd ef ab  cd ef ab cd xx ef ab cd ef "  # a doubled space, and a word that nobody knows
LETTERS = ["<s>", *"abcdefx "]
WORDS = ["<s>", "ab", "cd", "ef"]
FURTHEST = 60


class Tongue:
    """A tokenizer with one id a letter, or one a word and the space behind it; 0 begins a text."""

    def __init__(self, vocabulary: list[str], mark: str = "") -> None:
        self.vocabulary, self.mark = vocabulary, mark

    def read(self, text: str) -> list[int]:
        """What cannot be said in these words is left out."""
        words = text.split(self.mark)[:-1] if self.mark else list(text)
        return [self.vocabulary.index(word) for word in words if word in self.vocabulary[1:]]

    def say(self, ids: list[int]) -> str:
        return "".join(self.vocabulary[token] + self.mark for token in ids if token)


def singer(tongue: Tongue) -> FunctionTarget:
    """Sings on behind the last words, by heart; a text begins with its begin, once, and has so many positions."""
    known = "ab cd ef " * 9

    def logits_of(ids: Tensor) -> Tensor:
        assert ids.shape[1] <= FURTHEST, "a position that the table does not have"
        for row in ids.tolist():
            assert row[0] == 0 and row.count(0) == 1, "the begin of a text in its middle, or none"
        following = torch.zeros(*ids.shape, dtype=torch.int64)
        for row, text in enumerate(ids.tolist()):
            for place in range(1, len(text)):
                back = tongue.say(text[max(1, place - 2) : place + 1])
                at = known.find(back) + len(back)
                following[row, place] = (tongue.read(known[at : at + 6]) or [0])[0]
        return torch.nn.functional.one_hot(following, len(tongue.vocabulary)).float()

    return FunctionTarget(logits_of, len(tongue.vocabulary), max_positions=FURTHEST)


class Retold:
    """A drafter of one's own: retells the text in its own words, and its drafts in the target's."""

    name, taps, branchings = "retold", (), frozenset[Kind]({"chain"})

    def __init__(self, ours: Tongue, theirs: Tongue) -> None:
        self.ours, self.theirs, self.model = ours, theirs, singer(ours)

    def open(self, slots: int, positions: int) -> list[list[int]]:
        return []

    def admit(self, state: list[list[int]], prompts: list[list[int]], features: Any) -> None:
        state += [list(prompt) for prompt in prompts]

    def commit(self, state: list[list[int]], emitted: list[list[int]], features: Any) -> None:
        for text, tokens in zip(state, emitted, strict=True):
            text += tokens

    def select(self, state: list[list[int]], rows: list[int]) -> None:
        state[:] = [state[row] for row in rows]

    def own(self, text: list[int]) -> list[int]:
        return [0, *self.ours.read(self.theirs.say(text))]

    def propose(self, state: list[list[int]], budget: Budget, sampling: Any, keys: Any) -> Proposal:
        return Proposal(chains([self.draft(*one) for one in zip(state, budget.depths, strict=True)]))

    def draft(self, text: list[int], limit: int) -> list[int]:
        own = self.own(text)
        begun = len(own)
        said: list[int] = []
        while len(said) < limit and len(own) < self.model.max_positions:
            cache = self.model.open(1, len(own))
            own.append(int(self.model.prefill(cache, padded([own], 0), [len(own)]).logits[0, 0].argmax()))
            said = self.theirs.read(self.ours.say(own[begun:]))
            if not own[-1]:
                break
        return said[:limit]


class Inheriting(Retold):
    """The limit of positions is the target's."""

    def draft(self, text: list[int], limit: int) -> list[int]:
        self.model.max_positions = 2**31 - 1
        return super().draft(text, limit)


class BegunAnew(Retold):
    """What was drafted for the last round is read behind a begin of its own."""

    def own(self, text: list[int]) -> list[int]:
        return [*super().own(text[:3]), *super().own(text[3:])]


def folder_of(folder: Path, tongue: Tongue) -> Path:
    folder.mkdir()
    vocabulary = {word: place for place, word in enumerate(tongue.vocabulary)}
    (folder / "tokenizer.json").write_text(json.dumps({"model": {"vocab": vocabulary}, "added_tokens": []}), "utf-8")
    return folder


def case(folder: Path, kind: type[Retold] = Retold) -> None:
    """15 letters or 4 words, the drafter's text shorter or longer than the target's: the target's text, with drafts.

    A model drafter drafts in the target's ids or not at all: one of other words is refused when it is made.
    """
    letters, words = Tongue(LETTERS), Tongue(WORDS, " ")
    for ours, theirs in ((words, letters), (letters, words)):
        said = theirs.read(SONG * 3)
        prompt = theirs.read("ab cd ef ab ")
        target = spelling(said, prompt=len(prompt), vocab=len(theirs.vocabulary))
        try:
            result = generate(target, kind(ours, theirs), prompt, max_new_tokens=len(said), num_draft_tokens=4)
        except IndexError as error:
            raise AssertionError("the drafter's ids reached the target") from error
        assert result.token_ids == said
        assert result.stats.speculation.accepted > 10
    target.folder = folder_of(folder / "words", words)
    draft = singer(letters)
    draft.folder = folder_of(folder / "letters", letters)
    with pytest.raises(UsageError, match=r"has another tokenizer than the target .*: id 1 is 'a' in the draft and"):
        Small(draft, target)


def test_a_drafter_counts_its_own_words(tmp_path: Path) -> None:
    case(tmp_path)


@pytest.mark.parametrize("fault", [Inheriting, BegunAnew])
def test_planted_fault(fault: type[Retold], tmp_path: Path) -> None:
    with must_fail():
        case(tmp_path, fault)


def test_planted_fault_of_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(small, "require_one_tokenizer", lambda draft, target: None)
    with must_fail():
        case(tmp_path)
