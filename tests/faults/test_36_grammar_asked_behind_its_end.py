"""36: a grammar that accepted the end within a block is asked for more, and the run ends with an error."""

import pytest
import torch
from torch import Tensor

from changed import Grammar
from outpace.decoding.generate import generate
from outpace.decoding.processors import UserProcessor
from outpace.drafters.drafter import Drafter
from outpace.drafters.lookup import Lookup
from outpace.drafters.small import Small
from outpace.models.function import FunctionTarget
from toys import Scripted, must_fail, right_then_wrong

OPEN, CLOSE, EOS, NOISE = 10, 11, 12, 13
VOCAB, PROMPT = 14, [NOISE, 3]
DIGITS = range(10)
STEPS: dict[str, dict[int, str]] = {
    "start": {OPEN: "first"},
    "first": dict.fromkeys(DIGITS, "digits"),
    "digits": dict.fromkeys(DIGITS, "digits") | {CLOSE: "closed"},
    "closed": {EOS: "end"},
    "end": {},
}
"""An opening bracket, one digit or more, a closing one, the end."""

WANTED = [OPEN, 1, 2, CLOSE, EOS]


def eager() -> FunctionTarget:
    """Would say (12) and end, if it did not like noise better."""
    said = torch.tensor([*WANTED, 7, 7])

    def logits_of(ids: Tensor) -> Tensor:
        place = (torch.arange(ids.shape[1]) + 1 - len(PROMPT)).clamp(0, len(said) - 1)
        rows = 9.0 * torch.nn.functional.one_hot(said[place], VOCAB)
        rows[:, NOISE] = 12.0
        return rows.expand(len(ids), -1, -1)

    return FunctionTarget(logits_of, VOCAB, eos_ids=(EOS,))


def case() -> None:
    """For every number of drafts and every alignment of the end within a block."""
    target = eager()
    text = [*PROMPT, *WANTED, 7, 7, *[NOISE] * 9]
    for depth in range(1, 9):
        drafters: list[Drafter] = [Lookup(), Small(target, target)]
        drafters += [
            Scripted(right_then_wrong([text], counts, VOCAB), vocab=VOCAB)
            for counts in ([8], [0, 8], [1, 8], [2, 8], [3, 8], [4, 8])
        ]
        for drafter in drafters:
            for options in ({}, {"temperature": 0.7}):
                grammar = Grammar(STEPS, len(PROMPT))
                try:
                    result = generate(target, drafter, PROMPT, num_draft_tokens=depth, processors=[grammar], **options)
                except RuntimeError as error:
                    raise AssertionError("the grammar failed") from error
                assert result.finish_reason == "stop"
                if not options:
                    assert result.token_ids == WANTED
                assert result.token_ids[0] == OPEN and result.token_ids[-2:] == [CLOSE, EOS]


def test_case() -> None:
    case()


def test_planted_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """The grammar is asked about whatever was drafted, the end or not."""
    monkeypatch.setattr(UserProcessor, "__call__", lambda self, prefix_ids, logits: self._ask(prefix_ids, logits))
    with must_fail():
        case()
