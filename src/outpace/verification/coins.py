"""Counter-based uniforms: every coin is a pure function of its key, so that any turn can be replayed.

Knows nothing of what the coins decide. There is no generator object and no global state: a coin is named by
(seed, sample, position, purpose, counter), whatever the batch, the draft or the order of requests.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

Purpose = Literal["verdict", "draft", "noise", "tail"]
_PURPOSES: tuple[Purpose, ...] = ("verdict", "draft", "noise", "tail")
_MASK = (1 << 64) - 1
# The increment and the two multipliers of SplitMix64 (Steele, Lea, Flood 2014).
_GOLDEN, _FIRST, _SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


def _mix(value: int) -> int:
    value = (value + _GOLDEN) & _MASK
    value = ((value ^ (value >> 30)) * _FIRST) & _MASK
    value = ((value ^ (value >> 27)) * _SECOND) & _MASK
    return value ^ (value >> 31)


def stream_key(seed: int, sample: int, position: int, purpose: Purpose) -> int:
    """One 64-bit key for a row at a position: distinct arguments give unrelated streams."""
    key = _mix(seed & _MASK)
    for part in (sample, position, _PURPOSES.index(purpose)):
        key = _mix(key ^ _mix(part & _MASK))
    return key


def uniforms(keys: Sequence[int], counters: Int[Tensor, "streams counters"]) -> Float[Tensor, "streams counters"]:
    """Uniforms in [0, 1), float64: entry ``[s, c]`` is coin number ``counters[s, c]`` of stream ``keys[s]``.

    The same mixing as ``_mix``, in int64 tensors, whose products wrap as unsigned ones do.
    """
    start = torch.tensor([_signed(key) for key in keys], dtype=torch.int64, device=counters.device)
    value = (start[:, None] ^ (counters * _signed(_FIRST))) + _signed(_GOLDEN)
    for shift, factor in ((30, _FIRST), (27, _SECOND)):
        value = (value ^ ((value >> shift) & ((1 << (64 - shift)) - 1))) * _signed(factor)
    value = value ^ ((value >> 31) & ((1 << 33) - 1))
    return ((value >> 11) & ((1 << 53) - 1)).to(torch.float64) * 2.0**-53


@dataclass(frozen=True)
class Keys:
    """What names the coins of one turn: a seed and a sample index a row, and where the row's turn starts.

    Coins of draft and verdict are keyed by the *start* of the turn, never by the absolute position that a node would
    take: a rule that looks past its own cut (``block``, ``traversal``) would otherwise meet the same coins again in
    the next turn, and the law would be biased.
    """

    seeds: tuple[int, ...]
    samples: tuple[int, ...]
    starts: tuple[int, ...]

    def coins(self, purpose: Purpose, count: int, device: torch.device | None = None) -> Float[Tensor, "batch coins"]:
        """``count`` uniforms a row for one purpose."""
        keys = [stream_key(*row, purpose) for row in zip(self.seeds, self.samples, self.starts, strict=True)]
        return uniforms(keys, torch.arange(count, device=device).expand(len(keys), count))
