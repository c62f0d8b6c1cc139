"""Write the layout of Medusa's authors: heads by number, as residual blocks alone or with rows of their own.

Knows nothing of other layouts. It is the file that TensorRT-LLM and TGI read as well.
"""

from pathlib import Path

from outpace.drafters.medusa_heads import MedusaHeads
from outpace.drafters.medusa_layout import STEM, medusa_config
from outpace.drafters.record import Card
from outpace.drafters.stored import dtype_name, dtype_of, tensors_of, write_folder

NAME = "Medusa"


def write(out: Path, heads: MedusaHeads, card: Card) -> None:
    """Write ``config.json`` and ``medusa_lm_head.safetensors`` to a new or empty folder.

    Raises:
        UsageError, WeightsError, UnsupportedError: as for ``write_folder``, ``tensors_of`` and ``dtype_name``.
    """
    dtype = dtype_of(heads)
    config = medusa_config(heads.shape, card.target.name, dtype_name(dtype))
    write_folder(out, tensors_of(heads, dtype), {"config.json": config}, file=f"{STEM}.safetensors")
