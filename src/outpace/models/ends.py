"""Both ends of a target in plain form: the rows that embed its tokens, and the rows of its head.

Knows nothing of what lies between them, nor of who asks: drafters embed with the one, trainers need the other too.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jaxtyping import Float
from torch import Tensor

from outpace.errors import UnsupportedError, WeightsError
from outpace.models.target import Target
from outpace.models.transformer import Transformer
from outpace.models.weights import load_tensors, read_config

EMBEDDINGS = ("embed_tokens", "wte", "embed_in", "word_embeddings", "tok_embeddings")
"""What published checkpoints call the rows that embed tokens, whatever stands before the name."""
HEADS = ("lm_head", "embed_out")
"""What they call the head, where it is not tied to the embeddings."""


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
    return _rows(target, _tensors(target), EMBEDDINGS)


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
            raise _biased(target)
        return _plain(head.weight)
    tensors = _tensors(target)
    assert target.folder is not None, "its tensors were read"
    config = read_config(target.folder)
    tied = config.get("tie_word_embeddings", (config.get("text_config") or {}).get("tie_word_embeddings"))
    if tied or (tied is None and not _named(tensors, HEADS)):  # what is tied by default has no head in its file
        return _rows(target, tensors, EMBEDDINGS)
    if _named(tensors, HEADS, "bias"):
        raise _biased(target)
    return _rows(target, tensors, HEADS)


def _hosted(target: Target) -> Any:
    """The model of transformers behind a target, or None."""
    model = getattr(target, "model", None)
    return model if hasattr(model, "get_input_embeddings") else None


def _plain(weight: Tensor) -> Tensor:
    weight = weight.detach()
    return weight.to_dense() if weight.is_mkldnn else weight


def _biased(target: Target) -> UnsupportedError:
    return UnsupportedError(f"the head of the target {target.name!r} adds a bias; allowed: a head of rows alone")


def _tensors(target: Target) -> Mapping[str, Tensor]:
    if target.folder is None:
        raise WeightsError(
            f"the target {target.name!r} shows no embeddings: it is no model in memory and has no folder"
        )
    return load_tensors(target.folder)


def _named(tensors: Mapping[str, Tensor], words: tuple[str, ...], part: str = "weight") -> list[str]:
    pattern = re.compile(rf"(^|\.)({'|'.join(words)})\.{part}$")
    return sorted(name for name in tensors if pattern.search(name))


def _rows(target: Target, tensors: Mapping[str, Tensor], words: tuple[str, ...]) -> Tensor:
    found = _named(tensors, words)
    if len(found) != 1:
        shown = f"holds {', '.join(found)}" if found else "lacks such a tensor"
        raise WeightsError(f"{target.folder} {shown}; allowed: one of {', '.join(f'{word}.weight' for word in words)}")
    # A copy: one that still lay in the mapped file would keep the whole file in memory.
    return tensors[found[0]].to(target.device, target.dtype, copy=True)
