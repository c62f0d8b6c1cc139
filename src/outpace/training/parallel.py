"""Medusa's objective: all heads read one state behind every prefix, and each is taught of another token ahead.

Knows nothing of optimisers, files or how texts were recorded. At place t the heads read what the target's own head
reads there, its ``last_normed`` at t, of which the target says token t + 1 itself. Head i, from 0, speaks of token
t + 2 + i. The target decides of that token at place t + 1 + i: its law there teaches the head. What is a step elsewhere
is a head here.
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from outpace.drafters.medusa_heads import MedusaHeads, MedusaShape
from outpace.errors import UsageError
from outpace.models.ends import SharedHead
from outpace.training.batch import Batch
from outpace.training.counts import StepCounts, standing
from outpace.training.distil import LOGITS, over_the_vocabulary
from outpace.training.losses import WeightedLoss, require_loss
from outpace.training.ranges import HARD
from outpace.training.rounds import Ranks
from outpace.training.sampled import Some
from outpace.training.teacher import Teacher
from outpace.training.unroll import Unrolled


def speak(
    heads: MedusaHeads,
    batch: Batch,
    teacher: Teacher,
    *,
    shared: Tensor | None = None,
    loss: str = "cross-entropy",
    kept: Bool[Tensor, "batch time"] | None = None,
    some: Some | None = None,
) -> Unrolled:
    """The losses of every head behind every prefix.

    A head counts at place t where the token that it speaks of is one of an answer; nothing counts behind the end of a
    text. Logits are made of a few places at a time, and never kept.

    Args:
        heads: trained; with ``autocast`` to bf16, products are bf16 and the loss fp32.
        batch: recorded from the teacher's target; its ``features`` are not looked at.
        teacher: the rows of the target's whole head.
        shared: those rows in the dtype in which the heads multiply by them; needed where they have none of their own.
        loss: one of ``LOSSES`` between a head's law and the target's, or ``hard``: the cross-entropy of the text's own
            token, as others train. The blend of the hybrid follows the mean acceptance of each head in this batch.
        kept: nothing counts behind other places than these; None keeps all.
        some: the ids that laws are compared on; all of them if None.

    Returns:
        A step a head, and no ranks. The conditional counts of a head are of places where all heads before it were
        right, and spoke of answer tokens too.

    Raises:
        UsageError: there is no such loss, or the batch's states or the teacher's rows have another shape than the
            heads'.
        TypeError: heads without rows of their own were given none.

    Source: Medusa (Cai et al., arXiv 2401.10774), Medusa-1, section 2.2.1.
    """
    _require(heads, batch, teacher, loss)
    count = heads.shape.heads
    under = spoken_of(batch, count, kept)
    asked = under.any(0)
    if not bool(asked.any()):
        nothing = sum((weight.flatten()[:0].sum() for weight in heads.parameters()), torch.zeros(()))
        return Unrolled(nothing.expand(count), StepCounts.none(count), None)
    states = heads.states(batch.last_normed[asked])
    alive = torch.ones(len(states), dtype=torch.bool, device=states.device)
    found = []
    for number, own in enumerate(under):
        here, decided = own[asked], _indices(own) + 1 + number
        scored = _judged(loss, states[here, number], _rows(heads, number, shared), teacher, batch, decided, some)
        right = scored.choices == batch.argmax.flatten()[decided]
        still = torch.zeros_like(alive)
        still[here] = alive[here] & right
        sums = (right.sum(), alive[here].sum(), still.sum(), scored.acceptance.sum())
        found.append((scored.total, scored.weight, scored.weight, *sums))
        alive = still
    losses, *others = (torch.stack(sums) for sums in zip(*found, strict=True))
    return Unrolled(losses, StepCounts(*(sums.detach().double().cpu() for sums in (losses, *others))), None)


def _judged(
    loss: str,
    states: Float[Tensor, "some hidden"],
    rows: Float[Tensor, "vocab hidden"],
    teacher: Teacher,
    batch: Batch,
    decided: Int[Tensor, " some"],
    among: Some | None,
) -> WeightedLoss:
    """What one head says at some places, against the law at those that decide, which are flat indices."""
    last, logsumexp = batch.last_normed.flatten(0, 1)[decided], batch.logsumexp.flatten()[decided]
    if loss != HARD:
        return over_the_vocabulary(loss, states, rows, teacher, last, logsumexp, some=among)
    tokens = batch.ids.flatten()[decided + 1]
    return over_the_vocabulary("cross-entropy", states, rows, teacher, last, logsumexp, tokens=tokens, some=among)


def weights_of(batch: Batch, heads: int, kept: Bool[Tensor, "batch time"] | None = None) -> Float[Tensor, " heads"]:
    """The places that ``speak`` would count for each head, without a forward pass."""
    return spoken_of(batch, heads, kept).sum((1, 2)).double().cpu()


def spoken_of(
    batch: Batch, heads: int, kept: Bool[Tensor, "batch time"] | None = None
) -> Bool[Tensor, "heads batch time"]:
    """By head, the places behind which the token that it speaks of is one of an answer; of those kept, if not all."""
    found = batch.answers.new_zeros(heads, *batch.ids.shape)
    for number, own in enumerate(found):
        ahead = batch.answers[:, 2 + number :]
        own[:, : ahead.shape[1]] = ahead
    return found if kept is None else found & kept


def _rows(heads: MedusaHeads, number: int, shared: Tensor | None) -> Float[Tensor, "vocab hidden"]:
    """What a head multiplies by."""
    if heads.shape.own_head:
        return heads.get_parameter(f"{number}.{heads.shape.layers}.weight")
    if shared is None:
        raise TypeError("Medusa heads without rows of their own were given no rows of the target's head")
    return shared


def _require(heads: MedusaHeads, batch: Batch, teacher: Teacher, loss: str) -> None:
    if loss != HARD:
        require_loss(loss)
    shape = heads.shape
    if batch.last_normed.shape[-1] != shape.hidden_size:
        raise UsageError(
            f"the recorded states are {batch.last_normed.shape[-1]} wide; allowed: {shape.hidden_size}, as the heads "
            "read them"
        )
    if tuple(teacher.rows.shape) != (shape.vocab_size, shape.hidden_size):
        raise UsageError(
            f"the teacher has {len(teacher.rows)} rows of width {teacher.rows.shape[1]}; allowed: {shape.vocab_size} "
            f"of width {shape.hidden_size}, the whole head of the heads' target"
        )


def _indices(mask: Tensor) -> Tensor:
    return mask.flatten().nonzero().squeeze(1)


# ---- a fresh pupil, and what it would draft --------------------------------------------------------------------------


@torch.no_grad()
def new_heads(shape: MedusaShape, rows: Float[Tensor, "vocab hidden"]) -> MedusaHeads:
    """Heads that are not taught yet, fp32: each says what the target says of token t + 1.

    Their blocks pass the state on as it is, and rows of their own, where they have them, are copies of the target's.

    Args:
        rows: of the target's head.
    """
    heads = MedusaHeads(shape).float()
    for head in heads if heads.shape.own_head else ():
        last = list(head.children())[-1]
        assert isinstance(last, nn.Linear)
        last.weight.copy_(rows)
    return heads


@torch.no_grad()
def ranks_of(heads: MedusaHeads, shared: SharedHead | None, batch: Batch, depth: int) -> Ranks:
    """Where the text's own tokens stand among those of each head, as ``walked_by`` asks for them.

    Logits are those that the drafter computes, in its dtype.

    Args:
        heads: as they draft.
        shared: the target's head, for heads without rows of their own.
        batch: only the places of an answer's tokens are looked at; elsewhere the rank is 0.
        depth: how many heads are asked, no more than there are.
    """
    under = spoken_of(batch, depth).movedim(0, 2).flatten(0, 1)
    ids, last = batch.ids.flatten(), batch.last_normed.flatten(0, 1)
    found = torch.zeros(under.shape, dtype=torch.int64, device=ids.device)
    ahead = 2 + torch.arange(depth, device=ids.device)
    asked, size = _indices(under.any(1)), max(1, LOGITS // (heads.shape.vocab_size * depth))
    for start in range(0, len(asked), size):
        places = asked[start : start + size]
        logits = heads.logits(last[places], shared, depth)
        tokens = ids[(places[:, None] + ahead).clamp(max=len(ids) - 1)].clamp(min=0)  # what is none is not looked at
        found[places] = standing(logits.to(torch.promote_types(logits.dtype, torch.float32)), tokens)
    told: Ranks = found.where(under, 0).view(*batch.ids.shape, depth).tolist()
    return told
