"""A processor with a state stays in step with the text, whatever was drafted and however much of it accepted."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from changed import Spy, made, processed, rows_of
from outpace.decoding.processors import UserProcessor, check_branching, is_stateful, process, processors_of
from outpace.drafters.budget import CHAIN, Branching
from outpace.errors import UsageError
from outpace.verification.tree import DraftTree
from toys import must_fail

OPEN, CLOSE, WIDE, SHUT, LETTER, END = range(6)


@dataclass
class Brackets:
    """A grammar with a stack: brackets close in order, at most three are open, and the text ends where none is.

    It reads one id a call, and fails on an id that the grammar does not allow, as matchers do.
    """

    read: list[int] = field(default_factory=list)
    stacks: list[list[int]] = field(default_factory=lambda: [[]])
    rewound: list[int] = field(default_factory=list)

    def may(self, token: int) -> bool:
        stack = self.stacks[-1]
        if token in (OPEN, WIDE):
            return len(stack) < 3
        if token in (CLOSE, SHUT):
            return bool(stack) and stack[-1] == token - 1
        return token == LETTER or not stack

    def advance(self, token: int) -> None:
        if not self.may(token):
            raise RuntimeError(f"cannot advance by {token} behind {self.read}")
        stack = self.stacks[-1]
        self.stacks.append(
            [*stack, token] if token in (OPEN, WIDE) else stack[:-1] if token in (CLOSE, SHUT) else stack
        )
        self.read.append(token)

    def rewind(self, length: int) -> None:
        assert 0 <= length < len(self.read), "there is nothing to rewind"
        del self.read[length:], self.stacks[length + 1 :]
        self.rewound.append(length)

    def __call__(self, prefix_ids: Tensor, logits: Tensor) -> Tensor:
        [prefix] = prefix_ids.tolist()
        assert self.read == prefix[: len(self.read)], "out of step"
        assert not self.read or len(prefix) == len(self.read) + 1, "more or less than one new id"
        for token in prefix[len(self.read) :]:
            self.advance(token)
        return logits.masked_fill(torch.tensor([not self.may(token) for token in range(6)]), -math.inf)


def replayed(text: Sequence[int]) -> Brackets:
    grammar = Brackets()
    for token in text:
        grammar.advance(token)
    return grammar


def case_in_step(turns: list[tuple[list[int], int, int]]) -> None:
    """Turns of ``(draft, how many are accepted at most, which allowed token comes next)`` on one text."""
    text = [LETTER, OPEN]
    [own] = processors_of(prompt_length=2, eos_ids=[END], processors=[Brackets()])
    assert isinstance(own, UserProcessor)
    state: Any = own.processor
    for number, (draft, accepted, choice) in enumerate(turns):
        logits = rows_of(number, 1 + len(draft), vocab=6)
        try:
            rows = process(logits, DraftTree.chain(torch.tensor([draft], dtype=torch.int64)), [list(text)], [(own,)])[0]
        except RuntimeError as error:
            raise AssertionError("the grammar was asked about what it forbids, or behind its end") from error
        deepest = 0
        while (
            deepest < len(draft) and draft[deepest] != END and replayed([*text, *draft[:deepest]]).may(draft[deepest])
        ):
            deepest += 1
        for row in range(1 + deepest):
            law = replayed([*text, *draft[:row]])
            wanted = [float(logits[0, row, token]) if law.may(token) else -math.inf for token in range(6)]
            assert rows[row].tolist() == wanted
        assert_close(rows[1 + deepest :], logits[0, 1 + deepest :], rtol=0, atol=0)
        assert (state.read, state.stacks) == (law.read, law.stacks)
        count = min(accepted, deepest)
        possible = [token for token in range(6) if replayed([*text, *draft[:count]]).may(token)]
        text += [*draft[:count], possible[choice % len(possible)]]
        if END in text:
            return


TOKENS = st.integers(0, 5)
TURNS = st.lists(st.tuples(st.lists(TOKENS, max_size=6), st.integers(0, 6), st.integers(0, 5)), min_size=1, max_size=8)


@given(turns=TURNS)
def test_a_state_stays_in_step(turns: list[tuple[list[int], int, int]]) -> None:
    """Whatever is drafted, legal or not, and however much of it is accepted."""
    case_in_step(turns)


LEGAL = [OPEN, LETTER, CLOSE, WIDE, SHUT, CLOSE]


@pytest.mark.parametrize("accepted", range(7))
def test_every_number_of_accepted_drafts(accepted: int) -> None:
    """The next token is another one than the draft's, or the same: the state follows the text, not the draft."""
    for choice in range(5):
        case_in_step([(LEGAL, accepted, choice), (LEGAL, 2, 0), ([], 0, 1), (LEGAL, 6, 0)])


def test_planted_fault_in_the_rewind(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fault: a processor that read a rejected draft is never told to forget it."""
    honest = Brackets.rewind
    for fault in (lambda self, length: None, lambda self, length: honest(self, max(0, length - 1))):
        monkeypatch.setattr(Brackets, "rewind", fault)
        with must_fail():
            case_in_step([(LEGAL, 1, 0), (LEGAL, 2, 0)])


def test_the_same_text_twice_is_read_twice() -> None:
    """A request that is decoded again begins from its prompt, whatever the first run left."""
    own = processors_of(prompt_length=2, eos_ids=[END], processors=[Brackets()])
    first = [processed(rows_of(1, 3, vocab=6), own, [LETTER, OPEN], ([LETTER, CLOSE], [-1, 0])) for _ in range(2)]
    assert_close(first[0], first[1], rtol=0, atol=0)


def test_every_request_has_a_state_of_its_own() -> None:
    given_one = Brackets()
    [left], [right] = (processors_of(prompt_length=1, eos_ids=[END], processors=[given_one]) for _ in range(2))
    logits = rows_of(8, 1, batch=2, vocab=6)
    process(logits, DraftTree.empty(2), [[OPEN], [LETTER]], [(left,), (right,)])
    assert isinstance(left, UserProcessor) and isinstance(right, UserProcessor)
    assert (left.processor.read, right.processor.read, given_one.read) == ([OPEN], [LETTER], [])  # type: ignore[attr-defined]


def test_what_has_no_state_is_not_copied() -> None:
    spy = Spy()
    [own] = made(processors=[spy])
    processed(rows_of(9), [own])
    assert len(spy.asked) == 4 and not is_stateful(own) and not is_stateful(spy)


def test_a_state_and_a_tree_are_refused_by_name() -> None:
    own = made(repetition_penalty=1.5, processors=[Spy(), Brackets()])
    assert [is_stateful(processor) for processor in own] == [False, False, True] and is_stateful(Brackets())
    check_branching(own, CHAIN)
    check_branching(own[:2], Branching("top-k", 3.0))
    words = r"the processor Brackets has a state \(it offers rewind\) and tree is top-k:3; allowed: chain\nhint: leave"
    with pytest.raises(UsageError, match=words):
        check_branching(own, Branching("top-k", 3.0))
    with pytest.raises(UsageError, match="the processor Brackets has a state and was asked about 2 paths at once"):
        processed(rows_of(1, 3, vocab=6), own[2:], [LETTER], ([OPEN, LETTER], [-1, -1]))
