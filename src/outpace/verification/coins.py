"""Counter-based uniforms: every coin is a pure function of its key, so that any turn can be replayed.

Knows nothing of what the coins decide. There is no generator object and no global state: a coin is named by
(seed, sample, position, purpose, counter), whatever the batch, the draft or the order of requests.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
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
    return _mix(_row_key(seed, sample, purpose) ^ _mix(position & _MASK))


@lru_cache(maxsize=4096)
def _row_key(seed: int, sample: int, purpose: Purpose) -> int:
    """What the keys of a row have in common at all positions."""
    key = _mix(seed & _MASK)
    for part in (sample, _PURPOSES.index(purpose)):
        key = _mix(key ^ _mix(part & _MASK))
    return key


FEW = 64
"""So many coins are sooner mixed one by one than by twenty operations on a tensor; they are the same coins."""


def _coin(key: int, counter: int) -> float:
    """Coin number ``counter`` of a stream: one entry of ``uniforms``."""
    return (_mix(key ^ (counter * _FIRST & _MASK)) >> 11) * 2.0**-53


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
class Noise:
    """What a race of exponentials needs (``matching.race``): a time for each candidate, and for all others together.

    Args:
        times: Exp(1) for every candidate id.
        tail_times: Exp(1) for the tokens that are not candidates, taken as one runner.
        tail_coins: uniform in [0, 1): which of them, should that runner win.
    """

    times: Float[Tensor, "batch rows candidates"]
    tail_times: Float[Tensor, "batch rows"]
    tail_coins: Float[Tensor, "batch rows"]


@dataclass(frozen=True)
class Keys:
    """What names the coins of one turn: a seed and a sample index a row, and where the row's turn starts.

    Coins of draft and verdict are keyed by the *start* of the turn, never by the absolute position that a node would
    take: a rule that looks past its own cut (``block``, ``traversal``) would otherwise meet the same coins again in
    the next turn, and the law would be biased. Only the noise of the shared-noise coupling is keyed by absolute
    position, because there the token at a position must not depend on where a turn began.

    Args:
        seeds, samples: of every row.
        starts: the absolute position of the first token that the turn will emit.
        coupled: whether the row is decoded by the coupling.
    """

    seeds: tuple[int, ...]
    samples: tuple[int, ...]
    starts: tuple[int, ...]
    coupled: tuple[bool, ...]

    def coins(self, purpose: Purpose, count: int, device: torch.device | None = None) -> Float[Tensor, "batch coins"]:
        """``count`` uniforms a row for one purpose."""
        rows = zip(self.seeds, self.samples, self.starts, strict=True)
        streams = [stream_key(*row, purpose) for row in rows]
        if count * len(streams) <= FEW:
            coins = [[_coin(stream, counter) for counter in range(count)] for stream in streams]
            return torch.tensor(coins, dtype=torch.float64, device=device).view(len(streams), count)
        return uniforms(streams, torch.arange(count, device=device).expand(len(streams), count))

    def coin(self, purpose: Purpose, row: int, counter: int) -> float:
        """One coin of one row: ``coins(purpose, counter + 1)[row, counter]``."""
        return _coin(stream_key(self.seeds[row], self.samples[row], self.starts[row], purpose), counter)

    def select(self, rows: Sequence[int]) -> "Keys":
        """The keys of some rows."""
        seeds, samples, starts = (tuple(part[row] for row in rows) for part in (self.seeds, self.samples, self.starts))
        return Keys(seeds, samples, starts, tuple(self.coupled[row] for row in rows))

    def noise(self, depths: Int[Tensor, "batch rows"], ids: Int[Tensor, "batch rows candidates"]) -> Noise:
        """Noise of the coupling for rows ``depths`` tokens behind the start, on their candidate ids."""
        batch, rows, count = ids.shape
        places = depths.tolist()
        named = [
            (seed, sample, start + depth)
            for seed, sample, start, row in zip(self.seeds, self.samples, self.starts, places, strict=True)
            for depth in row
        ]
        own = uniforms([stream_key(*name, "noise") for name in named], ids.reshape(batch * rows, count))
        pair = torch.arange(2, device=ids.device).expand(batch * rows, 2)
        tail = uniforms([stream_key(*name, "tail") for name in named], pair).view(batch, rows, 2)
        return Noise(-torch.log1p(-own).view(ids.shape), -torch.log1p(-tail[..., 0]), tail[..., 1])
