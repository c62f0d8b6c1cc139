"""02: a stop and the length limit fall into one run, and the limit is looked at first."""

from typing import Any

import pytest

from outpace.decoding import loop
from outpace.decoding.loop import Request, _Row
from toys import must_fail

END, A, B = 9, 1, 2


def ends(ids: Any) -> bool:
    """A stop rule in place of an end of text."""
    return bool(ids[-1] == END)


def case(by_rule: bool) -> None:
    """``(already there, limit, run)`` gives so many tokens and that reason."""
    for there, limit, run, count, finish in (
        (8, 10, [END, A, B], 9, "stop"),
        (8, 10, [A, B, END], 10, "length"),
        (0, 5, [A, B, END, A, B, A], 3, "stop"),
        (8, 10, [A, END], 10, "stop"),
        (8, 12, [A, B], 10, None),
    ):
        row = _Row(0, Request([0], stops=[ends] if by_rule else ()), limit, frozenset(() if by_rule else (END,)))
        row.new = [0] * there
        kept = row.take(run)
        assert (len(row.new), row.finish, kept) == (count, finish, count - there)


@pytest.mark.parametrize("by_rule", [False, True])
def test_case(by_rule: bool) -> None:
    case(by_rule)


def length_first(self: Any, tokens: list[int]) -> int:
    for count, token in enumerate(tokens, 1):
        self.new.append(token)
        if count == len(tokens) or len(self.new) >= self.limit:
            over = len(self.new) >= self.limit
            self.finish = "length" if over else "stop" if END in self.new else None
            return count
    return len(tokens)


def test_planted_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop._Row, "take", length_first)
    for by_rule in (False, True):
        with must_fail():
            case(by_rule)
