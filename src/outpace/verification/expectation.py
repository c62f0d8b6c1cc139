"""Closed forms: acceptance = 1 - TV, expected tokens, best K, best tree, predicted speed-up.

Knows nothing of how a rule draws or how a cost was measured: probabilities and milliseconds come in, numbers go out.

``tau`` is the expected number of tokens a turn emits, the correction or bonus token included, so 1 without a draft.
An acceptance at position i is conditional: given that all positions before it were accepted.
"""

import itertools
import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import pad

from outpace.errors import UsageError
from outpace.verification.shape import StaticShape, static_tree


def acceptance(
    target_probs: Float[Tensor, "*batch vocab"], draft_probs: Float[Tensor, "*batch vocab"]
) -> Float[Tensor, "*batch"]:
    """Chance that one token drawn from the draft is accepted by the best rule: sum of min(p, q) = 1 - TV(p, q).

    Source: Leviathan et al. (arXiv 2211.17192), theorem 3.5 and corollary 3.6.
    """
    return torch.minimum(target_probs, draft_probs).sum(-1)


def acceptance_of_set(
    target_probs: Float[Tensor, "*batch vocab"], tokens: Int[Tensor, "*batch children"]
) -> Float[Tensor, "*batch"]:
    """Chance that one of several deterministic children is accepted: p(S), each token counted once.

    Args:
        target_probs: the target's law at their parent.
        tokens: the children; -1 is filler.
    """
    filler = target_probs.shape[-1]
    members = torch.zeros_like(pad(target_probs, (0, 1)), dtype=torch.bool)
    members = members.scatter(-1, tokens.where(tokens >= 0, filler), True)[..., :filler]
    return (target_probs * members).sum(-1)


def optimal_acceptance(
    target_probs: Float[Tensor, "*batch vocab"], draft_probs: Float[Tensor, "*batch vocab"], num_drafts: int
) -> Float[Tensor, "*batch"]:
    """The most that any rule can accept of n independent drafts of one position: min over H of p(H) + 1 - q(H)^n.

    The drafts all fall into H with chance q(H)^n and then help only where the target falls into H too. As -q^n is
    concave, the worst H holds the tokens of largest q / p, so one sort finds it.

    Args:
        num_drafts: n, at least 1; for 1 this is ``acceptance``.

    Raises:
        UsageError: ``num_drafts`` is below 1.

    Source: SpecTr (Sun et al., arXiv 2310.15141) for the transport problem; the set form is its linear-programme dual.
    """
    if num_drafts < 1:
        raise UsageError(f"num_drafts is {num_drafts}; allowed: 1 or more")
    worst_first = (draft_probs / target_probs).nan_to_num(nan=0.0, posinf=torch.inf).argsort(-1, descending=True)
    # Column 0 is the empty set.
    target_mass, draft_mass = (
        pad(probs.gather(-1, worst_first).cumsum(-1), (1, 0)) for probs in (target_probs, draft_probs)
    )
    return (target_mass + 1 - draft_mass**num_drafts).amin(-1)


Acceptance = float | Sequence[float]
"""One conditional acceptance for every position, or one a position."""


def chain_tokens(acceptance: Acceptance, num_draft_tokens: int) -> float:
    """Expected tokens of a turn with a chain of K: 1 + sum over i <= K of the product of the first i acceptances.

    For one acceptance α at every position this is (1 - α^(K+1)) / (1 - α), and K + 1 at α = 1.

    Raises:
        UsageError: an acceptance outside [0, 1], a negative K, or fewer acceptances than K.

    Source: Leviathan et al. (arXiv 2211.17192), equation 1.
    """
    if num_draft_tokens < 0:
        raise UsageError(f"num_draft_tokens is {num_draft_tokens}; allowed: 0 or more")
    positions = [acceptance] * num_draft_tokens if isinstance(acceptance, int | float) else acceptance
    if len(positions) < num_draft_tokens:
        raise UsageError(
            f"acceptance has {len(positions)} positions for {num_draft_tokens} draft tokens; allowed: one each"
        )
    for value in positions:
        if not 0 <= value <= 1:
            raise UsageError(f"acceptance is {value}; allowed: 0 to 1")
    # The sum rather than the quotient: the same number, and nothing to divide by at α = 1.
    return 1.0 + math.fsum(itertools.accumulate(positions[:num_draft_tokens], operator.mul))


def tree_tokens(shape: StaticShape, rank_probs: Sequence[Sequence[float]]) -> float:
    """Expected tokens of a turn with a tree: 1 + sum over its nodes of the product along their paths.

    Args:
        shape: the tree.
        rank_probs: ``rank_probs[d - 1][r]`` is the chance that the child of rank r is the right one at depth d.

    Source: Sequoia (Chen et al., arXiv 2402.12374), tree construction.
    """
    return 1.0 + math.fsum(_path_products(shape, rank_probs))


def _path_products(shape: StaticShape, rank_probs: Sequence[Sequence[float]]) -> list[float]:
    products: list[float] = []
    for parent, rank, depth in zip(shape.parents, shape.ranks, shape.depths, strict=True):
        products.append((products[parent] if parent >= 0 else 1.0) * rank_probs[depth - 1][rank])
    return products


@dataclass(frozen=True)
class TurnCosts:
    """What a turn costs at one batch size and context length.

    Args:
        verify: milliseconds of a target forward by rows a sequence (the root and the draft); 1 row is plain decoding.
        draft_step: milliseconds a draft step; one step a depth for drafters that walk.
        draft_turn: milliseconds a drafting turn costs whatever its depth: parallel heads, lookup.

    Raises:
        UsageError: no cost for one row, a size below 1, a forward that is not positive, or a draft that is negative.
    """

    verify: Mapping[int, float]
    draft_step: float = 0.0
    draft_turn: float = 0.0

    def __post_init__(self) -> None:
        if 1 not in self.verify or min(self.verify) < 1:
            raise UsageError(f"verify has costs for {sorted(self.verify)} rows; allowed: 1 and any larger sizes")
        for value in self.verify.values():
            if not 0 < value < math.inf:
                raise UsageError(f"verify holds {value} ms; allowed: positive numbers")
        for name in ("draft_step", "draft_turn"):
            if not 0 <= (value := getattr(self, name)) < math.inf:
                raise UsageError(f"{name} is {value} ms; allowed: 0 or more")

    def verify_ms(self, rows: int) -> float:
        """The measured cost of the smallest measured size that holds ``rows``.

        Never between two sizes: hardware works in whole tiles and padded sizes, so that cost is a staircase.

        Raises:
            UsageError: more rows than were measured.
        """
        sizes = [size for size in self.verify if size >= rows]
        if not sizes:
            raise UsageError(f"{rows} rows were never measured; allowed: up to {max(self.verify)}")
        return self.verify[min(sizes)]

    def turn_ms(self, num_draft_tokens: int, steps: int) -> float:
        """One turn: ``steps`` draft steps, then one forward over the root and the draft. Without a draft, plain."""
        drafting = self.draft_turn + steps * self.draft_step if num_draft_tokens else 0.0
        return drafting + self.verify_ms(1 + num_draft_tokens)


def speedup(tau: float, costs: TurnCosts, num_draft_tokens: int, steps: int | None = None) -> float:
    """Tokens a second against plain decoding: tau · plain / (draft + verify).

    Args:
        tau: expected or measured tokens a turn.
        costs: milliseconds on this machine.
        num_draft_tokens: nodes to verify.
        steps: draft steps; None takes one a token, as a chain does. A tree takes its depth.

    Source: Leviathan et al. (arXiv 2211.17192), theorem 3.8, with a measured forward where it assumes a free one.
    """
    return tau * costs.verify_ms(1) / costs.turn_ms(num_draft_tokens, num_draft_tokens if steps is None else steps)


@dataclass(frozen=True)
class Choice:
    """A draft length, and what to expect of it; ``num_draft_tokens`` 0 says: do not speculate."""

    num_draft_tokens: int
    tau: float
    speedup: float


def best_k(acceptance: Acceptance, costs: TurnCosts, max_k: int) -> Choice:
    """The chain length with the largest predicted speed-up, 0 included; the shorter one on ties.

    Args:
        acceptance: one for every position, or one a position (at least ``max_k``).
        costs: measured up to ``1 + max_k`` rows.
        max_k: longest chain to consider, at least 0.
    """
    best = Choice(0, 1.0, 1.0)
    for length in range(1, max_k + 1):
        tau = chain_tokens(acceptance, length)
        predicted = speedup(tau, costs, length)
        if predicted > best.speedup:
            best = Choice(length, tau, predicted)
    return best


def break_even(costs: TurnCosts, num_draft_tokens: int) -> float:
    """The acceptance at which a chain of K is as fast as plain decoding; infinite when even a perfect draft is slower.

    For K = 1 and a forward that costs the same at two rows as at one, it is the cost of a draft step over that of a
    target step.

    Raises:
        UsageError: K is below 1.

    Source: Leviathan et al. (arXiv 2211.17192), corollary 3.9 for K = 1.
    """
    if num_draft_tokens < 1:
        raise UsageError(f"num_draft_tokens is {num_draft_tokens}; allowed: 1 or more")
    if speedup(chain_tokens(1.0, num_draft_tokens), costs, num_draft_tokens) < 1:
        return math.inf
    if speedup(1.0, costs, num_draft_tokens) >= 1:
        return 0.0
    low, high = 0.0, 1.0
    while (middle := (low + high) / 2) not in (low, high):  # until no float lies between
        enough = speedup(chain_tokens(middle, num_draft_tokens), costs, num_draft_tokens) >= 1
        low, high = (low, middle) if enough else (middle, high)
    return high


def best_tree(rank_probs: Sequence[Sequence[float]], costs: TurnCosts, max_nodes: int) -> tuple[StaticShape, Choice]:
    """The static tree with the largest predicted speed-up, the empty one included.

    For every depth, the n best path products give the expected tokens of every size n at once; cost is then looked up
    in the staircase, so that sizes land on the edges of its steps.

    Args:
        rank_probs: one list a depth; as many depths as are to be considered.
        costs: measured up to ``1 + max_nodes`` rows; each depth costs one draft step.
        max_nodes: largest tree to consider.

    Source: Sequoia (Chen et al., arXiv 2402.12374), the hardware-aware choice of size and depth.
    """
    best, best_depth = Choice(0, 1.0, 1.0), 0
    for depth in range(1, len(rank_probs) + 1):
        shape = static_tree(rank_probs, max_nodes, depth)
        falling = sorted(_path_products(shape, rank_probs), reverse=True)
        for nodes, tau in enumerate(itertools.accumulate(falling, initial=1.0)):
            predicted = speedup(tau, costs, nodes, steps=depth)
            if predicted > best.speedup:
                best, best_depth = Choice(nodes, tau, predicted), depth
    return static_tree(rank_probs, best.num_draft_tokens, best_depth), best
