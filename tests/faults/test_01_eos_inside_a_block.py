"""01: an end of text is accepted in the middle of a block, and the tokens behind it come out too."""

from typing import Any

import pytest

from outpace.decoding import loop
from outpace.decoding.loop import Request
from outpace.models.transformer import Transformer
from toys import Scripted, must_fail, reference, right_then_wrong, run

PROMPT, NEW = (1, 2, 3), 20


def case(target: Transformer, num_draft_tokens: int) -> None:
    """Every token of the reference in turn is the end of a text: twenty rows that end at twenty places."""
    said = reference(target, PROMPT, NEW + 9)
    requests = [Request(PROMPT, max_new_tokens=NEW, eos_ids=(token,)) for token in said[:NEW]]
    drafter = Scripted(right_then_wrong([[*PROMPT, *said]], [8, 2, 0, 5]))
    for request, row in zip(requests, run(target, drafter, requests, num_draft_tokens=num_draft_tokens), strict=True):
        assert row.ids == reference(target, PROMPT, NEW, tuple(request.eos_ids))
        assert row.finish == "stop"


@pytest.mark.parametrize("num_draft_tokens", [1, 2, 3, 5, 8])
def test_case(num_draft_tokens: int, tiny: Transformer) -> None:
    case(tiny, num_draft_tokens)


def looks_at_the_last_token(self: Any, tokens: list[int]) -> int:
    self.new += tokens
    self.finish = "stop" if tokens[-1] in self.eos else "length" if len(self.new) >= self.limit else None
    return len(tokens)


def test_planted_fault(tiny: Transformer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop._Row, "take", looks_at_the_last_token)
    with must_fail():
        case(tiny, 3)
