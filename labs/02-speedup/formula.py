"""The lesson's formula and what follows from it: the best K for a cost, and where drafting begins to pay.

Knows nothing of models. ``alpha`` is one acceptance for every position, ``cost`` a draft step over a target forward
(the lesson's cost_q / cost_p), and a forward costs the same whatever it reads: no staircase.
"""

from outpace.verification.expectation import Choice, TurnCosts, best_k, chain_tokens, speedup

ROWS = 512
"""Longer chains are not asked about."""


def free_rows(cost: float) -> TurnCosts:
    """Costs in forwards of the target, as the formula takes them."""
    return TurnCosts({1: 1.0, ROWS + 1: 1.0}, draft_step=cost)


def gain(alpha: float, cost: float, length: int) -> float:
    """Tokens a second over plain decoding: (1 - α^(K+1)) / ((1 - α) (1 + cK))."""
    return speedup(chain_tokens(alpha, length), free_rows(cost), length)


def best(alpha: float, cost: float) -> Choice:
    """The K with the largest gain, 0 where plain decoding wins.

    One more token brings α^(K+1) and costs c. The speed-up is an average of what tokens bring over what they cost, so
    it rises just where α^(K+1) / c lies above it; every further token brings less, so that the first K at which it
    does not is the best one. At K = 0 that reads α > c, and where it fails no K pays.
    """
    length, tau = 0, 1.0
    while length < ROWS and alpha ** (length + 1) * (1 + cost * length) > cost * tau:
        length += 1
        tau = chain_tokens(alpha, length)
    return Choice(length, tau, gain(alpha, cost, length))


def searched(alpha: float, cost: float, longest: int) -> Choice:
    """The same by trying every K: what the library's tuner does, with any staircase."""
    return best_k(alpha, free_rows(cost), longest)
