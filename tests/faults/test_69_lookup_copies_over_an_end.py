"""69: the copied text goes over an end of text, and generation runs on."""

from typing import Any

import pytest
import torch

from outpace.decoding.loop import Request
from outpace.drafters.budget import Budget
from outpace.drafters.lookup import History, Lookup
from outpace.models.transformer import Transformer
from outpace.verification.probabilities import Sampling
from toys import given_coins, must_fail, reference, run

END = 0


def draft(text: list[int]) -> list[int]:
    lookup = Lookup(eos_ids=(END,))
    state = lookup.open(1, len(text))
    lookup.admit(state, [text], None)
    proposal = lookup.propose(state, Budget.chain([5]), [Sampling()], given_coins(torch.zeros(1)))
    return proposal.tree.to_lists()[0][0]


def case(target: Transformer) -> None:
    assert draft([4, 51, END, 7, 8, 51]) in ([], [END])
    assert draft([51, 7, END, 8, 51]) in ([7], [7, END])
    assert draft([5, 6, END, 9, 5, 6, END]) == []  # what follows an end is another text
    assert draft([6, END, 9, 3, 2, END, 9]) == [3, 2, END]  # 9 alone agrees; the end before it is no part of the match
    assert draft([1, END, 9, 3, END, 8, END, 9]) == [3, END]
    said = reference(target, (1, 2, 3), 40)
    eos = said[25]
    prompt = [1, 2, 3, eos, 4, 5, eos, 1, 2, 3]
    [row] = run(target, Lookup(eos_ids=(eos,)), [Request(prompt, max_new_tokens=30, eos_ids=(eos,))])
    assert row.ids == reference(target, tuple(prompt), 30, (eos,))


def test_case(tiny: Transformer) -> None:
    case(tiny)


@pytest.mark.parametrize("fault", ["matches", "copies"])
def test_planted_fault(fault: str, tiny: Transformer, monkeypatch: pytest.MonkeyPatch) -> None:
    append = History.append
    if fault == "matches":
        monkeypatch.setattr(History, "append", lambda self, token, ends: append(self, token, False))
    else:

        def copies_on(self: Lookup, row: History, limit: int) -> list[int]:
            ends, self.eos_ids = self.eos_ids, frozenset()
            copied: Any = COPY(self, row, limit)
            self.eos_ids = ends
            return copied

        monkeypatch.setattr(Lookup, "_copy", copies_on)
    with must_fail():
        case(tiny)


COPY = Lookup._copy
