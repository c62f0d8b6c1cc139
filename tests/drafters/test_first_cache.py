"""The cache of an EAGLE-1 head is exact whatever became of its drafts: they are those of the whole text read anew."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from first_heads import TAPS, FirstPlayed, first_shape, learnt, literal_first, random_first
from heads import CLOSE, TREES, features_of, paths_of, unrolled
from outpace.decoding.control import Fixed
from outpace.decoding.loop import Request
from outpace.decoding.turn import Turn
from outpace.drafters.budget import Branching
from outpace.drafters.eagle import Eagle, EagleState
from outpace.drafters.first_head import FirstHead
from outpace.drafters.levels import Levels
from outpace.drafters.walk import Walker
from outpace.errors import UsageError
from outpace.models.ends import read_embeddings, read_head
from outpace.models.transformer import Transformer
from outpace.verification.probabilities import Sampling
from toys import lively, must_fail, reference, run

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
@given(actions=ACTIONS, fc_bias=st.booleans(), warm=st.booleans(), seed=st.integers(0, 99))
def test_drafts_are_those_of_the_text_read_anew(
    actions: list[Any], fc_bias: bool, warm: bool, seed: int, tiny: Transformer
) -> None:
    """Chains and trees of every kind, behind any acceptance, rest, departure and arrival of rows."""
    head = random_first(first_shape(fc_bias=fc_bias), seed=seed)
    played = FirstPlayed(Eagle(head, tiny, packed=False), seed=seed)
    played.admit(5, 1, 9)
    checked = 0
    for tree, depths, more, agreed, then in actions:
        rows = len(played.texts)
        depths, agreed = depths[:rows], agreed[:rows]
        if then != "plainly" and any(depths):
            nodes = depths if tree == "chain" else [depth + more if depth else 0 for depth in depths]
            proposal = played.propose(tree, depths, nodes, Sampling(1.0) if warm else Sampling())
            checked += played.check(head, tiny, proposal)
            drafts = [max(paths_of(*row), key=len, default=[]) for row in proposal.tree.to_lists()]
        else:
            drafts = [[] for _ in depths]
        played.commit([[*draft[:count], *played.ids(1)] for draft, count in zip(drafts, agreed, strict=True)])
        if then == "select" and rows > 1:
            played.select([rows - 1, *range(rows - 2)])
        elif then == "admit" and rows < 3:
            played.admit(4)
    final = played.propose("chain", [3] * len(played.texts))
    assert checked + played.check(head, tiny, final) >= 3 * len(played.texts)


@pytest.mark.parametrize("fc_bias", [True, False])
def test_it_drafts_as_it_is_trained(fc_bias: bool, tiny: Transformer) -> None:
    """The head unrolled over all positions of a text at once says at each step what the drafter says, fed that text."""
    head = random_first(first_shape(fc_bias=fc_bias), seed=3, rows=read_head(tiny))
    drafter = Eagle(head, tiny, packed=False)
    played = FirstPlayed(drafter)
    played.admit(12)
    coming = played.ids(2)
    features = torch.cat((played.features[0], played.show(3)))  # of what is to come none may matter
    with torch.inference_mode():
        shown = unrolled(head, read_embeddings(tiny), features, [*played.texts[0], *coming], 3)
    out = drafter._caught_up(played.state, [True])
    for step, logits in enumerate(shown):
        torch.testing.assert_close(drafter.walker.logits(out)[0, 0], logits[11], **CLOSE)
        if step < len(coming):
            token, place = torch.tensor([[coming[step]]]), torch.tensor([[12 + step]])
            out = drafter.walker.step(played.state.cache, drafter.walker.feed(out), token, place, step)


def test_it_reads_the_last_normed_state_and_nothing_else(tiny: Transformer) -> None:
    drafter = Eagle(random_first(), tiny, packed=False)
    assert drafter.taps == ("last_normed",) and drafter.name == "eagle1"
    wide, long = random_first(first_shape(hidden_size=48, head_width=12)), random_first(first_shape(vocab_size=65))
    with pytest.raises(UsageError, match="'eagle1' reads features 48 wide; allowed: 32, those of the target 'tiny-ll"):
        Eagle(wide, tiny)
    with pytest.raises(UsageError, match="'eagle1' is for a vocabulary of 65; allowed: 64, that of the target 'tiny-"):
        Eagle(long, tiny)


# ---- drafting, simulated ---------------------------------------------------------------------------------------------

PROMPTS, NEW, BEAM, PASSES = ((9,), (5, 6, 7)), 20, 8, 12


@dataclass(frozen=True)
class Known:
    """A head that has half learnt two texts of a target, and what the target shows of them."""

    target: Transformer
    head: FirstHead
    embeddings: Tensor
    rows: Tensor
    texts: list[list[int]]
    shown: list[Tensor]

    @classmethod
    def of(cls, target: Transformer) -> "Known":
        texts = [[*prompt, *reference(target, prompt, NEW + 4)] for prompt in PROMPTS]
        head = learnt(target, texts, first_shape(), passes=PASSES)
        shown = [features_of(target, text, TAPS).clone() for text in texts]
        return cls(target, head, read_embeddings(target), read_head(target), texts, shown)

    def drafts(self, row: int, read: int, depth: int, width: int, nodes: int) -> set[tuple[int, ...]]:
        """What is drafted behind so many tokens of a text, by the formulas.

        EAGLE-1's chain (``width`` 1) and EAGLE-2's tree: of each depth the heaviest nodes get their best children, and
        of all nodes the heaviest stay.
        """
        text, shown = self.texts[row][:read], self.shown[row][: read - 1]
        weights: dict[tuple[int, ...], float] = {}
        frontier: dict[tuple[int, ...], float] = {(): 1.0}
        for _ in range(depth):
            new: dict[tuple[int, ...], float] = {}
            for path, weight in frontier.items():
                said = literal_first(self.head, self.embeddings, self.rows, shown, text, path)[-1].softmax(-1)
                for token in said.topk(width).indices.tolist():
                    new[*path, token] = weight * float(said[token])
            weights |= new
            frontier = dict(sorted(new.items(), key=lambda item: -item[1])[:BEAM])
        return set(sorted(weights, key=lambda path: -weights[path])[:nodes])


@cache
def known() -> Known:
    return Known.of(lively())


def drafted_as_simulated(know: Known, tree: str, width: int, nodes: int) -> set[int]:
    """Every draft of two whole texts is the simulated one; how many tokens of a draft came true, all there were."""
    read, came = [len(prompt) for prompt in PROMPTS], set[int]()

    def look(turn: Turn, rows: list[int]) -> None:
        for row, draft, path, emitted in zip(
            rows, turn.proposal.tree.to_lists(), turn.paths, turn.emitted, strict=True
        ):
            if draft[0]:
                room = min(3, len(PROMPTS[row]) + NEW - read[row] - 1)
                assert set(map(tuple, paths_of(*draft))) == know.drafts(row, read[row], room, width, nodes)
                came.add(len(path))
            read[row] += len(emitted)

    control = Fixed(Branching.parse(tree), 3, nodes)
    requests = [Request(prompt, max_new_tokens=NEW) for prompt in PROMPTS]
    drafter = Eagle(know.head, know.target, packed=False)
    for row, text, prompt in zip(
        run(know.target, drafter, requests, control=control, observer=look), know.texts, PROMPTS, strict=True
    ):
        assert row.ids == text[len(prompt) :][:NEW]
    return came


DRAFTS = [("chain", 1, 3), ("top-k:2", 2, 6)]


@pytest.mark.parametrize(("tree", "width", "nodes"), DRAFTS)
def test_whole_texts_are_drafted_as_the_formulas_say(tree: str, width: int, nodes: int) -> None:
    came = drafted_as_simulated(known(), tree, width, nodes)
    assert {0, 3} < came, "drafts must come true whole and in part, and some not at all, or little is told"


# ---- planted faults --------------------------------------------------------------------------------------------------


def _embedding_second(self: FirstHead, embedded: Tensor, hidden: Tensor) -> Any:
    return HONEST_ENTER(self, hidden, embedded)


def _before_the_norm(self: Transformer, *given: Any) -> Any:
    """The state that goes into the target's last norm is shown for what comes out of it."""
    *others, taps = given
    return HONEST_FORWARD(self, *others, tuple(self.shape.layers if tap == "last_normed" else tap for tap in taps))


def _fed_normed(self: FirstHead, out: Tensor) -> Tensor:
    normed: Tensor = self.layer.post_attention_layernorm(out)
    return normed


def _one_late(self: Walker, cache: Any, hidden: Tensor, tokens: Tensor, positions: Tensor, *rest: Any) -> Tensor:
    return HONEST_STEP(self, cache, hidden, tokens, positions + 1, *rest)


def _one_place(self: Levels, depth: int, grown: Any, nodes: list[list[int]]) -> Tensor:
    return HONEST_WALK(self, 1 + self.seen.shape[2], grown, nodes)


def _shown_late(self: Eagle, own: EagleState, parts: dict[int, Tensor]) -> Any:
    """The features of the position before."""
    return HONEST_READ(self, own, {row: torch.cat((part[:1], part[:-1])) for row, part in parts.items()})


def _kept_drafts(self: Eagle, state: Any, emitted: list[list[int]], features: Any) -> None:
    """What was drafted is taken for read, as far as it came true."""
    HONEST_COMMIT(self, state, emitted, features)
    for row, tokens in enumerate(emitted):
        if len(tokens) > 1 and state.queues[row]:
            state.cache.lengths[row] += len(tokens) - 1
            state.queues[row] = [torch.cat(state.queues[row])[len(tokens) - 1 :]]


HONEST_ENTER, HONEST_FORWARD, HONEST_STEP = FirstHead.enter, Transformer._forward, Walker.step
HONEST_WALK, HONEST_READ, HONEST_COMMIT = Levels._walk, Eagle._read, Eagle.commit
FAULTS: dict[str, tuple[type, str, Callable[..., Any]]] = {
    "the embedding second": (FirstHead, "enter", _embedding_second),
    "the state before the last norm": (Transformer, "_forward", _before_the_norm),
    "another state is fed back": (FirstHead, "feed", _fed_normed),
    "a draft stands one late": (Walker, "step", _one_late),
    "nodes stand at their places": (Levels, "_walk", _one_place),
    "features are one late": (Eagle, "_read", _shown_late),
    "drafted entries are kept": (Eagle, "commit", _kept_drafts),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_noticed(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was simulated is simulated without it; texts stay what they are."""
    know, (where, what, wrong) = known(), FAULTS[fault]
    monkeypatch.setattr(where, what, wrong)
    with must_fail():
        drafted_as_simulated(know, *DRAFTS[1])
    requests = [Request(prompt, max_new_tokens=NEW) for prompt in PROMPTS]
    rows = run(
        know.target,
        Eagle(know.head, know.target, packed=False),
        requests,
        control=Fixed(Branching.parse("top-k:2"), 3, 6),
    )
    for row, text, prompt in zip(rows, know.texts, PROMPTS, strict=True):
        assert row.ids == text[len(prompt) :][:NEW]
