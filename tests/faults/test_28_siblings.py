"""28: several children of one node are tried, and what is left of the laws is not carried on."""

from typing import Any

import pytest
import torch
from torch import Tensor

from outpace.verification.branching import _Place
from outpace.verification.oracle import Table, fixed, output_law, sampled
from outpace.verification.rules import RULES
from toys import must_fail, total_variation

TARGET = torch.tensor([0.1, 0.2, 0.4, 0.3], dtype=torch.float64)
DRAFT = torch.tensor([0.4, 0.35, 0.15, 0.1], dtype=torch.float64)
RULES_FOR_TREES = ("tree-rejection", "traversal")


def first_token(rule: str, children: Any, target: Tensor) -> Tensor:
    vocab = len(target)
    table = Table(target.expand(1 + vocab, vocab))
    return output_law(RULES[rule], table, children, 2).view(vocab, vocab).sum(1)


def drawn(rule: str) -> Tensor:
    """Two siblings without replacement."""
    return first_token(rule, sampled(Table(DRAFT.expand(5, 4)), (-1, -1)), TARGET)


def chosen(rule: str) -> Tensor:
    """Two fixed siblings, 2 and then 1."""
    target = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    return first_token(rule, fixed(Table(target.expand(4, 3)), (-1, -1), (2, 1)), target)


def case() -> None:
    for rule in RULES_FOR_TREES:
        assert total_variation(drawn(rule), TARGET) < 1e-12
        assert total_variation(chosen(rule), torch.tensor([0.5, 0.3, 0.2])) < 1e-7


def test_case() -> None:
    case()


def target_stays(self: _Place, token: Tensor) -> None:
    first = self.target is None
    HONEST(self, token)
    if first:
        self.target = self.target_row[self.who]


def draft_stays(self: _Place, token: Tensor) -> None:
    whole = self.draft_probs[self.who, self.row] if self.draft_probs is not None else None
    HONEST(self, token)
    self.draft = whole


HONEST = _Place.fail


@pytest.mark.parametrize(
    ("fault", "published"),
    [
        (target_stays, [0.145, 0.29, 0.33, 0.235]),
        (draft_stays, [0.1, 0.2, 0.4042, 0.2958]),
    ],
)
def test_planted_fault(fault: Any, published: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_Place, "fail", fault)
    law = torch.tensor(published, dtype=torch.float64)
    torch.testing.assert_close(drawn("tree-rejection"), law, rtol=0, atol=1e-4)
    with must_fail():
        case()
