"""A hosted model says what transformers' own whole reading says: every family, ragged rows, trees, turn by turn."""

from typing import Any

import pytest
import torch
from torch.testing import assert_close

import outpace
from hosts import CLOSE, FAMILIES, after, greedy, hosted, model_of, planted, play, random_ids, whole
from outpace.decoding.text import text_of
from outpace.models import hosted as hosted_module
from outpace.models.cache import Cache
from outpace.models.load import native_dtype
from outpace.models.shape import Shape
from outpace.models.target import Target, padded
from outpace.models.transformer import Transformer
from outpace.verification.tree import DraftTree

FAST = ["llama", "qwen2", "qwen3", "qwen3-mixed", "mistral"]
PROMPTS = [[2, 7, 1, 8, 2, 8, 1, 8, 2, 8, 4, 5], [3, 1], [1, 2, 3, 1, 2, 3, 1, 2]]


@pytest.mark.parametrize("family", FAMILIES)
def test_turn_by_turn(family: str) -> None:
    """Prompts, trees, kept branches, rows that leave, join and are taken back."""
    play(model_of(family), hosted(family))


@pytest.mark.parametrize("family", ["gpt2", "gemma2", "mixtral"])
def test_packed_weights_say_the_same(family: str) -> None:
    if not torch.backends.mkldnn.is_available():
        pytest.skip("this build of torch has no packed layout")
    target: Any = hosted(family, packed=True)
    assert target.packed
    play(model_of(family), target)


@pytest.mark.parametrize("family", ["gpt2", "mistral", "gemma3_text"])
def test_a_prompt_in_chunks(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Prompts far over the tokens of one forward: last rows and features are those of one reading."""
    texts = [random_ids(length, length) for length in (5, 17)]
    target, taps = hosted(family), (0, 3, "last_normed")
    whole_at_once = target.prefill(target.open(2, 24), padded(texts, 63), [5, 17], taps)
    monkeypatch.setattr(hosted_module, "PREFILL_TOKENS", 7)
    state = target.open(2, 24)
    read = target.prefill(state, padded(texts, 63), [5, 17], taps)
    assert_close(read.logits[:, 0], torch.stack([logits[-1] for logits in whole(model_of(family), texts)]), **CLOSE)
    for row, length in enumerate((5, 17)):
        assert_close(read.features[row, :length], whole_at_once.features[row, :length], atol=1e-3, rtol=1e-4)
    last, tree = random_ids(2, 1), planted([[-1, -1, 1]] * 2, seed=3)
    scored = target.score(state, torch.tensor(last), tree).logits
    assert_close(scored, torch.stack(after(model_of(family), texts, last, tree)), **CLOSE)


@pytest.mark.parametrize("family", FAMILIES)
def test_features_are_the_hidden_states(family: str) -> None:
    """Tap k is ``hidden_states[k]``, and ``last_normed`` the last of them, which transformers shows normed."""
    model, target = model_of(family), hosted(family)
    texts, taps = [random_ids(5, 5), random_ids(12, 12)], (2, 0, "last_normed", 1)
    state = target.open(2, 24)
    prefilled = target.prefill(state, padded(texts, 63), [5, 12], taps).features
    last, tree = random_ids(2, 1), planted([[-1, -1, 1], [-1, 0]], seed=3)
    scored = target.score(state, torch.tensor(last), tree, taps).features
    paths = [[1, 2], [0, 1]]
    for row, nodes in enumerate(paths):
        run = [*texts[row], last[row], *(int(tree.tokens[row, node]) for node in nodes)]
        with torch.inference_mode():
            shown = model(input_ids=torch.tensor([run]), output_hidden_states=True, use_cache=False).hidden_states
        expected = torch.stack([shown[-1 if tap == "last_normed" else int(tap)][0] for tap in taps], 1)
        length = len(texts[row])
        assert_close(prefilled[row, :length], expected[:length], atol=1e-3, rtol=1e-4)
        assert_close(scored[row, [0, *(1 + node for node in nodes)]], expected[length:], atol=1e-3, rtol=1e-4)


@pytest.mark.parametrize("family", FAST)
def test_both_lanes_say_the_same(family: str) -> None:
    """Where the fast lane knows the family: logits of ragged prompts and of trees, and features at every tap."""
    model = model_of(family)
    fast = Transformer(
        Shape.from_config(model.config.to_dict()), dict(model.state_dict()), dtype=torch.float32, packed=False
    )
    texts, taps = [random_ids(5, 5), random_ids(17, 17)], (0, 1, 2, 3, "last_normed")
    last, tree = torch.tensor(random_ids(2, 1)), planted([[-1, -1, *range(1, 12)], [-1, 0]], seed=3)
    read, scored = [], []
    for target in (fast, hosted(family)):
        state = target.open(2, 40)
        read.append(target.prefill(state, padded(texts, 63), [5, 17], taps))
        scored.append(target.score(state, last, tree, taps))
    for row, (length, rows) in enumerate(((5, 14), (17, 3))):
        assert_close(read[0].logits[row], read[1].logits[row], **CLOSE)
        assert_close(read[0].features[row, :length], read[1].features[row, :length], atol=1e-3, rtol=1e-4)
        assert_close(scored[0].logits[row, :rows], scored[1].logits[row, :rows], **CLOSE)
        assert_close(scored[0].features[row, :rows], scored[1].features[row, :rows], atol=1e-3, rtol=1e-4)


@pytest.mark.parametrize("family", ["gpt2", "llama", "qwen2", "qwen3", "mistral", "gemma", "mixtral", "gemma3_text"])
def test_drafted_text_is_plain_text(family: str) -> None:
    """Ragged rows, beyond the window, plainly and with lookup: transformers' own greedy text."""
    said_as_the_model_does(family, hosted(family))


def said_as_the_model_does(family: str, target: Target) -> None:
    new = 14
    expected = [greedy(model_of(family), prompt, new) for prompt in PROMPTS]
    lookup = outpace.load_drafter("lookup", target)
    drafted = 0
    for drafter, depth in ((None, 0), (lookup, 4)):
        results = outpace.generate(
            target, drafter, PROMPTS, max_new_tokens=new, num_draft_tokens=depth, eos_ids=None, batch_size=2
        )
        assert [result.token_ids for result in results] == expected
        drafted += sum(result.stats.speculation.drafted for result in results)
    assert drafted > 0


# ---- planted faults --------------------------------------------------------------------------------------------------


def _flat_positions(self: DraftTree, lengths: Any) -> Any:
    return lengths[:, None] + torch.arange(1 + self.tokens.shape[1])


def _lengths_only(self: Cache, path: Any, num_accepted: list[int]) -> None:
    self.lengths = [length + 1 + count for length, count in zip(self.lengths, num_accepted, strict=True)]


def _plant(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    honest_mask, honest_places = hosted_module.tree_mask, hosted_module.Flight.behind
    if fault == "tree mask ignored":
        monkeypatch.setattr(
            hosted_module,
            "tree_mask",
            lambda tree, *given: honest_mask(DraftTree.chain(tree.tokens, tree.num_nodes), *given),
        )
    elif fault == "positions by place":
        monkeypatch.setattr(DraftTree, "positions", _flat_positions)
    elif fault == "stale slots are seen":
        monkeypatch.setattr(
            hosted_module,
            "tree_mask",
            lambda tree, starts, context: honest_mask(tree, starts, context) | (torch.arange(context) < starts.max()),
        )
    elif fault == "kept branches stay where they lie":
        monkeypatch.setattr(Cache, "keep", _lengths_only)
    elif fault == "windows by place":

        def by_place(starts: list[int], places: Any, visible: Any) -> Any:
            flat = torch.tensor(starts)[:, None] + torch.arange(places.shape[1])
            return honest_places(starts, flat, visible)

        monkeypatch.setattr(hosted_module.Flight, "behind", by_place)
    else:
        monkeypatch.setattr(hosted_module.Flight, "mask", lambda self, pattern, dtype: None)


SEEN_BY_ALL = ["tree mask ignored", "positions by place", "stale slots are seen", "kept branches stay where they lie"]


@pytest.mark.parametrize("family", ["gpt2", "mistral", "falcon"])
@pytest.mark.parametrize("fault", [*SEEN_BY_ALL, "no mask"])
def test_planted_fault(fault: str, family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    target = hosted(family)
    _plant(fault, monkeypatch)
    with pytest.raises(AssertionError):
        play(model_of(family), target)


@pytest.mark.parametrize("family", ["mistral", "qwen3-mixed", "gemma2", "gpt_oss"])
def test_planted_window_by_place(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    target = hosted(family)
    _plant("windows by place", monkeypatch)
    with pytest.raises(AssertionError):
        play(model_of(family), target)


def test_planted_fault_in_the_drafted_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last token read is forgotten once something was drafted."""
    target, honest = hosted("gpt2"), Cache.keep

    def forgetful(self: Cache, path: Any, num_accepted: list[int]) -> None:
        honest(self, path, num_accepted)
        self.lengths = [length - (path.shape[1] > 0) for length in self.lengths]

    monkeypatch.setattr(Cache, "keep", forgetful)
    with pytest.raises(AssertionError):
        said_as_the_model_does("gpt2", target)


# ---- the default model -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def default() -> Target:
    return outpace.load_target(dtype="fp32", lane="hosted")


@pytest.mark.real
def test_the_default_hosted(default: Target) -> None:
    """The fast lane's logits of ragged prompts and of a tree, and its greedy text under drafts, in fp32."""
    assert isinstance(default, hosted_module.Hosted) and default.can_tree
    fast = outpace.load_target(dtype="fp32", lane="fast")
    assert isinstance(fast, Transformer) and fast.fingerprint == default.fingerprint
    prompts = [text_of(fast.folder).encode(question) for question in ("What is the capital of France?", "Count to 9.")]
    last, tree = torch.tensor([28, 33]), DraftTree.from_lists([([260, 28, 33, 338], [-1, -1, 1, 1]), ([30], [-1])])
    read = []
    for target in (fast, default):
        state = target.open(2, 64)
        first = target.prefill(state, padded(prompts, 0), list(map(len, prompts))).logits
        read.append((first, target.score(state, last, tree).logits))
    assert_close(read[0][0], read[1][0], atol=1e-3, rtol=1e-4)  # logits reach 39
    assert_close(read[0][1][0], read[1][1][0], atol=1e-3, rtol=1e-4)
    assert_close(read[0][1][1, :2], read[1][1][1, :2], atol=1e-3, rtol=1e-4)
    texts = [
        outpace.generate(target, outpace.load_drafter("lookup", target), prompts, max_new_tokens=24)
        for target in (fast, default)
    ]
    assert [one.token_ids for one in texts[0]] == [one.token_ids for one in texts[1]]


@pytest.mark.real
def test_the_default_hosted_in_bf16_passes_its_check() -> None:
    """No limit is found where there is none, rounding or not."""
    if native_dtype("cpu") != torch.bfloat16:
        pytest.skip("this processor has no bf16 of its own, and outpace does not choose it")
    target: Any = outpace.load_target(dtype="bf16", lane="hosted")
    assert target.can_tree and target.can_rewind and target.limited_by is None
    assert target.dtype == target.room.dtype == torch.bfloat16
