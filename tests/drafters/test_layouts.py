"""Heads as others publish them are read as they are meant; what no head here has is refused by name."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from cards import USUAL, foreign, same_weights
from heads import LEGAL, random_head, shape_of
from outpace.drafters.head import Head
from outpace.drafters.layouts import is_head, read_layout, usual_taps
from outpace.errors import UnsupportedError, WeightsError

LLAMA = {
    "model_type": "llama",
    "hidden_act": "silu",
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "vocab_size": 64,
}
NOISE = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0, "use_cache": True, "initializer_range": 0.02}
SAFEAILAB = LLAMA | NOISE | {"architectures": ["LlamaForCausalLM"], "draft_vocab_size": 40, "torch_dtype": "float16"}
SWITCHES = {"norm_before_residual": False, "norm_output": False}
SPECFORGE = (
    SAFEAILAB
    | SWITCHES
    | {
        "architectures": ["LlamaForCausalLMEagle3"],
        "rope_theta": 1000000.0,
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 3, 4], "use_aux_hidden_state": True},
    }
)
MODELOPT = SPECFORGE | {
    "eagle_config": {
        "eagle_aux_hidden_state_layer_ids": [1, 3, 4],
        "use_aux_hidden_state": True,
        "use_input_layernorm_in_first_layer": True,
        "use_last_layernorm": True,
        "use_mtp_layernorm": False,
        "next_layer_regular": True,
        "parallel_draft_step": 1,
        "parallel_draft_heads_num_layers": 1,
    },
    "rope_scaling": {"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 2048},
}
SPECULATORS = {
    "architectures": ["Eagle3DraftModel"],
    "speculators_model_type": "eagle3",
    "speculators_version": "0.5.0",
    "draft_vocab_size": 40,
    "norm_before_residual": False,
    "norm_before_fc": False,
    "target_hidden_size": None,
    "eagle_aux_hidden_state_layer_ids": None,
    "embed_requires_grad": False,
    "transformer_layer_config": LLAMA | {"head_dim": 8, "rope_parameters": {"rope_type": "default", "rope_theta": 5e5}},
    "speculators_config": {"algorithm": "eagle3"},
}


def tensors_of(head: Head) -> dict[str, Tensor]:
    return dict(head.state_dict())


def numbered(head: Head) -> dict[str, Tensor]:
    """The layer under its other name."""
    return {name.replace("midlayer.", "layers.0."): tensor for name, tensor in tensors_of(head).items()}


@pytest.fixture
def head() -> Head:
    return random_head(shape_of(taps=USUAL), dtype=torch.float16)


def test_safeailab(head: Head, tmp_path: Path) -> None:
    """It says neither taps, nor switches, nor a rotary base: counted from both ends, all off, 10,000."""
    older = tensors_of(head) | {"midlayer.self_attn.rotary_emb.inv_freq": torch.ones(4)}
    found = read_layout(foreign(tmp_path, SAFEAILAB, older), 8)
    assert found.kind == "llama" and found.embeddings is None and same_weights(found.head, head)
    assert found.head.shape == shape_of(taps=(2, 4, 5), rotary={"rope_type": "default", "rope_theta": 10000.0})
    assert read_layout(tmp_path, 12).head.shape.taps == (2, 6, 9)
    with pytest.raises(
        WeightsError, match="does not say eagle_aux_hidden_state_layer_ids\nhint: read it together with"
    ):
        read_layout(tmp_path)
    with pytest.raises(WeightsError, match=r"the taps of .* are \[2, 3, 3\]; allowed: rising up to 6"):
        read_layout(tmp_path, 6)


def test_specforge(head: Head, tmp_path: Path) -> None:
    """Taps under eagle_config are numbers of layers: one less than the states that come out of them."""
    found = read_layout(foreign(tmp_path, SPECFORGE, tensors_of(head)))
    assert found.head.shape.taps == (2, 4, 5) and same_weights(found.head, head)
    assert found.head.shape.rotary == {"rope_type": "default", "rope_theta": 1000000.0}
    wide = random_head(shape_of(**(LEGAL[5] | {"taps": (2, 4, 5)})), dtype=torch.float16)
    config = SPECFORGE | {"fc_norm": True, "norm_output": True}
    found = read_layout(foreign(tmp_path, config, tensors_of(wide)))
    assert found.head.shape.fc_norm and found.head.shape.norm_output and same_weights(found.head, wide)


def test_modelopt(head: Head, tmp_path: Path) -> None:
    """The layer is numbered and t2d left out; the rotary scaling is what the file says, whatever training had."""
    tensors = numbered(head)
    del tensors["t2d"]
    found = read_layout(foreign(tmp_path, MODELOPT, tensors), 8)
    assert same_weights(found.head, head) and found.head.shape.taps == (2, 4, 5)
    assert found.head.shape.rotary["factor"] == 32.0 and found.head.shape.rotary["rope_theta"] == 1000000.0


def test_speculators(head: Head, tmp_path: Path) -> None:
    """Taps at the top are states; the embeddings that it holds are the target's, and handed out beside the head."""
    rows = torch.randn(64, 32)
    tensors = numbered(head) | {"embed_tokens.weight": rows}
    found = read_layout(foreign(tmp_path, SPECULATORS, tensors), 8)
    assert found.kind == "speculators" and same_weights(found.head, head)
    assert found.embeddings is not None and torch.equal(found.embeddings, rows)
    assert found.head.shape.taps == (2, 4, 5) and found.head.shape.rotary["rope_theta"] == 5e5
    config = SPECULATORS | {"eagle_aux_hidden_state_layer_ids": [1, 6, 8]}
    assert read_layout(foreign(tmp_path, config, tensors)).head.shape.taps == (1, 6, 8)


def test_what_a_llama_configuration_leaves_out(tmp_path: Path) -> None:
    """speculators writes what differs from the class: 32 heads, as many for keys, 11,008 wide inside."""
    shape = shape_of(
        heads=32, kv_heads=32, head_width=1, feed_forward=11008, max_positions=2048, norm_eps=1e-6, taps=USUAL
    )
    wide = random_head(shape)
    layer = {"model_type": "llama", "hidden_size": 32, "vocab_size": 64, "num_hidden_layers": 1}
    config = SPECULATORS | {"transformer_layer_config": layer}
    found = read_layout(foreign(tmp_path, config, numbered(wide)), 8)
    assert found.head.shape == shape and same_weights(found.head, wide)


def test_a_whole_vocabulary(tmp_path: Path) -> None:
    """A map of all ids onto themselves is no map; no map is none either, with or without a draft_vocab_size."""
    whole = random_head(shape_of(draft_vocab_size=64, taps=USUAL))
    maps = {"d2t": torch.zeros(64, dtype=torch.int64), "t2d": torch.ones(64, dtype=torch.bool)}
    for size in (64, None):
        for held in (maps, {"d2t": maps["d2t"]}, {}):
            config = SAFEAILAB | {"draft_vocab_size": size}
            found = read_layout(foreign(tmp_path, config, tensors_of(whole) | held), 8)
            assert same_weights(found.head, whole) and found.head.shape.draft_vocab_size == 64
    maps["d2t"][63] = -1
    with pytest.raises(WeightsError, match="holds d2t, which its configuration does not ask for"):
        read_layout(foreign(tmp_path, config, tensors_of(whole) | maps), 8)


def test_a_head_of_another_width(tmp_path: Path) -> None:
    narrow = random_head(shape_of(hidden_size=16, head_width=4, taps=USUAL))
    config = SPECFORGE | {"hidden_size": 16, "target_hidden_size": 32}
    found = read_layout(foreign(tmp_path, config, tensors_of(narrow)), 8)
    assert same_weights(found.head, narrow) and found.embeddings is None


def test_switches_that_are_left_out(head: Head, tmp_path: Path) -> None:
    """Where a layout has switches and a file does not say them, it is said what they are taken for."""
    silent = {name: value for name, value in SPECFORGE.items() if name not in SWITCHES}
    with pytest.warns(UserWarning, match="does not say norm_before_residual and norm_output: taken for false, as vLLM"):
        found = read_layout(foreign(tmp_path, silent, tensors_of(head)), 8)
    assert not found.head.shape.norm_output and not found.head.shape.norm_before_residual
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        read_layout(foreign(tmp_path, SAFEAILAB, tensors_of(head)), 8)


def without(config: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in config.items() if name not in names}


def layered(**changes: Any) -> dict[str, Any]:
    return SPECULATORS | {"transformer_layer_config": SPECULATORS["transformer_layer_config"] | changes}


def eagle(**changes: Any) -> dict[str, Any]:
    return MODELOPT | {"eagle_config": MODELOPT["eagle_config"] | changes}


REFUSED: list[tuple[dict[str, Any], str]] = [
    (SAFEAILAB | {"model_type": "qwen3"}, "model_type of the layer of .* is 'qwen3'; allowed: 'llama'"),
    (without(SAFEAILAB, "model_type"), "model_type of the layer of .* is None; allowed: 'llama'"),
    (layered(model_type="qwen3"), "model_type of the layer of .* is 'qwen3'; allowed: 'llama'"),
    (SAFEAILAB | {"num_hidden_layers": 2}, "num_hidden_layers of .* is 2; allowed: 1"),
    (without(SAFEAILAB, "num_hidden_layers"), "num_hidden_layers of .* is 32; allowed: 1"),
    (SPECFORGE | {"attention_bias": True}, "attention_bias of .* is True; allowed: False"),
    (SPECFORGE | {"bias": True}, "bias of .* is True; allowed: False"),
    (SPECFORGE | {"hidden_act": "gelu"}, "hidden_act of .* is 'gelu'; allowed: 'silu'"),
    (SPECFORGE | {"quantization_config": {"bits": 4}}, r"quantization_config of .* is \{'bits': 4\}; allowed: None"),
    (
        SPECFORGE | {"layer_types": ["sliding_attention"]},
        r"layer_types of .* is \['sliding_attention'\]; allowed: full",
    ),
    (SPECFORGE | {"tie_word_embeddings": True}, "tie_word_embeddings of .* is true; allowed: false"),
    (eagle(parallel_draft_step=4), "parallel_draft_step of .* is 4; allowed: 1"),
    (eagle(use_mtp_layernorm=True), "use_mtp_layernorm of .* is True; allowed: False"),
    (eagle(use_aux_hidden_state=False), "use_aux_hidden_state of .* is False; allowed: True"),
    (eagle(norm_before_fc=True), "lacks input_norm.weight"),
    (eagle(norm_before_fc=True) | {"norm_before_fc": False}, "says norm_before_fc twice: False and True"),
    (SPECULATORS | {"speculators_model_type": "dflash"}, "speculators_model_type of .* is 'dflash'; allowed: 'eagle3'"),
    (SPECULATORS | {"transformer_layer_config": None}, "has no object transformer_layer_config or eagle_config"),
    (
        without(SPECULATORS, "norm_before_residual"),
        "does not say norm_before_residual; .*\nhint: speculators takes false",
    ),
    (layered(rope_scaling={"rope_type": "dynamic", "factor": 2.0}), "says rope_type twice: 'dynamic' and 'default'"),
    (layered(rope_theta=1e6), "says rope_theta twice: 1000000.0 and 500000.0"),
    (SPECFORGE | {"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "the rotary scaling is 'dynamic'"),
    (SPECFORGE | {"rope_scaling": {"type": "linear"}}, "the rotary scaling 'linear' has no 'factor'"),
    (
        SPECFORGE | {"rope_scaling": {"type": "linear", "factor": "four"}},
        "factor in config.json of .* is 'four'; allowed",
    ),
    (
        SPECFORGE | {"rope_scaling": "linear"},
        "rope_scaling in config.json of .* is 'linear'; allowed: null or an object",
    ),
    (SPECFORGE | {"rope_theta": -1}, "rope_theta in config.json of .* is -1; allowed: a number above 0"),
    (
        SPECFORGE | {"eagle_aux_hidden_state_layer_ids": [1, 3, 4]},
        r"says .* twice: the states \[1, 3, 4\], and the outp",
    ),
    (
        SPECFORGE | {"eagle_config": {"eagle_aux_hidden_state_layer_ids": "1,3,4"}},
        "is '1,3,4'; allowed: a list of whole",
    ),
    (
        SPECFORGE | {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 3, 8]}},
        r"\[2, 4, 9\]; allowed: rising up t",
    ),
    (
        SPECFORGE | {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [3, 1, 4]}},
        r"\[4, 2, 5\]; allowed: rising up t",
    ),
    (SPECFORGE | {"hidden_size": True}, "hidden_size in config.json of .* is True; allowed: a whole number, 1 or more"),
    (SPECFORGE | {"norm_output": 1}, "norm_output in config.json of .* is 1; allowed: true or false"),
    (SPECFORGE | {"fc_norm": True}, "lacks fc_norm.0.weight"),
    (SPECFORGE | {"draft_vocab_size": 41}, "d2t is 40; allowed: 41"),
]


@pytest.mark.parametrize(("config", "message"), REFUSED, ids=lambda value: value[:40] if isinstance(value, str) else "")
def test_refused_by_name(config: dict[str, Any], message: str, head: Head, tmp_path: Path) -> None:
    with pytest.raises((WeightsError, UnsupportedError), match=message):
        read_layout(foreign(tmp_path, config, tensors_of(head)), 8)


SPOILT: list[tuple[Callable[[dict[str, Tensor]], Any], str]] = [
    (lambda held: held.pop("lm_head.weight"), "lacks lm_head.weight"),
    (lambda held: held.pop("d2t"), "lacks d2t"),
    (lambda held: held.update({"fc.bias": torch.ones(32)}), "holds fc.bias, which its configuration does not ask for"),
    (
        lambda held: held.update({"layers.0.hidden_norm.weight": torch.ones(32)}),
        "holds a tensor twice, under midlayer a",
    ),
    (
        lambda held: held.update({"mask_hidden": torch.ones(1, 1, 96)}),
        "holds mask_hidden, which its configuration does",
    ),
    (lambda held: held.pop("midlayer.hidden_norm.weight"), "no hidden_norm.weight, .*\nhint: heads of EAGLE-1 and of"),
]


@pytest.mark.parametrize(("change", "message"), SPOILT, ids=lambda value: value[:30] if isinstance(value, str) else "")
def test_tensors_are_checked(
    change: Callable[[dict[str, Tensor]], Any], message: str, head: Head, tmp_path: Path
) -> None:
    tensors = tensors_of(head)
    change(tensors)
    with pytest.raises((WeightsError, UnsupportedError), match=message):
        read_layout(foreign(tmp_path, SAFEAILAB, tensors), 8)


def test_a_map_without_marks_is_checked_all_the_same(head: Head, tmp_path: Path) -> None:
    tensors = without(tensors_of(head), "t2d")
    tensors["d2t"] = tensors["d2t"] + torch.arange(40)  # the ids themselves, for their distances
    with pytest.raises(WeightsError, match=r"d2t leads to ids from .*\nhint: d2t\[i\] is the difference between"):
        read_layout(foreign(tmp_path, SAFEAILAB, tensors), 8)


def test_what_is_a_head(head: Head, tmp_path: Path) -> None:
    assert is_head(foreign(tmp_path, SAFEAILAB, tensors_of(head)))
    assert is_head(foreign(tmp_path, {"speculators_model_type": "dflash"}, {"norm.weight": torch.ones(2)}))
    assert not is_head(foreign(tmp_path, LLAMA, {"model.embed_tokens.weight": torch.ones(2, 2)}))


def test_the_usual_taps() -> None:
    """The published ones of a target of 32 layers."""
    assert usual_taps(32) == (2, 16, 29)
