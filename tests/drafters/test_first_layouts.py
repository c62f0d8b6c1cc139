"""EAGLE-1 heads as others publish them are read as they are meant, told from EAGLE-3's, and refused by name."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from cards import foreign, model_folder
from first_heads import first_shape, random_first
from heads import random_head, shape_of
from outpace.drafters.first_head import FirstHead
from outpace.drafters.first_layouts import is_first, read_first, require_ends
from outpace.drafters.layouts import is_head, method_of, read_layout
from outpace.errors import UnsupportedError, WeightsError
from outpace.models.ends import read_embeddings, read_head
from outpace.models.load import load_target
from outpace.models.weights import find_weights

VICUNA = {
    "architectures": ["LlamaForCausalLM"],
    "bos_token_id": 1,
    "eos_token_id": 2,
    "hidden_act": "silu",
    "hidden_size": 32,
    "initializer_range": 0.02,
    "intermediate_size": 48,
    "max_position_embeddings": 256,
    "model_type": "llama",
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 1,
    "pad_token_id": 0,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "torch_dtype": "float16",
    "transformers_version": "4.28.1",
    "use_cache": True,
    "vocab_size": 64,
}
"""As SafeAILab wrote it for Vicuna: no word of a bias, which means that there is one."""
LLAMA3 = VICUNA | {"bias": False}
WRAPPED = {"model_type": "eagle", "model": LLAMA3, "eagle_fc_bias": False, "truncated_vocab_size": 64}
"""Any of them as older vLLM wants it."""
ROPE = {"rope_type": "default", "rope_theta": 10000.0}


def tensors_of(head: FirstHead) -> dict[str, Tensor]:
    return dict(head.state_dict())


def first(fc_bias: bool = True, **changes: Any) -> FirstHead:
    return random_first(first_shape(fc_bias=fc_bias, rotary=ROPE, **changes), dtype=torch.float16)


def same(left: FirstHead, right: FirstHead) -> bool:
    """Bit for bit, by the same names."""
    mine, theirs = tensors_of(left), tensors_of(right)
    return mine.keys() == theirs.keys() and all(
        mine[name].dtype == theirs[name].dtype and torch.equal(mine[name], theirs[name]) for name in mine
    )


# ---- read ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("config", "fc_bias"), [(VICUNA, True), (VICUNA | {"bias": True}, True), (LLAMA3, False)])
def test_safeailab(config: dict[str, Any], fc_bias: bool, tmp_path: Path) -> None:
    """A bias that is not spoken of is there; embeddings are handed out beside the head, and older buffers passed by."""
    head = first(fc_bias)
    rows = torch.randn(64, 32).half()
    older = {"layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4), "embed_tokens.weight": rows}
    found = read_first(foreign(tmp_path, config, tensors_of(head) | older))
    assert found.kind == "llama" and same(found.head, head) and found.head.shape == first_shape(fc_bias=fc_bias)
    assert found.embeddings is not None and torch.equal(found.embeddings, rows) and found.rows is None
    bare = read_first(foreign(tmp_path, config, tensors_of(head)))
    assert same(bare.head, head) and bare.embeddings is None


def test_what_is_left_out_means_what_a_llama_means(tmp_path: Path) -> None:
    shape = first_shape(
        heads=32, kv_heads=32, head_width=1, feed_forward=11008, max_positions=2048, norm_eps=1e-6, rotary=ROPE
    )
    head = random_first(shape)
    config = {"model_type": "llama", "hidden_size": 32, "vocab_size": 64, "num_hidden_layers": 1}
    assert read_first(foreign(tmp_path, config, tensors_of(head))).head.shape == shape


def test_the_rotary_base_is_the_files_and_never_the_targets(tmp_path: Path) -> None:
    head = first()
    scaled = {"rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 4.0}}
    for said, theta, kind in (({}, 1e4, "default"), ({"rope_theta": 5e5}, 5e5, "default"), (scaled, 5e5, "linear")):
        rotary = read_first(foreign(tmp_path, VICUNA | said, tensors_of(head))).head.shape.rotary
        assert (rotary["rope_theta"], rotary["rope_type"]) == (theta, kind)


@pytest.mark.parametrize("prefix", ["", "model.", "model.model."])
@pytest.mark.parametrize("where", ["outside", "inside", "of old"])
def test_wrapped(prefix: str, where: str, tmp_path: Path) -> None:
    """The bias is spoken of outside or, by the usual script, inside; the target's head lies beside the embeddings."""
    head, rows = first(), torch.randn(64, 32).half()
    config: dict[str, Any] = {"model_type": "eagle", "model": VICUNA, "eagle_fc_bias": True}
    if where == "inside":
        config = {"model_type": "eagle", "model": VICUNA | {"eagle_fc_bias": True}}
    elif where == "of old":
        config = {"model_type": "eagle", "model": VICUNA, "bias": True, "truncated_vocab_size": None}
    tensors = {name if name.startswith("fc.") else prefix + name: tensor for name, tensor in tensors_of(head).items()}
    found = read_first(foreign(tmp_path, config, tensors | {"lm_head.weight": rows, "embed_tokens.weight": rows + 1}))
    assert found.kind == "wrapped" and same(found.head, head) and found.head.shape == first_shape()
    assert found.rows is not None and torch.equal(found.rows, rows)
    assert found.embeddings is not None and torch.equal(found.embeddings, rows + 1)


def test_wrapped_without_a_bias(tmp_path: Path) -> None:
    """Not spoken of, there is none: vLLM takes it so, and SafeAILab the other way round."""
    head = first(False)
    for config in (WRAPPED, {"model_type": "eagle", "model": LLAMA3}):
        assert same(read_first(foreign(tmp_path, config, tensors_of(head))).head, head)
    with pytest.raises(WeightsError, match=r"holds fc.bias, which its .*\nhint: tensors follow .* eagle_fc_bias, adds"):
        read_first(foreign(tmp_path, {"model_type": "eagle", "model": VICUNA}, tensors_of(first())))


def test_pickled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As SafeAILab published the first ones; its tensors alone are taken out of the pickle, and kept in the cache."""
    monkeypatch.setenv("OUTPACE_CACHE", str(tmp_path / "cache"))
    head = first()
    folder = foreign(tmp_path / "head", VICUNA, tensors_of(head))
    (folder / "model.safetensors").unlink()
    torch.save(tensors_of(head), folder / "pytorch_model.bin")
    found = find_weights(str(folder))
    assert is_first(found) and same(read_first(found).head, head)


# ---- told apart ------------------------------------------------------------------------------------------------------


def test_the_two_methods_are_told_apart_by_what_they_hold(tmp_path: Path) -> None:
    """An EAGLE-3 head norms its state: nothing is guessed from the configuration, which may be the same."""
    older = foreign(tmp_path / "one", VICUNA, tensors_of(first()))
    wrapped = foreign(tmp_path / "two", WRAPPED, tensors_of(first(False)))
    newer = foreign(tmp_path / "three", VICUNA | {"draft_vocab_size": 40}, dict(random_head().state_dict()))
    numbered = {name.replace("midlayer.", "layers.0."): weight for name, weight in random_head().state_dict().items()}
    of_vllm = foreign(tmp_path / "four", VICUNA | {"draft_vocab_size": 40}, numbered)
    spoken = foreign(tmp_path / "five", {"speculators_model_type": "eagle"}, {"fc.weight": torch.ones(2)})
    model = model_folder(tmp_path / "model")
    assert [is_first(each) for each in (older, wrapped, newer, of_vllm, spoken, model)] == [True, True, *[False] * 4]
    assert [is_head(each) for each in (older, wrapped, newer, of_vllm, spoken, model)] == [*[True] * 5, False]
    methods = [method_of(each) for each in (older, wrapped, newer, of_vllm, spoken, model)]
    assert methods == ["eagle1", "eagle1", "eagle3", "eagle3", "eagle3", None]
    with pytest.raises(
        UnsupportedError, match=r"holds no hidden_norm.weight, which every EAGLE-3 head has\nhint: heads"
    ):
        read_layout(older, 8)
    with pytest.raises(
        UnsupportedError, match=r"holds layers.0.hidden_norm.weight, which no EAGLE-1 head has\nhint: E"
    ):
        read_first(of_vllm)
    with pytest.raises(UnsupportedError, match=r"holds midlayer.hidden_norm.weight, which no EAGLE-1 head has"):
        read_first(newer)
    assert read_layout(of_vllm, 8).head.shape == shape_of(taps=(2, 4, 5))
    empty = foreign(tmp_path / "empty", WRAPPED, {"other": torch.ones(2)})
    assert method_of(empty) == "eagle1" and not is_first(empty), "no language model, whatever it lacks"


# ---- refused ---------------------------------------------------------------------------------------------------------

REFUSED: list[tuple[dict[str, Any], str]] = [
    (VICUNA | {"model_type": "qwen2"}, "model_type of the layer of .* is 'qwen2'; allowed: 'llama'"),
    (VICUNA | {"num_hidden_layers": 2}, "num_hidden_layers of .* is 2; allowed: 1"),
    (
        {name: value for name, value in VICUNA.items() if name != "num_hidden_layers"},
        "num_hidden_layers of .* is 32; all",
    ),
    (VICUNA | {"hidden_act": "gelu"}, "hidden_act of .* is 'gelu'; allowed: 'silu'"),
    (VICUNA | {"qkv_bias": True}, "qkv_bias of .* is True; allowed: False"),
    (VICUNA | {"attention_bias": True}, "attention_bias of .* is True; allowed: False"),
    (VICUNA | {"add_para_norm": True}, "add_para_norm of .* is True; allowed: False"),
    (VICUNA | {"logit_scale": 0.5}, "logit_scale of .* is 0.5; allowed: 1.0"),
    (VICUNA | {"quantization_config": {"bits": 4}}, "quantization_config of .* is {'bits': 4}; allowed: None"),
    (VICUNA | {"layer_types": ["sliding_attention"]}, r"layer_types of .* is \['sliding_attention'\]; allowed: full"),
    (VICUNA | {"bias": None}, "bias in config.json of .* is None; allowed: true or false"),
    (
        VICUNA | {"bias": False},
        "holds fc.bias, which its configuration does not ask for\nhint: tensors follow from the",
    ),
    (VICUNA | {"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "the rotary scaling is 'dynamic'"),
    (VICUNA | {"rope_scaling": {"type": "longrope", "factor": 2.0}}, "the rotary scaling is 'longrope'"),
    (VICUNA | {"hidden_size": 64}, "fc.weight is 32 x 64; allowed: 64 x 128"),
    (VICUNA | {"vocab_size": 0}, "vocab_size in config.json of .* is 0; allowed: a whole number, 1 or more"),
    (VICUNA | {"draft_vocab_size": 40}, "draft_vocab_size of .* is 40; allowed: 64, its vocab_size\nhint: an EAGLE-1"),
    (
        WRAPPED | {"eagle_fc_bias": True, "model": VICUNA, "truncated_vocab_size": 40},
        "truncated_vocab_size of .* is 40; allowed: 64, its vocab_size",
    ),
    (WRAPPED | {"model": "llama"}, "config.json of .* has no object model, though its model_type is 'eagle'"),
    (WRAPPED | {"hidden_size": 64}, "config.json of .* says hidden_size twice: 64 and 32"),
    (WRAPPED | {"eagle_fc_bias": True}, "config.json of .* says eagle_fc_bias = True and bias = False"),
    (WRAPPED | {"model": LLAMA3 | {"skip_prenorm": False}}, "skip_prenorm of .* is False; allowed: True"),
    (WRAPPED | {"model": LLAMA3 | {"skip_output_norm": False}}, "skip_output_norm of .* is False; allowed: True"),
]


@pytest.mark.parametrize(("config", "message"), REFUSED, ids=lambda value: value[:40] if isinstance(value, str) else "")
def test_refused_by_name(config: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises((WeightsError, UnsupportedError), match=message):
        read_first(foreign(tmp_path, config, tensors_of(first())))


SPOILT: list[tuple[Callable[[dict[str, Tensor]], Any], str]] = [
    (lambda held: held.pop("fc.bias"), "lacks fc.bias\nhint: tensors follow from the configuration: bias"),
    (lambda held: held.pop("fc.weight"), "lacks fc.weight"),
    (
        lambda held: held.update({"layers.0.input_layernorm.weight": torch.ones(32).half()}),
        "holds layers.0.input_layernorm.weight, which its configuration does not ask for\nhint: .*; there is no norm b",
    ),
    (lambda held: held.update({"norm.weight": torch.ones(32).half()}), "holds norm.weight, which its configuration"),
    (lambda held: held.update({"token_map": torch.arange(40)}), "holds token_map, which its configuration does not"),
    (
        lambda held: held.update({"layers.1.mlp.up_proj.weight": torch.ones(48, 32).half()}),
        "holds layers.1.mlp.up_proj.weight, which its configuration does not ask for",
    ),
    (
        lambda held: held.update({"fc.bias": torch.ones(32)}),
        "fc.bias is float32, fc.weight float16; allowed: one dtype f",
    ),
    (
        lambda held: held.update({"layers.0.mlp.upproj.weight": held.pop("layers.0.mlp.up_proj.weight")}),
        "lacks layers.0.mlp.up_proj.weight\nhint: it holds layers.0.mlp.upproj.weight, which no such head has",
    ),
]


@pytest.mark.parametrize(("change", "message"), SPOILT, ids=lambda value: value[:30] if isinstance(value, str) else "")
def test_tensors_are_checked(change: Callable[[dict[str, Tensor]], Any], message: str, tmp_path: Path) -> None:
    tensors = tensors_of(first())
    change(tensors)
    with pytest.raises(WeightsError, match=message):
        read_first(foreign(tmp_path, VICUNA, tensors))


def test_a_tensor_that_is_there_twice(tmp_path: Path) -> None:
    tensors = tensors_of(first())
    twice = {f"model.{name}": weight.clone() for name, weight in tensors.items()}
    with pytest.raises(WeightsError, match=r"holds a tensor twice, with and without model. before its name"):
        read_first(foreign(tmp_path, WRAPPED | {"eagle_fc_bias": True, "model": VICUNA}, tensors | twice))


def test_what_the_target_has_too_must_be_the_targets(tmp_path: Path) -> None:
    """However it was rounded; another's is refused, and so is one of another shape."""
    target = load_target(model_folder(tmp_path / "target"), dtype="fp32")
    rows, head = read_embeddings(target), read_head(target)
    for stored in (torch.float32, torch.bfloat16, torch.float16):
        require_ends(target, "it", embeddings=rows.to(stored), rows=head.to(stored))
    require_ends(target, "it")
    for other in (rows.flip(0), rows[:, :16], rows + 0.1):
        with pytest.raises(
            UnsupportedError, match=r"the drafter 'it' holds an embed_tokens.weight that is not that of t"
        ):
            require_ends(target, "it", embeddings=other, rows=head)
    with pytest.raises(
        UnsupportedError, match=r"'it' holds a lm_head.weight .*; allowed: the target's head, or none\nhi"
    ):
        require_ends(target, "it", embeddings=rows, rows=rows)
