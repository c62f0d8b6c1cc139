"""Write the layout of SGLang, which is that of SpecForge: taps are numbers of layers, under ``eagle_config``.

Knows nothing of other layouts. State k, which is the output of layer k counted from 1, is written as k - 1, the number
of that layer counted from 0.
"""

from pathlib import Path

from outpace.drafters.head import Head
from outpace.drafters.layouts import IDS
from outpace.drafters.record import Card
from outpace.drafters.stored import dtype_of, flags_of, rope, settings, tensors_of, write_folder
from outpace.export.limits import require, require_fusion, require_off

NAME = "SGLang"


def write(out: Path, head: Head, card: Card) -> None:
    """Write ``config.json`` and ``model.safetensors`` to a new or empty folder.

    Raises:
        UnsupportedError: the residual is normed, or a tap is the embeddings or the output of the last layer.
        UsageError, WeightsError: as for ``write_folder`` and ``tensors_of``.
    """
    shape, last = head.shape, card.target.layers - 1
    require_off(shape, NAME, ("norm_before_residual",))
    for tap in shape.taps:
        require(
            1 <= tap <= last,
            NAME,
            f"the tap {tap}",
            f"1 to {last}, for a target of {last + 1} layers",
            "its reader takes what enters a layer, and numbers it by the layer before",
        )
    require_fusion(shape, NAME)
    theta, scaling = rope(shape)
    config = {
        "architectures": ["LlamaForCausalLMEagle3"],
        **settings(shape, dtype_of(head)),
        "rope_theta": theta,
        "rope_scaling": scaling,
        **flags_of(shape),
        "num_aux_hidden_states": len(shape.taps),
        "eagle_config": {IDS: [tap - 1 for tap in shape.taps], "use_aux_hidden_state": True},
    }
    write_folder(out, tensors_of(head, dtype_of(head)), {"config.json": config})
