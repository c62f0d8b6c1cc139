"""Distillation: a student's law at every place against its target's, over the whole vocabulary, a few places at a time.

Knows nothing of optimisers, or of who wrote the texts. At place t the student has read the tokens 0 to t and speaks of
token t + 1. So does the target: its law there is its head times its own ``last_normed`` at t, the same place. A place
counts where token t + 1 is one of an answer.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from outpace.errors import UsageError
from outpace.models.student import Student
from outpace.training.batch import Batch
from outpace.training.counts import StepCounts
from outpace.training.losses import HYBRID, WeightedLoss, require_loss, weighted_loss, weighted_loss_plain
from outpace.training.sampled import Some
from outpace.training.teacher import Teacher
from outpace.verification.probabilities import argmax

LOGITS = 1 << 24
"""Logits of the student at a time: so many places are spoken of at once as have no more."""


@dataclass(frozen=True)
class Distilled:
    """What a batch showed.

    Args:
        loss: summed over the places that count, 0 where there is none; it carries the gradient.
        counts: of one step, which speaks of the next token: the same sum, the places, the matches, the acceptance.
    """

    loss: Float[Tensor, ""]
    counts: StepCounts

    def objective(self, weights: Float[Tensor, " 1"] | None = None) -> Float[Tensor, ""]:
        """The mean loss of a place.

        Args:
            weights: what the sum is divided by, this batch's own places if None. Give the places of all parts of a
                larger batch (``weights_of``): the parts' objectives then add up to that of the whole.
        """
        whole = self.counts.weights if weights is None else weights
        share = torch.where(whole > 0, 1 / whole, 0.0)[0]
        return self.loss * share.to(self.loss)


def distil(
    student: Student, batch: Batch, teacher: Teacher, *, loss: str = "forward-kl", some: Some | None = None
) -> Distilled:
    """The divergence of a student from its target behind every prefix that an answer's token follows.

    Texts without such a place are not read, and no text further than the last of them. Where one of the two has fewer
    ids than the other, the student's beyond the target's are cut off, as they are when it drafts, and what the target
    says beyond the student's counts as rejected.

    Args:
        student: with ``autocast`` to bf16, products are bf16, norms and the loss fp32.
        batch: read by the teacher's target; its ``features`` are not looked at.
        teacher: the rows of the target's whole head.
        loss: one of ``LOSSES``; the blend of the hybrid follows the mean acceptance of this batch.
        some: the ids that the laws are compared on; all of them if None.

    Raises:
        UsageError: there is no such loss, a text is longer than the student's positions or holds an id that it lacks,
            or the batch's states have another width than the teacher's rows.

    Source: DistillSpec (Zhou et al., arXiv 2310.08461).
    """
    _require(student, batch, teacher, loss)
    asked = _asked(batch)
    count = int(asked.sum())
    if not count:
        nothing = sum((weight.flatten()[:0].sum() for weight in student.parameters()), torch.zeros(()))
        return Distilled(nothing, StepCounts.none(1))
    rows = asked.any(1)
    time = 1 + int(asked.any(0).nonzero()[-1])
    ids = _ids(batch)[rows, :time]
    if (largest := int(ids.max())) >= student.vocab_size:
        raise UsageError(f"a text holds the id {largest}; allowed: the {student.vocab_size} ids of the student")
    hidden = student(ids)[asked[rows, :time]]
    states, sums = batch.last_normed[asked], batch.logsumexp[asked]
    scored = over_the_vocabulary(loss, hidden, student.rows, teacher, states, sums, some=some)
    right = (scored.choices == batch.argmax[asked]).sum()
    found = (scored.total, scored.weight, scored.weight, right, scored.weight, right, scored.acceptance.sum())
    return Distilled(scored.total, StepCounts(*(each.detach().double().cpu()[None] for each in found)))


def weights_of(batch: Batch) -> Float[Tensor, " 1"]:
    """The places that ``distil`` would count, without a forward pass."""
    return _asked(batch).sum().double().cpu()[None]


def _asked(batch: Batch) -> Bool[Tensor, "batch time"]:
    """Places whose next token is one of an answer."""
    found = torch.zeros_like(batch.loss_mask)
    found[:, :-1] = batch.answers[:, 1:]
    return found


def _ids(batch: Batch) -> Int[Tensor, "batch time"]:
    """The tokens, and an id that there is behind every text's end: it is read, though nothing sees it."""
    places = torch.arange(batch.ids.shape[1], device=batch.ids.device)
    real = places < torch.tensor(batch.lengths, device=batch.ids.device)[:, None]
    return batch.ids.where(real, 0)


def _require(student: Student, batch: Batch, teacher: Teacher, loss: str) -> None:
    require_loss(loss)
    if (longest := max(batch.lengths)) > student.max_positions:
        raise UsageError(
            f"a text has {longest} tokens; allowed: up to the {student.max_positions} positions of the student"
        )
    if batch.last_normed.shape[-1] != teacher.rows.shape[1]:
        raise UsageError(
            f"the recorded states are {batch.last_normed.shape[-1]} wide, the teacher's rows {teacher.rows.shape[1]}; "
            "allowed: those of one target"
        )


# ---- over the whole vocabulary ---------------------------------------------------------------------------------------


def over_the_vocabulary(
    loss: str,
    hidden: Float[Tensor, "places width"],
    rows: Float[Tensor, "vocab width"],
    teacher: Teacher,
    last_normed: Float[Tensor, "places target_width"],
    logsumexp: Float[Tensor, " places"],
    tokens: Int[Tensor, " places"] | None = None,
    some: Some | None = None,
) -> WeightedLoss:
    """A loss summed over places, each of weight 1, with no more logits at a time than ``LOGITS``.

    What is kept for the way back is the gradient itself, of ``hidden`` and of ``rows``, if they have one: it is worked
    out where the logits are, which are never computed twice but for the hybrid's blend.

    Args:
        loss: one of ``LOSSES``.
        hidden: what the student's head reads.
        rows: of the student's head.
        teacher: the rows of the target's head.
        last_normed: what they read at the same places.
        logsumexp: of the target's logits over its whole vocabulary.
        tokens: where they are given, the loss is their cross-entropy, whatever ``loss`` says; acceptance stays that of
            the target's law.
        some: the ids that the laws are compared on, ``tokens`` among them; all of them if None. Choices are made among
            these alone.
    """
    rows, teacher = _common(rows, teacher)
    if some is not None:
        kept = some.ids[: int((some.ids < len(rows)).sum())]
        some = Some(kept, some.shift[: len(kept)])
        rows, teacher = rows[kept], Teacher(teacher.embeddings, teacher.rows[kept])
        tokens = None if tokens is None else torch.searchsorted(kept, tokens)
    wanted = torch.is_grad_enabled() and (hidden.requires_grad or rows.requires_grad)
    shift = None if some is None else some.shift
    found = _Sliced.apply(hidden, rows, teacher, last_normed, logsumexp, loss, tokens, shift, wanted)  # type: ignore[no-untyped-call]
    total, acceptance, choices = found
    choices = choices if some is None else some.ids[choices]
    return WeightedLoss(total, total.new_tensor(float(len(hidden))), acceptance, choices)


def over_the_vocabulary_plain(
    loss: str,
    hidden: Float[Tensor, "places width"],
    rows: Float[Tensor, "vocab width"],
    teacher: Teacher,
    last_normed: Float[Tensor, "places target_width"],
    logsumexp: Float[Tensor, " places"],
) -> WeightedLoss:
    """``over_the_vocabulary`` by definition, for tests: all logits at once, and gradients left to autograd."""
    rows, teacher = _common(rows, teacher)
    said = functional.linear(hidden, rows)
    return weighted_loss_plain(loss, said, teacher.logits(last_normed), logsumexp, torch.ones_like(logsumexp))


def _common(rows: Tensor, teacher: Teacher) -> tuple[Tensor, Teacher]:
    """The rows of the ids that both have."""
    count = min(len(rows), len(teacher.rows))
    if len(teacher.rows) > count:
        teacher = Teacher(teacher.embeddings, teacher.rows[:count])
    return rows if len(rows) == count else rows[:count], teacher


class _Sliced(torch.autograd.Function):
    """The sum with its gradient worked out beside it, slice by slice."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        rows: Tensor,
        teacher: Teacher,
        last_normed: Tensor,
        logsumexp: Tensor,
        loss: str,
        tokens: Tensor | None,
        shift: Tensor | None,
        wanted: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:
        kind = hidden.device.type
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else rows.dtype
        states, table = hidden.detach().to(dtype), rows.detach().to(dtype)
        size = max(1, LOGITS // len(rows))
        parts = [slice(start, start + size) for start in range(0, max(1, len(hidden)), size)]
        ones = torch.ones_like(logsumexp)

        def spoken(part: slice, name: str, blend: Tensor | None, grad: bool) -> tuple[Tensor, WeightedLoss]:
            with torch.autocast(kind, enabled=False), torch.set_grad_enabled(grad):
                said, law = functional.linear(states[part], table), teacher.logits(last_normed[part])
                choices = None if shift is None else argmax(said)[0]  # what stands for many is no likelier itself
                said, law = (each if shift is None else each.add_(shift) for each in (said, law))
                said.requires_grad_(grad)
                if tokens is None:
                    scored = weighted_loss(name, said, law, logsumexp[part], ones[part], blend)
                else:
                    judged = weighted_loss("total-variation", said.detach(), law, logsumexp[part], ones[part])
                    scored = replace(judged, total=_hard(said, tokens[part]))
                return said, scored if choices is None else replace(scored, choices=choices)

        blend = None
        if loss == HYBRID and tokens is None:
            blend = torch.cat([spoken(part, "total-variation", None, False)[1].acceptance for part in parts]).mean()
        learnt = torch.zeros_like(rows) if ctx.needs_input_grad[1] else None
        grads = (torch.empty_like(hidden), learnt) if wanted else None
        found = []
        for part in parts:
            said, scored = spoken(part, loss, blend, wanted)
            if grads is not None:
                (slopes,) = torch.autograd.grad(scored.total, said)
                grads[0][part] = slopes @ table
                if learnt is not None:
                    learnt.add_(slopes.mT @ states[part])
            found.append((scored.total.detach(), scored.acceptance, scored.choices))
        ctx.save_for_backward(*(grads or ()))
        totals, accepted, choices = zip(*found, strict=True)
        result = torch.stack(totals).sum(), torch.cat(accepted), torch.cat(choices)
        ctx.mark_non_differentiable(*result[1:])
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, wanted: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        grads = (None if each is None else (each * wanted).to(each.dtype) for each in ctx.saved_tensors)
        return *grads, *[None] * 7


def _hard(said: Float[Tensor, "some vocab"], tokens: Int[Tensor, " some"]) -> Float[Tensor, ""]:
    """The cross-entropy of tokens, summed."""
    wide = said.to(torch.promote_types(said.dtype, torch.float32))
    return functional.cross_entropy(wide, tokens, reduction="sum")
