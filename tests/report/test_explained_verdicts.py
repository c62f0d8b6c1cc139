"""What the page says of a verdict is what the shipped rule did: its chances and laws are the rule's own.

Tables are random with fixed seeds; the statements hold for any, so there is no false-alarm probability.
"""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from outpace.report.laws import Law
from outpace.report.verdicts import Draft, explain
from outpace.verification.matching import follow
from outpace.verification.probabilities import draw
from outpace.verification.rules import CHAIN_ONLY, RULES
from outpace.verification.tree import DraftTree

VOCAB = 6
CHAIN = [-1, 0, 1, 2]
TREES = [CHAIN, [-1, -1, -1], [-1, -1, 0, 0, 1, 2], [-1, 0, 0, -1, 3, 2, 1]]


def tokens_of(parents: list[int], probs: Tensor, generator: torch.Generator) -> list[int]:
    """Children of each row drawn without replacement from its law."""
    found: list[int] = []
    for node, parent in enumerate(parents):
        law = probs[0, parent + 1].clone()
        law[[found[other] for other in range(node) if parents[other] == parent]] = 0
        found.append(int(torch.multinomial(law, 1, generator=generator)))
    return found


def case(rule: str, parents: list[int], seed: int, drawn: bool) -> tuple[Draft, Tensor]:
    """A turn that the shipped rule judged, and the rule's law over (row, next token)."""
    generator = torch.Generator().manual_seed(seed)
    rows = len(parents) + 1
    target = torch.randn(1, rows, VOCAB, generator=generator, dtype=torch.float64).mul(1.5).softmax(-1)
    draft = torch.randn(1, rows, VOCAB, generator=generator, dtype=torch.float64).mul(1.5).softmax(-1)
    tokens = tokens_of(parents, draft, generator)
    tree = DraftTree(torch.tensor([tokens]), torch.tensor([parents]), torch.tensor([len(parents)]))
    coins = torch.rand(1, rows, generator=generator, dtype=torch.float64)
    laws = draft if drawn else None
    verdict = RULES[rule].judge(target.clone(), tree, None if laws is None else laws.clone(), coins)
    whole = RULES[rule].law(target.clone(), tree, None if laws is None else laws.clone())[0]
    as_law = [[Law(dict(enumerate(row.tolist()))) for row in part[0]] for part in (target, draft)]
    probs = [
        float(draft[0, parent + 1, token]) if drawn else 1.0 for parent, token in zip(parents, tokens, strict=True)
    ]
    path = [node for node in verdict.path[0].tolist() if node >= 0]
    return (
        Draft(
            rule,
            parents,
            tokens,
            probs,
            as_law[0],
            as_law[1] if drawn else None,
            path,
            int(verdict.next_token[0]),
            coins[0].tolist(),
        ),
        whole,
    )


CASES = [
    (rule, tree, drawn)
    for rule in ("rejection", "block", "tree-rejection", "traversal")
    for tree in TREES
    for drawn in (True, False)
    if tree == CHAIN or rule not in CHAIN_ONLY
]


@pytest.mark.parametrize(("rule", "parents", "drawn"), CASES, ids=str)
def test_chances_and_laws_are_the_rules_own(rule: str, parents: list[int], drawn: bool) -> None:
    """The chances of the tests multiply to the rule's chance to end there, and what is left is its law there."""
    ends = set()
    for seed in range(25):
        turn, whole = case(rule, parents, seed, drawn)
        found = explain(turn)
        ends.add(turn.end)
        chance = math.prod(test.chance if test.accepted else 1 - test.chance for test in found.tests)
        here = whole[turn.end]
        assert chance == pytest.approx(float(here.sum()), abs=1e-9)
        assert [found.left.prob(token) for token in range(VOCAB)] == pytest.approx(
            (here / here.sum()).tolist(), abs=1e-9
        )
        assert found.explained and not any(test.about for test in found.tests)
        assert int(draw(here[None], torch.tensor([turn.coins[-1]]))) == turn.next_token
    assert len(ends) > 2


@pytest.mark.parametrize("rule", ["rejection", "block", "tree-rejection", "traversal"])
def test_a_wrong_coin_is_noticed(rule: str) -> None:
    """A planted fault: with the coins of another turn the verdict is not explained, in most cases."""
    wrong = 0
    for seed in range(40):
        turn, _ = case(rule, CHAIN, seed, True)
        wrong += not explain(replace(turn, coins=[1 - coin for coin in turn.coins])).explained
    assert wrong > 10


@pytest.mark.parametrize("rule", ["rejection", "tree-rejection"])
def test_a_wrong_draft_law_is_noticed(rule: str) -> None:
    """A planted fault: a page that took q for p would show another chance."""
    apart = 0.0
    for seed in range(10):
        turn, whole = case(rule, CHAIN, seed, True)
        found = explain(replace(turn, draft=turn.target))
        here = whole[turn.end]
        apart = max(apart, *(abs(found.left.prob(token) - float(here[token] / here.sum())) for token in range(VOCAB)))
    assert apart > 0.05


@pytest.mark.parametrize("parents", TREES, ids=str)
def test_the_targets_choice_decides_by_itself(parents: list[int]) -> None:
    for seed in range(25):
        generator = torch.Generator().manual_seed(seed)
        choice = torch.randint(VOCAB, (1, len(parents) + 1), generator=generator)
        tokens = tokens_of(parents, torch.ones(1, len(parents) + 1, VOCAB), generator)
        tree = DraftTree(torch.tensor([tokens]), torch.tensor([parents]), torch.tensor([len(parents)]))
        verdict = follow(choice, tree, "greedy")
        path = [node for node in verdict.path[0].tolist() if node >= 0]
        rows = [Law.one_hot(token) for token in choice[0].tolist()]
        ones = [1.0] * len(parents)
        found = explain(
            Draft("greedy", parents, tokens, ones, rows, None, path, int(verdict.next_token[0]), [0.5] * len(rows))
        )
        assert [test.node for test in found.tests if test.accepted] == path and found.explained
        for test in found.tests:
            assert test.accepted == (tokens[test.node] == int(choice[0, parents[test.node] + 1]))
        planted = replace(Draft("greedy", parents, tokens, ones, rows, None, path, 0, [*ones, 0.5]), next_token=0)
        assert explain(planted).explained == (int(choice[0, planted.end]) == 0)


def test_a_match_shows_the_coin_of_its_row() -> None:
    rows = [Law({0: 0.5, 1: 0.5}), Law({0: 1.0})]
    found = explain(Draft("match", [-1], [0], [1.0], rows, None, [0], 0, [0.3, 0.9]))
    assert found.tests[0].coin == 0.3 and found.coin == 0.9 and found.tests[0].chance is None


def test_a_plain_turn_has_no_test() -> None:
    found = explain(Draft("block", [], [], [], [Law({3: 1.0})], None, [], 3, [0.2]))
    assert (found.tests, found.coin, found.explained) == ([], 0.2, True)
    assert explain(Draft("greedy", [], [], [], [Law({3: 1.0})], None, [], 3, [0.2])).coin is None
    assert not explain(Draft("greedy", [], [], [], [Law({3: 1.0})], None, [], 4, [0.2])).explained


def test_typical_acceptance_uses_no_coin() -> None:
    rows = [Law({0: 0.6, 1: 0.4}), Law({2: 1.0})]
    found = explain(Draft("typical", [-1], [0], [1.0], rows, None, [0], 2, [0.1, 0.2]))
    assert [(test.accepted, test.chance, test.coin) for test in found.tests] == [(True, None, None)]
    assert found.left == rows[1] and not found.residual
