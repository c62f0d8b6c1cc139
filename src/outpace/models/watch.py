"""States noted inside the forward of a hosted model, and one token a row for its head where no more are asked for.

Knows nothing of caches or masks. Hooks are placed once and do nothing but in the forwards that are watched, so that a
forward makes no functions, and forwards of other threads, or of other hosts of the model, are left alone.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor, nn

from outpace.errors import UsageError
from outpace.models.target import Tap


class Watcher:
    """Sees the input of a head and what its model's layers say.

    Args:
        head: what reads the last normed states.
        layers: in order; None where they cannot be told apart.
    """

    def __init__(self, head: nn.Module, layers: nn.ModuleList | None) -> None:
        self.layers = layers
        self.hooked: set[Tap] = {"last_normed"}
        head.register_forward_pre_hook(self._at_head)

    @contextmanager
    def watching(self, taps: tuple[Tap, ...], only: Int[Tensor, " batch"] | None) -> Iterator[dict[Tap, Tensor]]:
        """While this lasts, the states at the taps are noted; the head reads the token of each row that ``only`` names.

        Raises:
            UsageError: the model has no such layer.
        """
        for tap in set(taps) - self.hooked:
            self._hook(tap)
        watch = _Watch(self, taps, only)
        token = _UNDER_WAY.set(watch)
        try:
            yield watch.seen
        finally:
            _UNDER_WAY.reset(token)

    def _hook(self, tap: Tap) -> None:
        if self.layers is None or not isinstance(tap, int) or not 0 <= tap <= len(self.layers):
            layers = "no layers that can be told apart" if self.layers is None else f"{len(self.layers)} layers"
            raise UsageError(f"tap is {tap!r}; allowed: last_normed, 0, or a layer; the model has {layers}")
        if tap:
            self.layers[tap - 1].register_forward_hook(partial(self._behind, tap))
        else:
            self.layers[0].register_forward_pre_hook(self._before, with_kwargs=True)
        self.hooked.add(tap)

    def _own(self) -> "_Watch | None":
        watch = _UNDER_WAY.get()
        return watch if watch is not None and watch.watcher is self else None

    def _before(self, module: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> None:
        watch = self._own()
        if watch is not None and 0 in watch.taps:
            watch.seen[0] = given[0] if given else named["hidden_states"]

    def _behind(self, tap: int, module: nn.Module, given: tuple[Any, ...], out: Any) -> None:
        watch = self._own()
        if watch is not None and tap in watch.taps:
            watch.seen[tap] = out[0] if isinstance(out, tuple) else out

    def _at_head(self, module: nn.Module, given: tuple[Any, ...]) -> tuple[Any, ...] | None:
        watch = self._own()
        if watch is None:
            return None
        watch.seen["last_normed"] = given[0]
        if watch.only is None:
            return None
        return (given[0][torch.arange(len(watch.only), device=watch.only.device), watch.only][:, None], *given[1:])


@dataclass(frozen=True)
class _Watch:
    """One forward: whose it is, and what is noted of it."""

    watcher: Watcher
    taps: tuple[Tap, ...]
    only: Int[Tensor, " batch"] | None
    seen: dict[Tap, Tensor] = field(default_factory=dict)


_UNDER_WAY: ContextVar[_Watch | None] = ContextVar("the forward of a hosted model that is watched", default=None)
