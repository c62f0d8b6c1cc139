"""03: lookup drafts carry the text past max_new_tokens."""

from typing import Any

import pytest

from outpace.decoding import loop
from outpace.decoding.loop import Request
from outpace.drafters.lookup import Lookup
from outpace.models.transformer import Transformer
from toys import must_fail, reference, run

PROMPT = (7, 8, 9, 10, 11, 7, 8, 9, 10, 11, 7, 8, 9)


def case(target: Transformer, num_draft_tokens: int) -> None:
    requests = [Request(PROMPT, max_new_tokens=new) for new in range(1, 9)]
    for new, row in enumerate(run(target, Lookup(), requests, num_draft_tokens=num_draft_tokens), 1):
        assert row.ids == reference(target, PROMPT, new) and row.finish == "length"


@pytest.mark.parametrize("num_draft_tokens", [1, 3, 10])
def test_case(num_draft_tokens: int, tiny: Transformer) -> None:
    case(tiny, num_draft_tokens)


def block_by_block(self: Any, tokens: list[int]) -> int:
    self.new += tokens
    self.finish = "length" if len(self.new) >= self.limit else None
    return len(tokens)


def test_planted_fault(tiny: Transformer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop._Row, "take", block_by_block)
    monkeypatch.setattr(loop, "_room", lambda row: 99)
    with must_fail():
        case(tiny, 3)
