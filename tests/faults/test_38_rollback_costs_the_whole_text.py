"""38: a grammar is rolled back by reading the whole text once more, so that long texts take ever longer."""

from typing import Any

import pytest
import torch
from torch import Tensor

from changed import Grammar
from outpace.decoding.processors import UserProcessor, process, processors_of
from outpace.verification.tree import DraftTree
from toys import must_fail

VOCAB, DEPTH, TURNS = 16, 8, 400
STEPS = {"start": dict.fromkeys(range(VOCAB), "start")}
"""Permissive: every text is allowed."""


def case() -> None:
    """Two thousand tokens, eight drafts a turn of which four stand: what a turn reads does not grow with the text."""
    [own] = processors_of(prompt_length=1, eos_ids=(), processors=[Grammar(STEPS, 1)])
    assert isinstance(own, UserProcessor)
    grammar: Any = own.processor
    text, read = [0], []
    logits = torch.zeros(1, 1 + DEPTH, VOCAB)
    for turn in range(TURNS):
        draft = [(turn + place) % VOCAB for place in range(DEPTH)]
        before = grammar.advanced
        process(logits, DraftTree.chain(torch.tensor([draft])), [text], [(own,)])
        read.append(grammar.advanced - before)
        text = [*text, *draft[:4], (draft[4] + 1) % VOCAB]
    assert len(text) == 1 + 5 * TURNS
    assert sum(read[TURNS // 2 :]) <= 1.01 * sum(read[: TURNS // 2]), "the second thousand took longer"
    assert max(read) == 1 + DEPTH and max(grammar.rewinds) <= DEPTH


def test_case() -> None:
    case()


def from_the_beginning(self: UserProcessor, prefix_ids: Tensor, logits: Tensor) -> Tensor:
    grammar: Any = self.processor
    grammar.rewind(0)
    result: Tensor = grammar(prefix_ids, logits)
    return result


def test_planted_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(UserProcessor, "_ask", from_the_beginning)
    with must_fail():
        case()
