"""10: a minimum of new tokens counts turns, so that the end of text stays forbidden too long, or comes at once."""

from typing import Any

import pytest
import torch
from torch import Tensor

from changed import one_text_for_all, root_only
from outpace.decoding import processors
from outpace.decoding.generate import generate
from outpace.decoding.penalties import MinNewTokens
from outpace.drafters.lookup import Lookup
from outpace.drafters.small import Small
from outpace.models.function import FunctionTarget
from toys import Scripted, must_fail, right_then_wrong

PROMPT, EOS, VOCAB = [1, 2], 15, 16
SAID = [3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14]


def eager() -> FunctionTarget:
    """Says 3, 4, 5 and then wants to end, whenever it may."""
    said = torch.tensor(SAID)

    def logits_of(ids: Tensor) -> Tensor:
        place = torch.arange(ids.shape[1]) + 1 - len(PROMPT)
        rows = 9.0 * torch.nn.functional.one_hot(said[place.clamp(0, len(SAID) - 1)], VOCAB)
        rows[place >= 3, EOS] = 12.0
        return rows.expand(len(ids), -1, -1)

    return FunctionTarget(logits_of, VOCAB, eos_ids=(EOS,))


def case() -> None:
    """The end is allowed exactly from the seventh token on, however the drafts fall."""
    target = eager()
    text = [*PROMPT, *SAID[:6], EOS]
    for depth in (0, 1, 2, 4, 8):
        for counts in ([8], [2, 1, 5]):
            for drafter in (
                Lookup(),
                Small(target, target),
                Scripted(right_then_wrong([[*text, *[0] * 9]], counts, VOCAB), vocab=VOCAB),
            ):
                result = generate(target, drafter, PROMPT, min_new_tokens=6, num_draft_tokens=depth)
                assert [*PROMPT, *result.token_ids] == text and result.finish_reason == "stop"


def test_case() -> None:
    case()


def test_without_a_minimum_it_ends_at_once() -> None:
    assert generate(eager(), None, PROMPT).token_ids == [3, 4, 5, EOS]


def by_turns(self: MinNewTokens, prefix_ids: Tensor, logits: Tensor) -> Tensor:
    """Counts how often it was asked about a text that is not longer than the last one, and once more."""
    count = COUNTS.setdefault(id(self), [0, 0])
    count[0] += prefix_ids.shape[1] <= count[1] or count[1] == 0
    count[1] = prefix_ids.shape[1]
    return logits if count[0] > self.count else logits.index_fill(1, torch.tensor(self.eos_ids), -torch.inf)


COUNTS: dict[int, list[int]] = {}
FAULTS: dict[str, tuple[Any, str, Any]] = {
    "turns are counted": (MinNewTokens, "__call__", by_turns),
    "a block has one length": (processors, "_process_entry", one_text_for_all),
    "drafts are free": (processors, "_process_entry", root_only),
}


@pytest.mark.parametrize("name", FAULTS)
def test_planted_fault(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(*FAULTS[name])
    with must_fail():
        case()
