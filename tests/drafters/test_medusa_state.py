"""Of each text Medusa remembers one state, whatever became of its drafts; how heads are served, and which are not."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from heads import CLOSE, TREES, Played, keys_of, paths_of
from hosts import hosted
from medusas import STATE, held, medusa_on, medusa_shape, random_medusa, said_by
from outpace.drafters.budget import Branching, Budget
from outpace.drafters.lookup import Lookup
from outpace.drafters.medusa import Medusa
from outpace.drafters.medusa_heads import MedusaHeads
from outpace.errors import UsageError
from outpace.models.function import FunctionTarget
from outpace.models.packing import Packed
from outpace.models.toy import tiny_transformer
from outpace.models.transformer import Transformer
from outpace.verification.probabilities import Sampling
from toys import must_fail

KINDS = ["chain", *TREES, "dynamic", "static"]


# ---- one state -------------------------------------------------------------------------------------------------------

ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(KINDS),
        st.lists(st.integers(0, 6), min_size=3, max_size=3),  # depths; 0 rests, and there are four heads
        st.integers(0, 12),  # nodes beyond the depth
        st.lists(st.integers(0, 5), min_size=3, max_size=3),  # how far down a path the text agrees with the draft
        st.sampled_from(("go on", "go on", "plainly", "select", "admit")),
    ),
    min_size=2,
    max_size=6,
)


def told_anew(drafter: Medusa, played: Played) -> Any:
    """The state of one who is told all texts at once: as prompts, but for last tokens, which nobody has read yet."""
    state = drafter.open(len(played.texts), 8)
    drafter.admit(state, [text[:-1] for text in played.texts], played.features)
    drafter.commit(state, [text[-1:] for text in played.texts], [part[:0] for part in played.features])
    return state


@settings(max_examples=40)
@given(actions=ACTIONS, own=st.booleans(), warm=st.booleans(), seed=st.integers(0, 99))
def test_drafts_are_those_of_the_text_told_anew(
    actions: list[Any], own: bool, warm: bool, seed: int, tiny: Transformer
) -> None:
    """Chains and trees of every kind, behind any acceptance, rest, departure and arrival of rows."""
    drafter = medusa_on(tiny, own=own, seed=seed)
    played = Played(drafter, seed=seed)
    played.admit(5, 1, 9)
    checked = 0
    sampling = Sampling(1.0) if warm else Sampling()
    for tree, depths, more, agreed, then in [*actions, ("chain", [3] * 3, 0, [0] * 3, "go on")]:
        rows = len(played.texts)
        depths, agreed = depths[:rows], agreed[:rows]
        drafts: list[list[int]] = [[] for _ in depths]
        if then != "plainly" and any(depths):
            nodes = depths if tree == "chain" else [depth + more if depth else 0 for depth in depths]
            proposal = played.propose(tree, depths, nodes, sampling)
            checked += held(drafter, tiny, played, proposal)
            budget = Budget(depths, nodes, Branching.parse(tree))
            anew = drafter.propose(told_anew(drafter, played), budget, [sampling] * rows, keys_of(rows))
            assert proposal.tree.to_lists() == anew.tree.to_lists()
            drafts = [max(paths_of(*row), key=len, default=[]) for row in proposal.tree.to_lists()]
            assert all(len(draft) <= min(depth, 4) for draft, depth in zip(drafts, depths, strict=True))
        played.commit([[*draft[:count], *played.ids(1)] for draft, count in zip(drafts, agreed, strict=True)])
        if then == "select" and rows > 1:
            played.select([rows - 1, *range(rows - 2)])
        elif then == "admit" and rows < 3:
            played.admit(4)
    assert checked >= 3 * len(played.texts)


def test_no_more_of_a_prompt_is_kept_than_one_state(tiny: Transformer) -> None:
    drafter = medusa_on(tiny)
    played = Played(drafter)
    played.admit(100, 3)
    played.commit([played.ids(7), played.ids(2)])
    assert [last.untyped_storage().nbytes() for last in played.state.last] == [4 * 32] * 2


# ---- how it is served ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tied", [False, True])
def test_the_targets_head_is_not_copied(tied: bool) -> None:
    """What it multiplies by is the target's own memory; heads with rows of their own do not ask for it."""
    target = tiny_transformer(seed=1, tie_word_embeddings=tied)
    drafter = medusa_on(target)
    assert drafter.shared is not None
    before = Played(drafter)
    before.admit(3)
    first = before.propose("chain", [2]).draft_logits
    target.head.weight.mul_(2)
    again = before.propose("chain", [2]).draft_logits
    assert first is not None and again is not None
    torch.testing.assert_close(again, 2 * first)
    assert medusa_on(target, own=True).shared is None


@pytest.mark.parametrize("own", [False, True])
def test_packed_and_plain_say_the_same(own: bool, tiny: Transformer) -> None:
    if not torch.backends.mkldnn.is_available():
        pytest.skip("this build of torch has no packed layout")
    heads = random_medusa(medusa_shape(own_head=own, layers=2), seed=3)
    said = []
    for packed in (False, True):
        drafter = Medusa(heads, tiny, packed=packed)
        layers = [part for part in drafter.heads.modules() if isinstance(part, torch.nn.Linear | Packed)]
        assert len(layers) == 4 * (3 if own else 2) and all(isinstance(part, Packed) == packed for part in layers)
        played = Played(drafter)
        played.admit(3, 6)
        said.append(played.propose("chain", [4, 4]).draft_logits)
    torch.testing.assert_close(said[1], said[0], **CLOSE)


def test_training_goes_on_beside_it(tiny: Transformer) -> None:
    """The weights are a copy: a step of training changes nothing here, and serving changes nothing there."""
    heads = random_medusa(medusa_shape(own_head=True), seed=5).train()
    before = {name: weight.clone() for name, weight in heads.state_dict().items()}
    played = Played(Medusa(heads, tiny, dtype=torch.bfloat16))
    played.admit(5)
    first = played.propose("chain", [3]).draft_logits
    assert heads.training and all(weight.requires_grad for weight in heads.parameters())
    assert {name: weight.dtype for name, weight in heads.state_dict().items()} == dict.fromkeys(before, torch.float32)
    assert all(torch.equal(weight, before[name]) for name, weight in heads.state_dict().items())
    with torch.no_grad():
        for weight in heads.parameters():
            weight.mul_(2)
    again = played.propose("chain", [3]).draft_logits
    assert first is not None and again is not None and torch.equal(first, again)


@pytest.mark.parametrize("own", [False, True])
def test_rounded_heads_give_logits_in_fp32(own: bool, tiny: Transformer) -> None:
    target = tiny_transformer(seed=3, dtype=torch.bfloat16)
    drafter = medusa_on(target, own=own)
    exact = medusa_on(tiny, own=own) if own else None
    played = Played(drafter)
    played.admit(3)
    logits = played.propose("chain", [4]).draft_logits
    assert logits is not None and logits.dtype == torch.float32
    assert all(weight.dtype == torch.bfloat16 for weight in drafter.heads.parameters())
    if exact is not None:
        anew = torch.stack(said_by(exact, tiny, played.features[0][-1, 0]))
        assert float((logits[0, :4] - anew).abs().amax()) < 0.5 < float(anew.std())
    assert {weight.dtype for weight in medusa_on(target, own=own, dtype=torch.float32).heads.parameters()} == {
        torch.float32
    }


# ---- what is refused -------------------------------------------------------------------------------------------------

REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"vocab_size": 65}, "'medusa' is for a vocabulary of 65; allowed: 64, that of the target 'tiny-llama'"),
    ({"hidden_size": 48}, "'medusa' reads a state 48 wide; allowed: 32, that of the target 'tiny-llama'"),
]


@pytest.mark.parametrize(("changes", "message"), REFUSED, ids=str)
def test_heads_for_another_target_are_refused(changes: dict[str, Any], message: str, tiny: Transformer) -> None:
    with pytest.raises(UsageError, match=message):
        Medusa(random_medusa(medusa_shape(**changes)), tiny)


def test_targets_without_features_are_refused() -> None:
    function = FunctionTarget(lambda ids: torch.zeros(*ids.shape, 64), 64)
    with pytest.raises(UsageError, match="a function shows no features and was asked for"):
        Medusa(random_medusa(), function)


def test_a_foreign_state_is_refused(tiny: Transformer) -> None:
    drafter = medusa_on(tiny)
    with pytest.raises(TypeError, match="a Medusa drafter was given the state of another drafter: LookupState"):
        drafter.select(Lookup().open(1, 1), [])
    with pytest.raises(TypeError, match="a Medusa drafter was given no features"):
        drafter.admit(drafter.open(1, 4), [[1]], None)


def test_a_hosted_target_shares_its_head_too() -> None:
    """Packed or not: what the target says of its own last state is what new heads say of it."""
    for packed in (False, True) if torch.backends.mkldnn.is_available() else (False,):
        target = hosted("gpt2", packed=packed)
        drafter = Medusa(MedusaHeads(medusa_shape(hidden_size=64)), target, packed=False)
        shown = target.prefill(target.open(1, 8), torch.tensor([[3, 1, 4]]), [3], STATE)
        assert shown.features is not None
        state = drafter.open(1, 8)
        drafter.admit(state, [[3, 1, 4]], [shown.features[0]])
        logits = drafter.propose(state, Budget.chain([4]), [Sampling()], keys_of(1)).draft_logits
        assert logits is not None
        torch.testing.assert_close(logits[0], shown.logits[0].expand(5, -1), **CLOSE)


# ---- planted faults --------------------------------------------------------------------------------------------------


def _first_state(self: Medusa, state: Any, emitted: list[list[int]], features: list[Tensor]) -> None:
    """The state of the token before the accepted path, whatever was accepted."""
    HONEST_COMMIT(self, state, emitted, [part[:1] for part in features])


def _never(self: Medusa, state: Any, emitted: list[list[int]], features: list[Tensor]) -> None:
    """The state of the prompt for ever."""


def _rows_stay(self: Medusa, state: Any, rows: list[int]) -> None:
    del state.last[len(rows) :]


def _one_depth_on(self: Medusa, own: Any, depth: int) -> Tensor:
    """Each depth asks the head of the next one."""
    said = HONEST_LOGITS(self, own, min(depth + 1, self.shape.heads))
    return torch.cat((said[:, 1:], said[:, -1:]), 1)[:, :depth]


def _one_head(self: Medusa, own: Any, depth: int) -> Tensor:
    """All depths ask the first head."""
    return HONEST_LOGITS(self, own, 1).repeat(1, depth, 1)


HONEST_COMMIT, HONEST_LOGITS = Medusa.commit, Medusa._logits
FAULTS: dict[str, tuple[str, Callable[..., Any]]] = {
    "the state before the path": ("commit", _first_state),
    "the state of the prompt": ("commit", _never),
    "rows that leave are cut off the end": ("select", _rows_stay),
    "a head further": ("_logits", _one_depth_on),
    "one head for all": ("_logits", _one_head),
}


def one_batch(target: Transformer) -> None:
    """Three turns of a tree each, in which tokens of the draft come true; the first row leaves."""
    drafter = medusa_on(target, seed=1)
    played = Played(drafter)
    played.admit(7, 3, 2)
    for turn in range(3):
        proposal = played.propose("top-k:2", [4] * len(played.texts), [12] * len(played.texts), Sampling(2.0))
        held(drafter, target, played, proposal)
        paths = [max(paths_of(*row), key=len) for row in proposal.tree.to_lists()]
        played.commit([[*path[:2], *played.ids(1)] for path in paths])
        if turn == 1:
            played.select([1, 2])
    held(drafter, target, played, played.propose("chain", [3, 3]))


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_noticed(fault: str, tiny: Transformer, monkeypatch: pytest.MonkeyPatch) -> None:
    one_batch(tiny)
    what, wrong = FAULTS[fault]
    monkeypatch.setattr(Medusa, what, wrong)
    with must_fail():
        one_batch(tiny)
