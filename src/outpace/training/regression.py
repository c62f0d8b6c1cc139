"""EAGLE-1's one step behind every prefix: a head's guess at its target's next state, against that state and its law.

Knows nothing of optimisers, files or where noise is from. At index t the head reads the target's last normed state at t
and token t + 1, stands at position t and sees the indices up to t. What it gives stands for the state at t + 1, so that
the target's own head makes of it what is said of token t + 2. An index counts where token t + 2 is one of an answer.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional

from outpace.drafters.first_head import FirstHead
from outpace.errors import UsageError
from outpace.models.rotary import Rotary, rotate
from outpace.training.attention import Spans, attend
from outpace.training.batch import Batch
from outpace.training.counts import StepCounts
from outpace.training.distil import Distilled, over_the_vocabulary
from outpace.training.sampled import Some
from outpace.training.teacher import Teacher


def regress(
    head: FirstHead,
    batch: Batch,
    teacher: Teacher,
    *,
    feature_weight: float = 1.0,
    token_weight: float = 0.1,
    noise: Float[Tensor, "batch time hidden"] | None = None,
    some: Some | None = None,
) -> Distilled:
    """What a head's guesses cost: how far they are from the target's states, and from its law.

    At each index that counts it is ``feature_weight`` times the smooth L1 distance of the guess from the state, the
    mean over its width, and ``token_weight`` times the cross-entropy of the target's head's law on the guess under its
    law on the state, over the whole vocabulary. There is one step: what the head gives is not fed to it again.

    Args:
        head: with ``autocast`` to bf16, products are bf16, norms, attention and the loss fp32.
        batch: read by the teacher's target; its ``features`` are not looked at.
        teacher: the rows of the target's whole head.
        feature_weight, token_weight: 0 or more.
        noise: added to the states that the head reads, and not to those that it is held to.
        some: the ids that the laws are compared on; all of them if None.

    Raises:
        UsageError: a text is longer than the head's positions, or the states or the teacher's rows are not those of the
            head's target.

    Source: EAGLE (Li et al., arXiv 2401.15077), section 4.2.
    """
    _require(head, batch, teacher)
    asked = _asked(batch)
    count = asked.sum()
    if not int(count):
        nothing = sum((weight.flatten()[:0].sum() for weight in head.parameters()), torch.zeros(()))
        return Distilled(nothing, StepCounts.none(1))
    out = _guesses(head, batch, teacher, asked, noise)
    states, sums, argmax = (_next(each, asked) for each in (batch.last_normed, batch.logsumexp, batch.argmax))
    apart = functional.smooth_l1_loss(out, states.to(out.dtype), reduction="none").mean(-1).sum()
    scored = over_the_vocabulary("cross-entropy", out, teacher.rows, teacher, states, sums, some=some)
    total = feature_weight * apart + token_weight * scored.total
    right = (scored.choices == argmax).sum()
    found = (total, count, count, right, count, right, scored.acceptance.sum())
    return Distilled(total, StepCounts(*(each.detach().double().cpu()[None] for each in found)))


def weights_of(batch: Batch) -> Float[Tensor, " 1"]:
    """The indices that ``regress`` would count, without a forward pass."""
    return _asked(batch).sum().double().cpu()[None]


def _asked(batch: Batch) -> Bool[Tensor, "batch time"]:
    """Indices two tokens before one of an answer."""
    found = torch.zeros_like(batch.loss_mask)
    found[:, :-2] = batch.answers[:, 2:]
    return found


def _next(grid: Tensor, chosen: Bool[Tensor, "batch time"]) -> Tensor:
    """What stands one place behind each chosen index; the last place of a text is never chosen."""
    return grid[:, 1:][chosen[:, :-1]]


def _guesses(
    head: FirstHead,
    batch: Batch,
    teacher: Teacher,
    asked: Bool[Tensor, "batch time"],
    noise: Float[Tensor, "batch time hidden"] | None,
) -> Float[Tensor, "asked hidden"]:
    """The head's outputs at these indices, text after text; no text is read further than the last of them."""
    read = asked.flip(1).cumsum(1).flip(1) > 0
    states = batch.last_normed[read] if noise is None else batch.last_normed[read] + noise[read]
    embedded = functional.embedding(_next(batch.ids, read), teacher.embeddings)
    residual, queries, keys, values = head.enter(embedded, head.fuse(states[:, None]))
    rotary = Rotary(head.shape.rotary, head.shape.head_width, head.shape.max_positions)
    places, within = read.nonzero()[:, 1], asked[read]
    cos, sin = rotary.at(places[None], torch.promote_types(queries.dtype, torch.float32))
    queries, keys = (rotate(each[None].to(cos.dtype), cos, sin)[0] for each in (queries, keys))
    spans = Spans(read.sum(1).tolist(), asked.sum(1).tolist(), places[within])
    attended = attend(queries[within], keys, values.to(cos.dtype), (), spans)
    return head.leave(residual[within], attended.flatten(1))


def _require(head: FirstHead, batch: Batch, teacher: Teacher) -> None:
    shape = head.shape
    if (longest := max(batch.lengths)) > shape.max_positions:
        raise UsageError(f"a text has {longest} tokens; allowed: up to the {shape.max_positions} positions of the head")
    if (width := batch.last_normed.shape[-1]) != shape.hidden_size:
        raise UsageError(f"the recorded states are {width} wide; allowed: {shape.hidden_size}, as the head is")
    if tuple(teacher.rows.shape) != (shape.vocab_size, shape.hidden_size):
        raise UsageError(
            f"the teacher has {len(teacher.rows)} rows of width {teacher.rows.shape[1]}; allowed: {shape.vocab_size} "
            f"of width {shape.hidden_size}, the whole head of the head's target"
        )
