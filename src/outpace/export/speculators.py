"""Write the layout of speculators, which vLLM serves without being told of a target: settings in two levels.

Knows nothing of other layouts. Taps are indices of states; the layer's tensors are called ``layers.0``, and its rotary
settings stand both where older and where newer readers look for them.
"""

import re
import warnings
from pathlib import Path
from typing import Any

from outpace.drafters.head import Head
from outpace.drafters.layouts import IDS
from outpace.drafters.record import Card
from outpace.drafters.stored import dtype_of, flags_of, rope, settings, tensors_of, write_folder

NAME = "speculators"
VERSION = "0.9.0"
"""The version of speculators whose layout this is."""
_OUTSIDE = ("draft_vocab_size", "target_hidden_size")


def write(out: Path, head: Head, card: Card) -> None:
    """Write ``config.json`` and ``model.safetensors`` to a new or empty folder.

    Warns:
        UserWarning: the target has no name that vLLM could fetch it by, so it must be told of it after all.

    Raises:
        UsageError, WeightsError, UnsupportedError: as for ``write_folder``, ``tensors_of`` and ``settings``.
    """
    shape, dtype = head.shape, dtype_of(head)
    theta, scaling = rope(shape)
    said = settings(shape, dtype)
    layer = {name: value for name, value in said.items() if name not in _OUTSIDE}
    config = {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "speculators_version": VERSION,
        "draft_vocab_size": shape.draft_vocab_size,
        "target_hidden_size": said.get("target_hidden_size"),
        **flags_of(shape),
        IDS: list(shape.taps),
        "embed_requires_grad": False,
        "torch_dtype": said["torch_dtype"],
        "transformer_layer_config": {
            **layer,
            "rope_theta": theta,
            "rope_scaling": scaling,
            "rope_parameters": {"rope_theta": theta, **(scaling or {"rope_type": "default"})},
            "num_aux_hidden_states": len(shape.taps),
        },
        "speculators_config": _proposals(card),
    }
    tensors = {_named(name): tensor for name, tensor in tensors_of(head, dtype).items()}
    write_folder(out, tensors, {"config.json": config})
    if not re.fullmatch(r"\w[\w.-]*/\w[\w.-]*", card.target.name):
        warnings.warn(
            f"the target is called {card.target.name!r}, which is no id of the Hugging Face hub: vLLM cannot serve "
            "this folder alone, name the target to it",
            stacklevel=2,
        )


def _named(name: str) -> str:
    return f"layers.0.{name.removeprefix('midlayer.')}" if name.startswith("midlayer.") else name


def _proposals(card: Card) -> dict[str, Any]:
    """How to draft, and for whom."""
    greedy = {
        "proposal_type": "greedy",
        "speculative_tokens": card.depth_trained,
        "verifier_accept_k": 1,
        "accept_tolerance": 0.0,
    }
    architectures = [] if card.target.architecture is None else [card.target.architecture]
    return {
        "algorithm": "eagle3",
        "default_proposal_method": "greedy",
        "proposal_methods": [greedy],
        "verifier": {"name_or_path": card.target.name, "architectures": architectures},
    }
