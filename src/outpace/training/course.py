"""A whole training: a recipe's data and features, the head's vocabulary and beginning, its steps, and its card.

Knows nothing of terminals.
"""

import copy
import hashlib
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator

from outpace.decoding.text import Text, text_of
from outpace.drafters.card import BESIDE, OURS, Card, write_card
from outpace.drafters.head import Head, HeadShape
from outpace.drafters.stored import require_place
from outpace.errors import UsageError, WeightsError
from outpace.models.ends import read_ends
from outpace.models.staging import Progress, disk_errors, silent
from outpace.models.target import Target
from outpace.training.anatomy import given_head, new_head, shape_for
from outpace.training.checkpoint import checkpoints
from outpace.training.features import Features, online, record
from outpace.training.gather import Gathered, gather, split
from outpace.training.masks import Sample
from outpace.training.plot import plot
from outpace.training.processes import made_once, processes
from outpace.training.recipe import Data, Recipe
from outpace.training.reduced import Reduced, given_vocabulary, reduced_vocabulary
from outpace.training.rounds import Walked, walked
from outpace.training.shards import name_of
from outpace.training.teacher import Teacher, agreement
from outpace.training.trainer import Trained, Trainer, Watch
from outpace.training.warm import warm_start

AGREEMENT = 0.97
"""The share of places where the teacher's rows must say what was recorded; near-ties of bf16 take a little of it."""


@dataclass(frozen=True)
class Course:
    """All that a training needs.

    Args:
        target, text: who is drafted for, and its tokenizer.
        gathered: the samples and where they are from.
        features, held_out: what is trained on, and what only measures.
        reduced: the head's vocabulary.
        head: before its first step.
        teacher: the target's rows.
        identity: what must be the same for a training to be gone on with, beside its own settings.
        data: of the card.
    """

    target: Target
    text: Text
    gathered: Gathered
    features: Features
    held_out: Features | None
    reduced: Reduced
    head: Head
    teacher: Teacher
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
    """Gather data, record features and make a head; of several processes the first one gathers and records.

    Args:
        recipe: what to do.
        target: opened as the recipe says.
        work: the folder of what is written on the way.
        features: the folder of recorded features; several trainings may share it.
        progress: told what is being done.
        accelerator: the processes; those that a launcher started by default.

    Raises:
        UsageError, WeightsError, UnsupportedError, NumericsError: as for gathering, recording and ``shape_for``; the
            target has no folder with a tokenizer; or the recorded states do not lead to the recorded tokens.
    """
    everyone = processes() if accelerator is None else accelerator
    text, given = text_for(target), given_head(target, recipe.head)
    shape = shape_for(target, recipe.head) if given is None else given.shape
    gathered = made_once(everyone, lambda: gather(recipe.data, target, text, work, progress))
    kept, held = divided(gathered.samples, recipe.data)
    limit = longest(recipe, shape)

    def read(samples: list[Sample]) -> Features:
        if recipe.data.features == "online":
            return online(target, samples, taps=shape.taps, limit=limit)
        return made_once(
            everyone, lambda: record(target, samples, features, taps=shape.taps, limit=limit, progress=progress)
        )

    training, measuring = read(kept), read(held) if held else None
    if given is None:
        reduced = reduced_vocabulary(training.samples, shape.draft_vocab_size, target.vocab_size, target.eos_ids)
        head = new_head(shape, reduced.ids, recipe.train.seed)
        if recipe.head.warm_start:
            warm_start(head, target, reduced.ids)
    else:
        reduced, head = given_vocabulary(training.samples, given.target_ids, target.vocab_size), given
    ends = read_ends(target)
    teacher = Teacher.of(ends.embeddings, ends.head, reduced.ids)
    _require_agreement(training, teacher, reduced, target)
    data = _described(gathered, training, measuring, reduced)
    identity = {
        "target": target.fingerprint,
        "dtype": str(target.dtype).removeprefix("torch."),
        "data": data["sha256"],
        "held_out": None if measuring is None else name_of({}, measuring.samples),
        "vocabulary": hashlib.sha256(reduced.ids.numpy().tobytes()).hexdigest()[:16],
        **{f"head.{name}": _plain(value) for name, value in vars(shape).items()},
        "warm_start": recipe.head.warm_start,
        **({} if given is None else {"begin_with": _digest(given)}),
    }
    return Course(target, text, gathered, training, measuring, reduced, head, teacher, identity, data)


def _described(gathered: Gathered, training: Features, measuring: Features | None, reduced: Reduced) -> dict[str, Any]:
    """The data, as a card tells of it."""
    return {
        "sources": gathered.sources,
        "samples": len(training.samples),
        "tokens": sum(map(len, training.samples)),
        "answer_tokens": sum(int(sample.loss_mask.sum()) for sample in training.samples),
        "held_out": 0 if measuring is None else len(measuring.samples),
        "too_long": len(training.fitting.too_long),
        "sha256": name_of({}, training.samples),
        "coverage": reduced.coverage,
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


def longest(recipe: Recipe, shape: HeadShape) -> int:
    """The most tokens of a sample: as the recipe says, and no more than the head and a batch have room for."""
    return min(recipe.data.limit, shape.max_positions, recipe.train.tokens_per_batch)


def divided(samples: Sequence[Sample], data: Data) -> tuple[list[Sample], list[Sample]]:
    """Samples to train on, and those held out.

    Raises:
        UsageError: all are held out.
    """
    kept, held = split(samples, data.held_out, data.seed)
    if not kept:
        raise UsageError(f"all {len(held)} samples are held out; allowed: a share of them, not all")
    return kept, held


def _digest(head: Head) -> str:
    """Names the weights of a head."""
    digest = hashlib.sha256()
    for name, tensor in sorted(head.state_dict().items()):
        digest.update(name.encode() + tensor.contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]


def _plain(value: Any) -> Any:
    """As JSON gives it back."""
    return list(value) if isinstance(value, tuple) else dict(value) if isinstance(value, Mapping) else value


def _require_agreement(features: Features, teacher: Teacher, reduced: Reduced, target: Target) -> None:
    """Refuse states from before the last norm, or normed twice: what they teach is another law than the target's."""
    shown = features.fetch(range(min(4, len(features.samples))))
    agreed = agreement(shown, teacher, reduced.ids)
    if agreed < AGREEMENT:
        raise WeightsError(
            f"the states recorded of {target.name!r} lead to its own tokens in {agreed:.1%} of all places; allowed: "
            f"{AGREEMENT:.0%} or more",
            hint="are they from behind the last norm, and of this target?",
        )


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
    """Train a head and write it with its card, the log of its training, the recipe, and a picture if one can be drawn.

    Args:
        course: from ``prepare``.
        recipe: the same.
        out: the folder of the drafter.
        work: of checkpoints and the log.
        resume: go on from the last checkpoint, where there is one.
        accelerator, watch: as for ``Trainer``.

    Raises:
        UsageError: as for ``require_room`` and ``Trainer.train``.
        WeightsError, NumericsError, KeyboardInterrupt: as for ``Trainer.train`` and ``write_card``.
    """
    require_room(out, work, resume)
    trainer = Trainer(
        course.head,
        course.features,
        course.held_out,
        course.teacher,
        recipe.train,
        work,
        identity=course.identity,
        accelerator=accelerator,
        watch=watch,
    )
    trained = trainer.train(resume=resume)
    head = trained.head.cpu()
    rates = walk(course, recipe, head) if trainer.accelerator.is_main_process else None
    card = Card.of(
        head,
        course.target,
        depth_trained=recipe.train.depth,
        steps=trained.place.step,
        data=course.data,
        recipe=recipe.to_dict(),
        acceptance_by_position=None if rates is None else rates.acceptance_by_position,
        acceptance_by_rank=None if rates is None else rates.acceptance_by_rank,
        tau=None if rates is None else rates.tau,
    )
    if trainer.accelerator.is_main_process:
        title = f"EAGLE-3 head for {Path(course.target.name).name}: {trained.place.step:,} steps"
        write_card(out, head, card, dtype=torch.bfloat16, beside=_beside(recipe, work, title))
    return trained, card


def require_room(out: Path, work: Path, resume: bool) -> None:
    """Refuse a training that would have no place in the end, or stand in the place of another one.

    Raises:
        UsageError: ``out`` holds something else than a drafter; or there are checkpoints, and ``resume`` was not asked
            for.
    """
    require_place(out, OURS)
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


def walk(course: Course, recipe: Recipe, head: Head) -> Walked | None:
    """What chains of a head would be accepted on prompts that were held out, its weights rounded as its card has them.

    Returns:
        None where nothing was held out, or nothing is to be measured.
    """
    chosen = recipe.walk
    held = [] if course.held_out is None else course.held_out.samples[: chosen.prompts]
    if not held:
        return None
    served = copy.deepcopy(head).bfloat16().float()
    prompts = [sample.ids[: int(sample.loss_mask.int().argmax())].tolist() for sample in held]
    return walked(
        served,
        course.target,
        course.teacher,
        prompts,
        depth=chosen.depth or recipe.train.depth,
        max_new_tokens=chosen.new_tokens,
        batch_size=recipe.data.batch_size,
    )
