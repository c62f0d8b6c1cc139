"""07: a text without an end token, or with several, of which the second falls into a block."""

from typing import Any

import pytest

from outpace.decoding import loop
from outpace.decoding.generate import generate
from outpace.drafters.lookup import Lookup
from outpace.models.toy import tiny_transformer
from toys import Scripted, must_fail, reference, right_then_wrong

REPEATED = [7, 8, 9, 10, 11, 7, 8, 9, 10, 11, 7, 8, 9]


def case() -> None:
    said = reference(target := tiny_transformer(seed=3), tuple(REPEATED), 20)
    first = next(token for token in range(64) if token not in said)
    ends = tiny_transformer(seed=3, eos_ids=(first, said[4]))  # the same weights, with ends of their own
    script = right_then_wrong([[*REPEATED, *said]], [8])
    for drafter in (None, Lookup(eos_ids=ends.eos_ids), Lookup(), Scripted(script)):
        for options, eos in (
            ({}, ends.eos_ids),  # two ids, the second of them in mid-block
            ({"eos_ids": None}, ()),  # the call says: none, whatever the model says
            ({"eos_ids": []}, ()),
            ({"eos_ids": [said[4]]}, (said[4],)),
        ):
            options = {"max_new_tokens": 12, "num_draft_tokens": 8} | options
            result = generate(ends, drafter, REPEATED, **options)
            assert result.token_ids == reference(target, tuple(REPEATED), 12, eos)
            assert result.finish_reason == ("stop" if eos else "length")


def test_case() -> None:
    case()


def knows_one_end(self: Any, tokens: list[int]) -> int:
    for count, token in enumerate(tokens, 1):
        self.new.append(token)
        if [token] == list(self.request.eos_ids)[:1] or len(self.new) >= self.limit:
            self.finish = "length" if len(self.new) >= self.limit else "stop"
            return count
    return len(tokens)


def test_planted_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop._Row, "take", knows_one_end)
    with must_fail():
        case()
