"""24: draft and target agree up to rounding, a rejection happens all the same, and nothing is left to draw from."""

from typing import Any

import pytest
import torch
from torch import Tensor

from outpace.decoding.judging import judge
from outpace.drafters.drafter import Proposal
from outpace.verification import chain
from outpace.verification.probabilities import Sampling, probability_rows
from outpace.verification.rules import RULES
from outpace.verification.tree import DraftTree
from toys import given_coins, must_fail

COINS = torch.tensor([0.0, 0.3, 0.999999, 1 - 2.0**-53], dtype=torch.float64)
FORBIDDEN, SURE = -torch.inf, 50.0
ROWS = {"soft": [FORBIDDEN, 0.0, 1.0, 0.5], "one-hot": [FORBIDDEN, FORBIDDEN, SURE, FORBIDDEN]}
OFF = {"equal": 1.0, "just over": 1 + 2.0**-20, "just under": 1 - 2.0**-20}


def case(rule: str, row: list[float], factor: float, dtype: torch.dtype) -> None:
    """Every coin at its edges: a token that the target can say, and a law that is one."""
    logits = torch.tensor(row).to(dtype).expand(len(COINS), 3, -1)
    probs = probability_rows(logits, Sampling(1.0))
    claimed = probs * factor  # a law up to rounding
    tree = DraftTree.chain(torch.full((len(COINS), 2), 2))
    keys = given_coins(COINS)
    verdict, *_ = judge(logits, Proposal(tree, claimed), [Sampling(1.0)] * len(COINS), keys, rule)
    assert bool((probs[:, 0].gather(1, verdict.next_token[:, None]) > 0).all()), "a token that the target cannot say"
    law: Tensor = RULES[rule].law(probs, tree, claimed)
    assert bool(law.isfinite().all()) and bool((law[..., 0] == 0).all())
    torch.testing.assert_close(law.sum((1, 2)), torch.ones(len(COINS)))


@pytest.mark.parametrize("rule", ["rejection", "block", "tree-rejection", "traversal"])
@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("off", OFF)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_case(rule: str, row: str, off: str, dtype: torch.dtype) -> None:
    case(rule, ROWS[row], OFF[off], dtype)


def residual_only(end: Tensor, judged: Any, target_probs: Tensor, tree: DraftTree, draft_probs: Any) -> Tensor:
    batch = torch.arange(len(end))
    rest = (target_probs[batch, end] - draft_probs[batch, end]).clamp(min=0)
    return rest.where((end < judged.lengths)[:, None], target_probs[batch, end])


def test_planted_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chain, "_next_rows", residual_only)
    for rule in ("rejection", "block"):
        with must_fail():
            case(rule, ROWS["soft"], OFF["just over"], torch.float32)
