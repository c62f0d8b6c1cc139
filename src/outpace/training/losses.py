"""Training objectives between a draft's logits and the target's law, each written twice: plainly, and fast.

Knows nothing of heads, texts or steps. The draft speaks a part of the target's vocabulary; with the log-sum-exp of all
of the target's logits the rows given here are its true law, and what it says outside of them counts as rejected.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from outpace.errors import UsageError
from outpace.verification.probabilities import argmax

ETA = 3.0
"""How soon the hybrid turns from divergence to acceptance."""
HYBRID = "lk-hybrid"
BETAS = (0.1, 0.5, 0.9)
"""Shares of the target's law in the mixtures of ``jsd-0.1``, ``jsd-0.5`` and ``jsd-0.9``."""

ELEMENTS = {"cpu": 1 << 18}  # logits of one pass: what stays in a core's cache while it is read five times
ELEMENTS_ELSEWHERE = 1 << 26


@dataclass(frozen=True)
class WeightedLoss:
    """A loss summed over rows, and what the same rows say of the draft.

    Args:
        total: the weighted sum, never a mean: with ``weight`` the caller divides by what he has counted. It alone
            carries a gradient.
        weight: the sum of the weights; 0 for a batch without any, whose ``total`` is then 0 and not NaN.
        acceptance: the probability that a token drawn from the draft is accepted, the sum of min(p, q), in each row.
        choices: the draft's likeliest id in each row, counted in its own vocabulary.
    """

    total: Float[Tensor, ""]
    weight: Float[Tensor, ""]
    acceptance: Float[Tensor, "*lead"]
    choices: Int[Tensor, "*lead"]


# ---- the plain forms, one value a row ------------------------------------------------------------------------------


def cross_entropy(
    draft_logits: Float[Tensor, "*lead draft"],
    target_logits: Float[Tensor, "*lead draft"],
    logsumexp: Float[Tensor, "*lead"],
) -> Float[Tensor, "*lead"]:
    """The draft's cross-entropy under the target's law renormalised on the draft vocabulary.

    Why this one and not ``forward_kl``: others print it, and its gradient is the same.

    Source: EAGLE-3 (Li et al., arXiv 2503.01840).
    """
    return -(target_logits.softmax(-1) * draft_logits.log_softmax(-1)).sum(-1)


def forward_kl(
    draft_logits: Float[Tensor, "*lead draft"],
    target_logits: Float[Tensor, "*lead draft"],
    logsumexp: Float[Tensor, "*lead"],
) -> Float[Tensor, "*lead"]:
    """KL(target, draft), the target's law renormalised on the draft vocabulary: 0 where the draft is as good as can be.

    Against the target's whole law it would be infinite wherever a token is missing from the draft vocabulary.
    """
    log_target = target_logits.log_softmax(-1)
    return _dot(log_target.exp(), log_target) - (log_target.exp() * draft_logits.log_softmax(-1)).sum(-1)


def reverse_kl(
    draft_logits: Float[Tensor, "*lead draft"],
    target_logits: Float[Tensor, "*lead draft"],
    logsumexp: Float[Tensor, "*lead"],
) -> Float[Tensor, "*lead"]:
    """KL(draft, target) against the target's whole law; infinite where the target forbids a token of the draft's.

    Source: DistillSpec (Zhou et al., arXiv 2310.08461), section 3.
    """
    log_draft = draft_logits.log_softmax(-1)
    return (log_draft.exp() * (log_draft - _true(target_logits, logsumexp))).sum(-1)


def total_variation(
    draft_logits: Float[Tensor, "*lead draft"],
    target_logits: Float[Tensor, "*lead draft"],
    logsumexp: Float[Tensor, "*lead"],
) -> Float[Tensor, "*lead"]:
    """1 minus the acceptance: how often a token drawn from the draft is rejected.

    Source: Leviathan et al. (arXiv 2211.17192), corollary 3.6.
    """
    draft, target = draft_logits.softmax(-1), _true(target_logits, logsumexp).exp()
    return 1 - torch.where(draft < target, draft, target).sum(-1)


def log_acceptance(
    draft_logits: Float[Tensor, "*lead draft"],
    target_logits: Float[Tensor, "*lead draft"],
    logsumexp: Float[Tensor, "*lead"],
) -> Float[Tensor, "*lead"]:
    """Minus the logarithm of the acceptance. Its gradient does not vanish where the draft is far off, as TV's does.

    Source: LK losses (Samarin et al., arXiv 2602.23881).
    """
    log_draft, log_target = draft_logits.log_softmax(-1), _true(target_logits, logsumexp)
    return -torch.where(log_draft < log_target, log_draft, log_target).logsumexp(-1)


def jensen_shannon(
    draft_logits: Float[Tensor, "*lead draft"],
    target_logits: Float[Tensor, "*lead draft"],
    logsumexp: Float[Tensor, "*lead"],
    beta: float = 0.5,
) -> Float[Tensor, "*lead"]:
    """beta KL(target, mixture) + (1 - beta) KL(draft, mixture), of the mixture beta target + (1 - beta) draft.

    It is finite whatever either of them forbids. For small ``beta`` it is ``beta`` times the forward divergence, and
    near 1 it is 1 - ``beta`` times the reverse one.

    Args:
        beta: between 0 and 1; at one half it is symmetric.

    Source: DistillSpec (Zhou et al., arXiv 2310.08461), section 3.
    """
    log_draft, log_target = draft_logits.log_softmax(-1), _true(target_logits, logsumexp)
    mixed = torch.logaddexp(log_target + math.log(beta), log_draft + math.log(1 - beta))
    inside = _dot(log_target.exp(), log_target - mixed) + _outside(log_target.exp(), beta)
    return beta * inside + (1 - beta) * _dot(log_draft.exp(), log_draft - mixed)


Plain = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Of draft logits, target logits and the target's log-sum-exp: one value a row."""


def _true(target_logits: Tensor, logsumexp: Tensor) -> Tensor:
    return target_logits - logsumexp[..., None]


def _dot(weights: Tensor, logs: Tensor) -> Tensor:
    """Sums of products in which nothing times minus infinity is nothing."""
    return (weights * logs.clamp_min(torch.finfo(logs.dtype).min)).sum(-1)


def _outside(target: Tensor, beta: float) -> Tensor:
    """What ids that the draft cannot say bring to KL(target, mixture): the mixture holds ``beta`` of each."""
    return -math.log(beta) * (1 - target.sum(-1))


# ---- the fast forms: value and gradient of a few rows at once ------------------------------------------------------


class _Rows:
    """What the losses share of a few rows, in fp32 or better; exponentials are most of the time, and taken once."""

    def __init__(self, draft_logits: Tensor, target_logits: Tensor, logsumexp: Tensor) -> None:
        dtype = torch.promote_types(draft_logits.dtype, torch.float32)
        self.draft_logits, self.target_logits, self.whole = (
            each.to(dtype) for each in (draft_logits, target_logits, logsumexp)
        )
        self.choices, _ = argmax(self.draft_logits)
        self.draft, self.draft_sum = _law(self.draft_logits)
        self.inside, target_sum = _law(self.target_logits)  # renormalised on the draft vocabulary
        self.target = self.inside * (target_sum - self.whole).exp()[:, None]
        self.acceptance = torch.minimum(self.draft, self.target).sum(-1)

    @property
    def log_draft(self) -> Tensor:
        return self.draft_logits - self.draft_sum[:, None]

    @property
    def log_target(self) -> Tensor:
        return self.target_logits - self.whole[:, None]


def _law(logits: Tensor) -> tuple[Tensor, Tensor]:
    """A softmax, and the log-sum-exp that its largest entry tells."""
    law = logits.softmax(-1)
    return law, logits.amax(-1) - law.amax(-1).log()


Fast = Callable[[_Rows], tuple[Tensor, Tensor]]
"""Of some rows: their values, and the gradient of each in its own draft logits."""


def _fast_cross_entropy(rows: _Rows) -> tuple[Tensor, Tensor]:
    return rows.draft_sum - (rows.inside * rows.draft_logits).sum(-1), rows.draft - rows.inside


def _fast_forward_kl(rows: _Rows) -> tuple[Tensor, Tensor]:
    values, slopes = _fast_cross_entropy(rows)
    return values + _dot(rows.inside, rows.target_logits.log_softmax(-1)), slopes


def _fast_reverse_kl(rows: _Rows) -> tuple[Tensor, Tensor]:
    distance = rows.log_draft - rows.log_target
    values = (rows.draft * distance).sum(-1)
    return values, rows.draft * (distance - values[:, None])


def _fast_total_variation(rows: _Rows) -> tuple[Tensor, Tensor]:
    gaining = rows.draft * (rows.draft < rows.target)  # where more of the draft is more acceptance
    return 1 - rows.acceptance, rows.draft * gaining.sum(-1, keepdim=True) - gaining


def _fast_log_acceptance(rows: _Rows) -> tuple[Tensor, Tensor]:
    log_draft, log_target = rows.log_draft, rows.log_target
    values = -torch.minimum(log_draft, log_target).logsumexp(-1)
    # In logarithms, each at most 0: the acceptance itself may be too small for a number.
    shares = (log_draft + values[:, None]).masked_fill_(log_draft >= log_target, -torch.inf).exp_()
    return values, rows.draft * shares.sum(-1, keepdim=True) - shares


def _fast_jensen_shannon(rows: _Rows, beta: float) -> tuple[Tensor, Tensor]:
    log_draft, log_target = rows.log_draft, rows.log_target
    mixed = torch.logaddexp(log_target + math.log(beta), log_draft + math.log(1 - beta))
    inside = _dot(rows.target, log_target - mixed) + _outside(rows.target, beta)
    above = (log_draft - mixed).clamp_min_(torch.finfo(mixed.dtype).min)  # a draft may forbid an id too
    mean = (rows.draft * above).sum(-1)
    return beta * inside + (1 - beta) * mean, (1 - beta) * rows.draft * (above - mean[:, None])


PLAIN: Mapping[str, Plain] = {
    "cross-entropy": cross_entropy,
    "forward-kl": forward_kl,
    "reverse-kl": reverse_kl,
    "total-variation": total_variation,
    "log-acceptance": log_acceptance,
    **{f"jsd-{beta}": partial(jensen_shannon, beta=beta) for beta in BETAS},
}
FAST: Mapping[str, Fast] = {
    "cross-entropy": _fast_cross_entropy,
    "forward-kl": _fast_forward_kl,
    "reverse-kl": _fast_reverse_kl,
    "total-variation": _fast_total_variation,
    "log-acceptance": _fast_log_acceptance,
    **{f"jsd-{beta}": partial(_fast_jensen_shannon, beta=beta) for beta in BETAS},
}
LOSSES: tuple[str, ...] = (*PLAIN, HYBRID)
"""The names of all losses."""


def require_loss(name: str) -> None:
    """Refuse a loss that there is not.

    Raises:
        UsageError: the name is not one of ``LOSSES``.
    """
    if name not in LOSSES:
        raise UsageError(f"the loss is {name!r}; allowed: {', '.join(LOSSES)}")


def _mixture(name: str, acceptance: Callable[[], Tensor]) -> list[tuple[str, float | Tensor]]:
    """The losses that make up a named one, with their shares.

    The hybrid is lambda · KL + (1 - lambda) · TV with lambda = exp(-eta · acceptance), the mean acceptance of all rows.

    Source: LK losses (Samarin et al., arXiv 2602.23881).
    """
    if name != HYBRID:
        return [(name, 1.0)]
    blend = (-ETA * acceptance()).exp()
    return [("forward-kl", blend), ("total-variation", 1 - blend)]


def _mixed(rows: _Rows, shares: list[tuple[str, float | Tensor]]) -> tuple[Tensor, Tensor]:
    """Values and gradients of a mixture."""
    found = [FAST[name](rows) for name, _ in shares]
    if len(found) == 1:
        return found[0]
    scaled = [(values * share, slopes * share) for (values, slopes), (_, share) in zip(found, shares, strict=True)]
    values, slopes = (torch.stack(each).sum(0) for each in zip(*scaled, strict=True))
    return values, slopes


def _kept(values: Tensor, weights: Tensor) -> Tensor:
    """Weighted, in place; what weighs nothing is 0 even where it is not a number."""
    values.mul_(weights)
    return values if bool(weights.all()) else values.masked_fill_(weights == 0, 0)


# ---- weighted sums -------------------------------------------------------------------------------------------------


def weighted_loss(
    name: str,
    draft_logits: Float[Tensor, "*lead draft"],
    target_logits: Float[Tensor, "*lead draft"],
    logsumexp: Float[Tensor, "*lead"],
    weights: Float[Tensor, "*lead"],
    acceptance: Float[Tensor, ""] | None = None,
) -> WeightedLoss:
    """A loss summed over rows by their weights; rows of weight 0 bring nothing, whatever they hold.

    Computed a few rows at a time, so that they stay in the cache; the only thing kept for the backward pass is the
    gradient, one number of the logits' dtype for each of them.

    Args:
        name: one of ``LOSSES``.
        draft_logits: the draft's, over its own vocabulary.
        target_logits: the target's logits of the same ids.
        logsumexp: of the target's logits over its whole vocabulary.
        weights: 0 or more.
        acceptance: the mean acceptance that the blend of the hybrid follows; that of the rows given here if None.

    Raises:
        UsageError: there is no such loss.
    """
    require_loss(name)
    lead = logsumexp.shape
    wanted = torch.is_grad_enabled() and draft_logits.requires_grad
    inputs = draft_logits.flatten(0, -2), target_logits.flatten(0, -2), logsumexp.flatten(), weights.flatten()
    total, accepted, choices = _Weighted.apply(*inputs, name, wanted, acceptance)  # type: ignore[no-untyped-call]
    return WeightedLoss(total, weights.sum(), accepted.view(lead), choices.view(lead))


def weighted_loss_plain(
    name: str,
    draft_logits: Float[Tensor, "*lead draft"],
    target_logits: Float[Tensor, "*lead draft"],
    logsumexp: Float[Tensor, "*lead"],
    weights: Float[Tensor, "*lead"],
) -> WeightedLoss:
    """``weighted_loss`` by definition, for tests: everything at once, and gradients left to autograd."""
    require_loss(name)
    counted = weights > 0
    draft, target, lse = draft_logits[counted], target_logits[counted], logsumexp[counted]
    kept = weights[counted]
    accepted = 1 - total_variation(draft_logits, target_logits, logsumexp).detach()
    shares = _mixture(name, lambda: (accepted[counted] * kept).sum() / kept.sum())
    values = sum((share * PLAIN[part](draft, target, lse) for part, share in shares), torch.zeros_like(kept))
    return WeightedLoss((values * kept).sum(), weights.sum(), accepted, draft_logits.argmax(-1))


class _Weighted(torch.autograd.Function):
    """The weighted sum with its gradient worked out beside it."""

    @staticmethod
    def forward(
        ctx: Any,
        draft_logits: Tensor,
        target_logits: Tensor,
        logsumexp: Tensor,
        weights: Tensor,
        name: str,
        wanted: bool,
        given: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        count, vocab = draft_logits.shape
        size = max(1, ELEMENTS.get(draft_logits.device.type, ELEMENTS_ELSEWHERE) // vocab)
        parts = [slice(start, start + size) for start in range(0, count, size)]

        def rows(part: slice) -> _Rows:
            return _Rows(draft_logits[part], target_logits[part], logsumexp[part])

        def mean_acceptance() -> Tensor:
            if given is not None:
                return given
            each = torch.cat([rows(part).acceptance for part in parts])
            return _kept(each, weights).sum() / weights.sum()

        shares = _mixture(name, mean_acceptance) if count else []
        total = torch.zeros((), dtype=torch.promote_types(draft_logits.dtype, torch.float32), device=weights.device)
        acceptance, choices = torch.empty_like(weights, dtype=total.dtype), torch.empty_like(weights, dtype=torch.int64)
        gradient = torch.empty_like(draft_logits) if wanted else None
        for part in parts:
            few, weight = rows(part), weights[part]
            values, slope = _mixed(few, shares)
            total += _kept(values, weight).sum()
            acceptance[part], choices[part] = few.acceptance, few.choices
            if gradient is not None:
                gradient[part] = _kept(slope, weight[:, None])
        ctx.save_for_backward(gradient)
        ctx.mark_non_differentiable(acceptance, choices)
        return total, acceptance, choices

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, wanted: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = ctx.saved_tensors
        return (None if gradient is None else gradient * wanted), *[None] * 6
