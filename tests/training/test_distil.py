"""Distillation against its definition, one prefix at a time; a student that has learnt its target drafts as it does."""

from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from hosts import liven
from lessons import samples_of
from lessons import student as tiny_target
from outpace.decoding.generate import generate
from outpace.drafters.small import Small
from outpace.errors import UsageError
from outpace.models.ends import read_ends
from outpace.models.student import Student, new_student
from outpace.models.student_files import student_target
from outpace.models.toy import random_table, table_target
from outpace.training import distil as module
from outpace.training.batch import Batch
from outpace.training.counts import StepCounts
from outpace.training.distil import (
    Distilled,
    distil,
    over_the_vocabulary,
    over_the_vocabulary_plain,
    weights_of,
)
from outpace.training.features import online
from outpace.training.losses import LOSSES, weighted_loss_plain
from outpace.training.teacher import Teacher
from outpace.verification.expectation import acceptance
from toys import must_fail
from unrolled import VOCAB, Recorded, recorded, toy_shape

SHAPE = toy_shape()
MASKS = [[0, 0, 1, 1, 0, 1, 0, 0], [0, 1, 1], [0, 0, 0, 0], [0, 1, 0, 0, 0], [1]]
"""Answers in the middle, at the end, nowhere, at the first place that can be spoken of; and a text of one token."""


def toy_student(vocab_size: int = VOCAB, seed: int = 7) -> Student:
    """Lively, in float64."""
    made = new_student(
        table_target(random_table(vocab_size)),
        depth=2,
        width=8,
        heads=2,
        kv_heads=1,
        feed_forward=12,
        embeddings="random",
    )
    liven(made.model, seed)
    return made.double()


def teacher_of(made: Recorded) -> Teacher:
    return Teacher(made.embeddings, made.rows)


# ---- the law ---------------------------------------------------------------------------------------------------------


def literally(student: Student, made: Recorded, loss: str) -> dict[str, Tensor]:
    """Every sum, prefix by prefix: each is read alone, and judged against the target's whole law behind it."""
    batch = made.batch
    sums = {name: torch.zeros((), dtype=torch.float64) for name in ("loss", "places", "matches", "accepted")}
    said, taught = [], []
    for row, length in enumerate(batch.lengths):
        for end in range(1, length):
            if bool(batch.loss_mask[row, end]):
                state = student(batch.ids[row : row + 1, :end])[0, -1]
                said.append((student.rows @ state)[: len(made.rows)])
                taught.append(made.rows @ batch.last_normed[row, end - 1])
    for own, law in zip(said, taught, strict=True):
        both = torch.zeros(2, max(len(own), len(law)), dtype=torch.float64)
        both[0, : len(law)], both[1, : len(own)] = law.softmax(0), own.detach().softmax(0)
        sums["accepted"] += acceptance(both[0], both[1])
        sums["matches"] += own.argmax() == law.argmax()
        sums["places"] += 1
        value = -(law[: len(own)].softmax(0) * (own.log_softmax(0) - law[: len(own)].log_softmax(0))).sum()
        if loss != "forward-kl":
            weights = torch.ones(len(said), dtype=torch.float64)
            whole = torch.stack([each.logsumexp(0) for each in taught])
            pair = torch.stack(said), torch.stack([each[: len(own)] for each in taught])
            sums["loss"] = weighted_loss_plain(loss, *pair, whole, weights).total
        else:
            sums["loss"] = sums["loss"] + value
    return sums


def gradients(student: Student, total: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(total, list(student.parameters()), materialize_grads=True))


def case(loss: str = "forward-kl", vocab_size: int = VOCAB, seed: int = 0) -> None:
    """Sums and gradients are those of the definition, but for the norms, which transformers computes in fp32."""
    made, student = recorded(SHAPE, MASKS, seed=seed, padding=2), toy_student(vocab_size)
    made.batch.ids.remainder_(vocab_size).masked_fill_(made.batch.last_normed[..., 0].isnan(), -7)
    found, expected = distil(student, made.batch, teacher_of(made), loss=loss), literally(student, made, loss)
    counts = found.counts
    torch.testing.assert_close(found.loss, expected["loss"])
    torch.testing.assert_close(counts.losses[0], expected["loss"].detach())
    for name, own in (("places", "places"), ("matches", "matches"), ("accepted", "accepted")):
        torch.testing.assert_close(getattr(counts, own)[0], expected[name])
    assert counts.weights == counts.reached == counts.places == weights_of(made.batch) == 6
    assert counts.kept == counts.matches
    for ours, theirs in zip(gradients(student, found.loss), gradients(student, expected["loss"]), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    mean = found.objective()
    torch.testing.assert_close(mean, found.loss / 6)
    torch.testing.assert_close(found.objective(torch.tensor([12.0], dtype=torch.float64)), found.loss / 12)


@pytest.mark.parametrize("loss", LOSSES)
def test_every_loss_is_its_definition_behind_every_prefix(loss: str) -> None:
    case(loss)


@pytest.mark.parametrize("loss", ["forward-kl", "reverse-kl", "jsd-0.5", "lk-hybrid"])
@pytest.mark.parametrize("vocab_size", [9, 21])
def test_vocabularies_that_are_padded_otherwise(loss: str, vocab_size: int) -> None:
    """What the student says beyond the target's ids is cut off, what the target says beyond its own is rejected."""
    case(loss, vocab_size)


def shifted(by: int) -> Any:
    """The target's law of a place further on, or further back."""

    def fault(student: Student, batch: Batch, teacher: Teacher, **options: Any) -> Distilled:
        moved = {name: getattr(batch, name).roll(by, 1) for name in ("last_normed", "argmax", "logsumexp")}
        return honest(student, replace(batch, **moved), teacher, **options)

    return fault


honest = distil


@pytest.mark.parametrize("by", [1, -1])
def test_a_law_of_the_place_beside_is_seen(by: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: the student at t is taught what the target says at t - 1, or at t + 1."""
    monkeypatch.setitem(globals(), "distil", shifted(by))
    with must_fail():
        case()


def test_a_mask_that_is_not_shifted_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: a place counts where its own token is an answer's, not the next one."""
    monkeypatch.setattr(module, "_asked", lambda batch: batch.answers)
    with must_fail():
        case()


def test_a_text_that_sees_what_stands_behind_it_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: an id that there is not reaches the embedding where filler stands."""
    monkeypatch.setattr(module, "_ids", lambda batch: batch.ids)
    with pytest.raises(IndexError):
        case()


def test_padding_and_company_bring_nothing() -> None:
    """A text alone, padded, and beside others: the same sums; a batch's places divide the parts of a whole."""
    made, student = recorded(SHAPE, MASKS, padding=2), toy_student()
    whole = distil(student, made.batch, teacher_of(made))
    total = torch.zeros(1, dtype=torch.float64)
    counts, objectives = StepCounts.none(1), torch.zeros((), dtype=torch.float64)
    for row, length in enumerate(made.batch.lengths):
        cut: dict[str, Any] = {
            name: getattr(made.batch, name)[row : row + 1, :length]
            for name in ("ids", "loss_mask", "features", "last_normed", "argmax", "logsumexp")
        }
        part = distil(student, Batch(**cut, lengths=[length]), teacher_of(made))
        counts, total = counts + part.counts, total + part.loss.detach()
        objectives = objectives + part.objective(whole.counts.weights).detach()
    torch.testing.assert_close(total[0], whole.loss.detach())
    torch.testing.assert_close(objectives, whole.objective().detach())
    for ours, theirs in zip(vars(counts).values(), vars(whole.counts).values(), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_a_batch_without_an_answer_is_zero_and_takes_part() -> None:
    """Every weight has a gradient, of 0: a process of several that has nothing to learn neither hangs nor adds."""
    made, student = recorded(SHAPE, [[0, 0, 0], [1]], padding=1), toy_student()
    found = distil(student, made.batch, teacher_of(made))
    assert found.loss == found.objective() == 0 and weights_of(made.batch) == 0
    found.objective(torch.tensor([5.0], dtype=torch.float64)).backward()
    assert all(not weight.grad.any() for weight in student.parameters())
    assert found.counts.tau is None and found.counts.acceptance == (None,)


def test_refusals() -> None:
    made, student = recorded(SHAPE, MASKS), toy_student()
    with pytest.raises(UsageError, match="the loss is 'mse'; allowed: cross-entropy"):
        distil(student, made.batch, teacher_of(made), loss="mse")
    with pytest.raises(UsageError, match="the recorded states are 8 wide, the teacher's rows 7; allowed: those of one"):
        distil(student, made.batch, Teacher(made.embeddings[:, :7], made.rows[:, :7]))
    with pytest.raises(UsageError, match=r"a text holds the id \d+; allowed: the 9 ids of the student"):
        distil(toy_student(9), made.batch, teacher_of(made))
    student.model.config.max_position_embeddings = 7
    with pytest.raises(UsageError, match="a text has 8 tokens; allowed: up to the 7 positions of the student"):
        distil(student, made.batch, teacher_of(made))


# ---- in slices -------------------------------------------------------------------------------------------------------


class Places:
    """States of both sides at some places, and their rows; float64 unless told otherwise."""

    def __init__(self, count: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> None:
        generator = torch.Generator().manual_seed(seed)

        def noise(*sizes: int) -> Tensor:
            return torch.randn(sizes, generator=generator, dtype=torch.float64).to(dtype)

        self.hidden, self.rows, self.last = noise(count, 6), noise(VOCAB, 6), noise(count, 5)
        self.teacher = Teacher(noise(VOCAB, 5), noise(VOCAB, 5))
        self.sums = self.teacher.logits(self.last).logsumexp(-1)
        self.hidden.requires_grad_()
        self.rows.requires_grad_()

    def given(self) -> tuple[Any, ...]:
        return self.hidden, self.rows, self.teacher, self.last, self.sums

    def gradients(self, total: Tensor) -> tuple[Tensor, ...]:
        return torch.autograd.grad(3 * total, (self.hidden, self.rows))


@given(name=st.sampled_from(LOSSES), count=st.integers(0, 9), at_once=st.integers(1, 10), seed=st.integers(0, 99))
@settings(max_examples=60)
def test_slices_add_up_to_the_whole(name: str, count: int, at_once: int, seed: int) -> None:
    """Value and both gradients, whatever it is multiplied by; the hybrid's blend is that of all places."""
    made = Places(count, seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "LOGITS", at_once * VOCAB)
        fast = over_the_vocabulary(name, *made.given())
    plain = over_the_vocabulary_plain(name, *made.given())
    torch.testing.assert_close(fast.total, plain.total)
    torch.testing.assert_close(fast.acceptance, plain.acceptance)
    assert torch.equal(fast.choices, plain.choices) and fast.weight == plain.weight == count
    for ours, theirs in zip(made.gradients(fast.total), made.gradients(plain.total), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-7, atol=1e-9)


def test_no_more_logits_stand_in_memory_than_a_slice_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """At once, and for the way back; the plain form keeps them all."""
    made, seen, kept = Places(40), [], []
    honest_loss = module.weighted_loss

    def noted(name: str, logits: Tensor, *rest: Any) -> Any:
        seen.append(logits.numel())
        return honest_loss(name, logits, *rest)

    def count(tensor: Tensor) -> Tensor:
        kept.append(tensor.numel())
        return tensor

    monkeypatch.setattr(module, "weighted_loss", noted)
    monkeypatch.setattr(module, "LOGITS", 7 * VOCAB + 3)
    with saved_tensors_hooks(count, lambda tensor: tensor):
        over_the_vocabulary("forward-kl", *made.given())
    assert max(seen) == 7 * VOCAB and sum(seen) == 40 * VOCAB
    # Within a slice its gradient is kept until it is used; behind it only the two gradients are.
    assert max(kept) == max(7 * VOCAB, made.hidden.numel()) and kept[-2:] == [made.hidden.numel(), made.rows.numel()]
    kept.clear()
    with saved_tensors_hooks(count, lambda tensor: tensor):
        over_the_vocabulary_plain("forward-kl", *made.given())
    assert max(kept) == 40 * VOCAB


def test_no_gradient_is_worked_out_where_none_is_wanted() -> None:
    made = Places(5)
    with torch.no_grad():
        assert not over_the_vocabulary("lk-hybrid", *made.given()).total.requires_grad
    frozen = made.hidden.detach(), made.rows.detach(), *made.given()[2:]
    assert not over_the_vocabulary("forward-kl", *frozen).total.requires_grad


@pytest.mark.parametrize("name", LOSSES)
def test_bf16_products_are_near_the_exact_ones(name: str) -> None:
    """Rounded are the logits and their gradients: a part in 256, of sums whose parts have either sign."""
    made = Places(60, dtype=torch.float32)
    exact = over_the_vocabulary(name, *made.given())
    with torch.autocast("cpu", torch.bfloat16):
        rough = over_the_vocabulary(name, *made.given())
    assert rough.total.dtype == torch.float32
    torch.testing.assert_close(rough.total, exact.total, rtol=0.02, atol=0)
    for ours, theirs in zip(made.gradients(rough.total), made.gradients(exact.total), strict=True):
        assert ours.dtype == torch.float32
        assert float((ours - theirs).norm()) < 0.02 * float(theirs.norm())


# ---- learning --------------------------------------------------------------------------------------------------------


@cache
def lesson() -> tuple[Batch, Teacher]:
    """The tiny target's own texts, read by it."""
    target, samples = tiny_target(), samples_of()
    ends = read_ends(target)
    features = online(target, samples, taps=(0,))
    assert len(features.samples) == len(samples)
    return features.fetch(range(len(samples))), Teacher(ends.embeddings, ends.head)


def taught(steps: int, loss: str = "forward-kl", law: Any = distil) -> tuple[Student, StepCounts]:
    """A student of half its target's depth, and what it shows in the end."""
    made = new_student(tiny_target(), depth=1, width=32, heads=4, feed_forward=64, tied=False, seed=1)
    batch, teacher = lesson()
    optimiser = torch.optim.AdamW(made.parameters(), 5e-3, weight_decay=0.0)
    for _ in range(steps):
        law(made, batch, teacher, loss=loss).objective().backward()
        optimiser.step()
        optimiser.zero_grad()
    with torch.no_grad():
        return made, honest(made, batch, teacher, loss=loss).counts


@cache
def memorised() -> tuple[Student, StepCounts]:
    return taught(300)


def test_a_student_learns_its_target_by_heart() -> None:
    _, counts = memorised()
    assert counts.acceptance[0] is not None and counts.acceptance[0] > 0.95
    assert counts.accuracy == counts.conditional == (1.0,) and counts.tau == 2.0


@pytest.mark.parametrize("loss", ["reverse-kl", "total-variation", "jsd-0.5", "jsd-0.1", "lk-hybrid"])
def test_so_it_does_by_other_losses(loss: str) -> None:
    """Fewer steps: far above what it begins with."""
    before, after = taught(0)[1].acceptance[0], taught(100, loss)[1].acceptance[0]
    assert before is not None and after is not None and before < 0.15 and after > 0.65


@pytest.mark.parametrize("by", [1, -1])
def test_a_student_of_the_place_beside_learns_something_else(by: int) -> None:
    """Planted: its own sums look well, and what it would say is refused."""
    _, counts = taught(100, law=shifted(by))
    assert counts.acceptance[0] is not None and counts.acceptance[0] < 0.5


def test_what_it_drafts_is_accepted_and_the_text_is_the_targets() -> None:
    """Trained is served: every draft of a student that knows these texts stands, and no text is ever another one."""
    target, (made, _) = tiny_target(), memorised()
    drafter = Small(student_target(made, target), target)
    samples = samples_of()
    for sample in samples:
        prompt = sample.ids[~sample.loss_mask].tolist()
        new = len(sample) - len(prompt)
        result = generate(target, drafter, prompt, num_draft_tokens=3, max_new_tokens=new, temperature=0.0)
        assert result.token_ids == sample.ids[sample.loss_mask].tolist()
        assert result.stats.speculation.acceptance == 1.0
    for prompt in ([9], [5, 6, 7], [40, 2]):
        plain, drafted = (generate(target, one, prompt, max_new_tokens=20, temperature=0.0) for one in (None, drafter))
        assert plain.token_ids == drafted.token_ids
