"""98: names, architecture or layout are not those that a server expects: it stops, or goes on without them."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open

from cards import FORMATS, USUAL, card_for, change_document, document, exported, same_weights
from heads import random_head, shape_of
from outpace.drafters.layouts import read_layout
from outpace.errors import UnsupportedError, WeightsError
from outpace.export import safeailab, speculators, vllm
from toys import must_fail

LAYER = (
    "hidden_norm",
    "input_layernorm",
    "mlp.down_proj",
    "mlp.gate_proj",
    "mlp.up_proj",
    "post_attention_layernorm",
    "self_attn.k_proj",
    "self_attn.o_proj",
    "self_attn.q_proj",
    "self_attn.v_proj",
)
OUTER = {"d2t", "t2d", "fc.weight", "lm_head.weight", "norm.weight"}
SERVED: dict[str, tuple[list[str], str]] = {  # the class that a server looks up, and what it calls the layer
    "safeailab": (["LlamaForCausalLM"], "midlayer"),
    "sglang": (["LlamaForCausalLMEagle3"], "midlayer"),
    "vllm": (["LlamaForCausalLMEagle3"], "midlayer"),
    "speculators": (["Eagle3Speculator"], "layers.0"),
}
REFUSED: list[tuple[str, dict[str, Any], str]] = [  # settings that a server would drop without a word
    ("sglang", {"norm_before_residual": True}, "SGLang cannot carry norm_before_residual"),
    ("safeailab", {"norm_output": True}, "SafeAILab cannot carry norm_output"),
    ("safeailab", {"fc_norm": True}, "SafeAILab cannot carry fc_norm"),
    ("safeailab", {"norm_before_fc": True}, "SafeAILab cannot carry norm_before_fc"),
]


def case(folder: Path) -> None:
    """Exactly these names, under exactly these architectures, and what cannot be said is not dropped."""
    head = random_head(shape_of(taps=USUAL)).to(torch.bfloat16)
    for layout, (architectures, layer) in SERVED.items():
        place = exported(folder / layout, layout, head)
        said = document(place)
        assert said["architectures"] == architectures, layout
        assert ("model_type" in said) == (layout != "speculators"), "two levels, and the outer has no type"
        with safe_open(place / "model.safetensors", framework="pt") as opened:
            assert set(opened.keys()) == {f"{layer}.{name}.weight" for name in LAYER} | OUTER, layout
        assert not any(said.get("transformer_layer_config", said)[name] for name in ("attention_bias", "mlp_bias"))
        assert same_weights(read_layout(place, 8).head, head), layout
    for number, (layout, changes, message) in enumerate(REFUSED):
        made = random_head(shape_of(taps=USUAL, **changes))
        try:
            FORMATS[layout](folder / str(number), made, card_for(made))
        except UnsupportedError as error:
            assert message in str(error)
        else:
            pytest.fail(f"{message}, and nobody noticed")
        assert not (folder / str(number)).exists()


def test_case(tmp_path: Path) -> None:
    case(tmp_path)


def test_both_names_of_the_layer_are_read(tmp_path: Path) -> None:
    """vLLM renames the one to the other; a file with both is one with two layers."""
    head = random_head(shape_of(taps=USUAL))
    found = [read_layout(exported(tmp_path / layout, layout, head), 8).head for layout in ("vllm", "speculators")]
    assert same_weights(*found)


def test_an_architecture_says_nothing_of_the_arithmetic(tmp_path: Path) -> None:
    """Six names are in use for one layout; what counts is said key by key."""
    head = random_head(shape_of(taps=USUAL))
    folder = exported(tmp_path / "out", "vllm", head)
    for name in ("LlamaForCausalLMEagle3", "Eagle3LlamaForCausalLM", "LlamaEagle3DraftModel"):
        change_document(folder, lambda config, name=name: config.update(architectures=[name]))
        assert same_weights(read_layout(folder, 8).head, head)
    change_document(folder, lambda config: config.update(norm_output="false"))
    with pytest.raises(WeightsError, match=r"norm_output in config.json of .* is 'false'; allowed: true or false"):
        read_layout(folder, 8)


def the_other_prefix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speculators, "_named", lambda name: name)


def the_plain_class(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = vllm.engine_config
    monkeypatch.setattr(vllm, "engine_config", lambda *given: honest(*given) | {"architectures": ["LlamaForCausalLM"]})


def dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(safeailab, "require_off", lambda *_: None)


@pytest.mark.parametrize("plant", [the_other_prefix, the_plain_class, dropped])
def test_planted_fault(plant: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    with must_fail():
        case(tmp_path)
