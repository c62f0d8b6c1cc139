"""Medusa drafts from its heads' own laws, one head a depth, no deeper than they reach and up to ends of text.

No test here leaves anything to chance: coins lie on a grid, and noise is that of fixed seeds.
"""

import pytest
import torch

from heads import TREES, Played, keys_of, paths_of
from medusas import (
    OWN_RATES,
    STATE,
    counting,
    counting_heads,
    held,
    medusa_on,
    random_medusa,
    said_by,
)
from outpace.drafters.budget import Budget
from outpace.drafters.medusa import Medusa
from outpace.models.transformer import Transformer
from outpace.verification.matching import candidates, race
from outpace.verification.probabilities import Sampling, probability_rows
from toys import given_coins, must_fail

KINDS = ["chain", *TREES, "dynamic", "static"]


# ---- the law ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "sampling", [Sampling(1.0), Sampling(0.5, top_k=3), Sampling(2.0, top_p=0.65), Sampling(1.0, 4, 0.9, 0.1)], ids=str
)
@pytest.mark.parametrize("own", [False, True])
def test_drafts_follow_the_law_that_is_reported(sampling: Sampling, own: bool, tiny: Transformer) -> None:
    """Coins on a grid: at every depth the share of each drafted token is its reported probability."""
    count, depth = 1000, 3
    shown = torch.randn(3, 1, 32, generator=torch.Generator().manual_seed(0))
    drafter = medusa_on(tiny, own=own, seed=1)
    state = drafter.open(count, 8)
    drafter.admit(state, [[1, 2, 3]] * count, [shown] * count)
    drafter.commit(state, [[4]] * count, [shown[:0]] * count)
    coins = given_coins((torch.arange(count).double() + 0.5) / count)
    drawn = drafter.propose(state, Budget.chain([depth] * count), [sampling] * count, coins)
    assert drawn.draft_probs is not None and drawn.tree.tokens.shape == (count, depth)
    for place, said in enumerate(said_by(drafter, tiny, shown[-1, 0])[:depth]):
        law = probability_rows(said, sampling)
        torch.testing.assert_close(drawn.draft_probs[:, place], law.expand(count, -1), rtol=0, atol=1e-5)
        shares = torch.bincount(drawn.tree.tokens[:, place], minlength=64) / count
        torch.testing.assert_close(shares, law, rtol=0, atol=1.5 / count)


@pytest.mark.parametrize("tree", TREES)
def test_laws_of_sampled_trees_are_those_of_the_depths(tree: str, tiny: Transformer) -> None:
    drafter = medusa_on(tiny, seed=6)
    played = Played(drafter)
    played.admit(4, 6)
    proposal = played.propose(tree, [3, 2], [9, 6], Sampling(1.0))
    proposal.tree.validate()
    assert held(drafter, tiny, played, proposal) > 4
    if not tree.startswith("sampled"):
        assert proposal.draft_probs is None
        return
    assert proposal.draft_probs is not None
    for row, (tokens, parents) in enumerate(proposal.tree.to_lists()):
        said = said_by(drafter, tiny, played.features[row][-1, 0])
        for node in set(parents):
            depth = len(paths_of(tokens, parents)[node]) if node >= 0 else 0
            law = probability_rows(said[depth], Sampling(1.0))
            torch.testing.assert_close(proposal.draft_probs[row, node + 1], law, rtol=0, atol=1e-5)


def test_a_greedy_chain_is_the_best_of_each_head(tiny: Transformer) -> None:
    drafter = medusa_on(tiny, layers=2, seed=3)
    played = Played(drafter)
    played.admit(4, 1, 9)
    chains = played.propose("chain", [4, 2, 3]).tree.to_lists()
    for row, (tokens, parents) in enumerate(chains):
        assert parents == list(range(-1, len(parents) - 1)) and len(tokens) == (4, 2, 3)[row]
        best = [int(said.argmax()) for said in said_by(drafter, tiny, played.features[row][-1, 0])]
        assert tokens == best[: len(tokens)]


@pytest.mark.parametrize("tree", ["chain", "sampled:2"])
def test_greedy_and_coupled_drafts_have_no_law(tree: str, tiny: Transformer) -> None:
    played = Played(medusa_on(tiny))
    played.admit(3)
    nodes = [2] if tree == "chain" else [3]
    assert played.propose(tree, [2], nodes).draft_probs is None
    assert played.propose(tree, [2], nodes, Sampling(1.0), coupled=True).draft_probs is None
    assert played.propose(tree, [2], nodes, Sampling(1.0)).draft_probs is not None


def test_a_coupled_row_races_with_the_targets_noise(tiny: Transformer) -> None:
    """By definition: one race a place, its noise keyed by seed and position."""
    drafter = medusa_on(tiny, seed=5)
    played = Played(drafter)
    played.admit(*range(1, 8))
    drawn = played.propose("chain", [4] * 7, None, Sampling(1.0), coupled=True).tree.to_lists()
    keys, said = keys_of(7, coupled=True), [said_by(drafter, tiny, part[-1, 0]) for part in played.features]
    for depth in range(4):
        laws = torch.stack([probability_rows(one[depth], Sampling(1.0)) for one in said])[:, None]
        ids = candidates(laws)
        noise = keys.noise(torch.full((7, 1), depth), ids)
        raced = race(laws, ids, noise.times, noise.tail_times, noise.tail_coins)[:, 0].tolist()
        assert [tokens[depth] for tokens, _ in drawn] == raced
    assert len({tokens[0] for tokens, _ in drawn}) > 2


# ---- where drafts end ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tree", KINDS)
def test_a_draft_is_no_deeper_than_there_are_heads(tree: str, tiny: Transformer) -> None:
    """Asked for eight, it ends behind the fourth; the draft is the one that is asked for with a depth of four."""
    played = Played(medusa_on(tiny, seed=2))
    played.admit(4, 2)
    deep, four = ([[depth] * 2, [depth if tree == "chain" else 40] * 2] for depth in (8, 4))
    for sampling in (Sampling(), Sampling(3.0)):
        drafts = [played.propose(tree, *asked, sampling).tree.to_lists() for asked in (deep, four)]
        assert drafts[0] == drafts[1]
        longest = [max(map(len, paths_of(*row))) for row in drafts[0]]
        assert max(longest) <= 4
        if sampling.greedy and tree not in ("top-k:3", "dynamic"):  # of few nodes these may be wide, not deep
            assert longest == [4, 4]


def test_only_the_heads_of_the_depth_are_computed(tiny: Transformer) -> None:
    drafter = medusa_on(tiny)
    asked: list[int] = []
    for number, head in enumerate(drafter.heads):
        head[0].register_forward_hook(lambda *_, number=number: asked.append(number))
    played = Played(drafter)
    played.admit(4, 2)
    for tree, depths, nodes, heads in (
        ("chain", [1, 3], [1, 3], [0, 1, 2]),
        ("top-k:2", [1, 1], [2, 2], [0]),
        ("static", [0, 4], [0, 2], [0, 1]),  # two nodes are no deeper than two
        ("sampled:2", [9, 0], [9, 0], [0, 1, 2, 3]),
        ("chain", [0, 0], [0, 0], []),
        ("dynamic", [2, 3], [0, 0], []),
    ):
        asked.clear()
        played.propose(tree, depths, nodes, Sampling(1.0))
        assert asked == heads, "once each, for all rows together"


@pytest.mark.parametrize("tree", KINDS)
def test_it_stops_at_an_end_of_text(tree: str, tiny: Transformer) -> None:
    drafter = medusa_on(tiny, seed=7)
    played = Played(drafter)
    played.admit(3, 4, 5)
    nodes = [4] * 3 if tree == "chain" else [12] * 3
    free = played.propose(tree, [4] * 3, nodes).tree.to_lists()
    inner = {tokens[parent] for tokens, parents in free for parent in parents if parent >= 0}
    drafter.eos_ids = frozenset(inner)
    bound = played.propose(tree, [4] * 3, nodes).tree.to_lists()
    assert inner and all(tokens for tokens, _ in bound)
    assert not any(tokens[parent] in inner for tokens, parents in bound for parent in parents if parent >= 0)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("tree", KINDS)
@pytest.mark.parametrize("warm", [False, True])
def test_a_state_that_is_no_number_is_no_draft(tree: str, warm: bool, bad: float, tiny: Transformer) -> None:
    """That row drafts nothing, the other what it would; and with its next state the row drafts again."""
    nodes, sampling = [3, 3] if tree == "chain" else [6, 6], Sampling(1.0) if warm else Sampling()
    drafts = []
    for ill in (True, False):
        played = Played(medusa_on(tiny, seed=8), seed=3)
        played.admit(30, 4)
        shown = [played.show(2), played.show(1)]
        played.drafter.commit(played.state, [[1, 2], [3]], [shown[0] * bad if ill else shown[0], shown[1]])
        first = played.propose(tree, [3, 3], nodes, sampling)
        assert ill == (first.tree.to_lists()[0] == ([], []))
        assert first.draft_logits is not None and bool(first.draft_logits.isfinite().all())
        played.commit([played.ids(2), []])
        drafts.append([first.tree.to_lists()[1], *played.propose(tree, [3, 3], nodes, sampling).tree.to_lists()])
    assert drafts[0] == drafts[1] and all(tokens for tokens, _ in drafts[0])


@pytest.mark.parametrize("tree", KINDS)
@pytest.mark.parametrize("warm", [False, True])
def test_a_head_that_says_no_numbers_ends_drafts_above_it(tree: str, warm: bool, tiny: Transformer) -> None:
    heads = random_medusa(seed=9)
    with torch.no_grad():
        heads.get_parameter("2.0.linear.bias").fill_(torch.nan)
    played = Played(Medusa(heads, tiny, packed=False, rates=OWN_RATES))
    played.admit(3, 5)
    nodes, sampling = [4, 4] if tree == "chain" else [30, 30], Sampling(3.0) if warm else Sampling()
    proposal = played.propose(tree, [4, 4], nodes, sampling)
    assert [max(map(len, paths_of(*row))) for row in proposal.tree.to_lists()] == [2, 2]
    assert proposal.draft_probs is None or bool(proposal.draft_probs.isfinite().all())


# ---- head i speaks of token t + 2 + i --------------------------------------------------------------------------------


def counts_on(own: bool, shift: int = 0) -> None:
    """Behind a text that counts up to t + 1, of which the target has read all but the last, the draft counts on."""
    target = counting()
    drafter = Medusa(counting_heads(own, shift=shift), target, packed=False)
    state = drafter.open(2, 8)
    for start in (5, 61):
        text = torch.arange(start, start + 3)[None] % 64
        shown = target.prefill(target.open(1, 8), text, [3], STATE)
        assert shown.features is not None and int(shown.logits[0, 0].argmax()) == (start + 3) % 64
        drafter.admit(state, text.tolist(), [shown.features[0]])
    drafter.commit(state, [[8], [0]], [torch.empty(0, 1, 64)] * 2)
    chain = drafter.propose(state, Budget.chain([4, 4]), [Sampling()] * 2, keys_of(2))
    assert chain.tree.tokens.tolist() == [[9, 10, 11, 12], [1, 2, 3, 4]]


@pytest.mark.parametrize("own", [False, True])
def test_head_i_speaks_of_the_token_two_and_i_further(own: bool) -> None:
    counts_on(own)
    for shift in (-1, 1):
        with must_fail():
            counts_on(own, shift)
