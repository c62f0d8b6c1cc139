"""The cache of an EAGLE-3 head is exact whatever became of its drafts, and no more is computed than is new."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from heads import CLOSE, LEGAL, TREES, Played, literal, paths_of, random_head, shape_of, unrolled
from outpace.drafters import eagle
from outpace.drafters.eagle import Eagle, EagleState
from outpace.drafters.levels import Levels
from outpace.drafters.walk import GROWTH, Walker
from outpace.models.transformer import Transformer
from outpace.verification.probabilities import Sampling
from toys import must_fail

ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(["chain", *TREES]),
        st.lists(st.integers(0, 4), min_size=3, max_size=3),  # depths; 0 rests
        st.integers(0, 12),  # nodes beyond the depth
        st.lists(st.integers(0, 5), min_size=3, max_size=3),  # how far down a path the text agrees with the draft
        st.sampled_from(("go on", "go on", "plainly", "select", "admit")),
    ),
    min_size=2,
    max_size=6,
)


@settings(max_examples=15)
@given(actions=ACTIONS, flags=st.sampled_from(LEGAL), warm=st.booleans(), seed=st.integers(0, 99))
def test_drafts_are_those_of_the_text_read_anew(
    actions: list[Any], flags: dict[str, bool], warm: bool, seed: int, tiny: Transformer
) -> None:
    """Chains and trees of every kind, behind any acceptance, rest, departure and arrival of rows."""
    head = random_head(shape_of(**flags), seed=seed)
    played = Played(Eagle(head, tiny, packed=False), seed=seed)
    played.admit(5, 1, 9)
    checked = 0
    for tree, depths, more, agreed, then in actions:
        rows = len(played.texts)
        depths, agreed = depths[:rows], agreed[:rows]
        if then != "plainly" and any(depths):
            sampling = Sampling(1.0) if warm else Sampling()
            nodes = depths if tree == "chain" else [depth + more if depth else 0 for depth in depths]
            proposal = played.propose(tree, depths, nodes, sampling)
            checked += played.check(head, tiny.embeddings, proposal)
            drafts = [max(paths_of(*row), key=len, default=[]) for row in proposal.tree.to_lists()]
        else:
            drafts = [[] for _ in depths]
        played.commit([[*draft[:count], *played.ids(1)] for draft, count in zip(drafts, agreed, strict=True)])
        if then == "select" and rows > 1:
            played.select([rows - 1, *range(rows - 2)])
        elif then == "admit" and rows < 3:
            played.admit(4)
    final = played.propose("chain", [3] * len(played.texts))
    assert checked + played.check(head, tiny.embeddings, final) >= 3 * len(played.texts)


def test_a_node_says_what_the_chain_along_its_path_says(tiny: Transformer) -> None:
    """Nodes of a tree of depth three in any order and, one after the other, the path to each as a chain."""
    head = random_head(seed=3)
    drafter = Eagle(head, tiny, packed=False)
    played = Played(drafter)
    played.admit(6)
    out = drafter._caught_up(played.state, [True])
    tokens, parents = played.ids(14), [-1, -1, 0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5]
    ids = head.target_ids
    look = Levels(drafter.walker, played.state.cache, out, drafter._target_ids)
    drafted = [token % 40 for token in tokens]
    drafted[1::2] = [(token + 1 + place) % 40 for place, token in enumerate(drafted[::2])]  # siblings differ
    levels = [[-1], [1, 0], [4, 2, 3], [11, 6, 10, 9]]  # as growth does: the root, then some nodes of each depth
    paths = paths_of(drafted, parents)
    for depth, nodes in enumerate(levels):
        logits = look(depth, [(drafted, parents)], [nodes])
        for place, node in enumerate(nodes):
            path = ids[torch.tensor(paths[node] if depth else [], dtype=torch.int64)].tolist()
            chained = literal(head, tiny.embeddings, played.features[0], played.texts[0], path)
            torch.testing.assert_close(logits[0, place], chained[-1], **CLOSE)


def test_rows_that_rest_are_caught_up_in_one_pass(tiny: Transformer, monkeypatch: pytest.MonkeyPatch) -> None:
    head = random_head(seed=2)
    played = Played(Eagle(head, tiny, packed=False))
    played.admit(4, 2)
    for turn in range(9):
        played.commit([played.ids(1), played.ids(1 + turn % 3)])
    passes: list[list[int]] = []
    honest = Walker.read

    def read(self: Walker, cache: Any, rows: list[int], features: list[Tensor], tokens: list[list[int]]) -> Any:
        passes.append([len(part) for part in tokens])
        return honest(self, cache, rows, features, tokens)

    monkeypatch.setattr(Walker, "read", read)
    played.check(head, tiny.embeddings, played.propose("chain", [2, 2]))
    assert passes == [[4 + 9, 2 + 18]]
    played.commit([played.ids(2), played.ids(1)])
    played.check(head, tiny.embeddings, played.propose("top-k:2", [2, 2], [6, 6]))
    assert passes[1:] == [[2, 1]]


def test_what_is_queued_is_bounded(tiny: Transformer, monkeypatch: pytest.MonkeyPatch) -> None:
    """While nothing is drafted a row keeps so many features, of a long prompt none; then drafts are right."""
    monkeypatch.setattr(eagle, "QUEUE", 8)
    monkeypatch.setattr(eagle, "PREFILL_TOKENS", 7)  # read in several passes
    head = random_head(seed=4)
    played = Played(Eagle(head, tiny, packed=False), positions=4)
    played.admit(24, 3)
    assert [sum(map(len, queue)) for queue in played.state.queues] == [1, 1]
    most = 0
    for _ in range(20):
        played.commit([[], played.ids(1)])
        most = max(most, *(sum(map(len, queue)) for queue in played.state.queues))
    assert most == 8
    assert played.check(head, tiny.embeddings, played.propose("chain", [2, 2])) == 4


@pytest.mark.parametrize("flags", LEGAL, ids=str)
def test_it_drafts_as_it_is_trained(flags: dict[str, bool], tiny: Transformer) -> None:
    """The head unrolled over all positions of a text at once says at each step what the drafter says, fed that text."""
    head = random_head(shape_of(**flags), seed=3)
    drafter = Eagle(head, tiny, packed=False)
    played = Played(drafter)
    played.admit(12)
    coming = played.ids(2)
    features = torch.cat((played.features[0], played.show(3)))  # of what is to come none may matter
    with torch.inference_mode():
        shown = unrolled(head, tiny.embeddings, features, [*played.texts[0], *coming], 3)
    out = drafter._caught_up(played.state, [True])
    for step, logits in enumerate(shown):
        torch.testing.assert_close(drafter.walker.logits(out)[0, 0], logits[11], **CLOSE)
        if step < len(coming):
            token, place = torch.tensor([[coming[step]]]), torch.tensor([[12 + step]])
            out = drafter.walker.step(played.state.cache, drafter.walker.feed(out), token, place, step)


# ---- how much is computed --------------------------------------------------------------------------------------------


def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many nodes a row each pass of the walker has, from now on."""
    passes: list[int] = []
    honest = Walker.step

    def step(self: Walker, cache: Any, hidden: Tensor, tokens: Tensor, *rest: Any) -> Tensor:
        passes.append(tokens.shape[1])
        return honest(self, cache, hidden, tokens, *rest)

    monkeypatch.setattr(Walker, "step", step)
    return passes


def test_a_depth_takes_one_pass_over_what_is_new(tiny: Transformer, monkeypatch: pytest.MonkeyPatch) -> None:
    played = Played(Eagle(random_head(seed=9), tiny, packed=False))
    played.admit(5)
    passes = counted(monkeypatch)
    played.propose("chain", [4])
    assert passes == [1, 1, 1]
    passes.clear()
    played.propose("top-k:2", [4], [30], Sampling(3.0))
    assert passes == [2, 4, 8]
    passes.clear()
    tree = played.propose("sampled:2", [4], [12], Sampling(3.0)).tree
    levels, mothers = tree.depths()[0], set(tree.parents[0].tolist())
    assert passes == [sum(int(levels[node]) == depth for node in mothers - {-1}) for depth in (1, 2, 3)]


def test_nodes_that_were_dropped_are_not_walked_again(tiny: Transformer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a tree with few nodes most are dropped on the way, so that the others change their places."""
    head, moved = random_head(seed=10), 0
    passes = counted(monkeypatch)
    for seed in range(6):
        played = Played(Eagle(head, tiny, packed=False), seed=seed)
        played.admit(5, 2)
        passes.clear()
        proposal = played.propose("top-k:3", [5, 4], [7, 7], Sampling(0.5))
        assert played.check(head, tiny.embeddings, proposal) > 2
        moved += sum(passes) > 7
        assert max(passes) <= 7 and len(passes) <= 4
    assert moved, "no tree lost a node that had been walked: take other seeds"


def test_the_room_grows_with_the_tree(tiny: Transformer) -> None:
    """Opened for nine positions: a tree and a text that need more have it, and nothing is lost."""
    head = random_head(seed=12)
    played = Played(Eagle(head, tiny, packed=False), slots=2, positions=9)
    played.admit(6, 3)
    for grown in (0, 20):
        played.commit([played.ids(1 + grown), played.ids(2)])
        tree = played.propose("top-k:3", [3, 3], [30, 30], Sampling(3.0)).tree
        assert min(tree.num_nodes.tolist()) == 30
        played.check(head, tiny.embeddings, played.propose("top-k:2", [3, 2], [8, 6]))
    assert 9 < played.state.cache.positions < 9 + GROWTH + 2 * 3 * 30


# ---- planted faults --------------------------------------------------------------------------------------------------


def _shown_late(self: Eagle, own: EagleState, parts: dict[int, Tensor]) -> Any:
    """The features of the position before."""
    return HONEST_READ(self, own, {row: torch.cat((part[:1], part[:-1])) for row, part in parts.items()})


def _token_before(self: Eagle, own: EagleState, parts: dict[int, Tensor]) -> Any:
    """The token at a position, not the one behind it."""
    honest = own.known
    own.known = [[text[0], *text[:-1]] for text in honest]
    read = HONEST_READ(self, own, parts)
    own.known = honest
    return read


def _one_place(self: Walker, cache: Any, hidden: Tensor, tokens: Tensor, positions: Tensor, *rest: Any) -> Tensor:
    """All of a draft stands at the position of the last features."""
    return HONEST_STEP(self, cache, hidden, tokens, torch.tensor(cache.lengths)[:, None].expand_as(tokens) - 1, *rest)


def _one_late(self: Walker, cache: Any, hidden: Tensor, tokens: Tensor, positions: Tensor, *rest: Any) -> Tensor:
    return HONEST_STEP(self, cache, hidden, tokens, positions + 1, *rest)


def _kept_drafts(self: Eagle, state: Any, emitted: list[list[int]], features: Any) -> None:
    """What was drafted is taken for read, as far as it came true."""
    HONEST_COMMIT(self, state, emitted, features)
    for row, tokens in enumerate(emitted):
        if len(tokens) > 1 and state.queues[row]:
            state.cache.lengths[row] += len(tokens) - 1
            state.queues[row] = [torch.cat(state.queues[row])[len(tokens) - 1 :]]


def _all_seen(self: Walker, lengths: list[int], drafted: int, nodes: int, seen: Any) -> Any:
    """Siblings and cousins see each other."""
    return HONEST_MASK(self, lengths, drafted, nodes, None if seen is None else torch.ones_like(seen))


def _by_index(self: Levels, depth: int, grown: Any, nodes: list[list[int]]) -> Tensor:
    return HONEST_WALK(self, 1 + self.seen.shape[2], grown, nodes)


HONEST_READ, HONEST_STEP, HONEST_COMMIT = Eagle._read, Walker.step, Eagle.commit
HONEST_MASK, HONEST_WALK = Walker._mask, Levels._walk
FAULTS: dict[str, tuple[type, str, Callable[..., Any]]] = {
    "features are one late": (Eagle, "_read", _shown_late),
    "the token at the position": (Eagle, "_read", _token_before),
    "a draft stands in one place": (Walker, "step", _one_place),
    "a draft stands one late": (Walker, "step", _one_late),
    "drafted entries are kept": (Eagle, "commit", _kept_drafts),
    "siblings see each other": (Walker, "_mask", _all_seen),
    "nodes stand at their places": (Levels, "_walk", _by_index),
}


def one_text(target: Transformer) -> None:
    """Three turns of a tree each, in which two tokens of the draft come true."""
    head = random_head(seed=1)
    played = Played(Eagle(head, target, packed=False))
    played.admit(7)
    for _ in range(3):
        proposal = played.propose("top-k:2", [4], [12], Sampling(2.0))
        played.check(head, target.embeddings, proposal)
        path = max(paths_of(*proposal.tree.to_lists()[0]), key=len)
        played.commit([[*path[:2], *played.ids(1)]])


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_noticed(fault: str, tiny: Transformer, monkeypatch: pytest.MonkeyPatch) -> None:
    one_text(tiny)
    where, what, wrong = FAULTS[fault]
    monkeypatch.setattr(where, what, wrong)
    with must_fail():
        one_text(tiny)
