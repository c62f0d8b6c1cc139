"""Medusa's own tree: the best one for what was measured of each head, and no head is like another.

Everything is enumerated; no test here can raise a false alarm.
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import outpace
from heads import Played, keys_of
from medusas import OWN_RATES, Showing, medusa_on, said_by, saying
from outpace.decoding.control import Fixed
from outpace.decoding.loop import Request
from outpace.decoding.turn import Turn
from outpace.drafters.budget import Branching, Budget
from outpace.drafters.drafter import falling_by_depth, own_rates, rates_of
from outpace.drafters.growth import shaped_tree, static_shape
from outpace.drafters.medusa import Medusa
from outpace.errors import UsageError
from outpace.evaluation.faults import Liar
from outpace.models.transformer import Transformer
from outpace.verification.expectation import tree_tokens
from outpace.verification.probabilities import Sampling
from outpace.verification.shape import StaticShape, static_tree
from toys import must_fail, run

Path = tuple[int, ...]

# ---- the shape -------------------------------------------------------------------------------------------------------


@cache
def every_tree(nodes: int, depth: int, ranks: int) -> tuple[frozenset[Path], ...]:
    """All sets of at most so many rank paths that hold their ancestors and elder siblings."""
    found: set[frozenset[Path]] = {frozenset()}
    newest = found
    for _ in range(nodes):
        newest = {tree | {path} for tree in newest for path in _next(tree, depth, ranks)}
        found = found | newest
    return tuple(found)


def _next(tree: frozenset[Path], depth: int, ranks: int) -> Iterator[Path]:
    for parent in ((), *tree):
        born = sum(node[:-1] == parent for node in tree if node)
        if len(parent) < depth and born < ranks:
            yield (*parent, born)


def paths(shape: StaticShape) -> frozenset[Path]:
    found: list[Path] = []
    for parent, rank in zip(shape.parents, shape.ranks, strict=True):
        found.append((*(found[parent] if parent >= 0 else ()), rank))
    return frozenset(found)


def expected(tree: frozenset[Path], rates: Sequence[Sequence[float]]) -> float:
    """Tokens of a turn where the child of each rank is right as often as the rates of its depth say."""
    total = 1.0
    for path in tree:
        product = 1.0
        for level, rank in enumerate(path):
            product *= rates[level][rank] if rank < len(rates[level]) else 0.0
        total += product
    return total


RATE = st.sampled_from((0.9, 0.6, 0.5, 0.4, 0.3, 0.25, 0.1, 0.02))
TABLES = st.lists(
    st.lists(RATE, min_size=1, max_size=3).map(lambda row: tuple(sorted(row, reverse=True))), min_size=1, max_size=4
).map(tuple)


@settings(max_examples=60)
@given(rates=TABLES, nodes=st.integers(0, 6), depth=st.integers(0, 5))
def test_no_tree_expects_more(rates: tuple[tuple[float, ...], ...], nodes: int, depth: int) -> None:
    """Against every tree of the size; none is deeper than there are rates."""
    shape = static_shape(rates, nodes, depth)
    assert len(shape.parents) <= nodes and max(shape.depths, default=0) <= min(depth, len(rates))
    best = max(expected(tree, rates) for tree in every_tree(nodes, min(depth, len(rates)), 3))
    assert expected(paths(shape), rates) == pytest.approx(best, abs=1e-12)


def test_one_list_serves_every_depth() -> None:
    """As before there were several; and as several that are alike."""
    for rates in ((0.5, 0.2, 0.1), (0.9,), (0.2, 0.2)):
        for nodes, depth in ((9, 3), (4, 8), (0, 2)):
            assert static_shape(rates, nodes, depth) == static_tree(rates, nodes, depth)
            assert static_shape((rates,) * 9, nodes, depth) == static_tree(rates, nodes, depth)


def test_rates_that_were_counted_fall() -> None:
    counted = ((0.5, 0.1, 0.2, 0.0), (0.3, 0.3), (0.0, 0.4), (0.2,))
    assert falling_by_depth(counted) == ((0.5, 0.1, 0.1), (0.3, 0.3)), "behind a depth without any there are none"
    assert falling_by_depth(()) == falling_by_depth(((), (0.5,))) == ()


# ---- the tree --------------------------------------------------------------------------------------------------------


def test_a_place_has_the_token_of_its_rank_and_depth(tiny: Transformer) -> None:
    """The shape filled at once from the candidates of each head, as none of them knows what another says."""
    drafter = medusa_on(tiny, seed=11)
    played = Played(drafter)
    played.admit(4, 7)
    for tree, rates in (("static", OWN_RATES), ("static:0.5,0.2,0.1", (0.5, 0.2, 0.1))):
        for depth, nodes in ((4, 24), (3, 9), (1, 2)):
            ranks = torch.stack(
                [torch.stack(said_by(drafter, tiny, part[-1, 0])).topk(3).indices for part in played.features]
            )
            filled = static_tree(rates, nodes, depth).fill(ranks)
            found = played.propose(tree, [depth] * 2, [nodes] * 2).tree
            assert found.to_lists() == filled.to_lists() and len(found.tokens[0]) > 1


@settings(max_examples=60)
@given(
    limits=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 12)), min_size=1, max_size=4),
    rates=TABLES | st.sampled_from(((0.5, 0.2, 0.1), (0.9,))),
    vocab=st.integers(2, 6),
    seed=st.integers(0, 10_000),
    ends=st.sets(st.integers(0, 1)),
    ill=st.sampled_from((None, torch.nan, torch.inf, -torch.inf)),
)
def test_it_is_the_tree_that_grows_depth_by_depth(
    limits: list[tuple[int, int]],
    rates: Any,
    vocab: int,
    seed: int,
    ends: set[int],
    ill: float | None,
) -> None:
    """Ragged rows, rows that rest, ends of text, heads that say no law, ids that may not be said, few ids."""
    if any(depth and count for depth, count in limits):
        grows_alike(limits, rates, vocab, seed, frozenset(ends), ill)


def grows_alike(
    limits: list[tuple[int, int]], rates: Any, vocab: int, seed: int, ends: frozenset[int], ill: float | None
) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(len(limits), 4, vocab, generator=generator)
    logits[torch.rand(logits.shape, generator=generator) < 0.2] = -torch.inf
    if ill is not None:
        logits[seed % len(limits), seed % 4] = ill
    drafter = Medusa(saying([torch.zeros(vocab, vocab)] * 4), Showing(torch.zeros(vocab, vocab)), packed=False)
    drafter.eos_ids = ends
    drafter._logits = lambda own, depth: logits[:, :depth]  # type: ignore[method-assign]
    depths, nodes = ([part[side] for part in limits] for side in (0, 1))
    budget, calm = Budget(depths, nodes, Branching("static")), [Sampling()] * len(limits)
    drafter.rates = rates
    found = drafter.propose(drafter.open(4, 8), budget, calm, keys_of(len(limits)))

    def look(depth: int, grown: Any, nodes: list[list[int]]) -> Tensor:
        return logits[:, [depth] * max(map(len, nodes))]

    grown = shaped_tree(look, replace(budget, depths=[min(depth, 4) for depth in depths]), rates, ends)
    found.tree.validate()
    assert found.tree.to_lists() == grown.tree.to_lists() and found.draft_probs is None
    assert found.draft_logits is not None and grown.draft_logits is not None
    for row, (_, parents) in enumerate(found.tree.to_lists()):
        for place in {0, *(parent + 1 for parent in parents)}:
            assert torch.equal(found.draft_logits[row, place], grown.draft_logits[row, place])


def test_a_fault_in_filling_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The faults: ends of text are gone beyond; ranks are taken in the other order."""
    case: Any = ([(3, 9), (2, 4)], OWN_RATES, 6, 3)
    grows_alike(*case, frozenset({0, 1, 2}), None)
    honest = Medusa._fill

    def over_ends(self: Medusa, *given: Any) -> Any:
        self.eos_ids = frozenset()
        return honest(self, *given)

    def turned(self: Medusa, shape: Any, ids: list[list[int]], there: Any) -> Any:
        return honest(self, shape, [row[::-1] for row in ids], there)

    for faulty in (over_ends, turned):
        monkeypatch.setattr(Medusa, "_fill", faulty)
        with must_fail():
            grows_alike(*case, frozenset({0, 1, 2}), None)


def test_whose_rates(tiny: Transformer) -> None:
    """The heads' own, where none are named; a drafter of which nobody measured any asks for some."""
    played = Played(medusa_on(tiny, seed=2))
    played.admit(4)
    own = played.propose("static", [4], [9]).tree.to_lists()[0][1]
    assert own == list(static_tree(OWN_RATES, 9, 4).parents)
    named = played.propose("static:0.5,0.3", [4], [9]).tree.to_lists()[0][1]
    assert named == list(static_tree((0.5, 0.3), 9, 4).parents) != own
    assert rates_of(Branching.parse("static"), Liar(played.drafter, 64)) == OWN_RATES
    assert own_rates(medusa_on(tiny, rates=((0.0, 0.1),))) == ()
    with pytest.raises(UsageError, match="tree is static, and no acceptance by rank is known of the drafter 'medusa'"):
        outpace.generate(tiny, medusa_on(tiny, rates=()), [1, 2], tree="static", max_new_tokens=2)


def test_it_is_no_deeper_than_its_rates(tiny: Transformer) -> None:
    """Four heads, of which two were ever right."""
    played = Played(medusa_on(tiny, rates=OWN_RATES[:2], seed=2))
    played.admit(4)
    tree = played.propose("static", [4], [40]).tree
    assert tree.heights() == [2] and tree.num_nodes.tolist() == [2 + 2 * 3]


# ---- what it brings --------------------------------------------------------------------------------------------------

BEHIND = 3
RANKS = ((0, 0, 0, 0, 0, 1), (0, 0, 1, 1, BEHIND, BEHIND), (0, 0, 0, 1, BEHIND, BEHIND))
CASES = list(itertools.product(*RANKS))
"""Of the right token, the ranks at three depths, each case as often as it happens; ``BEHIND`` is not drafted."""
SHARES = tuple(tuple(ranks.count(rank) / 6 for rank in (0, 1)) for ranks in RANKS)
DEPTH, LENGTH = len(RANKS), 2 + len(RANKS)


@cache
def tables() -> tuple[Tensor, list[Tensor]]:
    """A target that says a text of its own for every case, and heads that rank it as the case has it."""
    count = len(CASES) * LENGTH
    target = torch.zeros(count + BEHIND, count + BEHIND)
    heads: list[Tensor] = []
    for depth in range(DEPTH):
        heads.append(torch.zeros_like(target))
        for case, ranks in enumerate(CASES):
            order = list(range(count, count + BEHIND))
            order.insert(ranks[depth], case * LENGTH + 2 + depth)
            heads[-1][case * LENGTH, order] = torch.tensor([9.0, 8.0, 7.0, 6.0])
    for at in range(count - 1):
        target[at, at + 1] = 9.0
    return target, heads


def brought(nodes: int, rates: Sequence[Sequence[float]] = SHARES) -> float:
    """Tokens of the first drafting turn of every case, as decoded."""
    rows, heads = tables()
    target = Showing(rows)
    accepted: list[int] = []

    def look(turn: Turn, indices: list[int]) -> None:
        if turn.proposal.tree.tokens.shape[1] and not accepted:
            accepted.extend(map(len, turn.paths))

    drafter = Medusa(saying(heads), target, packed=False, rates=rates)
    requests = [Request((case * LENGTH,), max_new_tokens=LENGTH) for case in range(len(CASES))]
    run(target, drafter, requests, control=Fixed(Branching("static"), min(DEPTH, nodes), nodes), observer=look)
    assert len(accepted) == len(CASES)
    return 1 + sum(accepted) / len(accepted)


def counted(tree: frozenset[Path]) -> float:
    """Tokens of a turn with a tree, case by case."""
    hits = sum(ranks[:depth] in tree for ranks in CASES for depth in range(1, 1 + DEPTH))
    return 1 + hits / len(CASES)


def brings_most(nodes: int, rates: Sequence[Sequence[float]] = SHARES) -> None:
    """As many as its rates promise, and as many as any tree of its size."""
    depth = min(DEPTH, nodes)
    found = brought(nodes, rates)
    assert found == pytest.approx(tree_tokens(static_tree(SHARES, nodes, depth), SHARES), rel=1e-12)
    if nodes <= 6:
        assert found == pytest.approx(max(map(counted, every_tree(nodes, depth, 2))), rel=1e-12)


@pytest.mark.parametrize("nodes", [1, 2, 4, 6, 14])
def test_it_brings_what_its_rates_promise(nodes: int) -> None:
    """Exactly, where what happens at one depth says nothing of the next."""
    brings_most(nodes)


@pytest.mark.parametrize(
    "rates", [(*SHARES[1:], SHARES[0]), ((5 / 9, 2 / 9),) * 3], ids=["a head further", "one for all"]
)
def test_rates_of_other_depths_are_noticed(rates: Sequence[Sequence[float]]) -> None:
    """The faults: the rates of each head are taken for those of the one before, or all heads for alike."""
    with must_fail():
        for nodes in (2, 4, 6):
            brings_most(nodes, rates)
