"""14: rows draft different numbers of tokens, and the filler between them is read as a token."""

import pytest
import torch
from torch import Tensor

from outpace.decoding.loop import Request
from outpace.models.function import FunctionTarget
from outpace.models.toy import random_table
from outpace.verification.tree import DraftTree
from toys import Scripted, must_fail, reference, right_then_wrong, run

PROMPTS = [(1,), (2, 3), (4, 5, 6)]


def case() -> None:
    """Rows with 0, 2 and 5 drafts: no id outside the vocabulary is ever read."""
    table = random_table(16, seed=1)

    def logits_of(ids: Tensor) -> Tensor:
        assert int(ids.min()) >= 0 and int(ids.max()) < 16, "filler was read"
        return table[ids]

    target = FunctionTarget(logits_of, 16)
    texts = [[*prompt, *reference(target, prompt, 20)] for prompt in PROMPTS]
    drafter = Scripted(
        lambda row, limit: right_then_wrong(texts, [5], 16)(row, limit)[: (0, 2, 5)[len(row.prompt) - 1]]
    )
    rows = run(target, drafter, [Request(prompt, max_new_tokens=12) for prompt in PROMPTS], num_draft_tokens=5)
    assert [row.ids for row in rows] == [reference(target, prompt, 12) for prompt in PROMPTS]


def test_case() -> None:
    case()


def test_planted_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DraftTree, "real", property(lambda self: torch.ones_like(self.tokens, dtype=torch.bool)))
    with must_fail():
        case()
