"""Write the layouts of SafeAILab, the authors of EAGLE: of EAGLE-3, which says neither taps nor switches, and EAGLE-1.

Knows nothing of other layouts. Its reader counts the taps from the target's number of layers, has none of the four
switches, and knows of rotary scalings only the linear one, to the usual base. It takes embeddings, and for EAGLE-1 the
head too, from the target.
"""

from pathlib import Path
from typing import Any

from outpace.drafters.first_head import AnyShape, FirstHead
from outpace.drafters.head import Head
from outpace.drafters.layouts import PLAIN, usual_taps
from outpace.drafters.record import Card
from outpace.drafters.stored import FLAGS, dtype_of, rope, settings, tensors_of, write_folder
from outpace.export.limits import require, require_fusion, require_off

NAME = "SafeAILab"
_BASE = 10000.0


def write(out: Path, head: Head, card: Card) -> None:
    """Write ``config.json`` and ``model.safetensors`` to a new or empty folder.

    Raises:
        UnsupportedError: a switch is on, the taps are not the usual ones of such a target, or the rotary scaling is
            not one that the layout has.
        UsageError, WeightsError: as for ``write_folder`` and ``tensors_of``.
    """
    shape, layers = head.shape, card.target.layers
    require_off(shape, NAME, FLAGS)
    require(
        shape.taps == usual_taps(layers),
        NAME,
        f"the taps {list(shape.taps)}",
        f"{list(usual_taps(layers))}, for a target of {layers} layers",
        "its reader counts the taps from the target's number of layers",
    )
    require_fusion(shape, NAME)
    config = {"architectures": [PLAIN], **settings(shape, dtype_of(head)), **_rotary(shape)}
    write_folder(out, tensors_of(head, dtype_of(head)), {"config.json": config})


def write_first(out: Path, head: FirstHead, card: Card) -> None:
    """Write an EAGLE-1 head: ``config.json`` and ``model.safetensors`` to a new or empty folder.

    Raises:
        UnsupportedError: the heads of attention are not together as wide as the layer, or the rotary scaling is not one
            that the layout has.
        UsageError, WeightsError: as for ``write_folder`` and ``tensors_of``.
    """
    shape, dtype = head.shape, dtype_of(head)
    require(
        shape.heads * shape.head_width == shape.hidden_size,
        NAME,
        f"{shape.heads} heads of width {shape.head_width} in a layer {shape.hidden_size} wide",
        "heads that are together as wide as the layer",
        "its reader counts the width of a head from theirs",
    )
    config = {"architectures": [PLAIN], **settings(shape, dtype), "bias": shape.fc_bias, **_rotary(shape)}
    write_folder(out, tensors_of(head, dtype), {"config.json": config})


def _rotary(shape: AnyShape) -> dict[str, Any]:
    theta, scaling = rope(shape)
    if scaling is None:
        return {"rope_theta": theta}
    kind, factor = scaling["rope_type"], float(scaling.get("factor", 1))
    require(
        kind == "linear" and theta == _BASE and factor > 1,
        NAME,
        f"the rotary scaling {kind!r} by {factor:g} to a base of {theta:g}",
        f"none, or 'linear' by more than 1 to a base of {_BASE:g}",
        "its reader has no other, and forgets the base where there is a scaling",
    )
    return {"rope_theta": theta, "rope_scaling": {"type": "linear", "factor": factor}}
