"""Hosting: what is checked at load, what is limited or refused by name, folders, lanes, packed layers, lone rows."""

import copy
import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close
from transformers import AutoConfig, AutoModelForCausalLM

import outpace
from hosts import CLOSE, SIZE, admit, greedy, hosted, liven, model_of, planted, random_ids, whole
from outpace.errors import UnsupportedError, UsageError, WeightsError
from outpace.models import hosted as hosted_module
from outpace.models.cache import Cache
from outpace.models.function import FunctionTarget
from outpace.models.hosted import Hosted, host
from outpace.models.load import load_target
from outpace.models.one_by_one import OneByOne
from outpace.models.packing import Packed, pack
from outpace.models.transformer import Transformer
from outpace.models.weights import fingerprint
from outpace.verification.tree import DraftTree

CHAINS_ONLY = r"the target 'hosted' is limited to chains, no trees: the first branch of a tree is scored .* deviations"
PLAIN_ONLY = r"the target 'hosted' is limited to plain decoding, no drafts: "
MAMBA = {"state_size": 4, "num_hidden_layers": 2, "hidden_size": 32, "expand": 2, "conv_kernel": 4}
NARROW_VALUES = {
    "q_lora_rank": None,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
}


def fresh(kind: str, **config: Any) -> Any:
    """A lively model of a type that is none of the families."""
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **config)).eval()
    liven(model)
    return model


def saved(folder: Path, family: str, **edits: Any) -> Path:
    """The folder of a family's model, its configuration edited."""
    model_of(family).save_pretrained(folder)
    said = json.loads((folder / "config.json").read_text()) | edits
    (folder / "config.json").write_text(json.dumps(said))
    return folder


# ---- what is found at load -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["gpt2", "mistral", "mixtral"])
def test_a_healthy_model_is_not_limited(family: str) -> None:
    """``hosted`` turns every notice into an error."""
    target: Any = hosted(family)
    assert isinstance(target, Hosted) and isinstance(target, outpace.Target)
    assert target.can_tree and target.can_rewind and target.limited_by is None
    assert (target.vocab_size, target.max_positions, target.dtype) == (64, 256, torch.float32)


def test_a_mask_that_siblings_ignore_limits_to_chains(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chains go on exactly; a tree is refused by name and says why."""
    honest = hosted_module.tree_mask
    monkeypatch.setattr(
        hosted_module, "tree_mask", lambda tree, *given: honest(DraftTree.chain(tree.tokens, tree.num_nodes), *given)
    )
    with pytest.warns(UserWarning, match=CHAINS_ONLY):
        target: Any = host(copy.deepcopy(model_of("gpt2")), packed=False)
    assert target.can_rewind and not target.can_tree
    prompt = random_ids(6, 6)
    state = target.open(1, 20)
    admit(target, state, [prompt])
    tree = planted([[-1, -1]], seed=1)
    with pytest.raises(
        UnsupportedError, match="the target 'hosted' was given a tree to score; allowed: chains\nhint: "
    ):
        target.score(state, torch.tensor([3]), tree)
    chain = DraftTree.from_lists([([4, 5], [-1, 0])])
    expected = whole(model_of("gpt2"), [[*prompt, 3, 4, 5]])[0][-3:]
    assert_close(target.score(state, torch.tensor([3]), chain).logits[0], expected, **CLOSE)


def _dull_rewind(self: Cache, lengths: list[int]) -> None:
    pass


def _positions_from_zero(self: DraftTree, lengths: Tensor) -> Tensor:
    return lengths[:, None] * 0 + torch.arange(1 + self.tokens.shape[1])


FATAL: dict[str, tuple[Any, str, Any, str]] = {
    "a rewind that does nothing": (Cache, "rewind", _dull_rewind, "a chain read again after it was taken back"),
    "wrong positions": (DraftTree, "positions", _positions_from_zero, "a chain"),
    "no mask": (hosted_module.Flight, "mask", lambda self, pattern, dtype: None, "the end of a prompt"),
}


@pytest.mark.parametrize("fault", FATAL)
def test_what_chains_cannot_bear_limits_to_plain_decoding(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the model's own cache, which the fault does not touch, text is right all the same."""
    where, what, planted_fault, words = FATAL[fault]
    monkeypatch.setattr(where, what, planted_fault)
    with pytest.warns(UserWarning, match=PLAIN_ONLY + words):
        target = host(copy.deepcopy(model_of("gpt2")), packed=False)
    assert isinstance(target, OneByOne) and words in target.limited_by
    state = target.open(2, 20)
    texts = [random_ids(6, 6), random_ids(2, 2)]
    expected = torch.stack([logits[-1] for logits in whole(model_of("gpt2"), texts)])
    assert_close(admit(target, state, texts), expected, **CLOSE)


REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "not causal": (
        "bert",
        {name: size for name, size in SIZE.items() if "token_id" not in name and "word" not in name}
        | {"pad_token_id": 0},
        "a model of type 'bert' is not causal: a later token changes what it says of earlier ones",
    ),
    "values narrower than keys": (
        "deepseek_v3",
        {**SIZE, **NARROW_VALUES, "num_key_value_heads": 4, "first_k_dense_replace": 3, "head_dim": 8},
        "a model of type 'deepseek_v3' keeps keys of .* in layer 0, values of .* in layer 0; allowed: as many heads",
    ),
}


@pytest.mark.filterwarnings("ignore")  # transformers has advice for some of these
@pytest.mark.parametrize("name", REFUSED)
def test_models_that_are_refused(name: str) -> None:
    kind, config, words = REFUSED[name]
    with pytest.raises(UnsupportedError, match=words):
        host(fresh(kind, **config))


def test_a_model_with_an_encoder_is_refused() -> None:
    model = copy.deepcopy(model_of("gpt2"))
    model.config.is_encoder_decoder = True
    with pytest.raises(UnsupportedError, match="the model type is 'gpt2', which has an encoder; allowed: decoder-only"):
        host(model)


def test_texts_end_where_frequencies_would_change() -> None:
    rope = {
        "rope_type": "longrope",
        "rope_theta": 1e4,
        "short_factor": [1.0] * 8,
        "long_factor": [4.0] * 8,
    }
    model = fresh("phi3", **(SIZE | {"pad_token_id": 0}), rope_parameters=rope, original_max_position_embeddings=40)
    with pytest.warns(UserWarning, match="texts of the target 'hosted' end at 40 tokens: beyond, its rotary"):
        target = host(model, packed=False)
    assert target.max_positions == 40


# ---- models with a cache of their own --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def recurrent() -> tuple[Any, OneByOne]:
    model = fresh("mamba", vocab_size=64, **MAMBA)
    with pytest.warns(UserWarning, match=PLAIN_ONLY + "it keeps a recurrent state, which cannot be taken back"):
        target = host(copy.deepcopy(model))
    assert isinstance(target, OneByOne)
    return model, target


def test_a_recurrent_model_decodes_plainly(recurrent: tuple[Any, OneByOne]) -> None:
    """Ragged rows in two slots, rows that leave and join: transformers' own greedy text; a drafter is refused."""
    model, target = recurrent
    prompts = [random_ids(length, length) for length in (9, 2, 5)]
    expected = [greedy(model, prompt, 12) for prompt in prompts]
    results = outpace.generate(target, None, prompts, max_new_tokens=12, eos_ids=None, batch_size=2)
    assert [result.token_ids for result in results] == expected
    with pytest.raises(UnsupportedError, match="the target 'hosted' cannot rewind"):
        outpace.generate(target, outpace.load_drafter("lookup", target), prompts, max_new_tokens=12)


def test_what_a_recurrent_model_cannot_do_is_refused_by_name(recurrent: tuple[Any, OneByOne]) -> None:
    _, target = recurrent
    state = target.open(1, 20)
    admit(target, state, [[1, 2, 3]])
    with pytest.raises(UnsupportedError, match="'hosted' was given drafts to score; allowed: plain decoding\nhint: it"):
        target.score(state, torch.tensor([4]), planted([[-1]], seed=1))
    with pytest.raises(UnsupportedError, match=r"'hosted' cannot rewind from \[3\] to \[2\]\nhint: it keeps a recurr"):
        target.rewind(state, [2])
    target.rewind(state, [3])
    with pytest.raises(UsageError, match=r"shows no features and was asked for \(1,\); allowed: no taps"):
        target.score(state, torch.tensor([4]), DraftTree.empty(1), (1,))
    with pytest.raises(UsageError, match="1 more rows were given to a batch of 1 of 1"):
        admit(target, state, [[1]])
    with pytest.raises(TypeError, match="was given the state of another: Cache"):
        target.rewind(hosted("gpt2").open(1, 4), [])


def test_a_bias_by_place_is_left_to_the_model_s_own_cache() -> None:
    """BLOOM counts how far back a key lies by itself, for all rows alike."""
    model = fresh("bloom", vocab_size=64, hidden_size=32, n_layer=2, n_head=4)
    with pytest.warns(UserWarning, match=PLAIN_ONLY):
        target = host(copy.deepcopy(model))
    prompts = [random_ids(length, length) for length in (9, 2)]
    results = outpace.generate(target, None, prompts, max_new_tokens=8, eos_ids=None)
    assert [result.token_ids for result in results] == [greedy(model, prompt, 8) for prompt in prompts]


# ---- one forward -----------------------------------------------------------------------------------------------------


def test_a_turn_is_one_forward_and_the_head_reads_no_prompt() -> None:
    """Counted at the model and at its head: a ragged batch with trees, and one row a prompt."""
    target: Any = hosted("gpt2")
    forwards: list[int] = []
    read: list[tuple[int, ...]] = []
    target.model.transformer.register_forward_pre_hook(lambda *_: forwards.append(1))
    target.model.get_output_embeddings().register_forward_hook(lambda module, given, out: read.append(tuple(out.shape)))
    state = target.open(3, 40)
    admit(target, state, [random_ids(length, length) for length in (5, 17, 1)])
    target.score(state, torch.tensor([1, 2, 3]), planted([[-1, -1, 0], [], [-1, 0]], seed=1))
    assert len(forwards) == 2 and read == [(3, 1, 64), (3, 4, 64)]


@pytest.mark.parametrize("tap", [4, -1])
def test_a_tap_that_is_none_is_refused(tap: Any) -> None:
    target = hosted("gpt2")
    with pytest.raises(
        UsageError, match=f"tap is {tap!r}; allowed: last_normed, 0, or a layer; the model has 3 layers"
    ):
        target.prefill(target.open(1, 4), torch.tensor([[1, 2]]), [2], (tap,))


def test_the_state_of_another_target_is_refused() -> None:
    stranger = FunctionTarget(lambda ids: torch.zeros(*ids.shape, 64), 64).open(1, 8)
    with pytest.raises(TypeError, match="a Hosted was given the state of another target: Texts"):
        hosted("gpt2").rewind(stranger, [])


def test_too_little_room_is_refused_and_changes_nothing() -> None:
    target = hosted("gpt2")
    state: Any = target.open(1, 6)
    admit(target, state, [random_ids(5, 5)])
    with pytest.raises(UsageError, match="the cache holds 6 positions a row and 7 are needed"):
        target.score(state, torch.tensor([1]), planted([[-1]], seed=1))
    assert state.lengths == [5]


# ---- packed layers ---------------------------------------------------------------------------------------------------


def test_linear_layers_are_packed_and_others_left() -> None:
    """Both ways a weight can lie, the head included; embeddings that share the head's weight stay readable."""
    if not torch.backends.mkldnn.is_available():
        pytest.skip("this build of torch has no packed layout")
    model = copy.deepcopy(model_of("gpt2"))
    assert pack(model, packed=True) is True
    assert all(isinstance(part, Packed) for name, part in model.named_modules() if name.split(".")[-1].startswith("c_"))
    assert isinstance(model.get_output_embeddings(), Packed) and isinstance(model.transformer.wte, nn.Embedding)
    text = random_ids(9, 9)
    assert_close(whole(model, [text])[0], whole(model_of("gpt2"), [text])[0], **CLOSE)
    head = model.get_output_embeddings()
    assert (head.in_features, head.out_features, head.weight.dtype, head.bias) == (64, 64, torch.float32, None)


def test_nothing_is_packed_where_it_does_not_pay(monkeypatch: pytest.MonkeyPatch) -> None:
    model = copy.deepcopy(model_of("llama"))
    monkeypatch.setattr("outpace.models.packing.packing_pays", lambda weight: False)
    assert pack(model) is False
    assert not any(isinstance(part, Packed) for part in model.modules())
    monkeypatch.setattr("outpace.models.packing.packing_pays", lambda weight: True)
    if torch.backends.mkldnn.is_available():
        assert pack(model) is True


# ---- folders and lanes -----------------------------------------------------------------------------------------------


def test_auto_takes_the_fast_lane_where_it_can(tmp_path: Path) -> None:
    """And the hosted one elsewhere; both can be asked for, and fast refuses as ever what it does not know."""
    llama, gpt2 = saved(tmp_path / "llama", "llama"), saved(tmp_path / "gpt2", "gpt2", eos_token_id=5)
    assert isinstance(load_target(llama, dtype="fp32"), Transformer)
    assert isinstance(load_target(llama, dtype="fp32", lane="hosted"), Hosted)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        target: Any = load_target(gpt2, dtype="fp32")
    assert isinstance(target, Hosted)
    assert (target.name, target.folder, target.eos_ids) == (str(gpt2), gpt2, (5,))
    assert target.fingerprint == fingerprint(gpt2)
    text = random_ids(9, 9)
    expected = whole(model_of("gpt2"), [text])[0][-1:]
    assert_close(admit(target, target.open(1, 16), [text]), expected, **CLOSE)
    with pytest.raises(UnsupportedError, match="the model type is 'gpt2'; the fast lane knows llama"):
        load_target(gpt2, lane="fast")
    with pytest.raises(UsageError, match="lane is 'slow'; allowed: auto, fast, hosted"):
        load_target("no/such-model", lane="slow")


@pytest.mark.parametrize(("name", "dtype"), [("bf16", torch.bfloat16), ("fp64", torch.float64)])
def test_dtypes(tmp_path: Path, name: str, dtype: torch.dtype) -> None:
    target: Any = load_target(saved(tmp_path, "gpt2"), dtype=name)
    state = target.open(1, 8)
    assert {target.dtype, state.keys.dtype, admit(target, state, [[1, 2, 3]]).dtype} == {dtype}


FOLDERS: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "unknown": ({"model_type": "nothing"}, UnsupportedError, "transformers cannot open a model of type 'nothing': "),
    "code of its own": (
        {"model_type": "own", "auto_map": {"AutoConfig": "own.Config", "AutoModelForCausalLM": "own.Model"}},
        UnsupportedError,
        r"cannot open a model of type 'own': .*\nhint: the model brings code of its own; read it, then allow trust",
    ),
    "quantised": (
        {"quantization_config": {"quant_method": "fp8"}},
        UnsupportedError,
        r"the weights are quantised \(fp8\); allowed: floating point\nhint: use the checkpoint",
    ),
    "an encoder": ({"model_type": "bart"}, UnsupportedError, "the model type is 'bart', which has an encoder"),
    "a layer too few": ({"n_layer": 4}, WeightsError, "the weights lack the tensor 'transformer.h.3.attn.c_attn.bias'"),
}


@pytest.mark.parametrize("name", FOLDERS)
def test_folders_that_are_refused(tmp_path: Path, name: str) -> None:
    edits, kind, words = FOLDERS[name]
    with pytest.raises(kind, match=words):
        load_target(saved(tmp_path, "gpt2", **edits), dtype="fp32", lane="hosted")


def test_code_of_its_own_runs_only_when_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file that came with the weights leaves a trace when it is run."""
    trace = tmp_path / "it ran"
    folder = saved(
        tmp_path / "model",
        "gpt2",
        model_type="own",
        auto_map={"AutoConfig": "own.OwnConfig", "AutoModelForCausalLM": "own.OwnModel"},
    )
    (folder / "own.py").write_text(
        "from pathlib import Path\n"
        "from transformers import GPT2Config, GPT2LMHeadModel\n"
        f"Path({str(trace)!r}).touch()\n"
        "class OwnConfig(GPT2Config):\n    model_type = 'own'\n"
        "class OwnModel(GPT2LMHeadModel):\n    config_class = OwnConfig\n"
    )
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    with pytest.raises(UnsupportedError, match="trust_remote_code"):
        load_target(folder, dtype="fp32")
    assert not trace.exists()
    target = load_target(folder, dtype="fp32", trust_remote_code=True)
    assert trace.exists()
    text = random_ids(9, 9)
    expected = whole(model_of("gpt2"), [text])[0][-1:]
    assert_close(admit(target, target.open(1, 16), [text]), expected, **CLOSE)
