"""Tiny lessons of every method, and trainings of them in one process or in two.

Knows nothing of what is tested. Import it as ``together``, as ``lessons``.
"""

import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from lessons import PLAIN, SPOKEN, ids_said, muted, samples_of, student
from outpace.drafters.medusa_heads import MedusaShape
from outpace.models.ends import read_ends
from outpace.models.student import new_student
from outpace.training.anatomy import first_shape_for, new_first, new_head, shape_for
from outpace.training.eagle1 import Eagle1Lesson
from outpace.training.eagle3 import Eagle3Lesson
from outpace.training.features import online
from outpace.training.lesson import Lesson
from outpace.training.masks import Sample
from outpace.training.medusa import MedusaLesson
from outpace.training.parallel import new_heads
from outpace.training.recipe import (
    FirstSettings,
    FirstTraining,
    HeadSettings,
    MedusaTraining,
    StudentTraining,
    TrainSettings,
)
from outpace.training.sampled import WholeLesson
from outpace.training.student import StudentLesson
from outpace.training.teacher import Teacher
from outpace.training.trainer import Trainer

METHODS: dict[str, type[TrainSettings]] = {
    "eagle3": TrainSettings,
    "eagle1": FirstTraining,
    "medusa": MedusaTraining,
    "distil": StudentTraining,
}
EXACT: dict[str, Any] = {"epochs": 1, "learning_rate": 3e-3, "precision": "fp32", "batches_per_step": 2}


def settings_of(method: str, **train: Any) -> Any:
    """Steps of exact arithmetic of two batches."""
    return METHODS[method](**(EXACT | train))


def lesson_of(method: str, samples: Sequence[Sample], settings: Any, own_head: bool = False) -> Lesson:
    """A pupil of a method before its first step, with what it is taught; the target is that of ``lessons``.

    Args:
        own_head: of Medusa heads alone.
    """
    target = student()
    ends = read_ends(target)
    teacher = Teacher(ends.embeddings, ends.head)
    lesson: Lesson
    if method == "eagle3":
        ids = ids_said(samples)
        head = new_head(shape_for(target, HeadSettings(**PLAIN, draft_vocab_size=SPOKEN)), ids, 0)
        return Eagle3Lesson(head, Teacher.of(ends.embeddings, ends.head, ids), settings)
    if method == "eagle1":
        lesson = Eagle1Lesson(new_first(first_shape_for(target, FirstSettings(False)), 0), teacher, settings)
    elif method == "medusa":
        shape = MedusaShape(ends.head.shape[1], target.vocab_size, heads=3, layers=1, own_head=own_head)
        lesson = MedusaLesson(new_heads(shape, teacher.rows), teacher, settings)
    else:
        model = new_student(target, depth=1, width=16, heads=2, embeddings="random")
        lesson = StudentLesson(model, teacher, settings)
    assert isinstance(lesson, WholeLesson)
    lesson.choose(samples, target.eos_ids)
    return lesson


def training(
    folder: Path,
    method: str,
    *,
    count: int = 6,
    mute: Sequence[int] = (),
    own_head: bool = False,
    **train: Any,
) -> Trainer:
    """A trainer of a tiny pupil; each text is a batch of its own, and those that are ``mute`` teach nothing."""
    samples = samples_of(count)
    settings = settings_of(method, tokens_per_batch=max(map(len, samples)), **train)
    lesson = lesson_of(method, samples, settings, own_head)
    taps = lesson.pupil.shape.taps if method == "eagle3" else ()  # type: ignore[union-attr]
    features = online(student(), samples, taps=taps)
    seen = muted(features, mute) if mute else features
    return Trainer(lesson, seen, None, settings, folder, identity={"data": "toys"})


def in_two(script: str, root: Path) -> None:
    """Run a script in two processes that know of one another; its argument is the folder where both write."""
    if not (torch.distributed.is_available() and torch.distributed.is_gloo_available()):
        pytest.skip("this build of torch has no gloo, by which processes on CPUs talk to each other")
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    shared = {
        "PYTHONPATH": str(Path(__file__).parent),
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "OMP_NUM_THREADS": "1",
        "ACCELERATE_USE_CPU": "true",
    }
    processes = [
        subprocess.Popen(
            [sys.executable, script, str(root)],
            env=os.environ | shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
        )
        for rank in range(2)
    ]
    try:
        assert [process.wait(900) for process in processes] == [0, 0]
    finally:
        for process in processes:
            process.kill()
            process.wait()
