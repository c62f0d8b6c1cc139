"""Write the layouts that vLLM reads beside a target: of EAGLE-3, a card without its card; older ones of the others.

Knows nothing of other layouts. Of EAGLE-3 taps are indices of states, at the top of the configuration. Of EAGLE-1 the
configuration of the layer stands under ``model``. Releases that read EAGLE-1 so, or Medusa at all, are not sure to
borrow what a drafter has of its target: it is in the folder.
"""

from pathlib import Path

from torch import Tensor

from outpace.drafters.card import engine_config
from outpace.drafters.first_head import FirstHead
from outpace.drafters.first_layouts import WRAPPED, first_config
from outpace.drafters.head import Head
from outpace.drafters.medusa_heads import MedusaHeads
from outpace.drafters.record import Card
from outpace.drafters.stored import dtype_name, dtype_of, tensors_of, write_folder
from outpace.errors import WeightsError
from outpace.models.ends import stored_ends
from outpace.models.weights import find_weights, fingerprint

NAME = "vLLM"


def write(out: Path, head: Head, card: Card) -> None:
    """Write ``config.json`` and ``model.safetensors`` to a new or empty folder.

    Raises:
        UsageError, WeightsError, UnsupportedError: as for ``write_folder``, ``tensors_of`` and ``engine_config``.
    """
    dtype = dtype_of(head)
    write_folder(out, tensors_of(head, dtype), {"config.json": engine_config(head.shape, dtype)})


def write_first(out: Path, head: FirstHead, card: Card) -> None:
    """Write an EAGLE-1 head and both ends of its target, in the head's dtype, to a new or empty folder.

    Args:
        card: names the target, which must be on this machine.

    Raises:
        WeightsError: the target is not here, or is another; or as for ``write_folder`` and ``tensors_of``.
        UsageError, UnsupportedError: as for ``write_folder``, ``first_config`` and ``stored_ends``.
    """
    shape, dtype = head.shape, dtype_of(head)
    layer = {name: value for name, value in first_config(shape, dtype).items() if name != "bias"}
    config = {
        "architectures": ["EAGLEModel"],
        "model_type": WRAPPED,
        "model": layer,
        "eagle_fc_bias": shape.fc_bias,
        "truncated_vocab_size": shape.vocab_size,
        "torch_dtype": layer["torch_dtype"],
    }
    ends = {name: rows.to(dtype) for name, rows in _ends(card, (shape.vocab_size, shape.hidden_size)).items()}
    write_folder(out, tensors_of(head, dtype) | ends, {"config.json": config})


def write_medusa(out: Path, heads: MedusaHeads, card: Card) -> None:
    """Write Medusa heads, and the target's head in their dtype where they share it, to a new or empty folder.

    Args:
        card: names the target, which must be on this machine where its head is shared.

    Raises:
        WeightsError: the target is not here, or is another; or as for ``write_folder`` and ``tensors_of``.
        UsageError, UnsupportedError: as for ``write_folder``, ``dtype_name`` and ``stored_ends``.
    """
    shape, dtype = heads.shape, dtype_of(heads)
    config = {
        "architectures": ["MedusaModel"],
        "model_type": "medusa",
        "hidden_size": shape.hidden_size,
        "vocab_size": shape.vocab_size,
        "truncated_vocab_size": shape.vocab_size,
        "num_heads": shape.heads,
        "num_hidden_layers": shape.layers,
        "original_lm_head": not shape.own_head,
        "medusa_fc_bias": True,
        "torch_dtype": dtype_name(dtype),
    }
    tensors = {_named(name): tensor for name, tensor in tensors_of(heads, dtype).items()}
    if not shape.own_head:
        tensors["lm_head.weight"] = _ends(card, (shape.vocab_size, shape.hidden_size))["lm_head.weight"].to(dtype)
    write_folder(out, tensors, {"config.json": config})


def _named(name: str) -> str:
    """A Medusa tensor: blocks lie apart from rows."""
    head, place, *rest = name.split(".")
    return f"blocks.{head}.layers.{place}.{rest[-1]}" if rest[0] == "linear" else f"lm_heads.{head}.weight"


def _ends(card: Card, wanted: tuple[int, int]) -> dict[str, Tensor]:
    """What the target embeds with and multiplies by, under the names that a Llama model has for it."""
    record = card.target
    folder = find_weights(record.name, offline=True)
    if record.fingerprint and fingerprint(folder) != record.fingerprint:
        raise WeightsError(
            f"{folder} is not the target that the card was made for, {record.name!r}: their fingerprints differ",
            hint="the layout holds the target's embeddings and head, so they must be its own",
        )
    ends = stored_ends(folder)
    found = {"embed_tokens.weight": ends.embeddings, "lm_head.weight": ends.head}
    for name, rows in found.items():
        if tuple(rows.shape) != wanted:
            sizes = " and ".join(" x ".join(map(str, size)) for size in (rows.shape, wanted))
            raise WeightsError(f"{name} of {folder} and that of the head are {sizes}; allowed: one and the same")
    return found
