"""Trees are what they are said to be: the heaviest nodes by rank, or draws without replacement in a fixed shape.

The draft model is a table, so that every tree can be enumerated. No test here can raise a false alarm.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from looking import Looking, Path, paths
from outpace.drafters import growth
from outpace.drafters.budget import Branching, Budget
from outpace.drafters.drafter import Proposal
from outpace.drafters.growth import ranked_tree, sampled_shape, sampled_tree
from outpace.models.toy import random_table
from outpace.verification.coins import Keys
from outpace.verification.probabilities import Sampling, probability_rows
from toys import must_fail

NO_END: frozenset[int] = frozenset()
PLAIN = Sampling(1.0)


def budget(tree: str, depths: Sequence[int], nodes: Sequence[int]) -> Budget:
    return Budget(list(depths), list(nodes), Branching.parse(tree))


def keys_of(rows: int, coupled: bool = False) -> Keys:
    return Keys(tuple(range(rows)), (0,) * rows, (4,) * rows, (coupled,) * rows)


@dataclass(frozen=True)
class Coins(Keys):
    """Keys whose draft coins are given, one a row and node."""

    given: Any = None

    def coins(self, purpose: Any, count: int, device: Any = None) -> Tensor:
        assert self.given.shape[1] >= count
        return self.given[:, :count]


def given_coins(coins: Tensor) -> Coins:
    rows = len(coins)
    return Coins((0,) * rows, (0,) * rows, (1,) * rows, (False,) * rows, given=coins)


def drawn(table: Tensor, last: int, limit: Budget, keys: Keys, warp: Sampling = PLAIN) -> Proposal:
    """A sampled tree behind the same token and under the same warp in every row."""
    rows = len(limit.depths)
    return sampled_tree(Looking(table, [last] * rows), limit, [warp] * rows, keys, NO_END)


# ---- children by rank ----------------------------------------------------------------------------------------------


def all_paths(laws: Tensor, last: int, tree: str, depth: int, ends: frozenset[int]) -> dict[Path, float]:
    """What every path of the tree weighs that has no limit of nodes."""
    branching = Branching.parse(tree)
    weights: dict[Path, float] = {(): 1.0}
    level: list[Path] = [()]
    for _ in range(depth):
        following: list[Path] = []
        for path in level:
            row = laws[path[-1] if path else last]
            if path and path[-1] in ends:
                continue
            mass = 0.0
            for rank, token in enumerate(row.argsort(descending=True).tolist()):
                enough = rank if branching.kind == "top-k" else mass
                if row[token] <= 0 or enough >= branching.width:
                    break
                mass += float(row[token])
                weights[(*path, token)] = weights[path] * float(row[token])
                following.append((*path, token))
        level = following
    del weights[()]
    return weights


@settings(max_examples=60)
@given(
    tree=st.sampled_from(["top-k:1", "top-k:2", "top-k:3", "top-p:0.5", "top-p:0.9"]),
    limits=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 12)), min_size=1, max_size=4),
    vocab=st.integers(2, 5),
    seed=st.integers(0, 10_000),
    ends=st.sets(st.integers(0, 1)),
    warp=st.sampled_from([Sampling(), Sampling(1.0), Sampling(0.7, top_k=2)]),
)
def test_ranked_trees_hold_the_heaviest_nodes(
    tree: str, limits: list[tuple[int, int]], vocab: int, seed: int, ends: set[int], warp: Sampling
) -> None:
    """Against brute force, while no beam is in the way; ragged rows, ends of text, filters, rows that rest."""
    if any(depth and count for depth, count in limits):
        check_heaviest(tree, limits, vocab, seed, frozenset(ends), warp)


def check_heaviest(
    tree: str, limits: list[tuple[int, int]], vocab: int, seed: int, ends: frozenset[int], warp: Sampling
) -> None:
    table = random_table(vocab, seed=seed)
    depths, nodes = ([part[side] for part in limits] for side in (0, 1))
    last = [row % vocab for row in range(len(limits))]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(growth, "BEAM", 10_000)
        look, limit = Looking(table, last), budget(tree, depths, nodes)
        proposal = ranked_tree(look, limit, [warp] * len(limits), ends)
    proposal.tree.validate()
    laws = probability_rows(table, Sampling(1.0) if warp.greedy else warp)
    for row, (tokens, parents) in enumerate(proposal.tree.to_lists()):
        found = paths(tokens, parents)
        assert len(found) == len(set(found))
        weights = all_paths(laws, last[row], tree, depths[row], ends)
        best = sorted(weights.values(), reverse=True)[: nodes[row]]
        # Two paths over the same steps weigh the same: which of them stays is no matter.
        assert sorted((weights[path] for path in found), reverse=True) == pytest.approx(best, rel=1e-9)
    assert proposal.draft_probs is None


def test_siblings_stand_most_probable_first() -> None:
    table = random_table(6, seed=3)
    [(tokens, parents)] = ranked_tree(
        Looking(table, [2]), budget("top-k:3", [3], [20]), [Sampling()], NO_END
    ).tree.to_lists()
    laws = table.softmax(-1)
    for parent in {*parents}:
        children = [token for token, other in zip(tokens, parents, strict=True) if other == parent]
        assert children == laws[tokens[parent] if parent >= 0 else 2].topk(len(children)).indices.tolist()
    assert parents.count(-1) == 3


def test_a_greedy_row_ranks_by_the_unwarped_law() -> None:
    """Its warped law is one-hot and has no second rank; a row with top-k 1 really has none."""
    look = Looking(random_table(6, seed=4), [0, 0, 0])
    kinds = [Sampling(), Sampling(1.0), Sampling(1.0, top_k=1)]
    rows = ranked_tree(look, budget("top-k:2", [2] * 3, [6] * 3), kinds, NO_END).tree.to_lists()
    assert len(rows[0][0]) == 6 and rows[0] == rows[1]
    assert rows[2][1] == [-1, 0]


@pytest.mark.parametrize("tree", ["top-k:4", "top-p:0.99"])
def test_a_depth_expands_no_more_than_the_beam(tree: str) -> None:
    look = Looking(random_table(64, seed=5, spread=0.3), [0, 1])
    proposal = ranked_tree(look, budget(tree, [4, 4], [200, 300]), [Sampling()] * 2, NO_END)
    depths = proposal.tree.depths()
    counts = []
    for row, (_, parents) in enumerate(proposal.tree.to_lists()):
        for depth in range(1, 4):
            counts.append(len({parent for parent in parents if parent >= 0 and int(depths[row, parent]) == depth}))
    assert max(counts) == growth.BEAM


@pytest.mark.parametrize(
    ("top_p", "nodes", "children"),
    [(0.5, 9, [1]), (0.75, 9, [1, 0]), (0.76, 9, [1, 0, 2]), (1.0, 9, [1, 0, 2, 3]), (1.0, 2, [1, 0]), (1e-9, 9, [1])],
)
def test_top_p_children_are_the_smallest_set_that_reaches_the_mass(
    top_p: float, nodes: int, children: list[int]
) -> None:
    law = torch.tensor([0.25, 0.5, 0.126, 0.124, 0.0], dtype=torch.float64)
    look = Looking(law.log().expand(5, 5), [0])
    [(tokens, _)] = ranked_tree(look, budget(f"top-p:{top_p}", [1], [nodes]), [PLAIN], NO_END).tree.to_lists()
    assert sorted(tokens) == sorted(children)


def test_of_equal_nodes_the_earlier_ones_stay() -> None:
    """All children halve the weight: what there is room for are whole depths, then the first of the next."""
    look = Looking(torch.zeros(2, 2, dtype=torch.float64), [0])
    [(_, parents)] = ranked_tree(look, budget("top-k:2", [4], [9]), [PLAIN], NO_END).tree.to_lists()
    assert parents == [-1, -1, 0, 0, 1, 1, 2, 2, 3]


def test_one_look_a_depth() -> None:
    look = Looking(random_table(8, seed=6), [0, 1, 2])
    ranked_tree(look, budget("top-k:2", [3, 1, 0], [14, 2, 0]), [Sampling()] * 3, NO_END)
    assert look.counts == [[1, 1, 0], [2, 0, 0], [4, 0, 0]]


def broken_table(bad: float) -> Tensor:
    """After token 1 there is no law."""
    table = random_table(5, seed=7)
    table[1] = bad if bad == float("-inf") else table[1].index_fill(0, torch.tensor([3]), bad)
    return table


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("tree", ["top-k:5", "top-p:1", "sampled:5"])
def test_a_row_that_is_no_law_has_no_children(tree: str, bad: float) -> None:
    """At the root and further down; what is shown of such rows is finite, as traces are."""
    look, limits = Looking(broken_table(bad), [1, 0]), budget(tree, [2, 2], [30, 30])
    samplings = [Sampling(1.0)] * 2
    if tree.startswith("sampled"):
        proposal = sampled_tree(look, limits, samplings, keys_of(2), NO_END)
        assert proposal.draft_probs is not None and bool(proposal.draft_probs.isfinite().all())
    else:
        proposal = ranked_tree(look, limits, samplings, NO_END)
    empty, (tokens, parents) = proposal.tree.to_lists()
    assert empty == ([], [])
    assert 1 in tokens and -1 in parents and max(parents) >= 0
    assert all(parent < 0 or tokens[parent] != 1 for parent in parents)
    assert proposal.draft_logits is not None and bool(proposal.draft_logits.isfinite().all())


# ---- children that are drawn ---------------------------------------------------------------------------------------


def test_siblings_are_drawn_without_replacement() -> None:
    """Coins on a grid: the share of each pair is q(x) * q(y) / (1 - q(x)), and no pair is a repetition."""
    side, table = 60, random_table(4, seed=8)
    middles = (torch.arange(side).double() + 0.5) / side
    coins = torch.cartesian_prod(middles, middles)
    rows = len(coins)
    for warp in (Sampling(1.0), Sampling(0.5, top_k=3)):
        proposal = drawn(table, 2, budget("sampled:2", [1] * rows, [2] * rows), given_coins(coins), warp)
        first, second = proposal.tree.tokens.unbind(1)
        shares = torch.bincount(first * 4 + second, minlength=16).view(4, 4) / rows
        law = probability_rows(table[2], warp)
        left = law.expand(4, 4) * (1 - torch.eye(4))
        wanted = law[:, None] * left / left.sum(1, keepdim=True)
        torch.testing.assert_close(shares.double(), wanted, rtol=0, atol=4 / side)
        assert int(shares.diagonal().sum()) == 0


def test_each_node_is_drawn_from_the_law_that_is_reported() -> None:
    """A node's coin, inverted in its parent's reported row without the elder siblings, is its token."""
    rows, table = 50, random_table(6, seed=9)
    coins = torch.rand(rows, 12, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    for warp in (Sampling(1.0), Sampling(1.3, top_p=0.97), Sampling(0.8, top_k=4)):
        proposal = drawn(table, 1, budget("sampled:3", [3] * rows, [12] * rows), given_coins(coins), warp)
        laws, warped = proposal.draft_probs, probability_rows(table, warp)
        assert laws is not None and laws.dtype == torch.float64
        for row, (tokens, parents) in enumerate(proposal.tree.to_lists()):
            assert len(tokens) == 12
            for node, (token, parent) in enumerate(zip(tokens, parents, strict=True)):
                law = laws[row, parent + 1].clone()
                torch.testing.assert_close(law, warped[tokens[parent] if parent >= 0 else 1])
                law[[tokens[other] for other in range(node) if parents[other] == parent]] = 0
                above = law.cumsum(0) > coins[row, node] * law.sum()
                assert token == int(above.int().argmax())


@settings(max_examples=40)
@given(
    width=st.integers(1, 4),
    limits=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 10)), min_size=1, max_size=4),
    seeds=st.tuples(st.integers(0, 10_000), st.integers(0, 10_000)),
)
def test_no_draw_changes_the_shape(width: int, limits: list[tuple[int, int]], seeds: tuple[int, int]) -> None:
    """Whatever the coins, the parents are those of the static shape: non-anticipation."""
    depths, nodes = ([part[side] for part in limits] for side in (0, 1))
    if not any(depth and count for depth, count in limits):
        return
    rows, table = len(limits), random_table(5, seed=10)
    for seed in seeds:
        coins = torch.rand(rows, 10, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        proposal = drawn(table, 0, budget(f"sampled:{width}", depths, nodes), given_coins(coins))
        proposal.tree.validate()
        for (_, parents), depth, count in zip(proposal.tree.to_lists(), depths, nodes, strict=True):
            shape = sampled_shape(width, count if depth else 0, depth)
            assert tuple(parents) == shape.parents and len(parents) <= count
            assert max(shape.depths, default=0) <= depth and max(shape.ranks, default=0) < width


def test_the_shape_is_that_of_the_stated_chances() -> None:
    """0.6, 0.24, 0.096 by rank: .6 a, .36 a-a, .24 b, .216 a-a-a, .144 a-b and b-a are the six best products."""
    shape = sampled_shape(3, 6, 4)
    assert (shape.parents, shape.ranks) == ((-1, -1, 0, 0, 1, 2), (0, 1, 0, 1, 0, 0))
    assert sampled_shape(1, 6, 4).parents == (-1, 0, 1, 2)


def test_a_law_with_few_tokens_has_few_children() -> None:
    """One for a greedy row, two for top-k 2, none below a token that ends the text; the laws stay in step."""
    rows, table = 3, random_table(6, seed=11)
    kinds = [Sampling(), Sampling(1.0, top_k=2), Sampling(1.0)]
    look = Looking(table, [0] * rows)
    proposal = sampled_tree(look, budget("sampled:4", [3] * rows, [12] * rows), kinds, keys_of(rows), frozenset({2, 5}))
    lists, laws = proposal.tree.to_lists(), proposal.draft_probs
    assert laws is not None and laws.shape[1] == 1 + proposal.tree.tokens.shape[1]
    proposal.tree.validate()
    greedy = [int(table[0].argmax())]
    while len(greedy) < 3 and greedy[-1] not in (2, 5):
        greedy.append(int(table[greedy[-1]].argmax()))
    assert lists[0] == (greedy, list(range(-1, len(greedy) - 1)))
    for row, (tokens, parents) in enumerate(lists):
        for node, parent in enumerate(parents):
            assert parent < 0 or tokens[parent] not in (2, 5)
            torch.testing.assert_close(
                laws[row, parent + 1], probability_rows(table[tokens[parent] if parent >= 0 else 0], kinds[row])
            )
            assert parents[: node + 1].count(parent) <= (1, 2, 4)[row]
    assert max(lists[2][1].count(parent) for parent in lists[2][1]) > 2


def test_a_width_of_one_is_a_chain() -> None:
    """The same tokens and laws as a chain draws them: one coin a depth."""
    rows, table = 40, random_table(7, seed=12)
    keys = keys_of(rows)
    proposal = drawn(table, 3, budget("sampled:1", [4] * rows, [9] * rows), keys)
    assert proposal.tree.is_chain and proposal.tree.tokens.shape == (rows, 4)
    before = torch.full((rows,), 3)
    for depth in range(4):
        law = probability_rows(table[before], Sampling(1.0))
        above = law.cumsum(1) > keys.coins("draft", 4)[:, depth, None]
        before = above.int().argmax(1)
        assert proposal.tree.tokens[:, depth].tolist() == before.tolist()


def test_coupled_rows_take_those_who_come_in_first() -> None:
    """Siblings in the order of the clocks by which the target itself will race at that position; no laws are kept."""
    rows, table = 30, random_table(8, seed=13)
    keys = keys_of(rows, coupled=True)
    proposal = drawn(table, 1, budget("sampled:3", [2] * rows, [6] * rows), keys)
    assert proposal.draft_probs is None
    every = torch.arange(8).expand(rows, 2, 8)
    times = keys.noise(torch.tensor([[0, 1]]).expand(rows, 2), every).times
    laws = probability_rows(table, Sampling(1.0))
    for row, (tokens, parents) in enumerate(proposal.tree.to_lists()):
        for parent in {*parents}:
            own = [token for token, other in zip(tokens, parents, strict=True) if other == parent]
            clocks = times[row, int(parent >= 0)] / laws[tokens[parent] if parent >= 0 else 1]
            assert own == clocks.argsort().tolist()[: len(own)]


def test_a_mixed_batch_keeps_the_laws_of_those_who_need_them() -> None:
    keys = Keys((1, 2, 3), (0, 0, 0), (4, 4, 4), (True, False, False))
    kinds = [Sampling(1.0), Sampling(1.0), Sampling()]
    limits, table = budget("sampled:2", [2] * 3, [5] * 3), random_table(6, seed=14)
    mixed = sampled_tree(Looking(table, [0] * 3), limits, kinds, keys, NO_END)
    assert mixed.draft_probs is not None
    for row in range(3):
        alone = drawn(table, 0, budget("sampled:2", [2], [5]), keys.select([row]), kinds[row])
        assert alone.tree.to_lists()[0] == mixed.tree.to_lists()[row]
        assert (alone.draft_probs is None) == (row != 1)


@pytest.mark.parametrize("tree", ["top-k:3", "top-p:0.9", "sampled:3"])
def test_the_logits_shown_are_those_of_the_node(tree: str) -> None:
    """Of every node that has children, for traces; in batches whose rows were cut differently too."""
    table, last = random_table(9, seed=15), [0, 1, 2]
    limits, kinds = budget(tree, [3, 2, 1], [11, 4, 2]), [Sampling(1.0), Sampling(), Sampling(0.7, top_k=2)]
    if tree == "sampled:3":
        proposal = sampled_tree(Looking(table, last), limits, kinds, keys_of(3), frozenset({4}))
    else:
        proposal = ranked_tree(Looking(table, last), limits, kinds, frozenset({4}))
    assert proposal.draft_logits is not None
    assert proposal.draft_logits.shape[1] == 1 + proposal.tree.tokens.shape[1]
    for row, (tokens, parents) in enumerate(proposal.tree.to_lists()):
        for node in set(parents):
            torch.testing.assert_close(
                proposal.draft_logits[row, node + 1], table[tokens[node] if node >= 0 else last[row]]
            )


def test_drawing_with_replacement_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = growth.draw_apart

    def forgets(probs: Tensor, coins: Sequence[Sequence[float]]) -> list[list[int]]:
        return [[honest(probs[row : row + 1], [[coin]])[0][0] for coin in own] for row, own in enumerate(coins)]

    monkeypatch.setattr(growth, "draw_apart", forgets)
    with must_fail():
        test_siblings_are_drawn_without_replacement()


def test_keeping_the_first_nodes_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fault: a full tree takes no more nodes, however heavy."""
    monkeypatch.setattr(growth, "sorted", lambda nodes, key=None: [*nodes], raising=False)
    with must_fail():
        check_heaviest("top-k:3", [(3, 9)], 5, 1, NO_END, Sampling())
