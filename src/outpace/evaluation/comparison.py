"""Two sets of texts beside each other: every first difference is judged, in the race of a seed as in an argmax.

Knows nothing of who drafted. Rounding explains a difference only where it can make the two tokens change places.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from outpace.decoding.control import Control
from outpace.decoding.loop import Request, decode
from outpace.decoding.processors import process
from outpace.drafters.drafter import Drafter
from outpace.evaluation.pair import Pair
from outpace.evaluation.ties import first_difference
from outpace.models.target import Target
from outpace.verification.coins import Keys
from outpace.verification.matching import candidates
from outpace.verification.probabilities import Sampling, probability_rows
from outpace.verification.tree import DraftTree


def spoken(
    target: Target,
    drafter: Drafter | None,
    requests: Sequence[Request],
    control: Control | None = None,
    slots: int | None = None,
) -> list[list[int]]:
    """The new ids of every request.

    Raises:
        NumericsError: the target's logits are no distribution.
    """
    texts: list[list[int]] = [[] for _ in requests]
    for emission in decode(target, drafter, requests, control=control, slots=slots):
        if emission.error is not None:
            raise emission.error
        texts[emission.index] += emission.ids
    return texts


@dataclass(frozen=True)
class Compared:
    """How far two sets of texts agree.

    Args:
        tokens: how many were compared: those up to the first difference of each text.
        near_ties: first differences that rounding explains, and the largest gap among them.
        wrong: texts that differ without an excuse, and the first of them in words.
    """

    tokens: int
    near_ties: int
    largest_gap: float
    wrong: int
    example: str

    @property
    def words(self) -> str:
        """One line."""
        ties = f", {self.near_ties} near-ties (gap up to {self.largest_gap:.2g})" if self.near_ties else ""
        return f"{self.tokens} tokens{ties}{'; ' if self.example else ''}{self.example}"

    def __add__(self, other: "Compared") -> "Compared":
        return Compared(
            self.tokens + other.tokens,
            self.near_ties + other.near_ties,
            max(self.largest_gap, other.largest_gap),
            self.wrong + other.wrong,
            self.example or other.example,
        )


NOTHING = Compared(0, 0, 0.0, 0, "")


def compare(
    pair: Pair, requests: Sequence[Request], plain: Sequence[Sequence[int]], drafted: Sequence[Sequence[int]]
) -> Compared:
    """Every text up to its first difference, which is judged."""
    found = NOTHING
    for index, (request, first, second) in enumerate(zip(requests, plain, drafted, strict=True)):
        place = first_difference(first, second)
        if place is None:
            lengths = f"text {index} has {len(first)} tokens plainly and {len(second)} with drafts"
            same = len(first) == len(second)
            found += Compared(min(len(first), len(second)), 0, 0.0, int(not same), "" if same else lengths)
            continue
        gap = _gap(pair, request, list(first[:place]), first[place], second[place])
        if gap < pair.tolerance:
            found += Compared(place + 1, 1, gap, 0, "")
        else:
            said = f"token {place} of text {index} is {first[place]} plainly and {second[place]} with drafts"
            found += Compared(place + 1, 0, 0.0, 1, f"{said}, a gap of {gap:.2g}")
    return found


def _gap(pair: Pair, request: Request, said: list[int], one: int, other: int) -> float:
    """How far apart two tokens are, in logits: what rounding would have to bridge."""
    text = [*request.ids, *said]
    logits = pair.judge.logits(text)
    if request.processors:
        empty = DraftTree.empty(1)
        logits = process(logits[None, None], empty, [text], [tuple(request.processors)])[0, 0]
    if request.sampling.greedy:
        return float(logits.max() - logits[[one, other]].min())
    return _race_gap(logits, request, len(text), one, other, pair.tolerance)


def _race_gap(
    logits: Float[Tensor, " vocab"], request: Request, position: int, one: int, other: int, tolerance: float
) -> float:
    """The gap of two runners of the coupling's race.

    A clock is ``noise / prob``, so that the logarithm of two clocks' ratio, times the temperature, is in logits. A
    runner that the filters may as well leave out as let in, by rounding, has gap zero: then the other one wins.
    """
    sampling = request.sampling
    probs = probability_rows(logits, sampling)[None, None]
    ids = candidates(probs)
    keys = Keys((request.seed or 0,), (request.sample,), (position,), (True,))
    times = keys.noise(torch.zeros(1, 1, dtype=torch.int64), ids).times / probs.gather(-1, ids)
    clocks = dict(zip(ids[0, 0].tolist(), times[0, 0].log().tolist(), strict=True))
    fast, slow = sorted((one, other), key=lambda token: clocks.get(token, math.inf))
    if at_the_border(logits, slow, sampling, tolerance) or at_the_border(logits, fast, sampling, tolerance):
        return 0.0
    if math.isinf(clocks.get(slow, math.inf)):
        return math.inf
    return float(sampling.temperature * (clocks[slow] - clocks[fast]))


def at_the_border(logits: Float[Tensor, " vocab"], token: int, sampling: Sampling, tolerance: float) -> bool:
    """Whether a filter lets a token in if its logit is lifted by the tolerance, and leaves it out if lowered."""
    return _inside(logits, token, sampling, tolerance) != _inside(logits, token, sampling, -tolerance)


def _inside(logits: Float[Tensor, " vocab"], token: int, sampling: Sampling, lift: float) -> bool:
    ahead = logits > logits[token] + lift
    if sampling.top_k and int(ahead.sum()) >= sampling.top_k:
        return False
    if sampling.top_p == 1:
        return True
    kept = logits if not sampling.top_k else logits.topk(min(sampling.top_k, len(logits))).values
    before = (logits.where(ahead, -math.inf) / sampling.temperature).logsumexp(0)
    share = before - (kept / sampling.temperature).logsumexp(0)
    # The masses ahead are rounded too: at most a quarter of the lift, as m (1 - m) is at most a quarter.
    return float(share.exp()) - lift / 4 / sampling.temperature < sampling.top_p
