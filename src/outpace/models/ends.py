"""Both ends of a target: the rows that embed its tokens, and its head, as rows or to speak through.

Knows nothing of what lies between them, nor of who asks: drafters embed with the one and may speak through the other,
trainers need both.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from outpace.errors import UnsupportedError, WeightsError
from outpace.models.target import Target
from outpace.models.transformer import Transformer
from outpace.models.weights import load_tensors, read_config

EMBEDDINGS = ("embed_tokens", "wte", "embed_in", "word_embeddings", "tok_embeddings")
"""What published checkpoints call the rows that embed tokens, whatever stands before the name."""
HEADS = ("lm_head", "embed_out")
"""What they call the head, where it is not tied to the embeddings."""


# ---- as rows ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ends:
    """Rows by token id, in the target's dtype; not to be written to, as the target may be reading the same memory.

    Args:
        embeddings: of every token; a factor that the target puts on them is not in here.
        head: ``head @ last_normed`` are the target's logits; the same rows as ``embeddings`` where the two are tied.
    """

    embeddings: Float[Tensor, "vocab hidden"]
    head: Float[Tensor, "vocab hidden"]


def read_ends(target: Target) -> Ends:
    """Both ends of a target.

    Raises:
        WeightsError, UnsupportedError: as ``read_embeddings`` and ``read_head``.
    """
    return Ends(read_embeddings(target), read_head(target))


def read_embeddings(target: Target) -> Float[Tensor, "vocab hidden"]:
    """The rows that embed a target's tokens: its own where it is a model in memory, else out of its folder.

    Raises:
        WeightsError: neither is there, or none or several of the folder's tensors bear one of the usual names.
    """
    if isinstance(target, Transformer):
        return target.embeddings
    if (model := _hosted(target)) is not None:
        return _plain(model.get_input_embeddings().weight)
    # A copy: one that still lay in the mapped file would keep the whole file in memory.
    folder = _folder(target)
    return _rows(folder, load_tensors(folder), EMBEDDINGS).to(target.device, target.dtype, copy=True)


def read_head(target: Target) -> Float[Tensor, "vocab hidden"]:
    """The rows of a target's head, unpacked where it keeps them packed.

    Raises:
        WeightsError: as ``read_embeddings``.
        UnsupportedError: the head adds a bias, which its rows do not hold.
    """
    if isinstance(target, Transformer):
        return target.embeddings if target.shape.tied_head else _plain(target.head.weight)
    if (model := _hosted(target)) is not None:
        head = model.get_output_embeddings()
        if getattr(head, "bias", None) is not None:
            raise _biased(target.name)
        return _plain(head.weight)
    folder = _folder(target)
    return _stored_head(folder, load_tensors(folder), target.name).to(target.device, target.dtype, copy=True)


def stored_ends(folder: Path) -> Ends:
    """Both ends of a model on disk, in the dtype of its file and in the file's own memory.

    Raises:
        WeightsError: as ``load_tensors``, or none or several tensors bear one of the usual names.
        UnsupportedError: the head adds a bias, which its rows do not hold.
    """
    tensors = load_tensors(folder)
    return Ends(_rows(folder, tensors, EMBEDDINGS), _stored_head(folder, tensors, str(folder)))


# ---- to speak through ------------------------------------------------------------------------------------------------


class SharedHead:
    """A target's own head for others to speak through: the very weights that it computes with, never a copy of them.

    A module that holds one does not train, save or move it, and copies of the module hold the same one.

    Args:
        apply: gives logits of states.
        dtype: of the states that it takes and of the logits that it gives.
    """

    def __init__(self, apply: Callable[[Tensor], Tensor], dtype: torch.dtype) -> None:
        self.apply, self.dtype = apply, dtype

    @classmethod
    def of_rows(cls, rows: Float[Tensor, "vocab hidden"]) -> "SharedHead":
        """A head that is these rows and nothing more."""
        return cls(partial(functional.linear, weight=rows), rows.dtype)

    def __call__(self, states: Float[Tensor, "*lead hidden"]) -> Float[Tensor, "*lead vocab"]:
        """Logits of normed states, before anything that the target may do to them behind its head."""
        return self.apply(states.to(self.dtype))

    def __deepcopy__(self, memo: dict[int, Any]) -> "SharedHead":
        return self


def share_head(target: Target) -> SharedHead:
    """The head that a target computes with, packed as it is, with its bias; it costs no memory.

    Only of a target that is no model in memory the rows are read from its folder, and held here.

    Raises:
        WeightsError, UnsupportedError: as ``read_head``, where it comes out of a folder.
    """
    if isinstance(target, Transformer):
        return SharedHead(target.head, target.dtype)
    if (model := _hosted(target)) is not None:
        return SharedHead(model.get_output_embeddings(), target.dtype)
    return SharedHead.of_rows(read_head(target))


# ---- where they are --------------------------------------------------------------------------------------------------


def _hosted(target: Target) -> Any:
    """The model of transformers behind a target, or None."""
    model = getattr(target, "model", None)
    return model if hasattr(model, "get_input_embeddings") else None


def _plain(weight: Tensor) -> Tensor:
    weight = weight.detach()
    return weight.to_dense() if weight.is_mkldnn else weight


def _biased(name: str) -> UnsupportedError:
    return UnsupportedError(f"the head of the target {name!r} adds a bias; allowed: a head of rows alone")


def _folder(target: Target) -> Path:
    if target.folder is None:
        raise WeightsError(
            f"the target {target.name!r} shows no embeddings: it is no model in memory and has no folder"
        )
    return target.folder


def _stored_head(folder: Path, tensors: Mapping[str, Tensor], name: str) -> Tensor:
    config = read_config(folder)
    tied = config.get("tie_word_embeddings", (config.get("text_config") or {}).get("tie_word_embeddings"))
    if tied or (tied is None and not _named(tensors, HEADS)):  # what is tied by default has no head in its file
        return _rows(folder, tensors, EMBEDDINGS)
    if _named(tensors, HEADS, "bias"):
        raise _biased(name)
    return _rows(folder, tensors, HEADS)


def _named(tensors: Mapping[str, Tensor], words: tuple[str, ...], part: str = "weight") -> list[str]:
    pattern = re.compile(rf"(^|\.)({'|'.join(words)})\.{part}$")
    return sorted(name for name in tensors if pattern.search(name))


def _rows(folder: Path, tensors: Mapping[str, Tensor], words: tuple[str, ...]) -> Tensor:
    found = _named(tensors, words)
    if len(found) != 1:
        shown = f"holds {', '.join(found)}" if found else "lacks such a tensor"
        raise WeightsError(f"{folder} {shown}; allowed: one of {', '.join(f'{word}.weight' for word in words)}")
    return tensors[found[0]]
