"""An EAGLE-3 head drafts from its own law, in the target's ids, up to its own limits; what does not fit is refused."""

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor

from heads import TREES, Played, literal, paths_of, random_head, says, shape_of
from outpace.drafters.budget import Branching, Budget
from outpace.drafters.eagle import Eagle
from outpace.drafters.lookup import Lookup
from outpace.drafters.walk import Walker
from outpace.errors import UsageError, WeightsError
from outpace.models.function import FunctionTarget
from outpace.models.rotary import Rotary
from outpace.models.transformer import Transformer
from outpace.verification.probabilities import Sampling, probability_rows
from toys import given_coins, must_fail


@pytest.mark.parametrize(
    "sampling", [Sampling(1.0), Sampling(0.5, top_k=3), Sampling(2.0, top_p=0.65), Sampling(1.0, 4, 0.9, 0.1)], ids=str
)
@pytest.mark.parametrize("draft", [40, 64])
def test_drafts_follow_the_law_that_is_reported(sampling: Sampling, draft: int, tiny: Transformer) -> None:
    """Coins on a grid: the share of each drafted token is its reported probability, in the target's ids."""
    count = 1000
    head = random_head(shape_of(draft_vocab_size=draft), seed=1)
    drafter = Eagle(head, tiny, packed=False)
    state, shown = drafter.open(count, 8), torch.randn(3, 3, 32, generator=torch.Generator().manual_seed(0))
    drafter.admit(state, [[1, 2, 3]] * count, [shown] * count)
    drafter.commit(state, [[4]] * count, [shown[:0]] * count)
    coins = given_coins((torch.arange(count).double() + 0.5) / count)
    drawn = drafter.propose(state, Budget.chain([2] * count), [sampling] * count, coins)
    after = literal(head, tiny.embeddings, shown, [1, 2, 3, 4])[0]
    law = torch.zeros(64).index_copy(0, head.target_ids, probability_rows(after, sampling))
    assert drawn.draft_probs is not None
    torch.testing.assert_close(drawn.draft_probs[:, 0], law.expand(count, -1), rtol=0, atol=1e-5)
    shares = torch.bincount(drawn.tree.tokens[:, 0], minlength=64) / count
    torch.testing.assert_close(shares, law, rtol=0, atol=1.5 / count)
    for row in range(0, count, 97):
        path = drawn.tree.tokens[row, :1].tolist()
        after = literal(head, tiny.embeddings, shown, [1, 2, 3, 4], path)[-1]
        law = torch.zeros(64).index_copy(0, head.target_ids, probability_rows(after, sampling))
        torch.testing.assert_close(drawn.draft_probs[row, 1], law, rtol=0, atol=1e-5)


@pytest.mark.parametrize("tree", TREES)
def test_laws_of_sampled_trees_are_of_the_targets_ids(tree: str, tiny: Transformer) -> None:
    head = random_head(seed=6)
    played = Played(Eagle(head, tiny, packed=False))
    played.admit(4, 6)
    proposal = played.propose(tree, [3, 2], [9, 6], Sampling(1.0))
    proposal.tree.validate()
    assert set(proposal.tree.tokens[proposal.tree.real].tolist()) <= set(head.target_ids.tolist())
    if not tree.startswith("sampled"):
        assert proposal.draft_probs is None
        return
    shown = proposal.shown(tiny.vocab_size)
    assert proposal.draft_probs is not None and shown is not None
    for row, (_, parents) in enumerate(proposal.tree.to_lists()):
        for node in set(parents):
            law = probability_rows(shown[row, node + 1], Sampling(1.0))
            torch.testing.assert_close(proposal.draft_probs[row, node + 1], law, rtol=0, atol=1e-6)


def test_dynamic_is_the_tree_of_eagle_2(tiny: Transformer) -> None:
    """Written out: of each depth the eight heaviest nodes get their eight best children; of all nodes the best stay."""
    assert Branching.parse("dynamic") == Branching.parse("top-k:8") and str(Branching.parse("dynamic")) == "top-k:8"
    head = random_head(seed=14)
    played = Played(Eagle(head, tiny, packed=False))
    played.admit(3)
    for nodes in (8, 13, 24):
        weights: dict[tuple[int, ...], float] = {}
        frontier: dict[tuple[int, ...], float] = {(): 1.0}
        for _ in range(3):
            new: dict[tuple[int, ...], float] = {}
            for path, weight in frontier.items():
                said = literal(head, tiny.embeddings, played.features[0], played.texts[0], path)[-1].softmax(-1)
                for token in said.topk(8).indices.tolist():
                    new[*path, int(head.target_ids[token])] = weight * float(said[token])
            weights |= new
            frontier = dict(sorted(new.items(), key=lambda item: -item[1])[:8])
        best = sorted(weights, key=lambda path: -weights[path])[:nodes]
        [tree] = played.propose("dynamic", [3], [nodes]).tree.to_lists()
        assert sorted(map(tuple, paths_of(*tree))) == sorted(best)


def best_ids(target: Transformer) -> None:
    """A greedy chain is the best of what the head can say at each place, in the target's ids."""
    head = random_head(seed=13)
    ids = [3, 10, 11, 40, 63, *range(20, 37), *range(41, 59)]
    says(head, ids)
    played = Played(Eagle(head, target, packed=False))
    played.admit(4)
    [(tokens, _)] = played.propose("chain", [4]).tree.to_lists()
    for place, token in enumerate(tokens):
        anew = literal(head, target.embeddings, played.features[0], played.texts[0], tokens[:place])[-1]
        assert token == sorted(ids)[int(anew.argmax())]


@pytest.mark.parametrize("fault", [None, "ids of the head", "offsets"])
def test_the_map_of_ids(fault: str | None, tiny: Transformer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The faults: draft ids are taken for the target's, or the offsets for ids."""
    if fault is None:
        return best_ids(tiny)
    wrong = (lambda self, tokens: tokens) if fault == "ids of the head" else None
    monkeypatch.setattr(Eagle, "_target_ids", wrong or (lambda self, ids: (self._ids - torch.arange(40))[ids]))
    with must_fail():
        best_ids(tiny)


@pytest.mark.parametrize("tree", ["chain", "sampled:2"])
def test_greedy_and_coupled_drafts_have_no_law(tree: str, tiny: Transformer) -> None:
    played = Played(Eagle(random_head(), tiny, packed=False))
    played.admit(3)
    assert played.propose(tree, [2], [3 if tree != "chain" else 2]).draft_probs is None
    assert played.propose(tree, [2], [3 if tree != "chain" else 2], Sampling(1.0), coupled=True).draft_probs is None


def test_a_coupled_row_races_with_the_targets_noise(tiny: Transformer) -> None:
    """Noise is named by the target's ids: the same head with and without a map of ids drafts the same tokens."""
    small, whole = random_head(seed=5), random_head(shape_of(draft_vocab_size=64), seed=5)
    weights = {
        name: weight for name, weight in small.state_dict().items() if name not in ("d2t", "t2d", "lm_head.weight")
    }
    whole.load_state_dict(weights, strict=False)
    ids = small.target_ids
    with torch.no_grad():
        whole.lm_head.weight.zero_().index_copy_(0, ids, small.lm_head.weight)
    honest = Walker.logits

    def forbidding(self: Walker, out: Tensor) -> Tensor:
        logits = honest(self, out)
        return (
            logits
            if logits.shape[-1] < 64
            else torch.full_like(logits, -torch.inf).index_copy(-1, ids, logits[..., ids])
        )

    drafts = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Walker, "logits", forbidding)
        for head in (small, whole):
            played = Played(Eagle(head, tiny, packed=False))
            played.admit(*range(1, 8))
            chain = played.propose("chain", [3] * 7, None, Sampling(1.0), coupled=True)
            tree = played.propose("sampled:2", [3] * 7, [6] * 7, Sampling(1.0), coupled=True)
            drafts.append((chain.tree.to_lists(), tree.tree.to_lists()))
    assert drafts[0] == drafts[1]


@pytest.mark.parametrize("tree", ["chain", *TREES])
def test_it_stops_at_an_end_of_text(tree: str, tiny: Transformer) -> None:
    drafter = Eagle(random_head(seed=7), tiny, packed=False)
    played = Played(drafter)
    played.admit(3, 4, 5)
    nodes = [4] * 3 if tree == "chain" else [12] * 3
    free = played.propose(tree, [4] * 3, nodes).tree.to_lists()
    inner = {tokens[parent] for tokens, parents in free for parent in parents if parent >= 0}
    drafter.eos_ids = frozenset(inner)
    bound = played.propose(tree, [4] * 3, nodes).tree.to_lists()
    assert inner and all(tokens for tokens, _ in bound)
    assert not any(tokens[parent] in inner for tokens, parents in bound for parent in parents if parent >= 0)
    drafter.eos_ids = frozenset(
        {next(token for token in range(64) if token not in drafter._target_ids(torch.arange(40)))}
    )
    assert played.propose(tree, [4] * 3, nodes).tree.to_lists() == free


@pytest.mark.parametrize("tree", ["chain", *TREES])
@pytest.mark.parametrize("warm", [False, True])
def test_a_row_that_is_no_law_is_no_draft(tree: str, warm: bool, tiny: Transformer) -> None:
    """Features that are no numbers: that row drafts nothing, the other what it would; nor does its slot keep them."""
    head = random_head(seed=8)
    nodes, sampling = [3, 3] if tree == "chain" else [6, 6], Sampling(1.0) if warm else Sampling()
    drafts = []
    for ill in (True, False):
        played = Played(Eagle(head, tiny, packed=False), seed=3)
        played.admit(30, 4)
        shown = [played.show(2), played.show(1)]
        played.drafter.commit(played.state, [[1, 2], [3]], [shown[0] * torch.nan if ill else shown[0], shown[1]])
        first = played.propose(tree, [3, 3], nodes, sampling).tree.to_lists()
        assert ill == (first[0] == ([], []))
        played.select([1])
        played.admit(9)
        played.commit([played.ids(30), []])
        assert not played.state.cache.entries.isnan().any()
        drafts.append([first[1], *played.propose(tree, [3, 3], nodes, sampling).tree.to_lists()])
    assert drafts[0] == drafts[1] and all(tokens for tokens, _ in drafts[0])


# ---- the head's own limits -------------------------------------------------------------------------------------------


def test_the_heads_longest_text_ends(tiny: Transformer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A head for 12 positions: it drafts up to the last one and no further, with a notice, and keeps nothing there."""
    head = random_head(shape_of(max_positions=12))
    drafter = Eagle(head, tiny, packed=False)
    played = Played(drafter)
    furthest: list[int] = []
    honest = Rotary.at

    def at(self: Rotary, positions: Tensor, dtype: torch.dtype) -> Any:
        furthest.append(int(positions.max()))
        return honest(self, positions, dtype)

    monkeypatch.setattr(Rotary, "at", at)
    played.admit(6)
    for length, room in ((7, 5), (9, 5), (10, 4), (11, 3), (12, 2), (13, 1)):
        played.commit([played.ids(length - len(played.texts[0]))])
        assert played.propose("chain", [5]).tree.num_nodes.tolist() == [room]
        assert int(played.propose("top-k:2", [5], [9]).tree.depths().max()) <= room
    assert max(furthest) == 11
    played.commit([played.ids(1)])
    with pytest.warns(
        UserWarning, match="the drafter 'eagle3' was made for texts of 12 tokens; longer ones are decoded"
    ):
        assert played.propose("chain", [5]).tree.num_nodes.tolist() == [0]
    assert not played.state.queues[0]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert played.propose("chain", [0]).tree.num_nodes.tolist() == [0]
        played.admit(40, 2)
        assert [sum(map(len, queue)) for queue in played.state.queues] == [0, 0, 2]
        assert played.propose("chain", [0, 0, 3]).tree.num_nodes.tolist() == [0, 0, 3]
    assert max(furthest) <= 12 + 1


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"vocab_size": 65}, "'eagle3' is for a vocabulary of 65; allowed: 64, that of the target 'tiny-llama'"),
    ({"taps": (0, 1, 3)}, "'eagle3' reads tap 3; allowed: 0 to 2, the layers of the target 'tiny-llama'"),
    (
        {"target_hidden_size": 48, "hidden_size": 48, "head_width": 12},
        "'eagle3' reads features 48 wide; allowed: 32, those of the target 'tiny-llama'",
    ),
]


@pytest.mark.parametrize(("changes", "message"), REFUSED, ids=str)
def test_a_head_for_another_target_is_refused(changes: dict[str, Any], message: str, tiny: Transformer) -> None:
    with pytest.raises(UsageError, match=message):
        Eagle(random_head(shape_of(**changes)), tiny)


def test_targets_without_features_are_refused() -> None:
    function = FunctionTarget(lambda ids: torch.zeros(*ids.shape, 64), 64)
    with pytest.raises(UsageError, match="a function shows no features and was asked for"):
        Eagle(random_head(), function)


@pytest.mark.parametrize("offsets", [[-1] + [0] * 39, [0] * 39 + [25], [1, 0] + [1] * 38])
def test_a_map_of_ids_that_is_none_is_refused(offsets: list[int], tiny: Transformer) -> None:
    head = random_head()
    assert head.d2t is not None
    head.d2t.copy_(torch.tensor(offsets))
    with pytest.raises(
        WeightsError, match=r"d2t of the drafter 'eagle3' leads to ids from .*; allowed: rising ids from 0"
    ):
        Eagle(head, tiny)


def test_a_head_with_embeddings_of_its_own(tiny: Transformer) -> None:
    head = random_head(shape_of(hidden_size=16, head_width=4), seed=2)
    assert head.embed_tokens is not None
    played = Played(Eagle(head, tiny, packed=False))
    played.admit(5)
    assert played.check(head, head.embed_tokens.weight.detach(), played.propose("chain", [3])) == 3


def test_a_foreign_state_is_refused(tiny: Transformer) -> None:
    drafter = Eagle(random_head(), tiny, packed=False)
    with pytest.raises(TypeError, match="an EAGLE drafter was given the state of another drafter: LookupState"):
        drafter.select(Lookup().open(1, 1), [])
    with pytest.raises(TypeError, match="an EAGLE drafter was given no features"):
        drafter.admit(drafter.open(1, 4), [[1]], None)
