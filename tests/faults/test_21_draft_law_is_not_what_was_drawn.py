"""21: drafts are drawn from one law and judged by another: raw against warped, or rounded against not."""

from itertools import product
from typing import Any

import pytest
import torch

from outpace.drafters.budget import Budget
from outpace.drafters.drafter import Proposal
from outpace.drafters.small import Small
from outpace.models.toy import table_target
from outpace.verification.probabilities import Sampling, probability_rows
from outpace.verification.rules import RULES
from toys import first_token_law, grid, must_fail, total_variation

TARGET = torch.tensor([0.50, 0.30, 0.15, 0.05], dtype=torch.float64)
DRAFT = torch.tensor([0.10, 0.20, 0.30, 0.40], dtype=torch.float64)
COINS = 4_000


def propose(sampling: Sampling) -> tuple[torch.Tensor, torch.Tensor]:
    """The law that a small drafter draws from, by every coin, and the one that it claims."""
    model = table_target(DRAFT.log().expand(4, 4))
    small = Small(model, table_target(TARGET.log().expand(4, 4)))
    state = small.open(COINS, 4)
    small.admit(state, [[0]] * COINS, None)
    small.commit(state, [[1]] * COINS, None)
    proposal = small.propose(state, Budget.chain([1] * COINS), [sampling] * COINS, grid(COINS))
    assert proposal.draft_probs is not None
    return torch.bincount(proposal.tree.tokens[:, 0], minlength=4) / COINS, proposal.draft_probs[0, 0]


def case(sampling: Sampling) -> None:
    target = probability_rows(TARGET.log(), sampling)
    drawn, claimed = propose(sampling)
    assert total_variation(drawn, claimed) < 1e-3  # coins come in steps of 1 / 4,000
    for name in ("rejection", "block", "tree-rejection", "traversal"):
        law, accepted = first_token_law(RULES[name], target, claimed, claimed)
        assert total_variation(law, target) < 1e-12
        assert accepted == pytest.approx(float(torch.minimum(target, claimed).sum()), abs=1e-12)


@pytest.mark.parametrize("warp", [*product((0.5, 1.0, 2.0), (0, 2), (1.0, 0.65))], ids=str)
def test_case(warp: tuple[float, int, float]) -> None:
    case(Sampling(*warp))


def test_the_fault_has_the_published_law() -> None:
    top_two = probability_rows(DRAFT.log(), Sampling(1.0, top_k=2))
    law, _ = first_token_law(RULES["rejection"], TARGET, top_two, DRAFT)
    torch.testing.assert_close(law, torch.tensor([0.571, 0.143, 0.214, 0.071]).double(), rtol=0, atol=1e-3)
    assert total_variation(law, TARGET) == pytest.approx(0.157, abs=1e-3)


def test_planted_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = Small.propose

    def raw(self: Small, *of: Any) -> Proposal:
        proposal = honest(self, *of)
        assert proposal.draft_logits is not None
        return Proposal(proposal.tree, proposal.draft_logits.softmax(-1))

    monkeypatch.setattr(Small, "propose", raw)
    for sampling in (Sampling(0.5), Sampling(1.0, top_k=2), Sampling(1.0, top_p=0.65)):
        with must_fail():
            case(sampling)
