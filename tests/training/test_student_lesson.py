"""The lesson of a distillation: own answers are drawn once a step, and a training is gone on with to the bit."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from lessons import same
from outpace.models.ends import read_ends
from outpace.models.student import Student
from outpace.models.target import Target
from outpace.training import student as module
from outpace.training.batch import Batch
from outpace.training.checkpoint import checkpoints
from outpace.training.features import online
from outpace.training.losses import LOSSES
from outpace.training.recipe import StudentTraining
from outpace.training.student import StudentLesson
from outpace.training.teacher import Teacher
from outpace.training.trainer import Report, Trainer
from students import target_at, texts_of
from toys import must_fail

OFTEN = 1e-9
"""Minutes between checkpoints: one after every step."""


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Target:
    return target_at(tmp_path_factory.mktemp("targets") / "tiny")


# ---- its own answers -------------------------------------------------------------------------------------------------


def settings_of(**changes: Any) -> StudentTraining:
    said = {"epochs": 3, "tokens_per_batch": 60, "batches_per_step": 2, "learning_rate": 3e-2, "precision": "fp32"}
    return StudentTraining(**(said | {"checkpoint_minutes": OFTEN} | changes))  # type: ignore[arg-type]


def lesson_of(target: Target, kind: type[StudentLesson] = StudentLesson, **changes: Any) -> StudentLesson:
    ends = read_ends(target)
    made = module.new_student(target, depth=1, width=16, heads=2, feed_forward=16)
    return kind(made, Teacher(ends.embeddings, ends.head), settings_of(**changes), target)


def batch_of(target: Target) -> Batch:
    return online(target, texts_of(target), taps=()).fetch([0, 1, 2, 3])


def read_once(target: Target, lesson: StudentLesson) -> None:
    """What ``weights`` counted is what ``forward`` reads, drawn once; and it is not what stood there."""
    batch, draws, honest = batch_of(target), [], module.mixed_batch

    def mixed(*given: Any) -> Batch:
        draws.append(honest(*given))
        return draws[-1]

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(module, "mixed_batch", mixed)
        lesson.begin(3)
        weights = lesson.weights(batch)
        objective, counts = lesson(batch, weights)
    assert len(draws) == 1 and draws[0] is not batch
    assert torch.equal(counts.weights, weights) and float(weights) == int(draws[0].answers[:, 1:].sum())
    shown, _ = StudentLesson(lesson.pupil, lesson.teacher, settings_of())(draws[0])
    torch.testing.assert_close(objective, shown)
    stored, _ = StudentLesson(lesson.pupil, lesson.teacher, settings_of())(batch)
    assert abs(float((objective - stored).detach())) > 1e-3


class ReadsWhatStood(StudentLesson):
    """Planted: it counts its own answers and learns the stored ones."""

    def forward(self, batch: Batch, weights: Tensor | None = None) -> Any:
        return StudentLesson(self.pupil, self.teacher, replace(self.settings, on_policy=0.0))(batch, weights)


class DrawsTwice(StudentLesson):
    """Planted: what was drawn is forgotten."""

    def forward(self, batch: Batch, weights: Tensor | None = None) -> Any:
        self.drawn = {}
        return super().forward(batch, weights)


@pytest.mark.parametrize("share", [0.5, 1.0])
def test_a_batch_is_drawn_once_a_step(share: float, target: Target) -> None:
    read_once(target, lesson_of(target, on_policy=share))


@pytest.mark.parametrize("kind", [ReadsWhatStood, DrawsTwice])
def test_planted_faults_of_drawing(kind: type[StudentLesson], target: Target) -> None:
    with must_fail():
        read_once(target, lesson_of(target, kind, on_policy=1.0))


def test_every_divergence_is_taught_by_its_name(target: Target) -> None:
    batch, found = batch_of(target), {}
    for loss in LOSSES:
        lesson = lesson_of(target, loss=loss)
        found[loss] = float(lesson(batch)[1].losses)
        assert found[loss] == float(module.distil(lesson.pupil, batch, lesson.teacher, loss=loss).counts.losses)
    assert len({round(value, 6) for value in found.values()}) == len(LOSSES) > 5


def test_held_out_texts_are_read_as_they_are(target: Target) -> None:
    lesson, batch = lesson_of(target, on_policy=1.0), batch_of(target)
    plain, _ = lesson_of(target)(batch)
    drawn, _ = lesson(batch)
    lesson.eval()
    found, _ = lesson(batch)
    assert torch.equal(found, plain) and not torch.equal(drawn, plain)


# ---- going on --------------------------------------------------------------------------------------------------------


class Stopped(Exception):
    """A training that dies in the middle."""


def trainer_of(
    target: Target, folder: Path, *, stop: int = 0, kind: type[StudentLesson] = StudentLesson, **changes: Any
) -> Trainer:
    def watch(report: Report) -> None:
        if report.place.step == stop:
            raise Stopped

    lesson, texts = lesson_of(target, kind, **changes), texts_of(target)
    features, held = online(target, texts, taps=()), online(target, texts[:1], taps=())
    return Trainer(lesson, features, held, settings_of(**changes), folder, identity={}, watch=watch)


def everything(trainer: Trainer) -> dict[str, Tensor]:
    found = {**trainer.pupil.state_dict(), **trainer.optimiser.tensors()}
    return {name: tensor.detach().clone() for name, tensor in found.items()}


def gone_on(target: Target, folder: Path, share: float, kind: type[StudentLesson] = StudentLesson) -> None:
    """Cut in the middle of an epoch and gone on with, it becomes what it would have become, to the bit."""
    straight = trainer_of(target, folder / "straight", kind=kind, on_policy=share, checkpoint_minutes=60.0)
    straight.train()
    with pytest.raises(Stopped):
        trainer_of(target, folder / "cut", stop=4, kind=kind, on_policy=share).train()
    again = trainer_of(target, folder / "cut", kind=kind, on_policy=share, checkpoint_minutes=60.0)
    again.train(resume=True)
    assert again.place.step == straight.place.step > 4
    assert same(everything(straight), everything(again))


@pytest.mark.parametrize("share", [0.0, 0.6])
def test_it_is_gone_on_with_to_the_bit(share: float, target: Target, tmp_path: Path) -> None:
    gone_on(target, tmp_path, share)


class CountsItself(StudentLesson):
    """Planted: it counts its steps from where it was made."""

    def begin(self, step: int) -> None:
        super().begin(self.step + 1)


class SpeaksAsItBegan(StudentLesson):
    """Planted: what draws are the weights of the first step of a run."""

    def begin(self, step: int) -> None:
        speaker = self.speaker
        super().begin(step)
        self.speaker = speaker


@pytest.mark.parametrize("kind", [CountsItself, SpeaksAsItBegan])
def test_planted_faults_of_going_on(kind: type[StudentLesson], target: Target, tmp_path: Path) -> None:
    with must_fail():
        gone_on(target, tmp_path, 1.0, kind)


def test_tied_rows_stand_in_a_checkpoint_once(target: Target, tmp_path: Path) -> None:
    trainer = trainer_of(target, tmp_path)
    trainer.train()
    pupil = trainer.pupil
    assert isinstance(pupil, Student) and pupil.rows is pupil.model.get_input_embeddings().weight
    held = load_file(checkpoints(tmp_path)[-1] / "state.safetensors")
    weights = [name for name in held if name.startswith("head.")]
    assert weights and sum(held[name].numel() for name in weights) == pupil.num_parameters
    twin = lesson_of(target).pupil
    twin.load_state_dict(pupil.state_dict())
    assert twin.rows is twin.model.get_input_embeddings().weight and torch.equal(twin.rows, pupil.rows)
