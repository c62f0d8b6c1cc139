"""A folder becomes a target: dtype, names, the ids that end a text."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from outpace.errors import UnsupportedError, UsageError
from outpace.models.load import eos_ids, load_target, native_dtype
from outpace.models.toy import tiny_config, tiny_tensors
from outpace.models.weights import fingerprint, save_tensors


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    config = tiny_config("qwen2", eos_token_id=5)
    save_tensors(tmp_path, tiny_tensors(config))
    (tmp_path / "config.json").write_text(json.dumps(config))
    return tmp_path


def test_a_target_says_where_it_came_from(folder: Path) -> None:
    target = load_target(folder, dtype="fp32")
    assert (target.name, target.folder, target.fingerprint) == (str(folder), folder, fingerprint(folder))
    assert (target.vocab_size, target.max_positions, target.eos_ids) == (64, 256, (5,))
    assert target.can_tree and target.can_rewind


@pytest.mark.parametrize(
    ("name", "dtype"), [("bf16", torch.bfloat16), ("fp32", torch.float32), ("fp64", torch.float64)]
)
def test_dtypes(folder: Path, name: str, dtype: torch.dtype) -> None:
    """Weights and cache are of the dtype asked for, logits too if it is no coarser than fp32; a prompt can be read."""
    target = load_target(folder, dtype=name)
    state = target.open(1, 8)
    logits = target.prefill(state, torch.tensor([[1, 2, 3]]), [3]).logits
    assert {target.dtype, state.keys.dtype, target.embeddings.dtype} == {dtype}
    assert logits.dtype == torch.promote_types(dtype, torch.float32)
    assert logits.isfinite().all()


def test_auto_is_what_the_processor_has(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert load_target(folder).dtype == native_dtype("cpu")
    for native, dtype in ((True, torch.bfloat16), (False, torch.float32)):
        monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda native=native: native)
        monkeypatch.setattr("platform.machine", lambda: "x86_64")
        assert native_dtype("cpu") == dtype
    assert native_dtype("meta") == torch.float32


def test_an_unknown_dtype_is_refused_before_anything_is_read() -> None:
    with pytest.raises(UsageError, match="dtype is 'fp16'; allowed: auto, bf16, fp32, fp64"):
        load_target("no/such-model", dtype="fp16")


def test_an_untested_device_is_refused_before_anything_is_read() -> None:
    with pytest.raises(UnsupportedError, match="device is 'cuda'; allowed: cpu"):
        load_target("no/such-model", device="cuda")


def test_a_family_of_another_lane_is_refused_before_weights_are_read(folder: Path) -> None:
    (folder / "config.json").write_text(json.dumps(tiny_config() | {"model_type": "gpt2"}))
    with pytest.raises(UnsupportedError, match="the model type is 'gpt2'"):
        load_target(folder, lane="fast")


@pytest.mark.parametrize(
    ("config", "generation", "expected"),
    [
        ({}, None, ()),
        ({"eos_token_id": None}, {}, ()),
        ({"eos_token_id": 0}, None, (0,)),
        ({"eos_token_id": [3, 4]}, None, (3, 4)),
        ({"eos_token_id": 3}, {"eos_token_id": [7, 8]}, (7, 8)),
        ({"eos_token_id": 3}, {"eos_token_id": 0}, (0,)),
        ({"eos_token_id": 3}, {"eos_token_id": None, "temperature": 0.6}, (3,)),
    ],
)
def test_ids_that_end_a_text(
    tmp_path: Path, config: dict[str, Any], generation: dict[str, Any] | None, expected: tuple[int, ...]
) -> None:
    """generation_config.json goes before config.json; one id, several, id 0, or none."""
    if generation is not None:
        (tmp_path / "generation_config.json").write_text(json.dumps(generation))
    assert eos_ids(tmp_path, config) == expected
