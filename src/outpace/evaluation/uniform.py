"""Tests of laws with a stated chance of a false alarm: where tokens stand in their law, and counts of outcomes.

Knows nothing of models or drafts.

The probability integral transform of a token is where it stands in its law: the mass of all tokens ahead of it, plus a
uniform share of its own. If the token follows the law, that is uniform on [0, 1) and independent of what came before,
whatever the order of the tokens, as long as the prefix alone decides it.
"""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor


def farthest(places: Float[Tensor, " n"]) -> float:
    """The largest distance between the empirical law of numbers in [0, 1] and the uniform one."""
    ordered = places.double().sort().values
    steps = torch.arange(len(places) + 1, dtype=torch.float64) / len(places)
    return float(torch.maximum(steps[1:] - ordered, ordered - steps[:-1]).max())


def farthest_allowed(count: int, alarm: float) -> float:
    """What ``farthest`` exceeds with probability ``alarm`` at most, of so many independent uniform numbers.

    Source: Dvoretzky, Kiefer and Wolfowitz 1956, with the constant of Massart 1990.
    """
    return min(1.0, math.sqrt(math.log(2 / alarm) / (2 * count))) if count else 1.0


def chi_square_allowed(freedom: int, alarm: float) -> float:
    """What a chi-square variable with so many degrees of freedom exceeds with probability ``alarm``."""
    low, high = 0.0, 10.0 * freedom + 1000.0
    for _ in range(80):
        middle = (low + high) / 2
        half = torch.tensor([freedom / 2, middle / 2], dtype=torch.float64)
        low, high = (middle, high) if float(torch.special.gammaincc(half[0], half[1])) > alarm else (low, middle)
    return high


def stand(
    law: Float[Tensor, "rows vocab"],
    order: Float[Tensor, "rows vocab"],
    tokens: Int[Tensor, " rows"],
    coins: Float[Tensor, " rows"],
) -> Float[Tensor, " rows"]:
    """Where each token stands in its law when tokens are ordered by ``order``, then by probability, then by id.

    Returns:
        Numbers in [0, 1), uniform if tokens follow the law; NaN where a token is impossible.
    """
    own, mine = (rows.gather(1, tokens[:, None]) for rows in (law, order))
    ids = torch.arange(law.shape[1])
    level = (order == mine) & ((law > own) | ((law == own) & (ids < tokens[:, None])))
    ahead = (law.double() * ((order > mine) | level)).sum(1) + coins * own[:, 0].double()
    return (ahead / law.double().sum(1)).where(own[:, 0] > 0, torch.nan)


def chi_square(expected: Sequence[float], counts: Sequence[int], rare: float) -> tuple[float, int]:
    """Pearson's statistic and its degrees of freedom.

    The two rarest outcomes are counted as one until none is expected less often than ``rare``.
    """
    cells = sorted(zip(expected, counts, strict=True), key=lambda cell: cell[0])
    while len(cells) > 1 and cells[0][0] < rare:
        (one, seen), (other, also), *more = cells
        cells = sorted([(one + other, seen + also), *more], key=lambda cell: cell[0])
    return sum((seen - hoped) ** 2 / hoped for hoped, seen in cells), len(cells) - 1
