"""A whole model folder, and a cache of the test's own."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where weights are kept while the test runs; not there yet."""
    monkeypatch.setenv("OUTPACE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def held() -> dict[str, Tensor]:
    """The tensors of ``weights_folder``."""
    coins = torch.Generator().manual_seed(3)
    shapes = {
        "model.embed_tokens.weight": (8, 4),
        "model.layers.0.mlp.up_proj.weight": (6, 4),
        "model.norm.weight": (4,),
    }
    return {name: torch.randn(shape, generator=coins).to(torch.bfloat16) for name, shape in shapes.items()}


@pytest.fixture
def weights_folder(tmp_path: Path, own_cache: Path, held: dict[str, Tensor]) -> Path:
    """A whole model folder, of another model than any that exists."""
    config: dict[str, Any] = {
        "model_type": "llama",
        "vocab_size": 8,
        "hidden_size": 4,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": True,
    }
    tokenizer: dict[str, Any] = {
        "model": {"vocab": {"a": 0, "b": 1, "<end>": 2}, "merges": []},
        "added_tokens": [{"id": 2, "content": "<end>"}],
    }
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    save_file(held, folder / "model.safetensors")
    return folder
