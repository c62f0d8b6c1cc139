"""Every lossless rule emits exactly what plain sampling of the target would: proven by enumeration, no dice anywhere.

The tables are random with fixed seeds; the statements hold for any table, so there is no false-alarm probability.
"""

from collections.abc import Callable, Iterator
from itertools import pairwise, product

import pytest
import torch

from outpace.verification.oracle import (
    Drafting,
    Table,
    count_prefixes,
    expected_tokens,
    fixed,
    one_turn,
    ranked,
    sampled,
    total_variation,
    tree_shapes,
)
from outpace.verification.probabilities import Sampling, probability_rows
from outpace.verification.rules import CHAIN_ONLY, LOSSLESS, RULES

PROVEN = 1e-12
Pair = tuple[Table, Table]
Make = Callable[[int, int, int], Pair]
Shape = tuple[int, ...]


def chain(nodes: int) -> Shape:
    return tuple(range(-1, nodes - 1))


def levels(shape: Shape) -> int:
    depths: list[int] = []
    for parent in shape:
        depths.append(1 if parent < 0 else depths[parent] + 1)
    return max(depths, default=0)


def rules_for(shape: Shape) -> Iterator[str]:
    return (name for name in LOSSLESS if shape == chain(len(shape)) or name not in CHAIN_ONLY)


def greedy(target: Table) -> Table:
    return Table(probability_rows(target.rows, Sampling()))


def distance(name: str, target: Table, drafting: Drafting, length: int, turns: int = 1) -> float:
    """Total variation between what a rule emits and what the target would."""
    plain = greedy(target) if name == "greedy" else target
    mass = torch.eye(1, count_prefixes(target.vocab, length), dtype=torch.float64)[0]
    for _ in range(turns):
        mass = one_turn(RULES[name], target, drafting, mass)
    return total_variation(plain.complete(mass, length), plain.joint(length))


def furthest(pair: Pair, shape: Shape, turns: int = 1) -> float:
    """The largest distance of any rule that can judge this shape; rules that ask for laws see sampled children too."""
    target, draft = pair
    length = turns * (1 + levels(shape))
    cases = [(name, ranked) for name in rules_for(shape)] + [
        (name, sampled) for name in rules_for(shape) if name not in ("greedy", "match")
    ]
    return max(distance(name, target, drafting(draft, shape), length, turns) for name, drafting in cases)


@pytest.mark.parametrize(
    ("vocab", "nodes"), [(2, n) for n in range(8)] + [(3, n) for n in range(6)] + [(4, n) for n in range(5)]
)
def test_every_tree(vocab: int, nodes: int, dense: Make, edges: Make) -> None:
    for number, shape in enumerate(tree_shapes(nodes, vocab)):
        make = (dense, edges)[number % 2] if nodes > 5 else edges
        assert furthest(make(vocab, 1 + levels(shape), number), shape) < PROVEN, shape


@pytest.mark.parametrize(("vocab", "nodes"), [(2, 1), (2, 2), (2, 3), (2, 4), (3, 2), (3, 3), (3, 4), (5, 2), (5, 3)])
def test_chains(vocab: int, nodes: int, dense: Make, edges: Make) -> None:
    for make, seed in product((dense, edges), range(3)):
        assert furthest(make(vocab, 1 + nodes, seed), chain(nodes)) < PROVEN


@pytest.mark.parametrize("shape", [chain(1), chain(2), chain(3), (-1, -1, 0), (-1, 0, 0, 2)], ids=str)
def test_two_turns(shape: Shape, dense: Make, edges: Make) -> None:
    for make in (dense, edges):
        assert furthest(make(2, 2 * (1 + levels(shape)), 5), shape, turns=2) < PROVEN


WARPS = [
    Sampling(temperature, top_k, top_p) for temperature, top_k, top_p in product((0.5, 1.0, 2.0), (0, 2), (1.0, 0.65))
]


@pytest.mark.parametrize(
    ("name", "shape"),
    [("rejection", chain(2)), ("block", chain(2)), ("tree-rejection", (-1, -1)), ("traversal", (-1, -1))],
)
def test_warped_laws_crossed(name: str, shape: Shape) -> None:
    """Target and draft may be warped in different ways: what counts is that each is the law it claims to be."""
    generator = torch.Generator().manual_seed(1)
    logits = 1.5 * torch.randn((2, count_prefixes(3, 3), 3), generator=generator, dtype=torch.float64)
    tables = [[Table(probability_rows(rows, warp)) for warp in WARPS] for rows in logits]
    for target, draft in product(*tables):
        assert distance(name, target, sampled(draft, shape), 1 + levels(shape)) < PROVEN


@pytest.mark.parametrize("name", ["match", "tree-rejection", "traversal"])
def test_sampled_drafts_for_a_rule_that_asks_for_no_law(name: str, edges: Make) -> None:
    target, draft = edges(3, 3, 9)
    assert distance(name, target, sampled(draft, (-1, -1, 0)), 3) < PROVEN


@pytest.mark.parametrize(
    "tokens", [(0, 0, 1, 1, 1, 0), (1, 1, 1, 0, 0, 2), (2, 0, 2, 1, 1, 2), (0, 1, 2, 2, 0, 0)], ids=str
)
def test_repeated_siblings(tokens: tuple[int, ...], dense: Make) -> None:
    """Equal tokens under one parent, each with children of its own: which one is followed must not bias the law."""
    target, _ = dense(3, 4, 7)
    shape = (-1, -1, 0, 0, 1, 1)
    for name in rules_for(shape):
        assert distance(name, target, fixed(target, shape, tokens), 4) < PROVEN, name


@pytest.mark.parametrize("shape", [(-1, 0, -1, 2, 0), (-1, 0, 1, 0, -1), (-1, -1, 1, 0)], ids=str)
def test_nodes_numbered_in_any_order(shape: Shape, edges: Make) -> None:
    """A parent stands before its child and siblings in order; depth first or mixed, the numbering does not matter."""
    for seed in range(3):
        assert furthest(edges(2, 1 + levels(shape), seed), shape) < PROVEN


def test_greedy_ignores_a_soft_draft_law(dense: Make) -> None:
    """The argmax is emitted even where the draft's token is more probable under the draft than under the target."""
    target, draft = dense(3, 4, 3)
    certain = greedy(target)
    for name in RULES:
        assert distance(name, certain, sampled(draft, chain(3)), 4) < PROVEN, name


def nested(shape: Shape) -> bool:
    """Whether every sibling's subtree fits into the one of the sibling before it."""
    children = [[node for node, parent in enumerate(shape) if parent == row] for row in range(-1, len(shape))]

    def fits(small: int, large: int) -> bool:
        few, many = children[small + 1], children[large + 1]
        return len(few) <= len(many) and all(fits(*two) for two in zip(few, many, strict=False))

    return all(fits(later, earlier) for siblings in children for earlier, later in pairwise(siblings))


@pytest.mark.parametrize(("vocab", "nodes"), [(2, 3), (2, 4), (2, 5), (2, 6), (3, 3), (3, 4), (4, 3)])
def test_traversal_is_not_behind_on_nested_trees(vocab: int, nodes: int, dense: Make, edges: Make) -> None:
    for seed, make, shape in product(range(3), (dense, edges), filter(nested, tree_shapes(nodes, vocab))):
        target, draft = make(vocab, levels(shape), seed)
        walked, tried = (
            expected_tokens(RULES[name], target, sampled(draft, shape)) for name in ("traversal", "tree-rejection")
        )
        assert walked >= tried - PROVEN, shape


def test_traversal_can_be_behind_on_other_trees(dense: Make) -> None:
    """Root-a-{b, c-d}: the path a-b takes chances from a-c-d. Optimality is a theorem for chains only."""
    shape = (-1, 0, 0, 2)
    assert not nested(shape)
    gains = []
    for seed in range(20):
        target, draft = dense(2, 3, seed)
        walked, tried = (
            expected_tokens(RULES[name], target, sampled(draft, shape)) for name in ("traversal", "tree-rejection")
        )
        gains.append(walked - tried)
    assert min(gains) < -1e-3 < 1e-3 < max(gains)


@pytest.mark.parametrize(("vocab", "nodes"), [(2, 2), (2, 4), (3, 3), (4, 2), (5, 3)])
def test_block_is_not_behind_rejection(vocab: int, nodes: int, dense: Make, edges: Make) -> None:
    """Equal for one node, ahead on average for more; one-hot drafts leave nothing to gain."""
    gains = []
    for seed, make in product(range(5), (dense, edges)):
        target, draft = make(vocab, nodes, seed)
        for drafting in (sampled(draft, chain(nodes)), ranked(draft, chain(nodes)), sampled(draft, chain(1))):
            block, token = (expected_tokens(RULES[name], target, drafting) for name in ("block", "rejection"))
            assert block >= token - PROVEN
            gains.append(block - token)
    assert max(gains) > 1e-3
    assert max(gains[1::3]) < PROVEN and max(gains[2::3]) < PROVEN


@pytest.mark.parametrize(
    ("left", "right", "deterministic"),
    [
        ("tree-rejection", "rejection", False),
        ("tree-rejection", "rejection", True),
        ("traversal", "block", False),
        ("traversal", "block", True),
        ("block", "rejection", True),
        ("match", "rejection", True),
    ],
)
def test_rules_that_are_one(left: str, right: str, deterministic: bool, dense: Make, edges: Make) -> None:
    """Not only their output: the laws over path and next token are the same, draft by draft."""
    for make, nodes in product((dense, edges), (1, 2, 3, 4)):
        target, draft = make(3, nodes, 11)
        drafts = (ranked if deterministic else sampled)(draft, chain(nodes))(torch.zeros(1, dtype=torch.int64))
        rows = target.rows[drafts.places]
        one, other = (RULES[name].law(rows, drafts.tree, drafts.draft_probs) for name in (left, right))
        torch.testing.assert_close(one, other, rtol=0, atol=PROVEN)


@pytest.mark.parametrize("shape", [(-1, -1), (-1, -1, 0, 0, 1), (-1, -1, -1, 0, 2)], ids=str)
def test_match_is_what_deterministic_trees_need(shape: Shape, dense: Make) -> None:
    """EAGLE's rule, each child in turn as a one-hot draft, has the law of following the target's own draw."""
    target, draft = dense(3, levels(shape), 2)
    drafts = ranked(draft, shape)(torch.zeros(1, dtype=torch.int64))
    rows = target.rows[drafts.places]
    matched, tried = (RULES[name].law(rows, drafts.tree, None) for name in ("match", "tree-rejection"))
    torch.testing.assert_close(matched, tried, rtol=0, atol=PROVEN)
