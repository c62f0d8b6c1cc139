"""What goes out in a layout comes back the same: every bit of every tensor, every setting, every logit."""

from pathlib import Path
from typing import Any

import pytest
import torch

from cards import USUAL, card_for, exported, logits_of, same_weights
from heads import LEGAL, random_head, shape_of
from outpace.drafters.head import Head, HeadShape
from outpace.drafters.layouts import read_layout
from outpace.errors import UnsupportedError
from outpace.export.formats import FORMATS
from outpace.models.rotary import Rotary

ROTARY: list[dict[str, Any]] = [
    {"rope_type": "default", "rope_theta": 500000.0},
    {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0},
    {"rope_type": "linear", "rope_theta": 500000.0, "factor": 4.0},
    {
        "rope_type": "llama3",
        "rope_theta": 500000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
    {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 64},
    {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "beta_fast": 16, "attention_factor": 1.5},
]
SHAPES: dict[str, dict[str, Any]] = {
    **{f"flags {place}": flags for place, flags in enumerate(LEGAL)},
    **{f"rotary {place}": {"rotary": rotary} for place, rotary in enumerate(ROTARY)},
    "whole vocabulary": {"draft_vocab_size": 64},
    "one head": {"heads": 1, "kv_heads": 1, "head_width": 16},
    "narrow": {"hidden_size": 16, "head_width": 4},
    "two taps": {"taps": (1, 6)},
    "five taps": {"taps": (1, 2, 4, 6, 7), **LEGAL[5]},
    "both ends": {"taps": (0, 4, 8)},
    "one tap": {"taps": (4,)},
}
CARRIED = {  # typed out: what each layout must carry, so that none refuses more and more
    "vllm": set(SHAPES),
    "speculators": set(SHAPES),
    "sglang": set(SHAPES) - {"both ends", "one tap"} - {f"flags {place}" for place in range(6, 12)},
    "safeailab": {"flags 0", "rotary 0", "rotary 1", "whole vocabulary", "one head", "narrow"},
}


def frequencies(shape: HeadShape) -> tuple[torch.Tensor, float]:
    rotary = Rotary(shape.rotary, shape.head_width, shape.max_positions)
    return rotary.inverse, rotary.scale


def same_settings(left: HeadShape, right: HeadShape) -> bool:
    """All but the rotary settings by name; those by what they do, as defaults are written out."""
    mine, theirs = (vars(shape) | {"rotary": None} for shape in (left, right))
    (inverse, scale), (other, stretch) = frequencies(left), frequencies(right)
    return mine == theirs and torch.equal(inverse, other) and scale == stretch


def head_of(name: str, dtype: torch.dtype = torch.bfloat16) -> Head:
    return random_head(shape_of(**({"taps": USUAL} | SHAPES[name]))).to(dtype)


@pytest.mark.parametrize("layout", FORMATS)
@pytest.mark.parametrize("name", SHAPES)
def test_it_comes_back(name: str, layout: str, tmp_path: Path) -> None:
    head = head_of(name)
    if name not in CARRIED[layout]:
        with pytest.raises(UnsupportedError, match="cannot carry"):
            exported(tmp_path / "out", layout, head)
        assert list(tmp_path.iterdir()) == []
        return
    back = read_layout(exported(tmp_path / "out", layout, head), 8)
    assert same_weights(back.head, head) and same_settings(back.head.shape, head.shape)
    assert back.embeddings is None
    assert torch.equal(logits_of(back.head), logits_of(head))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("layout", FORMATS)
def test_every_dtype_comes_back(layout: str, dtype: torch.dtype, tmp_path: Path) -> None:
    head = head_of("flags 0", dtype)
    assert same_weights(read_layout(exported(tmp_path / "out", layout, head), 8).head, head)


def test_a_context_that_is_widened_changes_no_scaling(tmp_path: Path) -> None:
    """vLLM puts the target's context for the head's; frequencies that are counted from it must be those of training."""
    rotary = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0}
    shape = shape_of(taps=USUAL, rotary=rotary)
    head = random_head(shape)
    for layout in ("vllm", "sglang", "speculators"):
        back = read_layout(exported(tmp_path / layout, layout, head), 8).head.shape
        widened = HeadShape(**(vars(back) | {"max_positions": 4096}))
        assert torch.equal(frequencies(widened)[0], frequencies(shape)[0])
    wrong = HeadShape(**(vars(shape) | {"max_positions": 4096}))
    assert not torch.equal(frequencies(wrong)[0], frequencies(shape)[0]), "or nothing was tested"


@pytest.mark.parametrize("layout", FORMATS)
def test_out_and_in_and_out_again_is_the_same_file(layout: str, tmp_path: Path) -> None:
    head = head_of("flags 0")
    once = exported(tmp_path / "once", layout, head)
    back = read_layout(once, 8).head
    again = exported(tmp_path / "again", layout, back, card_for(head))
    for file in ("config.json", "model.safetensors"):
        assert (once / file).read_bytes() == (again / file).read_bytes()
