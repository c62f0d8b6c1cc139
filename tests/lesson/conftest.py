"""What tests of the lesson share: a tiny model with words of its own, and a drafter that is often right about it."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from outpace.models.toy import tiny_config, tiny_tensors
from wordlevel import word_tokenizer


def _written(folder: Path, noise: float) -> Path:
    """A model of two layers with a tokenizer of sixty words; ``noise`` is how far its weights are off."""
    config = tiny_config(max_position_embeddings=512, eos_token_id=63)
    (folder / "config.json").write_text(json.dumps(config), "utf-8")
    generator = torch.Generator().manual_seed(1)
    tensors = {
        name: tensor * (1 + noise * torch.randn(tensor.shape, generator=generator))
        for name, tensor in tiny_tensors(config, seed=3).items()
    }
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    word_tokenizer(folder)
    return folder


@pytest.fixture(scope="session")
def worded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tiny model with a tokenizer and a chat template."""
    return _written(tmp_path_factory.mktemp("worded"), 0.0)


@pytest.fixture(scope="session")
def nearly(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of its drafter: the same model, every weight a little off."""
    return _written(tmp_path_factory.mktemp("nearly"), 0.15)
