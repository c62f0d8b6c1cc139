"""Judge a sampled chain: token by token rejection, and block verification.

Knows nothing of siblings, of models, or of a chain's making beyond the laws that its tokens were drawn from.

Both rules have one form. Node i passes with chance ``h[i]``, independently; which nodes pass decides the row r where
the path ends; and the next token is drawn from ``norm((w[r] * target_probs[r] - draft_probs[r])+)``, or after a whole
chain from the plain target row. ``h`` and ``Z`` are the papers' letters; the weight ``w`` is their p_i. A chain
without laws is deterministic: each of its laws is one-hot at its token.

A token that its own law cannot draw (probability zero or NaN) counts as no draft, and so do those after it.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import pad

from outpace.errors import UsageError
from outpace.verification.probabilities import draw
from outpace.verification.tree import DraftTree
from outpace.verification.verdict import Coins, DraftRows, Rule, TargetRows, Verdict


def subtract_draft_(
    scaled: Float[Tensor, "some vocab"], draft: Float[Tensor, "some vocab"] | None, token: Int[Tensor, " some"]
) -> Float[Tensor, "some vocab"]:
    """The positive part of ``scaled - draft``, written over ``scaled``: a row is large, and one copy is enough.

    Args:
        scaled: target rows times their weights, at most one.
        draft: the law the token was drawn from; None for one-hot at the token, where only that token loses its mass.
    """
    if draft is None:
        return scaled.scatter_(1, token[:, None], 0)
    return scaled.sub_(draft).clamp_(min=0)


def rescue_chance(mass: Float[Tensor, " some"], weight: Float[Tensor, " some"]) -> Float[Tensor, " some"]:
    """``Z / (Z + 1 - w)``: the chance to stop at a row after what was drafted below it has failed.

    Z is the residual's mass. Where both Z and 1 - w are zero, nothing below can fail, and the chance is one.
    """
    total = mass + (1 - weight)
    return (mass / total).where(total > 0, 1)


@dataclass(frozen=True)
class _Judged:
    """What decides a chain: chances to pass, weights of the residuals, and how many tokens count as drafted."""

    chances: Float[Tensor, "batch nodes"]
    weights: Float[Tensor, "batch rows"]
    lengths: Int[Tensor, " batch"]


def _gather(
    target_probs: TargetRows, tree: DraftTree, draft_probs: DraftRows
) -> tuple[Float[Tensor, "batch nodes"], Float[Tensor, "batch nodes"], Bool[Tensor, "batch nodes"]]:
    """Each drafted token's probability under target and draft, and whether it counts as drafted."""
    tokens = tree.tokens.clamp(min=0)[..., None]
    target = target_probs[:, :-1].gather(2, tokens).squeeze(2)
    draft = torch.ones_like(target) if draft_probs is None else draft_probs[:, :-1].gather(2, tokens).squeeze(2)
    return target, draft, (tree.real & (draft > 0)).cumprod(1).bool()


def _judge_tokens(target_probs: TargetRows, tree: DraftTree, draft_probs: DraftRows) -> _Judged:
    """``h = min(1, p / q)``, ``w = 1``."""
    target, draft, drafted = _gather(target_probs, tree, draft_probs)
    chances = (target / draft).clamp(max=1).where(drafted, 0)
    return _Judged(chances, torch.ones_like(target_probs[..., 0]), drafted.sum(1))


def _judge_block(target_probs: TargetRows, tree: DraftTree, draft_probs: DraftRows) -> _Judged:
    """``w`` is the product of ratios, capped at one at every step; ``h`` is w at the end, ``Z / (Z + 1 - w)`` before.

    In logarithms the capped product is a walk held below zero: the walk less its running maximum. Log zero absorbs.
    """
    target, draft, drafted = _gather(target_probs, tree, draft_probs)
    walk = (target.log() - draft.log()).where(drafted, 0).cumsum(1)
    weights = pad((walk - walk.cummax(1).values.clamp(min=0)).exp(), (1, 0), value=1)
    lengths = drafted.sum(1)
    chances = weights[:, 1:].where(drafted, 0)
    for row in range(1, tree.tokens.shape[1]):  # one row at a time: all residuals at once would be a second input
        scaled = weights[:, row, None] * target_probs[:, row]
        below = None if draft_probs is None else draft_probs[:, row]
        mass = subtract_draft_(scaled, below, tree.tokens[:, row].clamp(min=0)).sum(1)
        goes_on = row < lengths
        chances[:, row - 1] = rescue_chance(mass, weights[:, row]).where(goes_on, chances[:, row - 1])
    return _Judged(chances, weights, lengths)


def _first_failure(passes: Float[Tensor, "batch nodes"]) -> Float[Tensor, "batch rows"]:
    """Whether, or how probably, the path ends at each row, if it goes on while nodes pass."""
    return pad(passes.cumprod(1), (1, 0), value=1) * (1 - pad(passes, (0, 1)))


def _last_success(passes: Float[Tensor, "batch nodes"]) -> Float[Tensor, "batch rows"]:
    """Whether, or how probably, the path ends at each row, if it goes to the last node that passes."""
    all_fail_after = pad((1 - passes).flip(1).cumprod(1).flip(1), (0, 1), value=1)
    return pad(passes, (1, 0), value=1) * all_fail_after


def _next_rows(
    end: Int[Tensor, " batch"], judged: _Judged, target_probs: TargetRows, tree: DraftTree, draft_probs: DraftRows
) -> Float[Tensor, "batch vocab"]:
    """What the next token is drawn from after each row's end, not normalised.

    A residual without mass belongs to a rejection that has probability zero, rounding aside: then the target's own
    row stands in, which at least cannot emit what the target cannot. So it does for a draft's law that is not finite.
    """
    batch = torch.arange(len(end), device=end.device)
    rest = target_probs[batch, end].mul_(judged.weights[batch, end, None])
    token = pad(tree.tokens.clamp(min=0), (0, 1))[batch, end]
    rest = subtract_draft_(rest, None if draft_probs is None else draft_probs[batch, end], token)
    plain = (end == judged.lengths) | ~(rest.sum(1) > 0)
    if bool(plain.any()):
        rest[plain] = target_probs[batch[plain], end[plain]]
    return rest


@dataclass(frozen=True)
class _ChainForm:
    """One chain rule: how a chain is judged, and where it ends. The sampler is the law at chances of zero and one."""

    name: str
    judge_nodes: Callable[[TargetRows, DraftTree, DraftRows], _Judged]
    ends: Callable[[Float[Tensor, "batch nodes"]], Float[Tensor, "batch rows"]]

    def judge(self, target_probs: TargetRows, tree: DraftTree, draft_probs: DraftRows, coins: Coins) -> Verdict:
        self._require_chain(tree)
        judged = self.judge_nodes(target_probs, tree, draft_probs)
        end = self.ends((coins[:, :-1] < judged.chances).to(target_probs.dtype)).argmax(1)
        next_token = draw(_next_rows(end, judged, target_probs, tree, draft_probs), coins[:, -1])
        return Verdict(tree.path_to(end - 1), end, next_token, self.name, lossless=True)

    def law(self, target_probs: TargetRows, tree: DraftTree, draft_probs: DraftRows) -> TargetRows:
        self._require_chain(tree)
        judged = self.judge_nodes(target_probs, tree, draft_probs)
        ends = self.ends(judged.chances)
        law = torch.empty_like(target_probs)
        for row in range(ends.shape[1]):
            end = torch.full_like(judged.lengths, row)
            rest = _next_rows(end, judged, target_probs, tree, draft_probs)
            law[:, row] = ends[:, row, None] * rest / rest.sum(1, keepdim=True)
        return law

    def _require_chain(self, tree: DraftTree) -> None:
        if not tree.is_chain:
            raise UsageError(
                f"rule {self.name!r} judges chains, and the draft branches",
                hint="use greedy, match, tree-rejection or traversal for trees",
            )

    @property
    def rule(self) -> Rule:
        return Rule(self.name, True, self.judge, self.law)


REJECTION = _ChainForm("rejection", _judge_tokens, _first_failure).rule
"""Accept each token with probability ``min(1, p / q)`` until one fails; coin i tests node i, the last column draws.

Source: Leviathan et al., arXiv 2211.17192, algorithm 1; Chen et al., arXiv 2302.01318, algorithm 2.
"""

BLOCK = _ChainForm("block", _judge_block, _last_success).rule
"""Judge the chain as a whole: a later success rescues earlier failures. Never fewer tokens than rejection on average.

Coin i tests node i, the last column draws. With one-hot drafts, or one node, the law is that of rejection.

Source: Sun et al., arXiv 2403.10444, algorithm 2.
"""
