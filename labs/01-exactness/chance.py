"""What chance alone does to two histograms: the noise floor of their distance, and the test that knows it.

Knows nothing of decoding: laws and counts come in, numbers go out.
"""

import math

import numpy as np
from numpy.typing import NDArray
from scipy.special import ive

Law = NDArray[np.float64]
Counts = NDArray[np.int64]
CHUNK = 1000  # shuffles at once: all of them would fill the memory


def distance(one: Counts, other: Counts) -> float:
    """Total variation (TV) of two histograms of one size: half the sum of the differences of their shares."""
    return float(np.abs(one - other).sum() / (2 * one.sum()))


def floor(law: Law, samples: int) -> float:
    """The TV of two perfect samplers of one law on average, ``samples`` drawn from each.

    Each cell's two counts are taken as Poisson with the binomial's variance λ: E|X - Y| = 2λ e^(-2λ) (I0(2λ) + I1(2λ)).
    That is right for rare cells, and in the limit of many samples it is sqrt(p (1 - p) / πn) a cell.
    """
    rate = samples * law * (1 - law)
    return float((rate * (ive(0, 2 * rate) + ive(1, 2 * rate))).sum() / samples)


def perfect(law: Law, samples: int, pairs: int, rng: np.random.Generator) -> Law:
    """The TV of so many pairs of perfect samplers, drawn."""
    first, second = (rng.multinomial(samples, law, size=pairs) for _ in range(2))
    tv: Law = np.abs(first - second).sum(1) / (2 * samples)
    return tv


def p_value(one: Counts, other: Counts, shuffles: int, rng: np.random.Generator) -> float:
    """How often two halves of the pooled samples, dealt at random, are as far apart in TV as these two are.

    Exact for every number of samples and cells, because it asks nothing of the law: if both samplers follow one law,
    whichever it is, every dealing of the pool is as likely as the one that was seen.

    Source: permutation tests (Fisher 1935); the pool's cells are dealt by the multivariate hypergeometric law.
    """
    seen, pool, size = distance(one, other), one + other, int(one.sum())
    as_far = 0
    for start in range(0, shuffles, CHUNK):
        dealt = rng.multivariate_hypergeometric(pool, size, size=min(CHUNK, shuffles - start), method="marginals")
        as_far += int((np.abs(2 * dealt - pool).sum(1) / (2 * size) >= seen - 1e-12).sum())
    return (1 + as_far) / (1 + shuffles)


def needed(law: Law, bound: float) -> int:
    """How many samples of each it takes until two perfect samplers are closer than ``bound`` on average."""
    low, high = 1, 1
    while floor(law, high) > bound:
        low, high = high, 2 * high
    while high - low > 1:
        middle = math.isqrt(low * high)  # halving the logarithm
        low, high = (middle, high) if floor(law, middle) > bound else (low, middle)
        if high - low <= low // 1000:
            break
    return high
