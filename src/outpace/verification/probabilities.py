"""Logits to the one probability row both models share: temperature, top-k, top-p, min-p, in fp32 or better.

Knows nothing of models, drafts or rules.
"""

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor
from torch.nn.functional import pad

from outpace.errors import UsageError

GREEDY_BELOW = 1e-5
"""A temperature at or below this is greedy, everywhere: dividing by less overflows fp32 logits."""


@dataclass(frozen=True)
class Sampling:
    """How a row of logits becomes a law: the same for target and drafter, so that the ratio is of what was drawn.

    Args:
        temperature: divides the logits; ``0 <= temperature <= GREEDY_BELOW`` means the argmax, lowest id on ties.
        top_k: keep this many most probable tokens; 0 keeps all.
        top_p: keep the smallest set of most probable tokens whose mass reaches this; in (0, 1], 1 keeps all.
        min_p: drop tokens less probable than this share of the most probable one; in [0, 1), 0 keeps all.

    Raises:
        UsageError: a value is outside its range, or not finite.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise UsageError(f"temperature is {self.temperature}; allowed: 0 (greedy) or any positive number")
        if self.top_k < 0:
            raise UsageError(f"top_k is {self.top_k}; allowed: 0 (off) or a positive count of tokens")
        if not 0 < self.top_p <= 1:
            raise UsageError(f"top_p is {self.top_p}; allowed: above 0, up to 1 (off)")
        if not 0 <= self.min_p < 1:
            raise UsageError(f"min_p is {self.min_p}; allowed: 0 (off) up to, not including, 1")

    @property
    def truncates(self) -> bool:
        """Whether a filter takes tokens away."""
        return not self.greedy and (self.top_k > 0 or self.top_p < 1 or self.min_p > 0)

    @property
    def greedy(self) -> bool:
        """Whether every draw is the argmax."""
        return self.temperature <= GREEDY_BELOW


_BLOCK = 256
"""Rows are searched in two levels, block sums or maxima first: reductions are fast and exact, scans are neither."""

_RANKS = 64
"""How many most probable tokens are looked at first: sorting 49,152 takes fifty times as long as taking 64."""


def _blocks(rows: Shaped[Tensor, "*lead vocab"], fill: float) -> Shaped[Tensor, "*lead blocks width"]:
    vocab = rows.shape[-1]
    width = min(_BLOCK, vocab)
    padded = pad(rows, (0, -vocab % width), value=fill) if vocab % width else rows
    return padded.reshape(*rows.shape[:-1], -1, width)


def _block(blocks: Shaped[Tensor, "*lead blocks width"], index: Int[Tensor, "*lead"]) -> Shaped[Tensor, "*lead width"]:
    where = index[..., None, None].expand(*index.shape, 1, blocks.shape[-1])
    return blocks.gather(-2, where).squeeze(-2)


def argmax(logits: Float[Tensor, "*lead vocab"]) -> tuple[Int[Tensor, "*lead"], Float[Tensor, "*lead"]]:
    """The most probable token of each row and its logit: the lowest id on ties, here and therefore everywhere.

    NaN wins over any number, so ``~values.isfinite()`` says which rows are unusable at no further cost.
    """
    blocks = _blocks(logits, -math.inf)
    best = blocks.amax(-1).argmax(-1)
    inside = _block(blocks, best)
    token = inside.argmax(-1)
    values = inside.gather(-1, token[..., None]).squeeze(-1)
    return best * blocks.shape[-1] + token, values


def unusable_rows(logits: Float[Tensor, "*lead vocab"]) -> Bool[Tensor, "*lead"]:
    """Which rows are no law: NaN or plus infinity somewhere, or minus infinity everywhere. Costs one maximum."""
    return ~logits.amax(-1).isfinite()


def draw(probs: Float[Tensor, "*lead vocab"], uniforms: Float[Tensor, "*lead"]) -> Int[Tensor, "*lead"]:
    """One token of each row: the first whose cumulative mass exceeds the uniform's share of the row's total.

    Tokens stand in order of their ids. A token of probability zero is never drawn, whatever the uniform and however
    the row's sum is rounded: only a place that raises the cumulative mass can be the first above, and sums that round
    otherwise than the cumulative masses cannot matter, as what is handed down is a share.

    Args:
        probs: non-negative, with a positive sum; rows need not be normalised. A row without mass gives some token.
        uniforms: in [0, 1).
    """
    blocks = _blocks(probs, 0.0)
    count, width = blocks.shape[-2:]
    mass = blocks.sum(-1)
    if uniforms.numel() <= FEW_DRAWS:
        return _draw_one_by_one(blocks, mass, uniforms)
    reached = mass.cumsum(-1, dtype=torch.float64)
    point = uniforms[..., None] * reached[..., -1:]
    block = torch.searchsorted(reached, point, right=True).clamp_(max=count - 1)
    within, own = _block(blocks, block.squeeze(-1)).cumsum(-1, dtype=torch.float64), mass.gather(-1, block)
    left = (point - (reached.gather(-1, block) - own)).clamp_(min=0)
    point = left.minimum(within[..., -1:] * _BELOW)  # the block's two sums may have been rounded otherwise
    token = torch.searchsorted(within, point, right=True).clamp_(max=width - 1)
    return (block * width + token).squeeze(-1)


FEW_DRAWS = 2
"""So many tokens are sooner drawn one by one than by twenty operations on a tensor; they are the same tokens."""

_BELOW = 1 - 2.0**-53
"""Times a double, this rounds to the double before it."""


def _draw_one_by_one(
    blocks: Float[Tensor, "*lead blocks width"], mass: Float[Tensor, "*lead blocks"], uniforms: Float[Tensor, "*lead"]
) -> Int[Tensor, "*lead"]:
    """What ``draw`` does, step by step on plain numbers."""
    count, width = blocks.shape[-2:]
    rows = zip(blocks.view(-1, count, width), mass.view(-1, count).tolist(), uniforms.flatten().tolist(), strict=True)
    tokens = []
    for inside, masses, uniform in rows:
        block, left = _find(masses, uniform)
        tokens.append(block * width + _find_within(inside[block].tolist(), left))
    return torch.tensor(tokens, device=blocks.device).view(uniforms.shape)


def _find(masses: list[float], uniform: float) -> tuple[int, float]:
    """The block in which a uniform's share of all mass is reached, and how much of it lies there."""
    reached = list(accumulate(masses))
    point = uniform * reached[-1]
    block = min(bisect_right(reached, point), len(masses) - 1)
    return block, max(point - (reached[block] - masses[block]), 0.0)


def _find_within(probs: list[float], left: float) -> int:
    """The place in a block in which that is reached: its two sums may have been rounded otherwise."""
    within = list(accumulate(probs))
    return min(bisect_right(within, min(left, within[-1] * _BELOW)), len(probs) - 1)


def draw_apart(probs: Float[Tensor, "rows vocab"], uniforms: Sequence[Sequence[float]]) -> list[list[int]]:
    """Tokens of each row without replacement, one for each of its uniforms, in that order.

    Each is what ``draw`` gives for a row out of which the tokens before it were taken; where nothing is left, there is
    no further one.

    Args:
        probs: non-negative; rows beyond those that uniforms are given for are not looked at.
        uniforms: in [0, 1).
    """
    blocks = _blocks(probs, 0.0)
    width, drawn = blocks.shape[2], []
    for inside, masses, own in zip(blocks, blocks.sum(-1).tolist(), uniforms, strict=False):
        tokens: list[int] = []
        opened: dict[int, list[float]] = {}
        for uniform in own:
            if not sum(masses) > 0:
                break
            block, left = _find(masses, uniform)
            if block not in opened:
                opened[block] = inside[block].tolist()
            place = _find_within(opened[block], left)
            tokens.append(block * width + place)
            opened[block][place] = 0.0
            masses[block] = sum(opened[block])
        drawn.append(tokens)
    return drawn


def settle_ties(
    probs: Float[Tensor, "*lead vocab"],
    values: Float[Tensor, "*lead ranks"],
    ids: Int[Tensor, "*lead ranks"],
    kept: Int[Tensor, "*lead"],
) -> Int[Tensor, "*lead ranks"]:
    """``ids`` with a tie across the border after ``kept`` ranks decided for the lowest: ``topk`` promises no order."""
    last, following = (
        values.gather(-1, place.clamp(0, values.shape[-1] - 1)[..., None]).squeeze(-1) for place in (kept - 1, kept)
    )
    tied = (last == following) & (last > 0) & (kept < values.shape[-1])
    for row in tied.nonzero().tolist():
        where = tuple(row)
        above, border = int((values[where] > last[where]).sum()), int(kept[where])
        ids[where][above:border] = (probs[where] == last[where]).nonzero()[: border - above, 0]
    return ids


def probability_rows(logits: Float[Tensor, "*lead vocab"], sampling: Sampling) -> Float[Tensor, "*lead vocab"]:
    """The law of each row: temperature, then top-k, top-p and min-p, each on what the one before has left.

    Tokens rank by probability, of equals the lower id first; every filter keeps a head of that ranking, ``top_k``
    tokens exactly. Greedy gives the one-hot row of the argmax. The order is that of transformers, which differs in
    keeping all tokens that tie at the border of top-k.

    Args:
        logits: any float dtype, minus infinity for what is forbidden. Rows that ``unusable_rows`` names give rubbish.
        sampling: one for all rows; see ``batch_probability_rows``.

    Returns:
        Rows that sum to one, float64 for float64 logits and fp32 for all others.
    """
    scores = logits if logits.dtype == torch.float64 else logits.float()
    if sampling.greedy:
        return torch.zeros_like(scores).scatter_(-1, argmax(scores)[0][..., None], 1.0)
    probs = (scores if sampling.temperature == 1 else scores / sampling.temperature).softmax(-1)
    if not sampling.truncates:
        return probs
    return _truncate(probs.reshape(-1, probs.shape[-1]), sampling).view_as(probs)


def _truncate(probs: Float[Tensor, "rows vocab"], sampling: Sampling) -> Float[Tensor, "rows vocab"]:
    """The filters by the most probable tokens where these settle them; other rows are ranked one by one."""
    vocab = probs.shape[-1]
    ranks = min(max(_RANKS, sampling.top_k + 1), vocab)
    values, ids = probs.topk(ranks, dim=-1)
    kept = _count_kept(values, sampling)
    ids = settle_ties(probs, values, ids, kept)
    values = values.where(torch.arange(ranks, device=probs.device) < kept[:, None], 0.0)
    # Added, not written: a tie may have brought an id forward that still stands behind the border, with nothing.
    law = torch.zeros_like(probs).scatter_add_(-1, ids, values / values.sum(-1, keepdim=True))
    if ranks < vocab:
        for row in (kept == ranks).nonzero()[:, 0].tolist():
            law[row] = _truncate_flat(probs[row], sampling)
    return law


def _truncate_flat(probs: Float[Tensor, " vocab"], sampling: Sampling) -> Float[Tensor, " vocab"]:
    """The same for one row with many tokens to keep, where ``top_k`` is off."""
    kept = _nucleus(probs, sampling.top_p) & (probs.double() >= sampling.min_p * probs.max().double())
    law = probs.where(kept, 0.0)
    return law / law.sum()


def _nucleus(probs: Float[Tensor, " vocab"], top_p: float) -> Bool[Tensor, " vocab"]:
    """The smallest set of most probable tokens whose mass reaches ``top_p``, without sorting them all.

    A positive number's bits rank as it does: their upper half is a bin. Bins are summed from the top, and only the
    tokens of the bin in which the mass is reached are sorted.
    """
    whole, half = (torch.int64, 48) if probs.dtype == torch.float64 else (torch.int32, 16)
    bins = probs.view(whole) >> half
    reached = torch.bincount(bins, weights=probs.double()).flip(0).cumsum(0)
    place = min(int((reached < top_p).sum()), len(reached) - 1)
    border, before = len(reached) - 1 - place, float(reached[place - 1]) if place else 0.0
    inside = (bins == border).nonzero()[:, 0]
    values, order = probs[inside].double().sort(descending=True, stable=True)  # stable: of equals the lower id first
    chosen = inside[order[before + values.cumsum(0) - values < top_p]]
    return (bins > border).index_fill(0, chosen, True) & (probs > 0)


def _count_kept(values: Float[Tensor, "*lead ranks"], sampling: Sampling) -> Int[Tensor, "*lead"]:
    """How many of the most probable tokens survive the filters; all of them means that the ranking ended too early.

    Args:
        values: the largest probabilities of each row, falling; shares of the row's whole mass.
    """
    left = values.double()
    if 0 < sampling.top_k < left.shape[-1]:
        left = pad(left[..., : sampling.top_k], (0, left.shape[-1] - sampling.top_k))
    if sampling.top_p < 1:
        total = left.sum(-1, keepdim=True) if sampling.top_k else 1.0
        mass_before = left.cumsum(-1) - left
        left = left.where(mass_before < sampling.top_p * total, 0.0)
    return ((left > 0) & (left >= sampling.min_p * left[..., :1])).sum(-1)


def batch_probability_rows(
    logits: Float[Tensor, "batch rows vocab"], samplings: Sequence[Sampling]
) -> Float[Tensor, "batch rows vocab"]:
    """``probability_rows`` for a batch whose requests may differ in sampling: one call for each kind there is."""
    if len(kinds := set(samplings)) == 1:
        return probability_rows(logits, samplings[0])
    probs = torch.empty_like(logits, dtype=torch.float64 if logits.dtype == torch.float64 else torch.float32)
    for kind in kinds:
        members = [index for index, sampling in enumerate(samplings) if sampling == kind]
        probs[members] = probability_rows(logits[members], kind)
    return probs
