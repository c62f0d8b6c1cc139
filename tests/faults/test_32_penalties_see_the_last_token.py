"""32: a penalty's state is fed the last token of a run only: the better the drafter, the weaker the penalty."""

from typing import Any

import pytest
import torch

from changed import changed_reference, penalising
from outpace.decoding import processors
from outpace.decoding.generate import generate
from outpace.drafters.lookup import Lookup
from outpace.models.toy import table_target
from toys import Scripted, must_fail, right_then_wrong

A, B, C, START = 0, 1, 2, 3
NEW = 24
ROW = torch.tensor([3.0, 2.0, 1.9, -9.0])


def case() -> None:
    """A A A B C …: the same for every number of drafts."""
    target = table_target(ROW.expand(4, 4))
    said = changed_reference(target, [START], NEW, penalising(1, frequency=0.4))
    assert said[:5] == [A, A, A, B, C]
    for depth in (0, 1, 2, 4, 8):
        for counts in ([8], [3, 1, 0]):
            for drafter in (Lookup(), Scripted(right_then_wrong([[START, *said, *[0] * 9]], counts, 4), vocab=4)):
                found = generate(
                    target, drafter, [START], max_new_tokens=NEW, num_draft_tokens=depth, frequency_penalty=0.4
                )
                assert found.token_ids == said
                if depth and counts == [8] and isinstance(drafter, Scripted):
                    drafting = found.stats.speculation
                    assert drafting.accepted >= drafting.turns * depth * 0.7  # runs of several tokens there are


def test_case() -> None:
    case()


def test_planted_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    honest, fed = processors._process_entry, [START]

    def fed_once_a_turn(logits: Any, text: list[int], own: Any, tokens: list[int], parents: list[int]) -> None:
        if len(text) == 1:
            fed[:] = text
        elif len(text) > 1:
            fed.append(text[-1])
        honest(logits, list(fed), own, tokens, parents)

    monkeypatch.setattr(processors, "_process_entry", fed_once_a_turn)
    with must_fail():
        case()
