"""A drafter on disk: a folder of weights in a layout that engines read, and beside them what it was made for, and how.

Knows nothing of how a head is trained or drafts, nor of other methods than EAGLE-3. ``config.json`` and
``model.safetensors`` are those of vLLM's layout, ``outpace.json`` is the card; everything that stands in two of them is
checked against the other.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from outpace.drafters.head import Head, HeadShape
from outpace.drafters.layouts import IDS, read_layout
from outpace.drafters.record import (
    FILE,
    OURS,
    YES,
    Card,
    check_keys,
    document,
    read_record,
    require_agreement,
    require_config,
)
from outpace.drafters.stored import FLAGS, dtype_of, flags_of, rope, settings, tensors_of, write_folder
from outpace.errors import UsageError, WeightsError
from outpace.models.weights import read_config

METHOD = "eagle3"


def engine_config(shape: HeadShape, dtype: torch.dtype) -> dict[str, Any]:
    """``config.json`` of a card, which is that of vLLM's layout.

    Raises:
        UnsupportedError, WeightsError: as for ``settings`` and ``rope``.
    """
    theta, scaling = rope(shape)
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        **settings(shape, dtype),
        "rope_theta": theta,
        "rope_scaling": scaling,
        **flags_of(shape),
        IDS: list(shape.taps),
        "num_aux_hidden_states": len(shape.taps),
    }


def write_card(
    folder: Path,
    head: Head,
    card: Card,
    *,
    dtype: torch.dtype = torch.bfloat16,
    beside: Mapping[str, Path] | None = None,
) -> None:
    """Write a drafter to ``folder``, whole or not at all; a card that stood there is replaced.

    Args:
        head: its floating weights are rounded to ``dtype``.
        card: must agree with the head.
        dtype: bf16, fp16 or fp32.
        beside: what of ``BESIDE`` is copied into the folder, by name.

    Raises:
        UsageError: the card says another thing than the head, or the folder holds something else than a card.
        UnsupportedError: the dtype is another, or the taps do not rise.
        WeightsError: a weight is not finite in that dtype, the map of ids is wrong, the disk is full.
    """
    require_agreement(card, _made(head.shape), UsageError, "the card")
    documents = {"config.json": engine_config(head.shape, dtype), FILE: document(card)}
    write_folder(folder, tensors_of(head, dtype), documents, copies=beside, over=OURS)


def read_card(folder: Path) -> tuple[Head, Card]:
    """Read a drafter, every key and tensor of it checked; its weights have the dtype of the file.

    Raises:
        WeightsError: a file, key or tensor is missing, renamed, too many, of the wrong type, shape, dtype or range, or
            one file says another thing than the other.
        UnsupportedError: the card is of another method or format version, or ``read_layout`` refuses the settings.
    """
    card, config = read_record(folder, METHOD), read_config(folder)
    said = {name: config[name] for name in FLAGS if name in config}
    check_keys(said, dict.fromkeys(FLAGS, YES), str(folder / "config.json"))
    head = read_layout(folder, card.target.layers).head
    require_agreement(card, _made(head.shape), WeightsError, str(folder / FILE))
    require_config(config, engine_config(head.shape, dtype_of(head)), folder / "config.json")
    return head, card


def _made(shape: HeadShape) -> dict[str, Any]:
    """What weights of this shape are, in the words of a card."""
    return {
        "method": METHOD,
        "taps": list(shape.taps),
        "draft_vocab_size": shape.draft_vocab_size,
        "vocab_size of the target": shape.vocab_size,
        "hidden_size of the target": shape.target_hidden_size,
        **flags_of(shape),
    }
