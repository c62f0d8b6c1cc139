"""74: the mean length of a turn counts tokens behind the stop that nobody was given."""

from typing import Any

import pytest

from outpace.decoding.loop import Request, decode
from outpace.decoding.stats import Tally
from toys import Scripted, must_fail, right_then_wrong, spelling

EOS, PROMPT = 9, [4, 4]
TEXT = [1, 2, 3, EOS, 5, 6, 7]  # prefill says 1; the turn accepts 2 3 EOS 5 6, and 7 is its bonus


def case() -> None:
    """Five drafts agree and three stand: accepted 3, matched 5, three tokens a turn; sums are what was returned."""
    target = spelling(TEXT, len(PROMPT), 16)
    guesser = Scripted(right_then_wrong([[*PROMPT, *TEXT]], [9]), vocab=16)
    requests = [Request(PROMPT, max_new_tokens=20, eos_ids=(EOS,))] * 10
    returned, stats = 0, []
    for emission in decode(target, guesser, requests, num_draft_tokens=5, slots=4):
        returned += len(emission.ids)
        stats += [emission.speculation] if emission.speculation is not None else []
    assert [(one.drafted, one.matched, one.accepted, one.turns) for one in stats] == [(5, 5, 3, 1)] * 10
    assert [one.tau for one in stats] == [3.0] * 10
    assert sum(1 + one.turns * (one.tau or 0) for one in stats) == returned == 40


def test_what_was_returned_is_what_was_counted() -> None:
    case()


@pytest.mark.parametrize("fault", ["the whole turn is counted", "all that matched was accepted"])
def test_planted_fault(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = Tally.add

    def add(self: Tally, *, matched: int, emitted: int, **rest: Any) -> None:
        if fault == "the whole turn is counted":
            return honest(self, matched=matched, emitted=matched + 1, **rest)
        honest(self, matched=matched, emitted=emitted, **rest)
        self.accepted = self.matched

    monkeypatch.setattr(Tally, "add", add)
    with must_fail():
        case()
