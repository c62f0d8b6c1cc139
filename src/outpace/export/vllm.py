"""Write the layout that vLLM reads beside a target: a card without its card.

Knows nothing of other layouts. Taps are indices of states, at the top of the configuration.
"""

from pathlib import Path

from outpace.drafters.card import Card, engine_config
from outpace.drafters.head import Head
from outpace.drafters.stored import dtype_of, tensors_of, write_folder

NAME = "vLLM"


def write(out: Path, head: Head, card: Card) -> None:
    """Write ``config.json`` and ``model.safetensors`` to a new or empty folder.

    Raises:
        UsageError, WeightsError, UnsupportedError: as for ``write_folder``, ``tensors_of`` and ``engine_config``.
    """
    dtype = dtype_of(head)
    write_folder(out, tensors_of(head, dtype), {"config.json": engine_config(head.shape, dtype)})
