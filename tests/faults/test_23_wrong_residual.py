"""23: after a rejection the token is drawn from the wrong rest of the target's law."""

from typing import Any

import pytest
import torch
from torch import Tensor

from outpace.models.toy import random_table
from outpace.verification import branching, chain
from outpace.verification.oracle import Table, map_sampler, output_law, sampled, total_variation
from outpace.verification.probabilities import Sampling, probability_rows
from outpace.verification.rules import RULES
from outpace.verification.tree import DraftTree
from toys import must_fail

TARGET, DRAFT = (torch.tensor(row).double().log() for row in ([0.5, 0.3, 0.15, 0.05], [0.1, 0.2, 0.3, 0.4]))
NAMES = ["rejection", "block", "tree-rejection", "traversal"]


def table(seed: int) -> Table:
    rows = probability_rows(random_table(3, seed=seed), Sampling(1.0))
    return Table.of(lambda prefix: rows[prefix[-1] if prefix else 0], 3, 4)


def case(name: str) -> None:
    """The sampler, measured over all its coins, emits the target's law; three drafts in a row keep the joint law."""
    target, draft = (probability_rows(logits, Sampling(1.0)) for logits in (TARGET, DRAFT))
    first = torch.zeros(4, dtype=torch.float64)
    for token in range(4):
        tree = DraftTree.chain(torch.tensor([[token]]))
        law = map_sampler(RULES[name], target.repeat(1, 2, 1), tree, draft.repeat(1, 2, 1)).law
        first += draft[token] * law[0]
        first[token] += draft[token] * law[1].sum()
    assert total_variation(first, target) < 1e-6
    joint = output_law(RULES[name], table(1), sampled(table(2), (-1, 0, 1)), 4)
    assert total_variation(joint, table(1).joint(4)) < 1e-6


@pytest.mark.parametrize("name", NAMES)
def test_the_rest_is_the_positive_part(name: str) -> None:
    case(name)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("fault", ["drawn again from the whole", "only the rejected token is out"])
def test_planted_fault(fault: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def subtract(scaled: Tensor, draft: Any, token: Tensor) -> Tensor:
        return scaled if fault == "drawn again from the whole" else scaled.scatter_(1, token[:, None], 0)

    for module in (chain, branching):
        monkeypatch.setattr(module, "subtract_draft_", subtract)
    with must_fail():
        case(name)
