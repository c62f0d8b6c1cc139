"""Drafts that agree with what the target chooses are free, and cannot move what it chooses."""

import math

import pytest
import torch
from torch import Tensor

from outpace.verification.matching import CANDIDATES, candidates, follow, race
from outpace.verification.oracle import LAST_COIN
from outpace.verification.rules import RULES
from outpace.verification.tree import DraftTree

# root ── 5 ── 7        the example tree: node 0 is token 5, node 1 token 6, node 2 token 7, node 3 token 8,
#      │    └─ 8        node 4 token 9 under node 1
#      └─ 6 ── 9
TREE = DraftTree.from_lists([([5, 6, 7, 8, 9], [-1, -1, 0, 0, 1])])


@pytest.mark.parametrize(
    ("choice", "path", "next_token"),
    [
        ([5, 8, 0, 1, 2, 3], [0, 3], 2),
        ([5, 1, 0, 1, 2, 3], [0], 1),
        ([6, 7, 9, 1, 2, 4], [1, 4], 4),
        ([6, 7, 7, 1, 2, 4], [1], 7),
        ([7, 7, 9, 1, 2, 4], [], 7),
    ],
)
def test_the_path_of_agreement(choice: list[int], path: list[int], next_token: int) -> None:
    verdict = follow(torch.tensor([choice]), TREE, "greedy")
    assert verdict.path.tolist() == [path] and verdict.num_accepted.tolist() == [len(path)]
    assert verdict.next_token.tolist() == [next_token]
    assert (verdict.rule, verdict.lossless) == ("greedy", True)


def test_ragged_rows_and_filler() -> None:
    """Filler is never agreed with, not even where a choice is the filler's own token, which stands for no choice."""
    tree = DraftTree.from_lists([([5, 6], [-1, 0]), ([], []), ([4], [-1])])
    choice = torch.tensor([[5, 6, 1], [-1, -1, -1], [4, -1, -1]])
    verdict = follow(choice, tree, "match")
    assert verdict.path.tolist() == [[0, 1], [-1, -1], [0, -1]]
    assert verdict.num_accepted.tolist() == [2, 0, 1]
    assert verdict.next_token.tolist() == [1, 0, 0]
    nothing = follow(torch.tensor([[3], [4]]), DraftTree.empty(2), "match")
    assert nothing.path.shape == (2, 0) and nothing.next_token.tolist() == [3, 4]


def test_only_the_leading_run_counts() -> None:
    """Agreements after the first disagreement are worth nothing: flags 1 0 1 1 accept one token and emit two."""
    for flags, accepted in (([1, 0, 1, 1], 1), ([1, 1, 1, 1], 4), ([0, 1, 1, 0], 0)):
        choice = torch.tensor([[1 if flag else 9 for flag in flags] + [2]])
        verdict = follow(choice, DraftTree.chain(torch.ones(1, 4, dtype=torch.int64)), "match")
        assert verdict.num_accepted.item() == accepted


def test_a_repeated_sibling_is_never_followed() -> None:
    """Node 1 repeats node 0 and would lead further; following it by what is chosen below would bias the law."""
    tree = DraftTree.from_lists([([5, 5, 7], [-1, -1, 1])])
    verdict = follow(torch.tensor([[5, 1, 7, 2]]), tree, "match")
    assert verdict.path.tolist() == [[0]] and verdict.next_token.tolist() == [1]


def test_greedy_takes_the_lowest_id_of_equals() -> None:
    probs = torch.tensor([[[0.1, 0.45, 0.45], [0.5, 0.0, 0.5]]], dtype=torch.float64)
    coins = torch.full((1, 2), 0.999, dtype=torch.float64)
    verdict = RULES["greedy"].judge(probs, DraftTree.from_lists([([1], [-1])]), None, coins)
    assert verdict.path.tolist() == [[0]] and verdict.next_token.tolist() == [0]


def test_match_draws_with_the_rows_own_coins() -> None:
    probs = torch.tensor([[[0.5, 0.5], [0.25, 0.75]]], dtype=torch.float64)
    tree = DraftTree.from_lists([([1], [-1])])
    for coins, path, token in (([0.5, 0.2], [0], 0), ([0.5, 0.25], [0], 1), ([0.49, 0.9], [], 0)):
        verdict = RULES["match"].judge(probs, tree, None, torch.tensor([coins], dtype=torch.float64))
        assert verdict.path.tolist() == [path] and verdict.next_token.tolist() == [token]


def laws(*shape: int, seed: int, spread: float = 2.0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (spread * torch.randn(shape, generator=generator, dtype=torch.float64)).softmax(-1)


def race_many(probs: Tensor, count: int, trials: int, seed: int) -> Tensor:
    """Independent races of one row."""
    generator = torch.Generator().manual_seed(seed)
    rows = probs.expand(trials, -1)
    ids = candidates(rows, count)
    noise = torch.empty((trials, ids.shape[1] + 1), dtype=torch.float64).exponential_(generator=generator)
    coins = torch.rand(trials, generator=generator, dtype=torch.float64)
    return race(rows, ids, noise[:, :-1], noise[:, -1], coins)


@pytest.mark.parametrize("count", [1, 4, 11, 12, 40])
def test_races_have_the_rows_law(count: int) -> None:
    """Chi-square of 200,000 races against the row, for few and for all tokens with a clock of their own.

    The seed is fixed. With another one each of the five would fail by chance with probability 1e-9.
    """
    stats = pytest.importorskip("scipy.stats")
    probs = laws(12, seed=1, spread=1.0)
    counts = race_many(probs, count, 200_000, seed=count).bincount(minlength=12)
    expected = 200_000 * probs
    assert expected.min() > 5
    assert ((counts - expected) ** 2 / expected).sum() < stats.chi2.isf(1e-9, 11)


def test_a_race_with_a_wrong_rate_is_seen() -> None:
    """The same test with the tail's clock at half speed: non-centrality above 2,000, so it fails for certain."""
    stats = pytest.importorskip("scipy.stats")
    probs, trials = laws(12, seed=1, spread=1.0), 200_000
    generator = torch.Generator().manual_seed(0)
    ids = candidates(probs.expand(trials, -1), 4)
    noise = torch.empty((trials, 5), dtype=torch.float64).exponential_(generator=generator)
    coins = torch.rand(trials, generator=generator, dtype=torch.float64)
    counts = race(probs.expand(trials, -1), ids, noise[:, :-1], 2 * noise[:, -1], coins).bincount(minlength=12)
    assert ((counts - trials * probs) ** 2 / (trials * probs)).sum() > stats.chi2.isf(1e-9, 11)


def test_a_choice_depends_on_its_row_alone() -> None:
    """Token equality: alone, in a batch, and in another order beside other rows."""
    probs, generator = laws(3, 5, 300, seed=2), torch.Generator().manual_seed(3)
    noise = torch.empty((3, 5, CANDIDATES), dtype=torch.float64).exponential_(generator=generator)
    tail = torch.empty((3, 5), dtype=torch.float64).exponential_(generator=generator)
    coins = torch.rand((3, 5), generator=generator, dtype=torch.float64)
    together = race(probs, candidates(probs), noise, tail, coins)
    alone = [
        race(probs[b, r], candidates(probs[b, r]), noise[b, r], tail[b, r], coins[b, r]).item()
        for b in range(3)
        for r in range(5)
    ]
    assert together.flatten().tolist() == alone
    in_front = (candidates(probs) == together[..., None]).any(-1)
    assert in_front.any() and not in_front.all(), "both a candidate and a token of the tail must have won somewhere"
    shuffled = race(probs.flip(1), candidates(probs.flip(1)), noise.flip(1), tail.flip(1), coins.flip(1))
    assert torch.equal(shuffled.flip(1), together)


def test_tokens_without_mass_never_win() -> None:
    """Not at noise 0, not by a trace of a tail that rounding leaves, not at the ends of the tail's coin."""
    probs = torch.tensor([0.0, 0.3, 0.0, 0.7 - 1e-7, 0.0], dtype=torch.float32)
    ids = candidates(probs, 2)
    assert set(ids.tolist()) == {1, 3}
    for tail_coin in (0.0, 0.5, LAST_COIN):
        for noise in ([1.0, 1.0], [math.inf, 1.0], [5e-324, 5e-324]):
            coin = torch.tensor(tail_coin, dtype=torch.float64)
            front = torch.tensor(noise, dtype=torch.float64)
            token = race(probs, ids, front, torch.tensor(0.0, dtype=torch.float64), coin)
            assert probs[token] > 0
    every = candidates(probs, 64)
    token = race(probs, every, torch.zeros(5, dtype=torch.float64), coin, coin)
    assert probs[token] > 0


def test_candidates_are_the_most_probable_and_of_equals_the_first() -> None:
    probs = laws(6, 500, seed=4).float()
    assert torch.equal(candidates(probs, 20).sort(-1).values, probs.topk(20).indices.sort(-1).values)
    tied = (torch.arange(500) % 7 == 0).float().expand(2, 500) / 72
    assert candidates(tied, 10).sort(-1).values.tolist() == [[7 * n for n in range(10)]] * 2
    assert candidates(tied, 900).shape == (2, 500)
