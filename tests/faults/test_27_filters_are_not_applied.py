"""27: top-k or top-p is computed and thrown away, or applied to one row of the block only."""

from typing import Any

import pytest
import torch

from outpace.decoding import judging
from outpace.decoding.loop import Request
from outpace.drafters.small import Small
from outpace.models.toy import table_target
from outpace.verification.probabilities import Sampling, probability_rows
from toys import Scripted, must_fail, run

TARGET = torch.tensor([0.50, 0.30, 0.15, 0.05], dtype=torch.float64)
DRAFT = torch.tensor([0.10, 0.20, 0.30, 0.40], dtype=torch.float64)
SEEDS, NEW = 200, 7


def said(sampling: Sampling, drafter: Any) -> torch.Tensor:
    target = table_target(TARGET.log().expand(4, 4))
    requests = [Request([0], sampling, NEW, seed=seed) for seed in range(SEEDS)]
    return torch.tensor([row.ids for row in run(target, drafter, requests, num_draft_tokens=2)])


def case() -> None:
    """Every place of every turn: all that may be said is said, nothing else is. A miss by chance: 42 (.85)^200."""
    target = table_target(TARGET.log().expand(4, 4))
    rows = judging.batch_probability_rows(TARGET.log().expand(1, 3, 4), [Sampling(1.0, top_p=0.75)])
    torch.testing.assert_close(rows, torch.tensor([0.625, 0.375, 0, 0]).double().expand(1, 3, 4))
    for drafter in (
        Small(table_target(DRAFT.log().expand(4, 4)), target),
        Scripted(lambda row, limit: [2, 1], vocab=4),
    ):
        free = said(Sampling(1.0), drafter)
        assert all({0, 1, 2} <= set(column) for column in free.T.tolist())
        for sampling in (Sampling(1.0, top_p=0.75), Sampling(1.0, top_k=2)):
            kept = said(sampling, drafter)
            assert set(kept.flatten().tolist()) == {0, 1}
            share = float((kept == 0).double().mean())
            assert share == pytest.approx(0.625, abs=6.5 * (0.625 * 0.375 / kept.numel()) ** 0.5)  # chance below 1e-9


def test_case() -> None:
    case()


def argmax_only(logits: torch.Tensor, samplings: list[Sampling]) -> torch.Tensor:
    return probability_rows(logits, Sampling())


def first_row_only(logits: torch.Tensor, samplings: list[Sampling]) -> torch.Tensor:
    rows = [probability_rows(logits[:, :1], samplings[0]), probability_rows(logits[:, 1:], Sampling(1.0))]
    return torch.cat(rows, 1)


@pytest.mark.parametrize("fault", [argmax_only, first_row_only])
def test_planted_fault(fault: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judging, "batch_probability_rows", fault)
    with must_fail():
        case()
