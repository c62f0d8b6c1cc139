"""What Medusa heads learn: a sequence that is known, head by head; an answer by heart; the same, cut in the middle.

Greedy texts are fixed, so that nothing here can raise a false alarm.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from lessons import everything, same, samples_of, student
from medusas import COUNT, counting, medusa_shape
from outpace.decoding.loop import Request
from outpace.drafters.load import load_drafter
from outpace.drafters.medusa_heads import MedusaHeads
from outpace.models.ends import read_ends, share_head
from outpace.models.target import Target
from outpace.training.batch import Batch
from outpace.training.counts import StepCounts
from outpace.training.course import prepare, run
from outpace.training.features import online
from outpace.training.masks import Sample
from outpace.training.medusa import MedusaLesson
from outpace.training.parallel import new_heads, weights_of
from outpace.training.ranges import HARD
from outpace.training.recipe import MedusaTraining, Recipe
from outpace.training.teacher import Teacher
from outpace.training.trainer import Report, Trainer
from pupils import NEW, answers_of, model_folder, opened
from toys import must_fail
from toys import run as generated

HEADS = 3


# ---- a sequence that is known ----------------------------------------------------------------------------------------


def taught(own: bool, loss: str, lesson: type[MedusaLesson] = MedusaLesson) -> MedusaHeads:
    """A few steps on a text that counts, from fresh heads."""
    target = counting()
    ends = read_ends(target)
    ids = torch.arange(COUNT + 8).remainder(COUNT)
    sample = Sample("counting", ids.int(), ids.ge(0))
    batch = online(target, [sample], taps=()).fetch([0])
    heads = new_heads(medusa_shape(hidden_size=COUNT, vocab_size=COUNT, own_head=own), ends.head)
    chosen = lesson(heads, Teacher(ends.embeddings, ends.head), MedusaTraining(precision="fp32", loss=loss))
    optimiser = torch.optim.AdamW(heads.parameters(), 0.05, weight_decay=0.0)
    for _ in range(40):
        chosen(batch)[0].backward()
        optimiser.step()
        optimiser.zero_grad()
    return heads


@torch.no_grad()
def counts_on(heads: MedusaHeads) -> None:
    """Behind token t head i says t + 2 + i, wherever the text stands."""
    target = counting()
    ids = torch.arange(COUNT)
    shown = online(target, [Sample("counting", ids.int(), ids.ge(0))], taps=()).fetch([0]).last_normed[0]
    said = heads.logits(shown, share_head(target)).argmax(-1)
    assert torch.equal(said, (ids[:, None] + 2 + torch.arange(4)).remainder(COUNT))


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("loss", ["cross-entropy", HARD])
def test_head_i_predicts_token_t_plus_2_plus_i(loss: str, own: bool) -> None:
    with must_fail():
        counts_on(taught_not())
    counts_on(taught(own, loss))


def taught_not() -> MedusaHeads:
    """Fresh heads say what the target says: t + 1."""
    return new_heads(medusa_shape(hidden_size=COUNT, vocab_size=COUNT), read_ends(counting()).head)


class OneFurther(MedusaLesson):
    """Planted: states are those of the place before, so that head i learns to say t + 3 + i."""

    def forward(self, batch: Batch, weights: Tensor | None = None) -> tuple[Tensor, StepCounts]:
        moved = {name: getattr(batch, name).roll(-1, 1) for name in ("ids", "argmax", "logsumexp")}
        return super().forward(replace(batch, **moved), weights)


def test_a_planted_shift_is_caught() -> None:
    heads = taught(True, HARD, OneFurther)
    with must_fail():
        counts_on(heads)


# ---- by heart --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Target:
    return opened(model_folder(tmp_path_factory.mktemp("targets") / "tiny"))


@pytest.mark.parametrize("loss", ["cross-entropy", HARD])
def test_what_is_learnt_by_heart_is_accepted(loss: str, target: Target, tmp_path: Path) -> None:
    """Every draft of an answer that was trained on."""
    answers = answers_of(target, tmp_path / "answers.jsonl", ("Why?",))
    text = f'format_version = 1\nmethod = "medusa"\ndtype = "fp32"\n[data]\nanswers = ["{answers}"]\nheld_out = 0.0\n'
    text += f"[head]\nheads = {HEADS}\nown_head = true\n[train]\nepochs = 80\nbatches_per_step = 1\n"
    chosen = Recipe.from_toml(f'{text}precision = "fp32"\nlearning_rate = 1e-2\nloss = "{loss}"\n')
    course = prepare(chosen, target, tmp_path / "work", tmp_path / "features")
    _, card = run(course, chosen, tmp_path / "card", tmp_path / "work")
    assert card.tau is None and card.acceptance_by_depth_and_rank is None, "nothing was held out"
    [sample] = course.features.samples
    prompt = sample.ids[: int(sample.loss_mask.int().argmax())].tolist()
    drafter = load_drafter(str(tmp_path / "card"), target)
    requests = [Request(tuple(prompt), max_new_tokens=NEW, eos_ids=target.eos_ids)]
    [ended] = generated(target, drafter, requests, num_draft_tokens=HEADS)
    assert ended.stats is not None and ended.stats.acceptance_by_position == (1.0,) * HEADS


# ---- going on --------------------------------------------------------------------------------------------------------


class Stopped(Exception):
    """A training that dies in the middle."""


def trainer_of(folder: Path, *, own: bool, stop: int = 0, **train: Any) -> Trainer:
    model, ends = student(), read_ends(student())
    settings = MedusaTraining(
        **({"epochs": 3, "tokens_per_batch": 30, "batches_per_step": 2, "precision": "fp32"} | train),
        checkpoint_minutes=1e-9,
    )

    def watch(report: Report) -> None:
        if report.place.step == stop:
            raise Stopped

    heads = new_heads(medusa_shape(heads=HEADS, own_head=own), ends.head)
    lesson = MedusaLesson(heads, Teacher(ends.embeddings, ends.head), settings)
    features, held = online(model, samples_of(), taps=()), online(model, samples_of(3, 1), taps=())
    return Trainer(lesson, features, held, settings, folder, identity={"method": "medusa"}, watch=watch)


@pytest.mark.parametrize("own", [False, True])
def test_it_is_gone_on_with_to_the_bit(own: bool, tmp_path: Path) -> None:
    """With a share of the places, too; with all of them it becomes something else."""
    straight = trainer_of(tmp_path / "straight", own=own, places=0.5)
    straight.train()
    with pytest.raises(Stopped):
        trainer_of(tmp_path / "cut", own=own, places=0.5, stop=5).train()
    again = trainer_of(tmp_path / "cut", own=own, places=0.5)
    again.train(resume=True)
    assert again.place.step == straight.place.step > 6
    assert same(everything(straight), everything(again))
    other = trainer_of(tmp_path / "other", own=own)
    other.train()
    assert not same(everything(straight), everything(other))


def test_a_share_of_the_places(tmp_path: Path) -> None:
    """Others in each step, by no means all; what they count is what is said to count. Measured are all of them."""
    trainer = trainer_of(tmp_path, own=False, places=0.5)
    lesson, batch = trainer.given, trainer.features.fetch([0, 1, 2])
    assert isinstance(lesson, MedusaLesson)
    whole = weights_of(batch, HEADS)
    counted = torch.zeros(HEADS, dtype=torch.float64)
    drawn = []
    for step in range(40):
        lesson.begin(step)
        kept, (_, counts) = lesson.kept(batch), lesson(batch)
        assert kept is not None and torch.equal(counts.weights, lesson.weights(batch))
        assert torch.equal(kept, lesson.kept(batch)) and bool((counts.weights <= whole).all())
        counted += counts.weights
        drawn.append(kept)
    assert len({tuple(kept.flatten().tolist()) for kept in drawn}) > 30
    # Seeds are fixed: the mean share is 0.5, and its spread over 40 steps of a dozen places below 0.03.
    assert bool(((counted / (40 * whole) - 0.5).abs() < 0.1).all())
    lesson.eval()
    assert lesson.kept(batch) is None and torch.equal(lesson.weights(batch), whole)


def test_a_bf16_training_is_near_the_exact_one(tmp_path: Path) -> None:
    """Products are rounded, weights are not: losses are a part in fifty apart at the most."""
    exact, rough = (trainer_of(tmp_path / name, own=False, precision=name) for name in ("fp32", "bf16"))
    for trainer in (exact, rough):
        trainer.train()
    for one, other in zip(exact.validate().loss, rough.validate().loss, strict=True):
        assert one is not None and other is not None and abs(one - other) < 0.02 * one
    assert {weight.dtype for weight in rough.pupil.parameters()} == {torch.float32}
