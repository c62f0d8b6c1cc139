"""An EAGLE-1 drafter on disk: its card, and weights in the flat layout of SafeAILab, with rotary settings spelt out.

Knows nothing of how a head is trained or drafts. Everything that stands in two of its files is checked against the
other; embeddings and head are the target's, and in none of them.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from outpace.drafters.first_head import FirstHead, FirstShape
from outpace.drafters.first_layouts import first_config, read_first
from outpace.drafters.record import FILE, OURS, Card, document, read_record, require_agreement, require_config
from outpace.drafters.stored import dtype_of, tensors_of, write_folder
from outpace.errors import UsageError, WeightsError
from outpace.models.weights import read_config

METHOD = "eagle1"


def write_first_card(
    folder: Path,
    head: FirstHead,
    card: Card,
    *,
    dtype: torch.dtype = torch.bfloat16,
    beside: Mapping[str, Path] | None = None,
) -> None:
    """Write a drafter to ``folder``, whole or not at all; a card that stood there is replaced.

    Args:
        head: its weights are rounded to ``dtype``.
        card: must agree with the head.
        dtype: bf16, fp16 or fp32.
        beside: what of ``record.BESIDE`` is copied into the folder, by name.

    Raises:
        UsageError: the card says another thing than the head, or the folder holds something else than a card.
        UnsupportedError: the dtype is another.
        WeightsError: a weight is not finite in that dtype, or the disk is full.
    """
    require_agreement(card, _made(head.shape), UsageError, "the card")
    documents = {"config.json": first_config(head.shape, dtype), FILE: document(card)}
    write_folder(folder, tensors_of(head, dtype), documents, copies=beside, over=OURS)


def read_first_card(folder: Path) -> tuple[FirstHead, Card]:
    """Read a drafter, every key and tensor of it checked; its weights have the dtype of the file.

    Raises:
        WeightsError: a file, key or tensor is missing, renamed, too many, of the wrong type, shape, dtype or range, or
            one file says another thing than the other.
        UnsupportedError: the card is of another method or format version, or ``read_first`` refuses the settings.
    """
    card, layout = read_record(folder, METHOD), read_first(folder)
    for name, rows in (("embed_tokens", layout.embeddings), ("lm_head", layout.rows)):
        if rows is not None:
            raise WeightsError(f"{folder} holds {name}.weight, which its card does not ask for: it is the target's")
    head = layout.head
    require_agreement(card, _made(head.shape), WeightsError, str(folder / FILE))
    require_config(read_config(folder), first_config(head.shape, dtype_of(head)), folder / "config.json")
    return head, card


def _made(shape: FirstShape) -> dict[str, Any]:
    """What weights of this shape are, in the words of a card."""
    return {
        "method": METHOD,
        "vocab_size of the target": shape.vocab_size,
        "hidden_size of the target": shape.hidden_size,
        "fc_bias": shape.fc_bias,
    }
