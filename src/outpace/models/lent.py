"""Our cache lent to a model of another library for one forward, and what room such a model asks for.

Knows nothing of masks. Models call a cache by a few names only (``update`` in every layer, its length, the size of a
mask), which have stayed the same while the classes behind them changed.
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from outpace.errors import UnsupportedError
from outpace.models.cache import Cache, KeysValues, Room
from outpace.models.one_by_one import cache_name

PROBED = 4  # tokens of the forward that asks for the room


class Lent:
    """Our cache during one forward: ``time`` tokens behind each row's start.

    Args:
        cache: what holds keys and values.
        rows, starts, time: the rows that read, where each goes on, and how many tokens each reads.
    """

    is_compileable = False

    def __init__(self, cache: Cache, rows: range, starts: list[int], time: int) -> None:
        self.cache, self.places = cache, cache.places(rows, starts, time)
        self.read, self.context = max(starts), max(starts) + time
        self.contexts = cache.read(rows, self.context)

    def update(
        self,
        key_states: Float[Tensor, "batch heads time width"],
        value_states: Float[Tensor, "batch heads time width"],
        layer_idx: int,
        *_: Any,
        **__: Any,
    ) -> KeysValues:
        """Write one layer's new keys and values; all of the layer's, up to the longest row's end."""
        self.cache.write(layer_idx, self.places, torch.cat((key_states, value_states), 1).transpose(1, 2))
        return self.contexts[layer_idx]

    def get_seq_length(self, *_: Any, **__: Any) -> int:
        """How many tokens the longest row has read before."""
        return self.read

    def get_query_offset(self, *_: Any, **__: Any) -> int:
        """The same."""
        return self.read

    def get_mask_sizes(self, *_: Any, **__: Any) -> tuple[int, int]:
        """How many entries are attended to, and how many before them are not."""
        return self.context, 0


class _Noting:
    """Holds nothing, and notes what each layer would have it hold."""

    is_compileable = False

    def __init__(self) -> None:
        self.noted: dict[int, tuple[Tensor, Tensor]] = {}

    def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any) -> Any:
        self.noted[layer_idx] = (key_states, value_states)
        return key_states, value_states

    def get_seq_length(self, *_: Any, **__: Any) -> int:
        return 0

    get_query_offset = get_seq_length

    def get_mask_sizes(self, *_: Any, **__: Any) -> tuple[int, int]:
        return PROBED, 0


@torch.inference_mode()
def room_of(model: Any) -> Room:
    """Ask a model, by a forward of a few tokens.

    Raises:
        UnsupportedError: its layers keep keys and values of different shapes.
        Exception: whatever the model raises at a cache that has keys and values only.
    """
    named, noting = cache_name(model), _Noting()
    if named is None:
        raise TypeError("it takes no cache")
    model(input_ids=torch.arange(PROBED, device=model.device)[None], use_cache=True, **{named: noting})
    if not noting.noted:
        raise TypeError("it gave its cache nothing")
    shapes: dict[tuple[int, ...], str] = {}
    for layer, both in sorted(noting.noted.items()):
        for what, held in zip(("keys", "values"), both, strict=True):
            shape = tuple(size for axis, size in enumerate(held.shape) if axis not in (0, 2))
            shapes.setdefault(shape, f"{what} of {' x '.join(map(str, shape))} in layer {layer}")
    if len(shapes) > 1 or len(next(iter(shapes))) != 2:
        raise UnsupportedError(
            f"a model of type {model.config.model_type!r} keeps {', '.join(shapes.values())}; allowed: as many heads, "
            "of the same width, for all keys and values"
        )
    [(heads, width)] = shapes
    return Room(max(noting.noted) + 1, heads, width, noting.noted[min(noting.noted)][0].dtype)
