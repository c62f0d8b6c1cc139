"""The training-time test: a head drafts a few tokens behind every prefix of its texts at once.

Knows nothing of optimisers, files or how texts were recorded. At index t step 0 reads the target's features at t and
token t + 1 and speaks of token t + 2; step s reads its own last state and token t + 1 + s, which is the text's, not a
draft, stands at position t + s, and speaks of token t + 2 + s. ``attention.py`` draws what it sees.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional

from outpace.drafters.first_head import AnyHead
from outpace.errors import UsageError
from outpace.models.rotary import Rotary, rotate
from outpace.training.attention import Spans, attend
from outpace.training.batch import Batch
from outpace.training.counts import StepCounts, standing
from outpace.training.losses import require_loss, weighted_loss
from outpace.training.teacher import Teacher

DECAY = 0.8
"""How much less each step weighs than the one before it."""


@dataclass(frozen=True)
class Unrolled:
    """What the steps said.

    Args:
        losses: the weighted sum of each step, 0 where there is no weight; they carry the gradient.
        counts: the same sums without a gradient, their weights, and what was counted beside them.
        ranks: where the token that is likeliest for the target stands among those of the draft, from 1 on, at each step
            behind each place; 0 if the head cannot say it, and where nothing counts. None if not asked for.
    """

    losses: Float[Tensor, " steps"]
    counts: StepCounts
    ranks: Int[Tensor, "batch time steps"] | None

    def objective(self, decay: float = DECAY, weights: Float[Tensor, " steps"] | None = None) -> Float[Tensor, ""]:
        """The sum over steps s of ``decay``^s times the mean loss of step s.

        Args:
            decay: above 0, up to 1.
            weights: what each step's sum is divided by, this batch's own weights if None. Give the sums over all parts
                of a larger batch (``weights_of``): the parts' objectives then add up to that of the whole.

        Source: EAGLE-3's published training code.
        """
        whole = self.counts.weights if weights is None else weights
        shares = torch.where(whole > 0, decay ** torch.arange(len(whole), device=whole.device) / whole, 0.0)
        return (self.losses * shares.to(self.losses)).sum()


def unroll(
    head: AnyHead,
    batch: Batch,
    teacher: Teacher,
    *,
    steps: int = 4,
    loss: str = "cross-entropy",
    mask_outside: bool = True,
    ranked: bool = False,
) -> Unrolled:
    """Losses of every step behind every prefix, each as if that many tokens were drafted there.

    A step counts at index t where token t + 2 + s is one of an answer; nothing counts behind the end of a text. Texts
    without such a place are not read at all. Gradients go through all steps: states are fed on, and the keys of earlier
    steps seen, without being detached.

    Args:
        head: with matrices in bf16, norms, attention and losses are still computed in fp32.
        batch: recorded from the teacher's target at the head's taps.
        teacher: the target's rows.
        steps: drafted tokens, 1 or more.
        loss: one of ``LOSSES``.
        mask_outside: give no weight to places whose likeliest token the head cannot say.
        ranked: tell ranks too.

    Raises:
        UsageError: there is no such loss, no step, a text longer than the head's positions, or features or rows of
            another shape than the head's.

    Source: EAGLE-3 (Li et al., arXiv 2503.01840), training-time test.
    """
    _require(head, batch, teacher, steps, loss)
    places = _Places.of(batch, steps)
    ranks = torch.zeros(*batch.ids.shape, steps, dtype=torch.int64, device=batch.ids.device) if ranked else None
    if not len(places.asked):
        nothing = sum((weight.flatten()[:0].sum() for weight in head.parameters()), torch.zeros(()))
        return Unrolled(nothing.expand(steps), StepCounts.none(steps), ranks)
    lesson = _Lesson.of(batch, teacher, places, head.target_ids, mask_outside)
    rotary = Rotary(head.shape.rotary, head.shape.head_width, head.shape.max_positions)
    embeddings = teacher.embeddings if head.embed_tokens is None else head.embed_tokens.weight
    hidden = head.fuse(_flat(batch.features)[places.read])
    alive = torch.ones_like(places.asked, dtype=torch.bool)
    seen: list[tuple[Tensor, Tensor]] = []
    found = []
    for step in range(steps):
        embedded = functional.embedding(_flat(batch.ids)[places.tokens(step)], embeddings)
        residual, queries, keys, values = head.enter(embedded, hidden)
        cos, sin = rotary.at(places.positions(step)[None], torch.promote_types(queries.dtype, torch.float32))
        queries, keys = (rotate(each[None].to(cos.dtype), cos, sin)[0] for each in (queries, keys))
        seen.append((keys, values.to(cos.dtype)))
        if step == 0:
            residual, queries = residual[places.within], queries[places.within]
        out = head.leave(residual, attend(queries, *seen[0], seen[1:], places.spans).flatten(1))
        sums, alive, stood = lesson.judge(head, out, step, loss, alive, ranked)
        if ranks is not None:
            _flat(ranks)[places.asked[places.spoken[step][0]], step] = stood
        found.append(sums)
        hidden = head.feed(out)
    losses, *others = (torch.stack(sums) for sums in zip(*found, strict=True))
    return Unrolled(losses, StepCounts(*(sums.detach().double().cpu() for sums in (losses, *others))), ranks)


def weights_of(
    batch: Batch, target_ids: Int[Tensor, " draft"], *, steps: int = 4, mask_outside: bool = True
) -> Float[Tensor, " steps"]:
    """The weights that ``unroll`` would count for each step, without a forward pass."""
    counted = torch.isin(batch.argmax, target_ids) if mask_outside else torch.ones_like(batch.loss_mask)
    under = [_ahead(batch.answers, 2 + step) & _ahead(counted, 1 + step) for step in range(steps)]
    return torch.stack([each.sum() for each in under]).double().cpu()


def _require(head: AnyHead, batch: Batch, teacher: Teacher, steps: int, loss: str) -> None:
    require_loss(loss)
    shape = head.shape
    if steps < 1:
        raise UsageError(f"a training-time test of {steps} steps; allowed: 1 or more")
    if (longest := max(batch.lengths)) > shape.max_positions:
        raise UsageError(f"a text has {longest} tokens; allowed: up to the {shape.max_positions} positions of the head")
    found, wanted = tuple(batch.features.shape[2:]), (len(shape.taps), shape.target_hidden_size)
    if found != wanted:
        raise UsageError(
            f"the features are {found[0]} taps of width {found[1]}; the head reads {wanted[0]} of {wanted[1]}"
        )
    if tuple(teacher.rows.shape) != (shape.draft_vocab_size, shape.target_hidden_size):
        raise UsageError(
            f"the teacher has {len(teacher.rows)} rows of width {teacher.rows.shape[1]}; "
            f"the head says {shape.draft_vocab_size} ids, and its target's width is {shape.target_hidden_size}"
        )


# ---- which places ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Places:
    """The places of a batch that are read, asked about and taught, as flat indices ``row * time + t``, rising.

    Args:
        time: of the batch.
        read: what becomes a key of step 0: every place up to the last asked one of its text.
        asked: where drafts begin: those of which some step speaks of a token of an answer.
        within: the asked among the read.
        ends: the last place of each asked place's text.
        taught: the places whose law some step speaks of.
        spoken: by step, which of the asked count, and what each speaks of among the taught.
        spans: for attention.
    """

    time: int
    read: Int[Tensor, " read"]
    asked: Int[Tensor, " asked"]
    within: Int[Tensor, " asked"]
    ends: Int[Tensor, " asked"]
    taught: Int[Tensor, " taught"]
    spoken: list[tuple[Tensor, Tensor]]
    spans: Spans

    @classmethod
    def of(cls, batch: Batch, steps: int) -> "_Places":
        answers, time = batch.answers, batch.ids.shape[1]
        under = torch.stack([_ahead(answers, 2 + step) for step in range(steps)])
        asking = under.any(0)
        reading = asking.flip(1).cumsum(1).flip(1) > 0
        teaching = _ahead(answers, 1)
        teaching[:, 0] = False  # spoken of by the target itself, before any draft
        read, asked, taught = (_indices(grid) for grid in (reading, asking, teaching))
        spoken = []
        for step in range(steps):
            some = _indices(_flat(under[step])[asked])
            spoken.append((some, torch.searchsorted(taught, asked[some] + 1 + step)))
        last = torch.tensor(batch.lengths, device=asked.device) - 1
        ends = (asked // time) * time + last[asked // time]
        spans = Spans(reading.sum(1).tolist(), asking.sum(1).tolist(), asked % time)
        return cls(time, read, asked, torch.searchsorted(read, asked), ends, taught, spoken, spans)

    def positions(self, step: int) -> Int[Tensor, " some"]:
        """Where the tokens of a step stand for the rotation: one further in each."""
        return (self.asked if step else self.read) % self.time + step

    def tokens(self, step: int) -> Int[Tensor, " some"]:
        """The places of the tokens that a step reads; past a text's end, where nothing counts, its last one."""
        return torch.minimum(self.asked + 1 + step, self.ends) if step else self.read + 1


def _ahead(grid: Tensor, by: int) -> Tensor:
    """What stands so many places further on; False behind the end."""
    moved = torch.zeros_like(grid)
    moved[:, : max(0, grid.shape[1] - by)] = grid[:, by:]
    return moved


def _indices(mask: Tensor) -> Tensor:
    return mask.flatten().nonzero().squeeze(1)


def _flat(grid: Tensor) -> Tensor:
    return grid.flatten(0, 1)


# ---- what they are taught --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Lesson:
    """The target's law at the taught places, computed once for all steps.

    Args:
        logits: of the head's ids.
        logsumexp, argmax: as recorded, of the whole vocabulary.
        weights: 0 where the likeliest token is one that the head cannot say, if such places are masked.
    """

    places: _Places
    logits: Float[Tensor, "taught draft"]
    logsumexp: Float[Tensor, " taught"]
    argmax: Int[Tensor, " taught"]
    weights: Float[Tensor, " taught"]

    @classmethod
    def of(cls, batch: Batch, teacher: Teacher, places: _Places, target_ids: Tensor, mask_outside: bool) -> "_Lesson":
        argmax, logsumexp = (_flat(grid)[places.taught] for grid in (batch.argmax, batch.logsumexp))
        counted = torch.isin(argmax, target_ids) if mask_outside else torch.ones_like(argmax)
        logits = teacher.logits(_flat(batch.last_normed)[places.taught])
        return cls(places, logits, logsumexp, argmax, counted.to(logsumexp.dtype))

    def judge(
        self,
        head: AnyHead,
        out: Float[Tensor, "asked hidden"],
        step: int,
        loss: str,
        alive: Bool[Tensor, " asked"],
        ranked: bool,
    ) -> tuple[tuple[Tensor, ...], Bool[Tensor, " asked"], Int[Tensor, " ranked"]]:
        """A step's sums in the order of ``StepCounts``, where all steps so far were right, and ranks if asked for.

        Only places that count are multiplied with the head's rows: that is most of a step's time.
        """
        some, spoken = self.places.spoken[step]
        whole = len(spoken) == len(self.argmax)  # both rise, so they are the same places
        logits, logsumexp, argmax, weights = (
            each if whole else each[spoken] for each in (self.logits, self.logsumexp, self.argmax, self.weights)
        )
        said = head.logits(out[some])
        scored = weighted_loss(loss, said, logits, logsumexp, weights)
        right = head.target_ids[scored.choices] == argmax
        still = torch.zeros_like(alive)
        still[some] = alive[some] & right
        count = scored.weight.new_tensor(len(some))
        sums = (right.sum(), alive[some].sum(), still.sum(), scored.acceptance.sum())
        stood = _ranks(said, head.target_ids, argmax) if ranked else spoken[:0]
        return (scored.total, scored.weight, count, *sums), still, stood


@torch.no_grad()
def _ranks(
    logits: Float[Tensor, "some draft"], target_ids: Int[Tensor, " draft"], tokens: Int[Tensor, " some"]
) -> Int[Tensor, " some"]:
    """Where tokens stand among those of the head: the lower id first on ties, behind all others if it is no number."""
    place = torch.searchsorted(target_ids, tokens).clamp(max=len(target_ids) - 1)
    return standing(logits, place).where(target_ids[place] == tokens, 0)
