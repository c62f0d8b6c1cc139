"""A model that only its own cache fits, such as a recurrent one: read row by row, for plain decoding.

Knows nothing of what the cache holds. Such a state cannot be taken back, so that nothing can be drafted for it.
"""

import inspect
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from outpace.errors import UnsupportedError, UsageError
from outpace.models.target import Scores, State, Tap
from outpace.verification.tree import DraftTree

NAMES = ("cache", "past_key_values", "cache_params", "state")
"""What models call the cache that they are given and hand back."""


def cache_name(model: Any) -> str | None:
    """The name of a model's cache, the same as an argument and in what it returns; None where it has none."""
    named = inspect.signature(model.forward).parameters
    return next((name for name in NAMES if name in named), None)


@dataclass
class Rows:
    """The cache of every row, as the model handed it back, and how many tokens it has read."""

    slots: int
    caches: list[Any] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)


class OneByOne:
    """A Target for plain decoding: every row has a cache of the model's own kind, and is read by itself.

    Args:
        model: a causal language model of transformers.
        vocab_size, max_positions, name, folder, eos_ids, fingerprint: what the Target protocol shows.
        limited_by: why it can do no more than that.

    Raises:
        UnsupportedError: the model takes no cache.
    """

    can_tree = False
    can_rewind = False
    packed = False

    def __init__(
        self,
        model: Any,
        *,
        vocab_size: int,
        max_positions: int,
        name: str,
        folder: Path | None,
        eos_ids: tuple[int, ...],
        fingerprint: str,
        limited_by: str,
    ) -> None:
        self.model, self.vocab_size, self.max_positions = model, vocab_size, max_positions
        self.name, self.folder, self.eos_ids, self.fingerprint = name, folder, eos_ids, fingerprint
        self.limited_by = limited_by
        self.device, self.dtype = model.device, model.dtype
        self._named = inspect.signature(model.forward).parameters
        named = cache_name(model)
        if named is None:
            raise UnsupportedError(f"the model {name!r} takes no cache, so it cannot decode; {limited_by}")
        self._cache_name = named

    def open(self, slots: int, positions: int) -> Rows:
        """An empty batch; caches of the model's own grow by themselves."""
        return Rows(slots)

    @torch.inference_mode()
    def prefill(
        self, state: State, ids: Int[Tensor, "new time"], lengths: list[int], taps: tuple[Tap, ...] = ()
    ) -> Scores:
        """Read new prompts as new last rows, each by itself."""
        rows = _rows(state, taps)
        if len(rows.lengths) + len(lengths) > rows.slots:
            raise UsageError(f"{len(lengths)} more rows were given to a batch of {len(rows.lengths)} of {rows.slots}")
        last = {"logits_to_keep": 1} if "logits_to_keep" in self._named else {}
        logits = []
        for prompt, length in zip(ids, lengths, strict=True):
            out = self.model(input_ids=prompt[None, :length].to(self.device), use_cache=True, **last)
            rows.caches.append(getattr(out, self._cache_name))
            logits.append(out.logits[:, -1:])
        rows.lengths += lengths
        return Scores(torch.cat(logits))

    @torch.inference_mode()
    def score(self, state: State, last: Int[Tensor, " batch"], tree: DraftTree, taps: tuple[Tap, ...] = ()) -> Scores:
        """Logits after the last token of every row.

        Raises:
            UnsupportedError: the tree has nodes.
        """
        rows = _rows(state, taps)
        if tree.tokens.shape[1]:
            raise UnsupportedError(
                f"the target {self.name!r} was given drafts to score; allowed: plain decoding", hint=self.limited_by
            )
        logits = []
        for row, (token, length) in enumerate(zip(last.to(self.device), rows.lengths, strict=True)):
            given = {self._cache_name: rows.caches[row]}
            if "cache_position" in self._named:  # how older releases tell a first forward from others
                place = max(length, getattr(self.model.config, "conv_kernel", 0))
                given["cache_position"] = torch.tensor([place], device=self.device)
            out = self.model(input_ids=token[None, None], use_cache=True, **given)
            rows.caches[row] = getattr(out, self._cache_name)
            logits.append(out.logits)
        return Scores(torch.cat(logits))

    def keep(self, state: State, path: Int[Tensor, "batch depth"], num_accepted: list[int]) -> None:
        """Count the last token; the model has read it for good."""
        rows = _rows(state, ())
        rows.lengths = [length + 1 for length in rows.lengths]

    def rewind(self, state: State, lengths: list[int]) -> None:
        """Nothing can be forgotten.

        Raises:
            UnsupportedError: a length is another than the row's.
        """
        rows = _rows(state, ())
        if lengths != rows.lengths:
            raise UnsupportedError(
                f"the target {self.name!r} cannot rewind from {rows.lengths} to {lengths}", hint=self.limited_by
            )

    def select(self, state: State, rows: list[int]) -> None:
        """Keep only these rows, in this order."""
        own = _rows(state, ())
        own.caches = [own.caches[row] for row in rows]
        own.lengths = [own.lengths[row] for row in rows]


def _rows(state: State, taps: tuple[Tap, ...]) -> Rows:
    if not isinstance(state, Rows):
        raise TypeError(f"a target read one by one was given the state of another: {type(state).__name__}")
    if taps:
        raise UsageError(f"a target read one by one shows no features and was asked for {taps}; allowed: no taps")
    return state
