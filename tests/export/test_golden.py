"""Names, shapes, dtypes and keys of every layout, typed out from what their readers ask for."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open

from cards import USUAL, card_for, document, exported, target_of
from heads import LEGAL, random_head, shape_of
from outpace.drafters.record import Card, TargetRecord

LAYER = {
    "self_attn.q_proj.weight": [32, 64],
    "self_attn.k_proj.weight": [16, 64],
    "self_attn.v_proj.weight": [16, 64],
    "self_attn.o_proj.weight": [32, 32],
    "mlp.gate_proj.weight": [48, 32],
    "mlp.up_proj.weight": [48, 32],
    "mlp.down_proj.weight": [32, 48],
    "input_layernorm.weight": [32],
    "hidden_norm.weight": [32],
    "post_attention_layernorm.weight": [32],
}
OUTER = {"fc.weight": [32, 96], "norm.weight": [32], "lm_head.weight": [40, 32], "d2t": [40], "t2d": [64]}
PREFIX = {"safeailab": "midlayer.", "sglang": "midlayer.", "vllm": "midlayer.", "speculators": "layers.0."}
SETTINGS = {
    "model_type": "llama",
    "hidden_act": "silu",
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "attention_bias": False,
    "mlp_bias": False,
    "tie_word_embeddings": False,
    "vocab_size": 64,
    "torch_dtype": "bfloat16",
}
OFF = {"norm_before_residual": False, "norm_before_fc": False, "fc_norm": False, "norm_output": False}
CONFIGS: dict[str, dict[str, Any]] = {
    "safeailab": SETTINGS | {"architectures": ["LlamaForCausalLM"], "draft_vocab_size": 40, "rope_theta": 10000.0},
    "sglang": SETTINGS
    | OFF
    | {
        "architectures": ["LlamaForCausalLMEagle3"],
        "draft_vocab_size": 40,
        "rope_theta": 10000.0,
        "rope_scaling": None,
        "num_aux_hidden_states": 3,
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 3, 4], "use_aux_hidden_state": True},
    },
    "vllm": SETTINGS
    | OFF
    | {
        "architectures": ["LlamaForCausalLMEagle3"],
        "draft_vocab_size": 40,
        "rope_theta": 10000.0,
        "rope_scaling": None,
        "eagle_aux_hidden_state_layer_ids": [2, 4, 5],
        "num_aux_hidden_states": 3,
    },
    "speculators": OFF
    | {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "speculators_version": "0.9.0",
        "draft_vocab_size": 40,
        "target_hidden_size": None,
        "eagle_aux_hidden_state_layer_ids": [2, 4, 5],
        "embed_requires_grad": False,
        "torch_dtype": "bfloat16",
        "transformer_layer_config": SETTINGS
        | {
            "rope_theta": 10000.0,
            "rope_scaling": None,
            "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
            "num_aux_hidden_states": 3,
        },
        "speculators_config": {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [
                {
                    "proposal_type": "greedy",
                    "speculative_tokens": 3,
                    "verifier_accept_k": 1,
                    "accept_tolerance": 0.0,
                }
            ],
            "verifier": {"name_or_path": "org/model", "architectures": ["LlamaForCausalLM"]},
        },
    },
}


def known() -> Card:
    """Made for a model of the hub."""
    record = vars(TargetRecord.of(target_of())) | {"name": "org/model", "architecture": "LlamaForCausalLM"}
    return Card(**(vars(card_for(random_head(shape_of(taps=USUAL)))) | {"target": TargetRecord(**record)}))


def contents(folder: Path) -> dict[str, tuple[str, list[int]]]:
    """Dtype and shape of every tensor, as the file's own header has them."""
    with safe_open(folder / "model.safetensors", framework="pt") as opened:
        assert opened.metadata() == {"format": "pt"}
        slices = {name: opened.get_slice(name) for name in opened.keys()}  # noqa: SIM118 - it is no mapping
        return {name: (one.get_dtype(), one.get_shape()) for name, one in slices.items()}


@pytest.mark.parametrize("layout", CONFIGS)
def test_files(layout: str, tmp_path: Path) -> None:
    head = random_head(shape_of(taps=USUAL)).to(torch.bfloat16)
    folder = exported(tmp_path / "out", layout, head, known())
    assert sorted(entry.name for entry in folder.iterdir()) == ["config.json", "model.safetensors"]
    assert document(folder) == CONFIGS[layout]
    shapes = {f"{PREFIX[layout]}{name}": shape for name, shape in LAYER.items()} | OUTER
    dtypes = {"d2t": "I64", "t2d": "BOOL"}
    assert contents(folder) == {name: (dtypes.get(name, "BF16"), shape) for name, shape in shapes.items()}


@pytest.mark.parametrize("layout", ["sglang", "vllm", "speculators"])
def test_switches_and_the_norms_that_they_add(layout: str, tmp_path: Path) -> None:
    for flags, added in (
        (LEGAL[1], {"input_norm.weight": [96]}),
        (LEGAL[5], {f"fc_norm.{tap}.weight": [32] for tap in range(3)}),
    ):
        head = random_head(shape_of(taps=USUAL, **flags)).to(torch.bfloat16)
        card = Card(**(vars(known()) | {"flags": flags}))
        folder = exported(tmp_path / "-".join(added), layout, head, card)
        found = {name: shape for name, (_, shape) in contents(folder).items() if "norm" in name and "layer" not in name}
        assert found == added | {"norm.weight": [32]}
        assert {name: document(folder)[name] for name in OFF} == flags


@pytest.mark.parametrize("layout", CONFIGS)
def test_a_whole_vocabulary_has_no_map(layout: str, tmp_path: Path) -> None:
    """Its size is said all the same: left out, one engine takes the target's head for the drafter's."""
    head = random_head(shape_of(taps=USUAL, draft_vocab_size=64)).to(torch.bfloat16)
    folder = exported(tmp_path / "out", layout, head)
    assert document(folder)["draft_vocab_size"] == 64
    held = contents(folder)
    assert "d2t" not in held and "t2d" not in held and held["lm_head.weight"] == ("BF16", [64, 32])


@pytest.mark.parametrize("layout", CONFIGS)
def test_a_head_of_another_width_says_so(layout: str, tmp_path: Path) -> None:
    head = random_head(shape_of(taps=USUAL, hidden_size=16, head_width=4)).to(torch.bfloat16)
    folder = exported(tmp_path / "out", layout, head)
    assert document(folder)["target_hidden_size"] == 32
    assert contents(folder)["embed_tokens.weight"] == ("BF16", [64, 16])
    assert contents(folder)["fc.weight"] == ("BF16", [16, 96])
