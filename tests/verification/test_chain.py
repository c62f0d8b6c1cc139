"""Chains at their edges: equality, zeros, one-hot rows, ragged rows, broken drafts."""

import itertools
import math

import pytest
import torch
from torch import Tensor

from outpace.errors import UsageError
from outpace.verification.oracle import LAST_COIN
from outpace.verification.rules import RULES, rule_named
from outpace.verification.tree import DraftTree
from outpace.verification.verdict import Verdict

CHAIN_RULES = ("rejection", "block")


def laws(*shape: int, seed: int, spread: float = 1.5) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (spread * torch.randn(shape, generator=generator, dtype=torch.float64)).softmax(-1)


def tokens_of(*shape: int, vocab: int, seed: int) -> Tensor:
    return torch.randint(vocab, shape, generator=torch.Generator().manual_seed(seed))


def coins_of(*shape: int, seed: int) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def emitted(verdict: Verdict, tree: DraftTree) -> list[list[int]]:
    """The tokens of each row's turn."""
    rows = zip(verdict.path.tolist(), verdict.next_token.tolist(), tree.tokens.tolist(), strict=True)
    return [[tokens[node] for node in path if node >= 0] + [following] for path, following, tokens in rows]


def test_the_coin_at_the_ratio() -> None:
    """p / q = 1/2: accepted just below it, rejected at it; coin 0 never accepts a token of probability zero."""
    target = torch.tensor([[[0.25, 0.75, 0.0], [0.0, 0.0, 1.0]]], dtype=torch.float64)
    draft = torch.tensor([[[0.5, 0.25, 0.25], [1.0, 0.0, 0.0]]], dtype=torch.float64)
    below = math.nextafter(0.5, 0)
    for name in CHAIN_RULES:
        for token, coin, accepted in ((0, below, 1), (0, 0.5, 0), (1, LAST_COIN, 1), (2, 0.0, 0)):
            tree = DraftTree.chain(torch.tensor([[token]]))
            verdict = RULES[name].judge(target, tree, draft, torch.tensor([[coin, 0.3]], dtype=torch.float64))
            assert verdict.num_accepted.item() == accepted, (name, token, coin)
            assert verdict.next_token.item() == (2 if accepted else 1)
            assert (verdict.rule, verdict.lossless) == (name, True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", CHAIN_RULES)
def test_residuals_without_mass(name: str, dtype: torch.dtype) -> None:
    """Equal rows, equal one-hot rows, and a target below the draft everywhere by rounding: no NaN, target's tokens."""
    soft = torch.tensor([0.5, 0.5, 0.0], dtype=dtype)
    sharp = torch.tensor([0.0, 1.0, 0.0], dtype=dtype)
    below = soft * (1 - 1e-7)
    for target, draft in ((soft, soft), (sharp, sharp), (below, soft)):
        for coin, draw in itertools.product((0.0, 1 - 1e-7, LAST_COIN), (0.0, 0.7, LAST_COIN)):
            tree = DraftTree.chain(torch.tensor([[1, 1]]))
            rows = (target.expand(1, 3, 3), draft.expand(1, 3, 3))
            coins = torch.tensor([[coin, coin, draw]], dtype=torch.float64)
            verdict = RULES[name].judge(rows[0], tree, rows[1], coins)
            assert target[verdict.next_token.item()] > 0
            law = RULES[name].law(rows[0], tree, rows[1])
            assert law.isfinite().all() and law.sum().item() == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("name", CHAIN_RULES)
def test_one_hot_drafts_need_no_rows(name: str) -> None:
    """``None`` is the same as the one-hot rows it stands for, in law and coin by coin."""
    target, tokens = laws(40, 4, 5, seed=1), tokens_of(40, 3, vocab=5, seed=2)
    tree = DraftTree.chain(tokens)
    rows = torch.nn.functional.one_hot(tokens, 5).double()
    rows = torch.cat([rows, torch.zeros(40, 1, 5, dtype=torch.float64)], 1)
    torch.testing.assert_close(RULES[name].law(target, tree, None), RULES[name].law(target, tree, rows))
    coins = coins_of(40, 4, seed=3)
    with_rows, without = (RULES[name].judge(target, tree, draft, coins) for draft in (rows, None))
    assert emitted(with_rows, tree) == emitted(without, tree)


@pytest.mark.parametrize("draft_given", [True, False])
@pytest.mark.parametrize("name", RULES)
def test_ragged_rows_are_judged_as_if_alone(name: str, draft_given: bool) -> None:
    """The last column draws for every row; filler rows are rubbish and are not read."""
    lengths = [3, 0, 1, 2, 3, 2]
    target, draft = laws(6, 4, 5, seed=4), laws(6, 4, 5, seed=5)
    for row, length in enumerate(lengths):
        target[row, length + 1 :], draft[row, length:] = math.nan, math.nan
    tokens, coins = tokens_of(6, 3, vocab=5, seed=6), coins_of(6, 4, seed=7)
    tree = DraftTree.chain(tokens, torch.tensor(lengths))
    together = RULES[name].judge(target, tree, draft if draft_given else None, coins)
    for row, length in enumerate(lengths):
        alone = DraftTree.chain(tokens[row, None, :length])
        rows = slice(length + 1)
        own = torch.cat([coins[row, :length], coins[row, -1:]]) if name != "match" else coins[row, rows]
        law = draft[row, None, rows] if draft_given else None
        verdict = RULES[name].judge(target[row, None, rows], alone, law, own[None])
        assert emitted(verdict, alone)[0] == emitted(together, tree)[row]
        assert together.num_accepted[row] == verdict.num_accepted[0] == (together.path[row] >= 0).sum()


@pytest.mark.parametrize("broken", [0.0, math.nan])
@pytest.mark.parametrize("name", ["rejection", "block", "tree-rejection", "traversal"])
def test_what_cannot_have_been_drawn_counts_as_no_draft(name: str, broken: float) -> None:
    """A draft row without the token it claims, or not finite: the law is that of the draft before it."""
    target, draft = laws(1, 4, 3, seed=8), laws(1, 4, 3, seed=9)
    draft[0, 1] = broken
    whole = DraftTree.chain(torch.tensor([[0, 1, 2]]))
    law = RULES[name].law(target, whole, draft)
    short = RULES[name].law(target[:, :2], DraftTree.chain(torch.tensor([[0]])), draft[:, :2])
    torch.testing.assert_close(law[:, :2], short)
    assert (law[:, 2:] == 0).all()
    verdict = RULES[name].judge(target, whole, draft, torch.zeros(1, 4, dtype=torch.float64))
    assert verdict.num_accepted.item() <= 1


@pytest.mark.parametrize("name", CHAIN_RULES)
def test_long_improbable_chains_do_not_underflow(name: str) -> None:
    """Products of ratios far below the smallest fp32 number and back: finite laws, and zero stays absorbing."""
    target, draft = torch.full((1, 13, 2), 0.5), torch.full((1, 13, 2), 0.5)
    target[0, :6, 0], draft[0, :6, 0] = 1e-10, 1.0
    target[0, 6:12, 0], draft[0, 6:12, 0] = 1.0, 1e-10
    target[..., 1], draft[..., 1] = 1 - target[..., 0], 1 - draft[..., 0]
    tree = DraftTree.chain(torch.zeros(1, 12, dtype=torch.int64))
    law = RULES[name].law(target, tree, draft)
    assert law.isfinite().all() and law.sum().item() == pytest.approx(1, abs=1e-5)
    if name == "block":
        reached = law[0, 12].sum().item()
        assert reached == pytest.approx(1, abs=1e-3), "the ratios cancel, so the whole chain is as likely as the draft"
    target[0, 3] = torch.tensor([0.0, 1.0])
    assert (RULES[name].law(target, tree, draft)[0, 4:] == 0).all()


@pytest.mark.parametrize("name", CHAIN_RULES)
def test_branching_drafts_are_refused_by_name(name: str) -> None:
    tree = DraftTree.from_lists([([0, 1], [-1, -1])])
    rows = laws(1, 3, 2, seed=0)
    with pytest.raises(UsageError, match=f"rule '{name}' judges chains.*\nhint: use greedy, match, tree-rejection or"):
        RULES[name].judge(rows, tree, None, torch.zeros(1, 3, dtype=torch.float64))
    with pytest.raises(UsageError, match="judges chains"):
        RULES[name].law(rows, tree, None)


def test_unknown_rules_are_refused_with_the_list() -> None:
    assert rule_named("block") is RULES["block"]
    with pytest.raises(
        UsageError, match="rule is 'atypical'; allowed: greedy, match, rejection, block, tree-rejection,"
    ):
        rule_named("atypical")
