"""Inverse frequencies and the warmth of attention are transformers', in old and new layouts of ``config.json``."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.testing import assert_close
from transformers import AutoConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from outpace.models.rotary import Rotary
from outpace.models.shape import Shape
from outpace.models.toy import tiny_config

OLD = {"original_max_position_embeddings": 32}
YARN = {"rope_type": "yarn", "factor": 4.0, **OLD}
LLAMA3 = {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}

LAYOUTS: dict[str, dict[str, Any]] = {
    "nothing said": {"rope_theta": None},
    "theta alone, old": {"rope_theta": 1e5},
    "theta alone, new": {"rope_theta": None, "rope_parameters": {"rope_type": "default", "rope_theta": 1e5}},
    "scaling null": {"rope_theta": 1e5, "rope_scaling": None},
    "linear, old": {"rope_theta": 1e5, "rope_scaling": {"type": "linear", "factor": 4.0}},
    "linear, new": {"rope_theta": None, "rope_parameters": {"rope_type": "linear", "rope_theta": 1e5, "factor": 4.0}},
    "both layouts": {"rope_parameters": {"rope_type": "default"}, "rope_scaling": {"type": "linear", "factor": 2.0}},
    "llama3, old": {"rope_theta": 500.0, "rope_scaling": LLAMA3 | OLD},
    "llama3, new": {"rope_theta": None, "rope_parameters": LLAMA3 | OLD | {"rope_theta": 500.0}},
    "llama3, old context untold": {"rope_scaling": LLAMA3, "max_position_embeddings": 128},
    "yarn, old": {"rope_theta": 1e6, "rope_scaling": {"type": "yarn", "factor": 4.0, **OLD}},
    "yarn, new": {"rope_theta": None, "rope_parameters": YARN | {"rope_theta": 1e6}},
    "yarn, its own warmth": {"rope_scaling": YARN | {"attention_factor": 0.7}},
    "yarn, warmth by two scales": {"rope_scaling": YARN | {"mscale": 1.2, "mscale_all_dim": 0.6}},
    "yarn, one scale alone": {"rope_scaling": YARN | {"mscale": 1.2}},
    "yarn, its own ramp": {"rope_scaling": YARN | {"beta_fast": 4.0, "beta_slow": 0.25}},
    "yarn, a ramp between dimensions": {"rope_scaling": YARN | {"truncate": False}},
    "yarn, shrinking": {"rope_scaling": YARN | {"factor": 1.0}},
    "yarn, old context untold": {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}, "max_position_embeddings": 64},
    "yarn, old context beside it": {"rope_scaling": YARN, "original_max_position_embeddings": 16},
}


@pytest.mark.parametrize("changes", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("width", [8, 64])
def test_frequencies(tmp_path: Path, changes: dict[str, Any], width: int) -> None:
    """Within 1e-6 of each frequency, and cosines and sines at positions of the old context and beyond it."""
    config = tiny_config("llama", head_dim=width, **changes)
    if changes.get("rope_theta", 0) is None:
        del config["rope_theta"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    reference = LlamaRotaryEmbedding(AutoConfig.from_pretrained(tmp_path))
    shape = Shape.from_config(config)
    rotary = Rotary(shape.rotary, shape.head_width, shape.max_positions)
    assert_close(rotary.inverse, reference.inv_freq, rtol=1e-6, atol=0)
    assert rotary.scale == pytest.approx(reference.attention_scaling, rel=1e-6)
    places = torch.tensor([[5, 31, 32, 95, 255]])
    cos, sin = rotary.at(places, torch.float32)
    their_cos, their_sin = reference(torch.ones(()), places)
    signs = torch.ones(width)
    signs[: width // 2] = -1  # ours carries the sign of the turned half
    assert_close(cos[:, :, 0], their_cos, rtol=0, atol=1e-4)  # 255 radians, relative 1e-7 apart
    assert_close(sin[:, :, 0] * signs, their_sin, rtol=0, atol=1e-4)
