"""A pickled checkpoint becomes safetensors once, and none of its code runs."""

import os
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from outpace.errors import WeightsError
from outpace.models import pickled
from outpace.models.weights import find_weights, load_tensors, read_config

EMBED, UP, NORM = "model.embed_tokens.weight", "model.layers.0.mlp.up_proj.weight", "model.norm.weight"


def assert_same(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> None:
    assert found.keys() == wanted.keys()
    for name, tensor in wanted.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name], tensor), name


@pytest.fixture
def pickled_folder(held: dict[str, Tensor], weights_folder: Path) -> Path:
    """The same model as a pickled checkpoint in two shards; two of its tensors share their memory."""
    (weights_folder / "model.safetensors").unlink()
    torch.save({EMBED: held[EMBED], "lm_head.weight": held[EMBED]}, weights_folder / "pytorch_model-00001-of-00002.bin")
    torch.save({UP: held[UP], NORM: held[NORM]}, weights_folder / "pytorch_model-00002-of-00002.bin")
    (weights_folder / "pytorch_model.bin.index.json").write_text("{}")
    return weights_folder


def test_a_pickled_checkpoint_is_converted_once(held: dict[str, Tensor], pickled_folder: Path, own_cache: Path) -> None:
    seen: list[tuple[int, int, str]] = []
    found = find_weights(str(pickled_folder), progress=lambda *step: seen.append(step))
    assert found.is_relative_to(own_cache)
    assert_same(load_tensors(found), held | {"lm_head.weight": held[EMBED]})
    assert read_config(found) == read_config(pickled_folder)
    assert (found / "tokenizer.json").is_file()
    assert not list(found.glob("*.bin*"))
    assert [step[:2] for step in seen] == [(0, 2), (1, 2), (2, 2)]
    assert find_weights(str(pickled_folder), progress=lambda *step: seen.append(step)) == found
    assert len(seen) == 3
    torch.save({UP: held[UP] + 1, NORM: held[NORM]}, pickled_folder / "pytorch_model-00002-of-00002.bin")
    os.utime(pickled_folder / "pytorch_model-00002-of-00002.bin", ns=(1, 1))
    assert torch.equal(load_tensors(find_weights(str(pickled_folder)))[UP], held[UP] + 1)


def test_a_missing_pickled_shard_is_named(pickled_folder: Path) -> None:
    (pickled_folder / "pytorch_model-00001-of-00002.bin").unlink()
    with pytest.raises(WeightsError, match=r"has 1 of 2 shards like pytorch_model-00002-of-00002\.bin"):
        find_weights(str(pickled_folder))


class Trap:
    """Runs a command when it is unpickled by anyone who trusts it."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.mkdir, (str(self.file),)


def test_a_pickle_is_never_executed(weights_folder: Path, own_cache: Path) -> None:
    (weights_folder / "model.safetensors").unlink()
    trace = weights_folder / "trace"
    (weights_folder / "pytorch_model.bin").write_bytes(pickle.dumps({"weight": Trap(trace)}, protocol=2))
    with pytest.raises(WeightsError, match=r"pytorch_model\.bin is refused: .* runs no code of a checkpoint\nhint"):
        find_weights(str(weights_folder))
    torch.save({"weight": Trap(trace)}, weights_folder / "pytorch_model.bin")
    with pytest.raises(WeightsError, match=r"pytorch_model\.bin is refused"):
        find_weights(str(weights_folder))
    assert not trace.exists()
    assert not [path for path in (own_cache / "converted").iterdir() if path.is_dir()]


@pytest.mark.parametrize(
    ("content", "match"),
    [
        ({"model": {"a": 1}}, r"holds a dict under 'model'; only tensors under names are read\nhint: a training check"),
        ([1], r"holds a list; a mapping of names to tensors is expected"),
    ],
)
def test_a_pickle_of_something_else_is_named(weights_folder: Path, content: Any, match: str) -> None:
    (weights_folder / "model.safetensors").unlink()
    torch.save(content, weights_folder / "pytorch_model.bin")
    with pytest.raises(WeightsError, match=match):
        find_weights(str(weights_folder))


def test_a_pickle_that_is_cut_off_is_named(pickled_folder: Path) -> None:
    file = pickled_folder / "pytorch_model-00002-of-00002.bin"
    file.write_bytes(file.read_bytes()[:-200])
    with pytest.raises(WeightsError, match=r"00002-of-00002\.bin is (corrupt or cut off|refused)"):
        find_weights(str(pickled_folder))


def test_heads_that_are_published_alone(held: dict[str, Tensor], weights_folder: Path, own_cache: Path) -> None:
    """Medusa's file is converted like any other, never run, and passed over where a model stands beside it."""
    heads = {"0.0.linear.weight": held[NORM], "0.0.linear.bias": held[NORM]}
    torch.save(heads, weights_folder / "medusa_lm_head.pt")
    assert find_weights(str(weights_folder)) == weights_folder
    (weights_folder / "model.safetensors").unlink()
    found = find_weights(str(weights_folder))
    assert found.is_relative_to(own_cache) and (found / "medusa_lm_head.safetensors").is_file()
    assert_same(load_tensors(found), heads)
    torch.save(held, weights_folder / "pytorch_model.bin")
    assert_same(load_tensors(find_weights(str(weights_folder))), held)
    (weights_folder / "pytorch_model.bin").unlink()
    torch.save({"weight": Trap(weights_folder / "trace")}, weights_folder / "medusa_lm_head.pt")
    with pytest.raises(WeightsError, match=r"medusa_lm_head\.pt is refused: .* runs no code of a checkpoint\nhint"):
        find_weights(str(weights_folder))
    assert not (weights_folder / "trace").exists()


def test_an_interrupted_conversion_leaves_nothing(
    held: dict[str, Tensor], pickled_folder: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(file: Path) -> dict[str, Tensor]:
        if "00002" in file.name:
            raise KeyboardInterrupt
        return held

    with monkeypatch.context() as patched:
        patched.setattr(pickled, "unpickled", interrupt)
        with pytest.raises(KeyboardInterrupt):
            find_weights(str(pickled_folder))
    assert not [path for path in (own_cache / "converted").iterdir() if path.is_dir()]
    assert "lm_head.weight" in load_tensors(find_weights(str(pickled_folder)))
