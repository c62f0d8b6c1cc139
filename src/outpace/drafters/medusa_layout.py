"""Read Medusa heads as others publish them: by their authors' names or by vLLM's, with rows of their own or without.

Knows nothing of where a folder came from. The tensors are the fact: published configurations are known to say two heads
where the file holds five.
"""

import re
import warnings
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from torch import Tensor

from outpace.drafters.configurations import size, switch
from outpace.drafters.medusa_heads import MedusaHeads, MedusaShape
from outpace.drafters.stored import fill_module
from outpace.errors import UnsupportedError, WeightsError
from outpace.models.pickled import unpickled
from outpace.models.weights import load_tensors, read_config

MedusaKind = Literal["medusa", "vllm"]
"""``medusa``: heads and their parts by number. ``vllm``: blocks and rows apart, and its own words beside them."""
STEM = "medusa_lm_head"
"""What the authors call the file of the heads, ``.pt`` or ``.safetensors``."""
HEADS, LAYERS = "medusa_num_heads", "medusa_num_layers"
_SAID: Mapping[MedusaKind, tuple[str, str]] = {"medusa": (HEADS, LAYERS), "vllm": ("num_heads", "num_hidden_layers")}
"""What each calls the number of heads, and that of blocks."""
_BLOCK, _ROWS = re.compile(r"(\d+)\.(\d+)\.linear\.weight"), re.compile(r"(\d+)\.(\d+)\.weight")
_OF_VLLM = re.compile(r"(?:medusa_heads\.)?blocks\.(\d+)\.layers\.(\d+)\.(weight|bias)")
_ROWS_OF_VLLM = re.compile(r"(?:medusa_heads\.)?lm_heads\.(\d+)\.weight")
_HINT = (
    "head i has i.0.linear.weight and .bias for its first block, and perhaps i.1.weight for rows of its own; vLLM "
    "calls them blocks.i.layers.0 and lm_heads.i"
)


@dataclass(frozen=True)
class MedusaLayout:
    """Heads that were read.

    Args:
        kind: how they were named.
        heads: their weights in the dtype of the file.
        rows: what the file holds of the target's head, for heads without rows of their own; else None.
    """

    kind: MedusaKind
    heads: MedusaHeads
    rows: Tensor | None


def is_medusa(folder: Path) -> bool:
    """Whether a folder holds Medusa heads and no language model: some publish both in one folder.

    Raises:
        WeightsError: as for ``read_config``.
    """
    config = read_config(folder)
    return config.get("model_type") == "medusa" or (HEADS in config and not config.get("model_type"))


def read_medusa(folder: Path, vocab_size: int | None = None) -> MedusaLayout:
    """Read a folder in either layout.

    Args:
        vocab_size: of the target, for heads without rows of their own whose configuration does not say it.

    Warns:
        UserWarning: the configuration says another number of heads than the file holds.

    Raises:
        WeightsError: a file or a tensor is missing, is too many or has another shape or dtype than the others ask for;
            the configuration says another number of blocks; nothing says how large the vocabulary is.
        UnsupportedError: only some heads have rows of their own, or they speak in a vocabulary of their own.
    """
    config, tensors = read_config(folder), _tensors(folder)
    kind: MedusaKind = "vllm" if any(map(_OF_VLLM.fullmatch, tensors)) else "medusa"
    if (scale := config.get("logit_scale")) not in (None, 1.0):
        raise UnsupportedError(f"logit_scale of {folder} is {scale!r}; allowed: 1.0")
    rows = None
    if kind == "vllm":
        tensors, rows = _renamed(tensors, config, folder)
    shape = _shape(config, tensors, kind, vocab_size, folder)
    if (count := config.get("truncated_vocab_size")) not in (None, shape.vocab_size):
        raise UnsupportedError(
            f"truncated_vocab_size of {folder} is {count!r}; allowed: {shape.vocab_size}, its vocab_size"
        )
    named = _SAID[kind][0]
    if named in config and (said := size(config, named, folder)) != shape.heads:
        warnings.warn(f"{named} of {folder} is {said}, and there are {shape.heads} heads: taken are all", stacklevel=2)
    return MedusaLayout(kind, fill_module(lambda: MedusaHeads(shape), tensors, str(folder), _HINT), rows)


def _tensors(folder: Path) -> dict[str, Tensor]:
    """Of the safetensors file if there is one, else of the pickle."""
    if not any(folder.glob("*.safetensors")) and (pickle := folder / f"{STEM}.pt").is_file():
        return unpickled(pickle)
    return load_tensors(folder)


def _renamed(
    tensors: Mapping[str, Tensor], config: Mapping[str, Any], folder: Path
) -> tuple[dict[str, Tensor], Tensor | None]:
    """vLLM's tensors by the authors' names, and the target's rows if they are among them.

    Where vLLM adds no bias, one of zeros says the same.
    """
    biased = switch(config.get("medusa_fc_bias", False), "medusa_fc_bias", folder)
    shared = switch(config.get("original_lm_head", False), "original_lm_head", folder)
    blocks = [place for name in tensors if (place := _OF_VLLM.fullmatch(name))]
    layers = 1 + max(int(place[2]) for place in blocks)
    found: dict[str, Tensor] = {}
    rows = None
    for name, tensor in tensors.items():
        if (place := _OF_VLLM.fullmatch(name)) and (biased or place[3] == "weight"):
            found[f"{place[1]}.{place[2]}.linear.{place[3]}"] = tensor
            if not biased:
                found[f"{place[1]}.{place[2]}.linear.bias"] = tensor.new_zeros(tensor.shape[:1])
        elif shared and (name == "lm_head.weight" or (rows is None and _ROWS_OF_VLLM.fullmatch(name))):
            rows = tensor
        elif not shared and (place := _ROWS_OF_VLLM.fullmatch(name)):
            found[f"{place[1]}.{layers}.weight"] = tensor
        else:
            found[name] = tensor
    return found, rows


def _shape(
    config: Mapping[str, Any], tensors: Mapping[str, Tensor], kind: MedusaKind, vocab_size: int | None, folder: Path
) -> MedusaShape:
    """The arithmetic, by the tensors."""
    blocks = [place for name in tensors if (place := _BLOCK.fullmatch(name))]
    if not blocks:
        raise WeightsError(f"{folder} lacks 0.0.linear.weight", hint=_HINT)
    layers = 1 + max(int(place[2]) for place in blocks)
    heads = 1 + max(int(place[1]) for place in blocks)
    named = _SAID[kind][1]
    if named in config and (said := size(config, named, folder)) != layers:
        raise WeightsError(f"{named} of {folder} is {said}, and its heads have {layers}; allowed: one and the same")
    own = Counter(int(place[2]) == layers for name in tensors if (place := _ROWS.fullmatch(name)))[True]
    if own not in (0, heads):
        raise UnsupportedError(f"{own} of the {heads} heads of {folder} have rows of their own; allowed: all, or none")
    first, rows = tensors[blocks[0][0]], tensors.get(f"0.{layers}.weight")
    hidden = first.shape[-1] if first.dim() else 1
    if rows is not None and rows.dim() == 2:
        vocab_size = rows.shape[0]
    elif "vocab_size" in config:
        vocab_size = size(config, "vocab_size", folder)
    if vocab_size is None:
        raise WeightsError(
            f"config.json of {folder} does not say vocab_size, and its heads have no rows of their own",
            hint="read it together with its target",
        )
    return MedusaShape(hidden_size=hidden, vocab_size=vocab_size, heads=heads, layers=layers, own_head=own > 0)


# ---- out -------------------------------------------------------------------------------------------------------------


def medusa_config(shape: MedusaShape, target: str, dtype: str) -> dict[str, Any]:
    """The configuration that the authors write, and the sizes that heads without rows of their own do not show.

    Args:
        target: the name of the model that they were made for.
        dtype: as configurations call it.
    """
    return {
        HEADS: shape.heads,
        LAYERS: shape.layers,
        "base_model_name_or_path": target,
        "hidden_size": shape.hidden_size,
        "vocab_size": shape.vocab_size,
        "torch_dtype": dtype,
    }
