"""A file of features comes back bit for bit, and no file is ever taken for another or used when it is not whole."""

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from outpace.errors import WeightsError
from outpace.models import staging
from outpace.training.masks import Sample
from outpace.training.shards import Recorded, batch_of, is_whole, name_of, open_shard, save_shard, shards_in

TAPS, WIDTH = 2, 3


def recorded(*lengths: int, seed: int = 0, dtype: torch.dtype = torch.bfloat16) -> Recorded:
    generator = torch.Generator().manual_seed(seed)
    count = sum(lengths)
    return Recorded(
        ids=torch.randint(50, (count,), generator=generator, dtype=torch.int32),
        loss_mask=torch.rand(count, generator=generator) < 0.5,
        features=torch.randn(count, TAPS, WIDTH, generator=generator).to(dtype),
        last_normed=torch.randn(count, WIDTH, generator=generator).to(dtype),
        argmax=torch.randint(50, (count,), generator=generator, dtype=torch.int32),
        logsumexp=torch.randn(count, generator=generator),
        lengths=list(lengths),
    )


def same(left: Recorded, right: Recorded) -> bool:
    tensors = [name for name in vars(left) if isinstance(getattr(left, name), torch.Tensor)]
    alike = [torch.equal(getattr(left, name), getattr(right, name)) for name in tensors]
    kinds = [getattr(left, name).dtype == getattr(right, name).dtype for name in tensors]
    return all(alike) and all(kinds) and left.lengths == right.lengths and len(tensors) == 6


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_a_file_comes_back(dtype: torch.dtype, tmp_path: Path) -> None:
    wanted = recorded(4, 1, 7, dtype=dtype)
    path = save_shard(tmp_path, "abc", wanted)
    assert same(open_shard(path), wanted) and is_whole(path)
    assert shards_in(tmp_path) == {"abc": path} and list(tmp_path.iterdir()) == [path]
    assert save_shard(tmp_path, "abc", wanted) == path


@given(st.lists(st.integers(1, 6), min_size=1, max_size=6), st.integers(0, 9))
def test_rows_and_batches(lengths: list[int], seed: int) -> None:
    """Every text is its own cut; a batch pads it on the right with what says nothing."""
    whole = recorded(*lengths, seed=seed)
    batch = batch_of([whole.row(place) for place in range(len(lengths))])
    assert batch.lengths == lengths and batch.ids.shape == (len(lengths), max(lengths))
    start = 0
    for row, length in enumerate(lengths):
        cut = slice(start, start + length)
        for name in ("ids", "loss_mask", "features", "last_normed", "argmax", "logsumexp"):
            assert torch.equal(
                getattr(batch, name)[row, :length], getattr(whole, name)[cut].to(getattr(batch, name).dtype)
            )
        assert not batch.loss_mask[row, length:].any() and not batch.features[row, length:].any()
        assert (batch.argmax[row, length:] == -1).all() and not batch.logsumexp[row, length:].any()
        start += length
    assert batch.ids.dtype == batch.argmax.dtype == torch.int64


def sample(ids: list[int], mask: list[bool], key: str = "k") -> Sample:
    return Sample(key, torch.tensor(ids, dtype=torch.int32), torch.tensor(mask))


def test_names() -> None:
    """A name changes with every setting, token, mask and border, and with nothing else."""
    settings = {"target": "t", "dtype": "bfloat16", "taps": [1, 2]}
    samples = [sample([1, 2, 3], [False, True, True]), sample([4, 5], [False, True])]
    name = name_of(settings, samples)
    assert name == name_of(dict(reversed(settings.items())), [sample([1, 2, 3], [False, True, True], "q"), samples[1]])
    others = [
        ({"target": "u"}, samples),
        ({"dtype": "float32"}, samples),
        ({"taps": [1, 3]}, samples),
        ({}, samples[::-1]),
        ({}, samples[:1]),
        ({}, [sample([1, 2, 9], [False, True, True]), samples[1]]),
        ({}, [sample([1, 2, 3], [False, False, True]), samples[1]]),
        ({}, [sample([1, 2], [False, True]), sample([3, 4, 5], [True, False, True])]),
        ({}, [sample([1, 2, 3, 4, 5], [False, True, True, False, True])]),
    ]
    names = [name_of(settings | changes, changed) for changes, changed in others]
    assert len({name, *names}) == 1 + len(others)


@pytest.mark.parametrize("fault", ["cut off", "one bit", "longer", "empty"])
def test_a_file_that_is_not_whole(fault: str, tmp_path: Path) -> None:
    path = save_shard(tmp_path, "abc", recorded(5))
    honest = path.read_bytes()
    bytes_of: dict[str, bytes] = {
        "cut off": honest[:-1],
        "one bit": honest[:-1] + bytes([honest[-1] ^ 1]),
        "longer": honest + b"\0",
        "empty": b"",
    }
    path.write_bytes(bytes_of[fault])
    assert not is_whole(path)
    if fault != "one bit":
        with pytest.raises(WeightsError, match=r"the features in .*abc-.* cannot be read"):
            open_shard(path)
    path.write_bytes(honest)
    assert is_whole(path)


def test_nothing_half_written_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*given: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(staging.os, "replace", full)
    with pytest.raises(WeightsError, match="the disk is full; nothing half-written was kept"):
        save_shard(tmp_path, "abc", recorded(5))
    assert list(tmp_path.iterdir()) == [] and shards_in(tmp_path) == {} and shards_in(tmp_path / "none") == {}
    with pytest.raises(WeightsError, match="cannot be read"):
        open_shard(tmp_path / "abc-def.safetensors")
