"""The oracle itself: tables, drafts, completion and mapping, each against something computed another way."""

import itertools

import pytest
import torch
from torch import Tensor

from outpace.verification.oracle import (
    Table,
    count_prefixes,
    expected_tokens,
    fixed,
    map_sampler,
    one_turn,
    output_law,
    ranked,
    sampled,
    total_variation,
    tree_shapes,
)
from outpace.verification.rules import RULES
from outpace.verification.tree import DraftTree
from outpace.verification.verdict import DraftRows, Rule, Verdict

VOCAB = 3


def model(prefix: tuple[int, ...]) -> Tensor:
    """Any function of the prefix."""
    weights = [1.0 + ((7 * sum(prefix) + 3 * len(prefix) + 5 * token * token) % 11) for token in range(VOCAB)]
    return torch.tensor(weights, dtype=torch.float64) / sum(weights)


def drafter(prefix: tuple[int, ...]) -> Tensor:
    return model((*prefix, 1)).flip(0)


TARGET, DRAFT = Table.of(model, VOCAB, 4), Table.of(drafter, VOCAB, 4)


def test_prefixes_are_numbered_as_in_a_heap() -> None:
    assert count_prefixes(VOCAB, 3) == 1 + 3 + 9 + 27
    number = torch.tensor(0)
    for length, token in enumerate((2, 0, 1)):
        number = TARGET.after(number, torch.tensor(token))
        assert torch.equal(TARGET.rows[number], model((2, 0, 1)[: length + 1]))


def test_the_joint_law_is_the_product_of_the_rows() -> None:
    joint = TARGET.joint(3)
    for number, (a, b, c) in enumerate(itertools.product(range(VOCAB), repeat=3)):
        assert joint[number].item() == pytest.approx((model(())[a] * model((a,))[b] * model((a, b))[c]).item())
    assert joint.sum().item() == pytest.approx(1)


def test_sampled_drafts_are_drawn_without_replacement() -> None:
    drafts = sampled(DRAFT, (-1, -1, 0))(torch.zeros(1, dtype=torch.int64))
    assert drafts.chances.sum().item() == pytest.approx(1)
    assert drafts.draft_probs is not None
    for tokens, chance in zip(drafts.tree.tokens.tolist(), drafts.chances.tolist(), strict=True):
        first, second, below = tokens
        law, next_law = drafter(()), drafter((first,))
        assert first != second
        assert chance == pytest.approx((law[first] * law[second] / (1 - law[first]) * next_law[below]).item())
    assert len(drafts.chances) == 3 * 2 * 3


def test_ranked_and_fixed_drafts_are_certain() -> None:
    starts = torch.tensor([0, 2])
    drafts = ranked(DRAFT, (-1, -1, 1))(starts)
    assert drafts.draft_probs is None and drafts.chances.tolist() == [1, 1]
    order = drafter(()).argsort(descending=True, stable=True)
    second = int(order[1])
    assert drafts.tree.tokens[0].tolist() == [int(order[0]), second, int(drafter((second,)).argmax())]
    assert fixed(DRAFT, (-1, 0), (2, 2))(starts).tree.tokens.tolist() == [[2, 2], [2, 2]]


def test_expected_tokens_are_the_closed_form() -> None:
    """Rejection: one, plus the chance that the first token passes, plus the chance that two pass, ..."""
    overlap = sum(torch.minimum(model(()), drafter(())))
    two = sum(
        torch.minimum(model(())[a], drafter(())[a]) * torch.minimum(model((a,)), drafter((a,))).sum()
        for a in range(VOCAB)
    )
    assert expected_tokens(RULES["rejection"], TARGET, sampled(DRAFT, (-1,))) == pytest.approx(float(1 + overlap))
    assert expected_tokens(RULES["rejection"], TARGET, sampled(DRAFT, (-1, 0))) == pytest.approx(
        float(1 + overlap + two)
    )


def always_accept(target_probs: Tensor, tree: DraftTree, draft_probs: DraftRows) -> Tensor:
    law = torch.zeros_like(target_probs)
    law[torch.arange(len(law)), tree.num_nodes] = target_probs[torch.arange(len(law)), tree.num_nodes]
    return law


def test_a_lossy_rule_has_its_known_distance() -> None:
    """Accept whatever is drafted: the first token has the draft's law, so the distance is theirs."""
    rule = Rule("always", False, RULES["greedy"].judge, always_accept)
    law = output_law(rule, TARGET, sampled(DRAFT, (-1,)), 2)
    assert total_variation(law.reshape(3, 3).sum(1), drafter(())) == pytest.approx(0, abs=1e-15)
    first = total_variation(law.reshape(3, 3).sum(1), model(()))
    assert first == pytest.approx(total_variation(model(()), drafter(()))) and first > 0.05
    assert expected_tokens(rule, TARGET, sampled(DRAFT, (-1, 0))) == pytest.approx(3)


def test_two_turns_are_one_after_the_other() -> None:
    start = torch.zeros(count_prefixes(VOCAB, 4), dtype=torch.float64)
    start[0] = 1
    drafting = sampled(DRAFT, (-1,))
    first = one_turn(RULES["block"], TARGET, drafting, start)
    assert first[0] == 0 and first.sum().item() == pytest.approx(1)
    second = one_turn(RULES["block"], TARGET, drafting, first)
    assert torch.equal(TARGET.complete(second, 4), output_law(RULES["block"], TARGET, drafting, 4, turns=2))


def test_tree_shapes_are_counted_by_catalan_and_motzkin_numbers() -> None:
    assert [len(tree_shapes(nodes, nodes)) for nodes in range(1, 8)] == [1, 2, 5, 14, 42, 132, 429]
    assert [len(tree_shapes(nodes, 2)) for nodes in range(1, 8)] == [1, 2, 4, 9, 21, 51, 127]
    assert set(tree_shapes(3, 2)) == {(-1, -1, 0), (-1, -1, 1), (-1, 0, 0), (-1, 0, 1)}


def test_a_sampler_is_mapped_to_the_bit() -> None:
    """A hand-made sampler with known borders: a corner of the unit square and a narrow strip."""

    def judge(target_probs: Tensor, tree: DraftTree, draft_probs: DraftRows, coins: Tensor) -> Verdict:
        inside = (coins[:, 0] < 0.6) & (coins[:, 1] < 1e-6)
        token = (inside + 2 * (coins[:, 1] >= 0.9)).long()
        nowhere = torch.full((len(coins), 1), -1)
        return Verdict(nowhere, torch.zeros(len(coins), dtype=torch.int64), token, "corner", False)

    rule = Rule("corner", False, judge, always_accept)
    mapped = map_sampler(rule, model(()).expand(1, 2, 3), DraftTree.chain(torch.tensor([[0]])), None)
    assert mapped.law[0].tolist() == pytest.approx([0.9 - 6e-7, 6e-7, 0.1], abs=1e-15)
    for found, known in zip(mapped.breakpoints, ([0, 0.6, 1], [0, 1e-6, 0.9, 1]), strict=True):
        assert found.tolist() == pytest.approx(known, abs=1e-15)
