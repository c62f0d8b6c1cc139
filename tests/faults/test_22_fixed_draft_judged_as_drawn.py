"""22: a deterministic draft is judged as if it had been drawn from the draft model's soft law."""

import pytest
import torch

from outpace.decoding.judging import _rule_in_force
from outpace.drafters.budget import Budget
from outpace.drafters.lookup import Lookup
from outpace.verification.probabilities import Sampling, probability_rows
from outpace.verification.rules import RULES
from toys import Scripted, first_token_law, given_coins, must_fail, total_variation

TARGET = torch.tensor([0.50, 0.30, 0.15, 0.05], dtype=torch.float64)
DRAFT = torch.tensor([0.10, 0.20, 0.30, 0.40], dtype=torch.float64)
ALWAYS = torch.tensor([0.0, 0.0, 0.0, 1.0], dtype=torch.float64)


def case(drafter: Lookup | Scripted) -> None:
    """A drafter that always says 3 claims no law, or a one-hot one, and what it is judged by has the target's law."""
    state = drafter.open(1, 8)
    drafter.admit(state, [[0, 3, 3]], None)
    proposal = drafter.propose(state, Budget.chain([1]), [Sampling(1.0)], given_coins(torch.zeros(1)))
    assert proposal.tree.to_lists() == [([3], [-1])]
    claimed = None if proposal.draft_probs is None else proposal.draft_probs[0, 0].double()
    rule = RULES[_rule_in_force(Sampling(1.0), False, proposal, None)]
    law, _ = first_token_law(rule, TARGET, ALWAYS, claimed)
    assert total_variation(law, TARGET) < 1e-12


@pytest.mark.parametrize("laws", [None, "one-hot"])
def test_case(laws: str | None) -> None:
    case(Lookup())
    case(Scripted(lambda row, limit: [3], laws=laws, vocab=4))


def test_a_greedy_target_takes_the_argmax_whatever_the_draft_claims() -> None:
    greedy = probability_rows(TARGET.log(), Sampling())
    for name in RULES:
        law, _ = first_token_law(RULES[name], greedy, ALWAYS, DRAFT)
        assert law.tolist() == [1, 0, 0, 0]


def test_the_fault_has_the_published_law() -> None:
    law, _ = first_token_law(RULES["rejection"], TARGET, ALWAYS, DRAFT)
    torch.testing.assert_close(law, torch.tensor([0.70, 0.175, 0.0, 0.125]).double(), rtol=0, atol=1e-7)


def test_planted_fault() -> None:
    with must_fail():
        case(Scripted(lambda row, limit: [3], laws="soft", vocab=4))
