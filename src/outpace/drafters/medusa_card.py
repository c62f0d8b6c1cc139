"""Medusa heads on disk: their card, and weights under the names of Medusa's authors.

Knows nothing of how heads are trained or draft. Everything that stands in two of its files is checked against the
other; rows that heads share are the target's, and in none of them.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from outpace.drafters.medusa_heads import MedusaHeads, MedusaShape
from outpace.drafters.medusa_layout import medusa_config, read_medusa
from outpace.drafters.record import FILE, OURS, Card, document, read_record, require_agreement, require_config
from outpace.drafters.stored import dtype_name, dtype_of, tensors_of, write_folder
from outpace.errors import UsageError, WeightsError
from outpace.models.weights import read_config

METHOD = "medusa"


def write_medusa_card(
    folder: Path,
    heads: MedusaHeads,
    card: Card,
    *,
    dtype: torch.dtype = torch.bfloat16,
    beside: Mapping[str, Path] | None = None,
) -> None:
    """Write a drafter to ``folder``, whole or not at all; a card that stood there is replaced.

    Args:
        heads: their weights are rounded to ``dtype``.
        card: must agree with the heads.
        dtype: bf16, fp16 or fp32.
        beside: what of ``record.BESIDE`` is copied into the folder, by name.

    Raises:
        UsageError: the card says another thing than the heads, or the folder holds something else than a card.
        UnsupportedError: the dtype is another.
        WeightsError: a weight is not finite in that dtype, or the disk is full.
    """
    require_agreement(card, _made(heads.shape), UsageError, "the card")
    config = medusa_config(heads.shape, card.target.name, dtype_name(dtype))
    documents = {"config.json": config, FILE: document(card)}
    write_folder(folder, tensors_of(heads, dtype), documents, copies=beside, over=OURS)


def read_medusa_card(folder: Path) -> tuple[MedusaHeads, Card]:
    """Read a drafter, every key and tensor of it checked; its weights have the dtype of the file.

    Raises:
        WeightsError: a file, key or tensor is missing, renamed, too many, of the wrong type, shape, dtype or range, or
            one file says another thing than the other.
        UnsupportedError: the card is of another method or format version, or ``read_medusa`` refuses the heads.
    """
    card, heads = read_record(folder, METHOD), read_medusa(folder).heads
    require_agreement(card, _made(heads.shape), WeightsError, str(folder / FILE))
    meant = medusa_config(heads.shape, card.target.name, dtype_name(dtype_of(heads)))
    require_config(read_config(folder), meant, folder / "config.json")
    return heads, card


def _made(shape: MedusaShape) -> dict[str, Any]:
    """What heads of this shape are, in the words of a card."""
    return {
        "method": METHOD,
        "depth_trained": shape.heads,
        "vocab_size of the target": shape.vocab_size,
        "hidden_size of the target": shape.hidden_size,
        "own_head": shape.own_head,
    }
