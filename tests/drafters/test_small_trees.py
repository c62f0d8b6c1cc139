"""A smaller model drafts trees: exact caches, exact texts and laws, trees that are really used, one forward a depth."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chi2
from torch import Tensor

from outpace.decoding.control import Fixed
from outpace.decoding.loop import Request, decode
from outpace.decoding.turn import Turn
from outpace.drafters.budget import Branching, Budget
from outpace.drafters.drafter import Proposal
from outpace.drafters.small import TREE_ROOM, Small, SmallState
from outpace.models.function import FunctionTarget
from outpace.models.target import Target
from outpace.models.toy import random_table, table_target
from outpace.models.transformer import Transformer
from outpace.verification.coins import Keys
from outpace.verification.probabilities import Sampling, probability_rows
from outpace.verification.tree import DraftTree
from toys import Watched, dense_logits, lively, reference, run, seeded_reference

PROMPTS = [(9,), (5, 6, 7), (1, 2, 3, 4, 5, 6, 7)]
TREES = ["top-k:2", "top-k:3", "top-p:0.8", "sampled:2", "sampled:3", "static:0.5,0.2,0.1"]


def fixed(tree: str, depth: int, nodes: int) -> Fixed:
    return Fixed(Branching.parse(tree), depth, nodes)


def paths_of(tokens: list[int], parents: list[int]) -> list[list[int]]:
    found: list[list[int]] = []
    for token, parent in zip(tokens, parents, strict=True):
        found.append([*(found[parent] if parent >= 0 else []), token])
    return found


class CheckedTree(Small):
    """Compares every node that it scores with the model read afresh, and its cache with the text after every turn."""

    checked = 0

    def _score(self, own: SmallState, tree: DraftTree) -> Tensor:
        logits = super()._score(own, tree)
        assert isinstance(self.model, Transformer)
        for row, (tokens, parents) in enumerate(tree.to_lists()):
            assert own.cache.lengths[row] == len(own.read[row])
            for node, path in enumerate(paths_of(tokens, parents)):
                assert own.read[row] == own.known[row]
                fresh = dense_logits(self.model, own.known[row] + path)[-1]
                torch.testing.assert_close(logits[row, node + 1], fresh, rtol=0, atol=1e-4)
                self.checked += 1
        return logits

    def commit(self, state: Any, emitted: list[list[int]], features: Any) -> None:
        super().commit(state, emitted, features)
        for known, read, length in zip(state.known, state.read, state.cache.lengths, strict=True):
            assert read == known[:length] and length < len(known)


@settings(max_examples=8)
@given(
    tree=st.sampled_from(TREES),
    depth=st.integers(1, 4),
    more=st.integers(0, 6),
    slots=st.integers(1, 3),
    itself=st.booleans(),
)
def test_cache_and_text_are_exact(
    tree: str, depth: int, more: int, slots: int, itself: bool, tiny: Transformer, tiny_draft: Transformer
) -> None:
    guesser = CheckedTree(tiny if itself else tiny_draft, tiny)
    requests = [Request(prompt, max_new_tokens=10) for prompt in PROMPTS]
    rows = run(tiny, guesser, requests, control=fixed(tree, depth, depth + more), slots=slots)
    assert [row.ids for row in rows] == [reference(tiny, prompt, 10) for prompt in PROMPTS]
    assert guesser.checked > 0 or depth == 1


def test_the_tokens_behind_a_tree_are_read_rightly(
    monkeypatch: pytest.MonkeyPatch, tiny: Transformer, tiny_draft: Transformer
) -> None:
    """The fault: the last token is scored behind itself, one position late."""

    def late(self: Small, own: SmallState, tree: DraftTree) -> Tensor:
        last = torch.tensor([read[-1] for read in own.read])
        logits = self.model.score(own.cache, last, tree).logits
        self.model.rewind(own.cache, [len(read) for read in own.read])
        return logits

    monkeypatch.setattr(Small, "_score", late)
    with pytest.raises(AssertionError):
        run(tiny, CheckedTree(tiny_draft, tiny), [Request((1, 2), max_new_tokens=8)], control=fixed("top-k:2", 3, 9))


@pytest.mark.parametrize("tree", TREES)
def test_seeded_texts_are_the_plain_seeded_texts(tree: str, tiny: Transformer, tiny_draft: Transformer) -> None:
    sampling = Sampling(0.9, top_k=12)
    requests = [Request(prompt, sampling, 10, seed=7) for prompt in PROMPTS]
    for model in (tiny, tiny_draft):
        rows = run(tiny, Small(model, tiny), requests, control=fixed(tree, 3, 8))
        assert [row.ids for row in rows] == [seeded_reference(tiny, prompt, 10, sampling, 7) for prompt in PROMPTS]
        if model is tiny and tree.startswith("sampled"):  # its first child is the target's own choice
            assert all(row.stats.tau > 2.5 for row in rows)


@pytest.mark.parametrize(("tree", "nodes"), [("top-k:2", 14), ("top-k:3", 39), ("sampled:3", 6)])
def test_a_self_draft_is_accepted_to_its_full_depth(tree: str, nodes: int, tiny: Transformer) -> None:
    """A whole tree of depth three, alone and in a ragged batch: every turn emits four tokens while there is room."""
    for prompts in (PROMPTS[:1], PROMPTS):
        requests = [Request(prompt, max_new_tokens=13) for prompt in prompts]
        for row in run(tiny, Small(tiny, tiny), requests, control=fixed(tree, 3, nodes)):
            assert row.stats.acceptance == 1.0 and row.stats.turns == 3 and row.stats.tau == 4.0


def second_best(target: Target, share: float) -> FunctionTarget:
    """A draft model made for trees: the target's logits, but behind some texts its two best tokens change places."""

    def logits_of(ids: Tensor) -> Tensor:
        assert isinstance(target, FunctionTarget)
        logits = target.logits_of(ids).clone()
        best = logits.topk(2, -1).indices
        swapped = best.flip(-1)
        wrong = (ids * 37 % 100 < 100 * share)[..., None]
        return logits.scatter(-1, best, logits.gather(-1, swapped)).where(wrong, logits)

    return FunctionTarget(logits_of, target.vocab_size)


def ranks_accepted(target: Target, drafter: Small, tree: str) -> tuple[list[int], list[Turn]]:
    """The rank among its siblings of every accepted node, and all turns behind the prefill."""
    ranks: list[int] = []
    turns: list[Turn] = []

    def look(turn: Turn, rows: list[int]) -> None:
        if turn.proposal.tree.tokens.shape[1]:
            turns.append(turn)
        for (_, parents), path in zip(turn.proposal.tree.to_lists(), turn.paths, strict=True):
            ranks.extend(1 + parents[:node].count(parents[node]) for node in path)

    for _ in decode(target, drafter, [Request((1,), max_new_tokens=60)], control=fixed(tree, 3, 9), observer=look):
        pass
    return ranks, turns


def test_trees_are_really_used() -> None:
    """A fifth of the accepted tokens and more is of rank two, which no chain holds; one target forward a turn."""
    target = table_target(random_table(100, seed=4))
    watched = Watched(target)
    drafter = Small(second_best(target, 0.5), target)
    ranks, turns = ranks_accepted(watched, drafter, "top-k:3")
    assert len(ranks) > 30 and sum(rank >= 2 for rank in ranks) >= 0.2 * len(ranks)
    assert len(watched.scored) >= len(turns) and len(watched.scored) - len(turns) <= 1
    chain, _ = ranks_accepted(target, drafter, "top-k:1")
    assert set(chain) == {1} and len(chain) < len(ranks)


def test_a_tree_takes_one_forward_a_depth(tiny: Transformer, tiny_draft: Transformer) -> None:
    watched = Watched(tiny_draft)
    small = Small(watched, tiny)
    state = small.open(1, 40)
    small.admit(state, [[1, 2, 3]], None)
    small.commit(state, [[4]], None)
    for tree in ("top-k:2", "sampled:2", "static:0.5,0.5"):
        watched.scored.clear()
        budget = Budget([3], [14], Branching.parse(tree))
        small.propose(state, budget, [Sampling(1.0)], Keys((0,), (0,), (4,), (True,)))
        assert watched.scored == [[0], [2], [6]]


@pytest.mark.parametrize("tree", TREES)
def test_the_context_of_the_draft_model_ends(tree: str) -> None:
    """Context 24 for a text of 55: no position is read that is not there, and a notice is given; rows in one batch."""
    target, draft = lively(max_position_embeddings=64), Watched(lively(max_position_embeddings=24))
    prompts = [tuple((7 * place) % 64 for place in range(15)), (3, 1)]
    requests = [Request(prompt, max_new_tokens=40) for prompt in prompts]
    with pytest.warns(UserWarning, match="has a context of 24 tokens; longer texts are decoded without drafts"):
        rows = run(target, Small(draft, target), requests, control=fixed(tree, 4, 20))
    assert [row.ids for row in rows] == [reference(target, prompt, 40) for prompt in prompts]
    assert draft.furthest < 24
    assert all(row.stats.drafted > 0 and row.stats.plain_turns > 0 for row in rows)


@pytest.mark.parametrize("tree", TREES)
def test_a_tree_never_outgrows_its_cache(tree: str, tiny: Transformer) -> None:
    """Whatever the budget says: with room for few tokens behind the longest row, all rows draft few."""
    small = Small(tiny, tiny)
    state = small.open(2, 20)
    small.admit(state, [[*range(17)], [1, 2]], None)
    small.commit(state, [[3], [4]], None)
    budget, keys = Budget([4, 4], [60, 60], Branching.parse(tree)), Keys((0, 1), (0, 0), (17, 2), (False, False))
    counts = small.propose(state, budget, [Sampling(1.0)] * 2, keys).tree.num_nodes.tolist()
    assert max(counts) <= 20 + 2 - 18 and min(counts) > 0
    huge = small.open(1, 10**6)
    assert isinstance(huge, SmallState) and huge.positions == tiny.max_positions + TREE_ROOM + 2


def test_models_that_score_no_trees_draft_chains() -> None:
    narrow = FunctionTarget(lambda ids: torch.zeros(*ids.shape, 8), 8)
    assert Small(narrow, narrow).branchings == {"chain", "top-k", "top-p", "sampled", "static"}
    narrow.can_tree = False
    assert Small(narrow, narrow).branchings == {"chain"}


# ---- laws through the whole stack ----------------------------------------------------------------------------------

ALARM, LENGTH, VOCAB = 1e-9, 3, 4
TARGET, DRAFT = random_table(VOCAB, seed=1), random_table(VOCAB, seed=2)


def p_value(make: Callable[[], Small], tree: str, count: int = 2_000, rule: str | None = None) -> float:
    """Of the second to fourth token of so many samples, if their law is the target's."""
    target, requests = (
        table_target(TARGET),
        [Request([1], Sampling(1.0), max_new_tokens=2 + LENGTH, seed=19, sample=number) for number in range(count)],
    )
    texts: list[list[int]] = [[] for _ in requests]
    for emission in decode(target, make(), requests, control=fixed(tree, 2, 5), rule=rule, slots=500):
        texts[emission.index] += emission.ids
    rows = probability_rows(TARGET, Sampling(1.0))
    law = (rows[1] @ rows)[:, None, None] * rows[:, :, None] * rows[None]
    places = VOCAB ** torch.arange(LENGTH - 1, -1, -1)
    cells = (torch.tensor(texts)[:, 1 : 1 + LENGTH] * places).sum(1)
    expected = law.flatten() * count
    counts = torch.bincount(cells, minlength=VOCAB**LENGTH)
    rare = expected < 5
    observed = torch.cat([counts[~rare].double(), counts[rare].sum()[None].double()])
    wanted = torch.cat([expected[~rare], expected[rare].sum()[None]])
    some = wanted > 0
    statistic = ((observed[some] - wanted[some]) ** 2 / wanted[some]).sum()
    return float(chi2.sf(float(statistic), int(some.sum()) - 1))


def honest() -> Small:
    return Small(table_target(DRAFT), table_target(TARGET))


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("tree", "rule"),
    [
        ("sampled:2", "tree-rejection"),
        ("sampled:3", "traversal"),
        ("sampled:2", "match"),
        ("sampled:2", None),
        ("top-k:2", "tree-rejection"),
        ("top-k:3", "match"),
        ("top-k:2", None),
        ("top-p:0.8", "traversal"),
        ("static:0.5,0.3", "tree-rejection"),
        ("static:0.4,0.3,0.2", None),
    ],
)
def test_trees_keep_the_law(tree: str, rule: str | None) -> None:
    """Three tokens through several turns. Seeds are fixed; a chi-square below 1e-9 would be one run in 1e9."""
    assert p_value(honest, tree, rule=rule) > ALARM


class Wrong(Small):
    """Drafts trees with a fault."""

    fault = ""

    def propose(self, state: Any, budget: Budget, sampling: list[Sampling], keys: Keys) -> Proposal:
        proposal = super().propose(state, budget, sampling, keys)
        laws, tree = proposal.draft_probs, proposal.tree
        if laws is None or not tree.tokens.shape[1]:
            return proposal
        if self.fault == "another law is reported":
            return Proposal(tree, laws.sqrt() / laws.sqrt().sum(-1, keepdim=True).clamp(min=1e-9))
        # Drops what turned out improbable: the shape then depends on what was drawn.
        drawn = laws[torch.arange(len(laws))[:, None], tree.parents + 1, tree.tokens.clamp(min=0)]
        drawn = drawn.where(tree.parents < 0, 1.0)
        keep = (drawn >= 0.25) & tree.real
        keep = (keep[:, None] | ~tree.ancestor_mask()).all(2) & tree.real
        kept = tree.prune(keep)
        order = keep.long().argsort(dim=1, descending=True, stable=True)[:, : kept.tokens.shape[1]]
        rows = torch.nn.functional.pad(order + 1, (1, 0))
        return Proposal(kept, laws.gather(1, rows[..., None].expand(-1, -1, laws.shape[2])))


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("fault", ["another law is reported", "improbable draws are dropped"])
def test_planted_faults_of_sampled_trees_are_noticed(fault: str) -> None:
    def faulty() -> Small:
        drafter = Wrong(table_target(DRAFT), table_target(TARGET))
        drafter.fault = fault
        return drafter

    assert p_value(faulty, "sampled:2", count=3_000, rule="tree-rejection") < ALARM
