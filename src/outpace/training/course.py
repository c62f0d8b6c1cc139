"""A whole training: a recipe's data and features, the pupil that its method makes, its steps, and its card.

Knows nothing of terminals, nor of what one method does that others do not.
"""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from accelerate import Accelerator
from torch import nn

from outpace.decoding.text import Text, text_of
from outpace.drafters.record import BESIDE, Card
from outpace.errors import UsageError, WeightsError
from outpace.models.staging import Progress, disk_errors, silent
from outpace.models.target import Target
from outpace.training.checkpoint import checkpoints
from outpace.training.features import Features, online, record
from outpace.training.gather import Gathered, gather, split
from outpace.training.lesson import Lesson
from outpace.training.masks import Sample
from outpace.training.method import Method
from outpace.training.methods import METHODS
from outpace.training.plot import plot
from outpace.training.processes import made_once, processes
from outpace.training.recipe import Data, Recipe
from outpace.training.rounds import Walked
from outpace.training.shards import name_of
from outpace.training.trainer import Trained, Trainer, Watch


@dataclass(frozen=True)
class Course:
    """All that a training needs.

    Args:
        target, text: who is drafted for, and its tokenizer.
        gathered: the samples and where they are from.
        features, held_out: what is trained on, and what only measures.
        method: of the recipe, for this target.
        lesson: with the pupil before its first step.
        identity: what must be the same for a training to be gone on with, beside its own settings.
        data: of the card.
    """

    target: Target
    text: Text
    gathered: Gathered
    features: Features
    held_out: Features | None
    method: Method
    lesson: Lesson
    identity: Mapping[str, Any]
    data: Mapping[str, Any]


def prepare(
    recipe: Recipe,
    target: Target,
    work: Path,
    features: Path,
    progress: Progress = silent,
    accelerator: Accelerator | None = None,
) -> Course:
    """Gather data, record features and make a pupil; of several processes the first one gathers and records.

    Args:
        recipe: what to do.
        target: opened as the recipe says.
        work: the folder of what is written on the way.
        features: the folder of recorded features; several trainings may share it.
        progress: told what is being done.
        accelerator: the processes; those that a launcher started by default.

    Raises:
        UsageError, WeightsError, UnsupportedError, NumericsError: as for gathering, recording and the recipe's method;
            or the target has no folder with a tokenizer.
    """
    everyone = processes() if accelerator is None else accelerator
    text, method = text_for(target), METHODS[recipe.method](recipe, target)
    gathered = made_once(everyone, lambda: gather(recipe.data, target, text, work, progress))
    kept, held = divided(gathered.samples, recipe.data)
    limit = longest(recipe, method)

    def read(samples: list[Sample]) -> Features:
        if recipe.data.features == "online":
            return online(target, samples, taps=method.taps, limit=limit)
        return made_once(
            everyone, lambda: record(target, samples, features, taps=method.taps, limit=limit, progress=progress)
        )

    training, measuring = read(kept), read(held) if held else None
    begun = method.begin(training)
    data = _described(gathered, training, measuring, begun.data)
    identity = {
        "target": target.fingerprint,
        "dtype": str(target.dtype).removeprefix("torch."),
        "data": data["sha256"],
        "held_out": None if measuring is None else name_of({}, measuring.samples),
        **begun.identity,
    }
    return Course(target, text, gathered, training, measuring, method, begun.lesson, identity, data)


def _described(
    gathered: Gathered, training: Features, measuring: Features | None, more: Mapping[str, Any]
) -> dict[str, Any]:
    """The data, as a card tells of it, with what more the method knows of it."""
    return {
        "sources": gathered.sources,
        "samples": len(training.samples),
        "tokens": sum(map(len, training.samples)),
        "answer_tokens": sum(int(sample.loss_mask.sum()) for sample in training.samples),
        "held_out": 0 if measuring is None else len(measuring.samples),
        "too_long": len(training.fitting.too_long),
        "sha256": name_of({}, training.samples),
        **more,
        "rejected": gathered.rejected,
    }


def text_for(target: Target) -> Text:
    """A target's tokenizer.

    Raises:
        WeightsError: it has no folder, or none that can be read there.
    """
    if target.folder is None:
        raise WeightsError(f"the target {target.name!r} has no folder to read a tokenizer from")
    return text_of(target.folder)


def longest(recipe: Recipe, method: Method) -> int:
    """The most tokens of a sample: as the recipe says, and no more than the pupil and a batch have room for."""
    return min(recipe.data.limit, method.max_positions, recipe.train.tokens_per_batch)


def divided(samples: Sequence[Sample], data: Data) -> tuple[list[Sample], list[Sample]]:
    """Samples to train on, and those held out.

    Raises:
        UsageError: all are held out.
    """
    kept, held = split(samples, data.held_out, data.seed)
    if not kept:
        raise UsageError(f"all {len(held)} samples are held out; allowed: a share of them, not all")
    return kept, held


def run(
    course: Course,
    recipe: Recipe,
    out: Path,
    work: Path,
    *,
    resume: bool = False,
    accelerator: Accelerator | None = None,
    watch: Watch | None = None,
) -> tuple[Trained, Card]:
    """Train a pupil and write it with its card, the log of its training, the recipe, and a picture if one can be drawn.

    Args:
        course: from ``prepare``.
        recipe: the same.
        out: the folder of the drafter.
        work: of checkpoints and the log.
        resume: go on from the last checkpoint, where there is one.
        accelerator, watch: as for ``Trainer``.

    Raises:
        UsageError: as for ``require_room`` and ``Trainer.train``.
        WeightsError, NumericsError, KeyboardInterrupt: as for ``Trainer.train`` and ``Method.write``.
    """
    require_room(recipe, out, work, resume)
    trainer = Trainer(
        course.lesson,
        course.features,
        course.held_out,
        recipe.train,
        work,
        identity=course.identity,
        accelerator=accelerator,
        watch=watch,
    )
    trained = trainer.train(resume=resume)
    pupil, method = trained.pupil.cpu(), course.method
    rates = walk(course, recipe, pupil) if trainer.accelerator.is_main_process else None
    card = method.card(
        pupil,
        steps=trained.place.step,
        data=course.data,
        recipe=recipe.to_dict(),
        acceptance_by_position=None if rates is None else rates.acceptance_by_position,
        acceptance_by_rank=None if rates is None else rates.acceptance_by_rank,
        acceptance_by_depth_and_rank=None if rates is None else rates.acceptance_by_depth_and_rank,
        tau=None if rates is None else rates.tau,
    )
    if trainer.accelerator.is_main_process:
        title = f"{method.what} for {Path(course.target.name).name}: {trained.place.step:,} steps"
        method.write(out, pupil, card, _beside(recipe, work, title))
    return trained, card


def require_room(recipe: Recipe, out: Path, work: Path, resume: bool) -> None:
    """Refuse a training that would have no place in the end, or stand in the place of another one.

    Args:
        recipe, out, work, resume: as for ``run``.

    Raises:
        UsageError: ``out`` holds something else than a drafter; or there are checkpoints, and ``resume`` was not asked
            for.
    """
    METHODS[recipe.method].require_place(out)
    if not resume and checkpoints(work):
        raise UsageError(
            f"{work} holds a training already; allowed: to go on with it (--resume), or another folder",
            hint=f"remove {work} to begin anew",
        )


def _beside(recipe: Recipe, work: Path, title: str) -> dict[str, Path]:
    """What is put beside a card, by name; where no picture can be drawn, a notice says why."""
    log, said, picture = (work / name for name in BESIDE)
    with disk_errors(work):
        said.write_text(recipe.to_toml(), "utf-8")
    found = {path.name: path for path in (log, said)}
    try:
        plot(log, picture, title)
    except UsageError as error:
        warnings.warn(f"{error.message}; the drafter goes without", stacklevel=3)
        return found
    return found | {picture.name: picture}


def walk(course: Course, recipe: Recipe, pupil: nn.Module) -> Walked | None:
    """What chains of a pupil would be accepted on prompts that were held out, its weights rounded as its card has them.

    Returns:
        None where nothing was held out, or nothing is to be measured.
    """
    held = [] if course.held_out is None else course.held_out.samples[: recipe.walk.prompts]
    if not held:
        return None
    prompts = [sample.ids[: int(sample.loss_mask.int().argmax())].tolist() for sample in held]
    return course.method.walk(pupil, course.lesson, prompts)
