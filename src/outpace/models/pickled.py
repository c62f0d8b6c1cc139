"""Read a pickled checkpoint as plain tensors, and keep it as safetensors.

Knows nothing of hubs or defaults. No code in a pickle is ever run: what is not a tensor is refused.
"""

import json
import pickle
import re
import shutil
import zipfile
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from outpace.errors import WeightsError
from outpace.models.staging import Progress, staged

_INDEX = "pytorch_model.bin.index.json"
MEDUSA = "medusa_lm_head.pt"
"""What the authors of Medusa call the file of its heads; it counts where no model stands beside it."""
_SIDE_FILES = ("*.json", "*.txt", "*.model", "*.jinja")


def pickles(folder: Path) -> list[Path]:
    """The files of a pickled checkpoint in their order; empty when there is none.

    Raises:
        WeightsError: a shard is missing.
    """
    files = sorted(folder.glob("pytorch_model*.bin")) or sorted(folder.glob(MEDUSA))
    for file in files:
        if (part := re.search(r"-of-(\d+)\.bin$", file.name)) and int(part[1]) != len(files):
            raise WeightsError(
                f"{folder} has {len(files)} of {int(part[1])} shards like {file.name}", hint="fetch the missing files"
            )
    return files


def unpickled(file: Path) -> dict[str, Tensor]:
    """The tensors of one pickled file, read with ``weights_only=True``.

    Raises:
        WeightsError: the file is corrupt, or holds anything but tensors under names.
    """
    try:
        # Only the zip format can be mapped; the older one is read into memory.
        held = torch.load(file, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(file))
    except pickle.UnpicklingError as error:
        raise WeightsError(
            f"{file} is refused: it is no plain pickle of tensors, and outpace runs no code of a checkpoint",
            hint="convert it to safetensors where you trust it",
        ) from error
    except (RuntimeError, EOFError, ValueError) as error:
        raise WeightsError(f"{file} is corrupt or cut off", hint="fetch the file again") from error
    if not isinstance(held, dict):
        raise WeightsError(f"{file} holds a {type(held).__name__}; a mapping of names to tensors is expected")
    for name, value in held.items():
        if not isinstance(name, str) or not isinstance(value, Tensor):
            raise WeightsError(
                f"{file} holds a {type(value).__name__} under {name!r}; only tensors under names are read",
                hint="a training checkpoint keeps the model inside; save the model's state_dict alone",
            )
    return held


def apart(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The same values on the CPU, dense, no two of them in one memory, as safetensors wants them."""
    seen: set[int] = set()
    result = {}
    for name, tensor in tensors.items():
        dense = tensor.detach().to("cpu").contiguous()
        place = dense.untyped_storage().data_ptr()
        result[name] = dense.clone() if place in seen else dense
        seen.add(place)
    return result


def convert(folder: Path, final: Path, progress: Progress) -> None:
    """Write the pickled checkpoint of ``folder`` as safetensors to ``final``, with all files beside it; whole or not.

    Raises:
        WeightsError: as ``pickles`` and ``unpickled``, or a disk that fails.
    """
    files = pickles(folder)
    with staged(final) as draft:
        places: dict[str, str] = {}
        for done, file in enumerate(files):
            progress(done, len(files), "converting pickled weights")
            tensors = unpickled(file)
            name = Path(file.name.replace("pytorch_model", "model")).with_suffix(".safetensors").name
            save_file(apart(tensors), draft / name, metadata={"format": "pt"})
            places |= dict.fromkeys(tensors, name)
        if len(files) > 1:
            index = json.dumps({"metadata": {}, "weight_map": places}, indent=2)
            (draft / "model.safetensors.index.json").write_text(index + "\n", encoding="utf-8")
        for pattern in _SIDE_FILES:
            for side in folder.glob(pattern):
                if side.name != _INDEX:
                    shutil.copyfile(side, draft / side.name)
    progress(len(files), len(files), "converting pickled weights")
