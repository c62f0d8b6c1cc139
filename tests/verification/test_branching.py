"""Trees at their edges: repeated siblings, used-up laws, mixed shapes in one batch, paths of verdicts."""

import pytest
import torch
from torch import Tensor

from outpace.verification.oracle import LAST_COIN
from outpace.verification.rules import RULES
from outpace.verification.tree import DraftTree

TREE_RULES = ("tree-rejection", "traversal")
SHAPES = [
    ([-1, -1, 0, 0, 1], [0, 1, 2, 0, 3]),
    ([-1, 0, 1], [3, 0, 0]),
    ([], []),
    ([-1, -1, -1], [2, 0, 1]),
    ([-1], [1]),
]


def laws(*shape: int, seed: int, spread: float = 1.5) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (spread * torch.randn(shape, generator=generator, dtype=torch.float64)).softmax(-1)


def coins_of(*shape: int, seed: int) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("name", ["match", *TREE_RULES])
def test_mixed_shapes_are_judged_as_if_alone(name: str, deterministic: bool) -> None:
    """Rows of one shape share a walk; which ones do must not show. Every shape stands in the batch eight times."""
    rows = [(tokens, parents) for parents, tokens in SHAPES] * 8
    tree = DraftTree.from_lists(rows)
    target, given = laws(40, 6, 4, seed=1), None if deterministic else laws(40, 6, 4, seed=2)
    coins = coins_of(40, 6, seed=3)
    law, verdict = RULES[name].law(target, tree, given), RULES[name].judge(target, tree, given, coins)
    torch.testing.assert_close(law.sum((1, 2)), torch.ones(40, dtype=torch.float64))
    for row, (tokens, parents) in enumerate(rows):
        one, size = slice(row, row + 1), 1 + len(tokens)
        alone = DraftTree.from_lists([(tokens, parents)])
        own = None if given is None else given[one, :size]
        own_coins = coins[one, :size] if name == "match" else torch.cat([coins[one, : size - 1], coins[one, -1:]], 1)
        torch.testing.assert_close(RULES[name].law(target[one, :size], alone, own)[0], law[row, :size])
        single = RULES[name].judge(target[one, :size], alone, own, own_coins)
        assert single.next_token[0] == verdict.next_token[row]
        assert [node for node in single.path[0].tolist() if node >= 0] == [
            node for node in verdict.path[row].tolist() if node >= 0
        ]


@pytest.mark.parametrize("deterministic", [False, True])
def test_only_rows_that_a_path_has_reached_are_asked_for(deterministic: bool) -> None:
    """Judged one at a time: the root, and then the nodes of the path; the verdict is the one with all rows at hand."""
    parents, tokens = SHAPES[0]
    tree, rule = DraftTree.from_lists([(tokens, parents)]), RULES["tree-rejection"]
    target, draft, coins = laws(200, 6, 4, seed=7), laws(200, 6, 4, seed=8), coins_of(200, 6, seed=9)
    deepest = 0
    for row in range(200):
        one, asked = slice(row, row + 1), set()

        def row_at(place: int, one: slice = one, asked: set[int] = asked) -> Tensor:
            asked.add(place)
            return target[one, place]

        given = None if deterministic else draft[one]
        assert rule.judge_reached is not None
        found, whole = (
            rule.judge_reached(row_at, tree, given, coins[one]),
            rule.judge(target[one], tree, given, coins[one]),
        )
        path = found.path[0].tolist()
        assert (path, int(found.next_token)) == (whole.path[0].tolist(), int(whole.next_token))
        assert asked == {0, *(node + 1 for node in path)}
        deepest = max(deepest, len(path))
    assert deepest == 2


@pytest.mark.parametrize("name", TREE_RULES)
def test_verdicts_are_paths(name: str) -> None:
    """Each node of a path is the child of the one before it, and the count is the path's length."""
    parents, tokens = SHAPES[0]
    tree = DraftTree.from_lists([(tokens, parents)] * 500)
    target, draft = laws(500, 6, 4, seed=4), laws(500, 6, 4, seed=5)
    verdict = RULES[name].judge(target, tree, draft, coins_of(500, 6, seed=6))
    assert verdict.rule == name and verdict.lossless
    seen = set()
    for path, count in zip(verdict.path.tolist(), verdict.num_accepted.tolist(), strict=True):
        nodes = path[:count]
        assert path[count:] == [-1] * (len(path) - count)
        assert [parents[node] for node in nodes] == [-1, *nodes][: len(nodes)]
        seen.add(tuple(nodes))
    assert len(seen) >= 5


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("name", TREE_RULES)
def test_repeated_siblings_add_nothing(name: str, deterministic: bool) -> None:
    """The law is that of the tree without them and without what hangs below them."""
    target, draft = laws(1, 7, 4, seed=7), laws(1, 7, 4, seed=8)
    whole = DraftTree.from_lists([([2, 2, 0, 1, 2, 0], [-1, -1, 0, 1, -1, -1])])
    kept = [0, 1, 3, 6]  # rows of the root, of the first 2, of its child, and of the last child of the root
    small = DraftTree.from_lists([([2, 0, 0], [-1, 0, -1])])
    given = None if deterministic else draft
    law = RULES[name].law(target, whole, given)
    expected = RULES[name].law(target[:, kept], small, None if deterministic else draft[:, kept])
    torch.testing.assert_close(law[:, kept], expected)
    assert (law[:, [2, 4, 5]] == 0).all()


@pytest.mark.parametrize("name", TREE_RULES)
def test_a_law_that_siblings_use_up(name: str) -> None:
    """As many children as the draft can draw: together they catch every token that the target can emit there."""
    target = torch.tensor([[[0.2, 0.8, 0.0], [0.5, 0.25, 0.25], [0.1, 0.9, 0.0], [1.0, 0.0, 0.0]]], dtype=torch.float64)
    draft = torch.tensor([[0.9, 0.1, 0.0]], dtype=torch.float64).expand(1, 4, 3)
    tree = DraftTree.from_lists([([0, 1, 2], [-1, -1, -1])])
    law = RULES[name].law(target, tree, draft)
    assert law.isfinite().all() and law[0, 0].sum().item() == pytest.approx(0, abs=1e-12)
    assert (law[0, 3] == 0).all()


@pytest.mark.parametrize("name", TREE_RULES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_extreme_coins_emit_what_the_target_can(name: str, dtype: torch.dtype) -> None:
    """Equal laws, one-hot laws and coins at both ends: no NaN, and no token of probability zero."""
    tree = DraftTree.from_lists([([1, 0, 1], [-1, -1, 0])])
    soft, sharp = torch.tensor([0.5, 0.5, 0.0], dtype=dtype), torch.tensor([0.0, 1.0, 0.0], dtype=dtype)
    ends = torch.tensor([0.0, LAST_COIN], dtype=torch.float64)
    for coins in torch.cartesian_prod(ends, ends, ends, ends):
        for target, draft in ((soft, soft), (sharp, sharp), (soft * (1 - 1e-7), soft), (sharp, soft), (soft, sharp)):
            verdict = RULES[name].judge(target.expand(1, 4, 3), tree, draft.expand(1, 4, 3), coins[None])
            accepted = [int(tree.tokens[0, node]) for node in verdict.path[0].tolist() if node >= 0]
            assert all(target[token] > 0 for token in [*accepted, int(verdict.next_token)])


@pytest.mark.parametrize("name", TREE_RULES)
def test_inputs_are_left_alone(name: str) -> None:
    """Laws are worn down in copies: the same rows serve the next reader."""
    parents, tokens = SHAPES[0]
    tree = DraftTree.from_lists([(tokens, parents)] * 3)
    target, draft = laws(3, 6, 4, seed=9), laws(3, 6, 4, seed=10)
    before = target.clone(), draft.clone()
    RULES[name].law(target, tree, draft)
    RULES[name].judge(target, tree, draft, torch.full((3, 6), LAST_COIN, dtype=torch.float64))
    assert torch.equal(target, before[0]) and torch.equal(draft, before[1])
