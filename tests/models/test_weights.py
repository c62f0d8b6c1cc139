"""Weights are found, read and written, or refused in one clear sentence."""

import errno
import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from outpace.errors import WeightsError
from outpace.models import weights
from outpace.models.weights import (
    find_weights,
    fingerprint,
    load_tensors,
    pull,
    read_config,
    save_tensors,
)

EMBED, UP, NORM = "model.embed_tokens.weight", "model.layers.0.mlp.up_proj.weight", "model.norm.weight"
TWO = {"model-00001-of-00002.safetensors": [EMBED], "model-00002-of-00002.safetensors": [UP, NORM]}
TWO_INDEX = {name: file for file, names in TWO.items() for name in names}


def shard(folder: Path, files: dict[str, list[str]], index: dict[str, str] | None = None) -> None:
    """Lay the folder's tensors out in several files, with an index when one is given."""
    held = {name: tensor.clone() for name, tensor in load_tensors(folder).items()}
    (folder / "model.safetensors").unlink()
    for file, names in files.items():
        save_file({name: held[name] for name in names}, folder / file)
    if index is not None:
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))


def assert_same(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> None:
    assert found.keys() == wanted.keys()
    for name, tensor in wanted.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name], tensor), name


# Finding.


def test_a_folder_is_taken_as_it_is(held: dict[str, Tensor], weights_folder: Path) -> None:
    assert find_weights(str(weights_folder)) == weights_folder
    assert_same(load_tensors(weights_folder), held)
    pulled = pull(str(weights_folder))
    assert (pulled.path, pulled.source) == (weights_folder, "folder")
    assert len(pulled.sha256) == 64


def test_a_folder_goes_before_a_hub_id(weights_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(weights_folder.parent.parent)
    name = f"{weights_folder.parent.name}/model"
    assert find_weights(name) == Path(name)


def test_the_default_is_never_a_folder_of_its_name(weights_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weights_folder.rename(weights_folder.with_name("smollm2"))
    monkeypatch.chdir(weights_folder.parent)
    with pytest.raises(WeightsError, match=r"smollm2 is not in .*cache\nhint: run `outpace pull`"):
        find_weights(offline=True)
    assert find_weights("./smollm2") == Path("smollm2")


@pytest.mark.parametrize("name", ["", "nowhere", "./nowhere/model", "/nowhere", "a/b/c", "../x"])
def test_what_is_neither_folder_nor_id_is_refused(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(WeightsError, match=r"is no folder here; allowed: smollm2, .* or a Hugging Face id org/name"):
        find_weights(name)


def test_a_file_is_no_folder(weights_folder: Path) -> None:
    with pytest.raises(WeightsError, match=r"model\.safetensors is a file; a folder is expected\nhint: a model folder"):
        find_weights(str(weights_folder / "model.safetensors"))


def test_a_hub_id_is_not_asked_for_offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "cached_snapshot", lambda name: None)
    with pytest.raises(WeightsError, match=r"org/name is not on this machine\nhint: run `outpace pull org/name`"):
        find_weights("org/name", offline=True)


def test_a_whole_snapshot_is_not_asked_for_again(weights_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fetch(name: str, progress: object) -> Path:
        raise WeightsError("no network")

    monkeypatch.setattr(weights, "cached_snapshot", lambda name: weights_folder)
    monkeypatch.setattr(weights, "fetch_snapshot", fetch)
    assert find_weights("org/name") == weights_folder
    assert pull("org/name").source == "cache"
    (weights_folder / "model.safetensors").unlink()  # an interrupted download
    with pytest.raises(WeightsError, match="no network"):
        find_weights("org/name")
    with pytest.raises(WeightsError, match="no network"):
        pull("org/name")
    with pytest.raises(WeightsError, match=r"has no \*\.safetensors"):
        find_weights("org/name", offline=True)


# Reading.


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match=r"no folder at .*nowhere\nhint: a model folder holds config\.json"):
        read_config(tmp_path / "nowhere")


def test_a_folder_without_configuration_is_named(weights_folder: Path) -> None:
    (weights_folder / "config.json").unlink()
    with pytest.raises(WeightsError, match=r"model has no config\.json\nhint: a model folder holds config\.json"):
        find_weights(str(weights_folder))


@pytest.mark.parametrize(
    ("text", "match"), [("{", r"config\.json is not JSON"), ("[1]", r"config\.json holds a list; a JSON object")]
)
def test_a_configuration_that_is_no_object_is_named(weights_folder: Path, text: str, match: str) -> None:
    (weights_folder / "config.json").write_text(text)
    with pytest.raises(WeightsError, match=match):
        find_weights(str(weights_folder))


def test_a_folder_without_weights_is_named(weights_folder: Path) -> None:
    (weights_folder / "model.safetensors").unlink()
    with pytest.raises(WeightsError, match=r"model has no \*\.safetensors\nhint: a model folder"):
        find_weights(str(weights_folder))


@pytest.mark.parametrize("left", [0, 7, 40, -1])
def test_a_file_that_is_cut_off_is_named(weights_folder: Path, left: int) -> None:
    whole = (weights_folder / "model.safetensors").read_bytes()
    (weights_folder / "model.safetensors").write_bytes(whole[:left])
    with pytest.raises(WeightsError, match=r"model\.safetensors cannot be read: it is cut off.*\nhint: fetch the file"):
        find_weights(str(weights_folder))


def test_garbage_is_named(weights_folder: Path) -> None:
    (weights_folder / "model.safetensors").write_bytes(b"\xff" * 100)
    with pytest.raises(WeightsError, match=r"model\.safetensors cannot be read"):
        load_tensors(weights_folder)


@pytest.mark.parametrize("index", [None, TWO_INDEX])
def test_shards_are_read_as_one(held: dict[str, Tensor], weights_folder: Path, index: dict[str, str] | None) -> None:
    whole = fingerprint(weights_folder)
    shard(weights_folder, TWO, index)
    assert_same(load_tensors(weights_folder), held)
    assert fingerprint(weights_folder) == whole
    assert len(pull(str(weights_folder)).sha256) == 64


@pytest.mark.parametrize(
    ("index", "match"),
    [
        (None, r"has 1 of 2 shards like model-00001-of-00002\.safetensors\nhint: fetch the missing"),
        (TWO_INDEX, r"index\.json names model-00002-of-00002\.safetensors, which is not there\nhint: fetch"),
    ],
)
def test_a_missing_shard_is_named(weights_folder: Path, index: dict[str, str] | None, match: str) -> None:
    shard(weights_folder, TWO, index)
    (weights_folder / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(WeightsError, match=match):
        find_weights(str(weights_folder))


def test_a_tensor_that_only_the_index_knows_is_named(weights_folder: Path) -> None:
    shard(weights_folder, TWO, TWO_INDEX | {"model.layers.9.lost": "model-00001-of-00002.safetensors"})
    with pytest.raises(WeightsError, match=r"model-00001-of-00002\.safetensors lacks model\.layers\.9\.lost, which"):
        load_tensors(weights_folder)


def test_an_index_does_not_lead_out_of_the_folder(held: dict[str, Tensor], weights_folder: Path) -> None:
    save_file(held, weights_folder.parent / "outside.safetensors")
    shard(weights_folder, {}, {EMBED: "../outside.safetensors"})
    with pytest.raises(WeightsError, match=r"names \.\./outside\.safetensors, which is not there"):
        load_tensors(weights_folder)


def test_an_index_without_a_map_is_named(weights_folder: Path) -> None:
    (weights_folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": [1]}))
    with pytest.raises(WeightsError, match=r"index\.json has no weight_map of tensor names to file names"):
        load_tensors(weights_folder)


def test_a_tensor_in_two_files_is_named(weights_folder: Path) -> None:
    shard(weights_folder, {"one.safetensors": [EMBED], "two.safetensors": [EMBED, UP]})
    with pytest.raises(
        WeightsError, match=r"embed_tokens\.weight is in one\.safetensors and in two\.safetensors\nhint"
    ):
        load_tensors(weights_folder)


# Writing.


def test_what_is_saved_is_read_back(held: dict[str, Tensor], tmp_path: Path) -> None:
    held["transposed"] = held[UP].T
    held["alias"] = held[EMBED]
    save_tensors(tmp_path / "new", held)
    save_tensors(tmp_path / "new", held)
    assert_same(load_tensors(tmp_path / "new"), held)
    assert [file.name for file in (tmp_path / "new").iterdir()] == ["model.safetensors"]
    with safe_open(tmp_path / "new" / "model.safetensors", framework="pt") as opened:
        assert opened.metadata() == {"format": "pt"}
    other = tmp_path / "plain"
    other.touch()
    assert (tmp_path / "new" / "model.safetensors").stat().st_mode == other.stat().st_mode


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), None])
def test_a_full_disk_leaves_the_older_file(
    held: dict[str, Tensor], weights_folder: Path, error: OSError | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    from safetensors import SafetensorError

    def fail(held: dict[str, Tensor], file: Path, metadata: dict[str, str]) -> None:
        file.write_bytes(b"half")
        raise error or SafetensorError("I/O error: No space left on device (os error 28)")

    monkeypatch.setattr(weights, "save_file", fail)
    before = sorted(weights_folder.iterdir())
    with pytest.raises(WeightsError, match=r"cannot write under .*model: the disk is full; .*\nhint: free some space"):
        save_tensors(weights_folder, {"other": torch.zeros(2)})
    assert sorted(weights_folder.iterdir()) == before
    assert_same(load_tensors(weights_folder), held)
