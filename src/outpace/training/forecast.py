"""What a recipe would take: samples, tokens, steps, disk, memory, and time from a step that is measured.

Knows nothing of terminals. Nothing is written, invented or answered.
"""

import math
import re
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from accelerate import Accelerator

from outpace.decoding.loop import Request
from outpace.decoding.text import Text
from outpace.errors import UsageError
from outpace.models.staging import Progress, silent
from outpace.models.target import Target
from outpace.training.buckets import order
from outpace.training.checkpoint import KEPT
from outpace.training.continuations import continuations
from outpace.training.corpus import read_answers, samples_of
from outpace.training.course import divided, longest, text_for
from outpace.training.features import estimate, fitting
from outpace.training.gather import ANSWERS, INVENTED, require_source, split
from outpace.training.inventions import MOST
from outpace.training.lesson import Lesson
from outpace.training.masks import Sample
from outpace.training.methods import METHODS
from outpace.training.optimiser import Optimiser
from outpace.training.processes import processes
from outpace.training.prompts import read_prompts, select
from outpace.training.reader import Reader
from outpace.training.recipe import Data, Recipe, TrainSettings
from outpace.training.shards import batch_of
from outpace.verification.probabilities import Sampling

PROMPT = 64
"""Tokens of a prompt that is still to be made, in round numbers."""
NEW = 12
"""Tokens of each text when the speed of answering is measured."""
FILLED = 0.9
"""How much of a batch is no padding, where lengths are not known yet."""


@dataclass(frozen=True)
class Forecast:
    """What a training would take. Where answers are still to be made, they are taken to be as long as they may be.

    Args:
        samples, tokens, answer_tokens: of all texts.
        held_out: samples among them that only measure.
        left_out: further samples, which are too long or have no answer.
        to_invent, to_answer: prompts that the target would make up, and answer.
        steps: of the optimiser, over all epochs.
        parameters: of the pupil.
        feature_bytes, missing_bytes: of recorded features, and of those that are not there yet.
        checkpoint_bytes: of weights and moments.
        free_bytes: of the disk where features go.
        memory_bytes: the most that this process took, the target and a step included; None if the system tells nothing.
        device, device_bytes: where the pupil is trained, and the most that a step took there if that is a GPU.
        processes: how many share the steps.
        answering_s, recording_s, training_s: at the speed measured. Features that are computed at each use are
            recorded once an epoch.
        step_s: one step.
    """

    samples: int
    tokens: int
    answer_tokens: int
    held_out: int
    left_out: int
    to_invent: int
    to_answer: int
    steps: int
    parameters: int
    feature_bytes: int
    missing_bytes: int
    checkpoint_bytes: int
    free_bytes: int
    memory_bytes: int | None
    device: str
    device_bytes: int
    processes: int
    answering_s: float
    recording_s: float
    step_s: float
    training_s: float


def forecast(
    recipe: Recipe,
    target: Target,
    work: Path,
    features: Path,
    progress: Progress = silent,
    accelerator: Accelerator | None = None,
) -> Forecast:
    """Measure a step, and reckon the whole from it.

    Args:
        recipe, target, work, features, progress, accelerator: as for ``course.prepare``; what stands in the two
            folders already is not counted as still to be made.

    Raises:
        UsageError, WeightsError, UnsupportedError: as the training itself would, as far as it is looked into.
    """
    accelerator = processes() if accelerator is None else accelerator
    method = METHODS[recipe.method](recipe, target)
    limit = longest(recipe, method)
    progress(0, 3, "reading the data")
    texts = _texts(recipe.data, target, method.taps, work, features, limit)
    progress(1, 3, "measuring a step")
    reader = Reader(target, method.taps)
    probe = _probe([*texts.training, *texts.held], target, limit, recipe)
    pace = _pace(recipe.train, method.trial(), reader, probe, accelerator.device)
    progress(2, 3, "measuring answers")
    every, missing = reader.num_bytes(texts.tokens), reader.num_bytes(texts.coming) + texts.missing_bytes
    online, share = recipe.data.features == "online", accelerator.num_processes
    steps = _steps(recipe.train, texts.training, round(texts.coming * (1 - recipe.data.held_out)))
    step_s = pace.step(recipe.train.batches_per_step, share)
    on_gpu = accelerator.device.type == "cuda"
    return Forecast(
        samples=len(texts.training) + len(texts.held) + texts.to_answer,
        tokens=texts.tokens,
        answer_tokens=texts.answer_tokens,
        held_out=len(texts.held) + round(texts.to_answer * recipe.data.held_out),
        left_out=texts.left_out,
        to_invent=texts.to_invent,
        to_answer=texts.to_answer,
        steps=steps,
        parameters=pace.parameters,
        feature_bytes=0 if online else every,
        missing_bytes=0 if online else missing,
        checkpoint_bytes=4 * pace.parameters * (1 + 3 * KEPT),  # the best weights, and each time two moments more
        free_bytes=_free_bytes(features),
        memory_bytes=_peak_bytes(),
        device=str(accelerator.device),
        device_bytes=torch.cuda.max_memory_allocated(accelerator.device) if on_gpu else 0,
        processes=share,
        answering_s=_answering_s(target, recipe.data, texts.to_invent, texts.to_answer),
        recording_s=pace.read_s * texts.tokens * (recipe.train.epochs / share if online else missing / every),
        step_s=step_s,
        training_s=step_s * steps,
    )


# ---- what there is ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Texts:
    """The samples that stand, and what is still to come.

    Args:
        training, held: that can be trained on, and that measure.
        left_out: that cannot.
        to_invent, to_answer: prompts to come.
        coming: their tokens, at most.
        tokens, answer_tokens: of all.
        missing_bytes: of the features of those that stand.
    """

    training: list[Sample]
    held: list[Sample]
    left_out: int
    to_invent: int
    to_answer: int
    coming: int
    tokens: int
    answer_tokens: int
    missing_bytes: int


def _texts(data: Data, target: Target, taps: Sequence[int], work: Path, features: Path, limit: int) -> _Texts:
    found, to_invent, to_answer = _found(data, target, text_for(target), work)
    try:
        kept = fitting(found, limit).samples
    except UsageError:
        if not to_answer:
            raise
        kept = []  # those to come will fit
    training, held = split(kept, data.held_out, data.seed) if to_answer else divided(kept, data)
    sizes = [estimate(target, part, features, taps=taps, limit=limit) for part in (training, held) if part]
    coming = to_answer * min(limit, PROMPT + data.max_new_tokens)
    return _Texts(
        training,
        held,
        left_out=len(found) - len(kept),
        to_invent=to_invent,
        to_answer=to_answer,
        coming=coming,
        tokens=coming + sum(size.tokens for size in sizes),
        answer_tokens=to_answer * data.max_new_tokens + sum(size.answer_tokens for size in sizes),
        missing_bytes=sum(size.missing_bytes for size in sizes),
    )


def _found(data: Data, target: Target, text: Text, work: Path) -> tuple[list[Sample], int, int]:
    """The samples that stand, and how many prompts are still to be made up and answered."""
    require_source(data)
    samples: list[Sample] = []
    for name in data.answers:
        samples += samples_of(text, read_answers(Path(name)), target.eos_ids)
    avoid = [entry for name in data.avoid for entry in read_prompts(Path(name))]
    given = [entry for name in data.prompts for entry in read_prompts(Path(name))[: data.most_prompts or None]]
    asked = data.invent + len(select(given, text, avoid=avoid).entries)
    answers, invented = work / ANSWERS, work / INVENTED
    standing = read_answers(answers) if asked and answers.is_file() and answers.stat().st_size else []
    samples += samples_of(text, standing, target.eos_ids)
    answered = {re.sub(r" turn \d+$", "", one.key) for one in standing}
    made = len(invented.read_bytes().splitlines()[1:]) if invented.is_file() else 0  # behind a line of settings
    return samples, max(0, data.invent - made), max(0, asked - len(answered))


def _steps(settings: TrainSettings, samples: list[Sample], unknown: int) -> int:
    """Steps over all epochs: of samples that stand, and of so many tokens of others."""
    lengths = [len(sample) for sample in samples]
    more = math.ceil(unknown / (FILLED * settings.tokens_per_batch))
    batches = [
        more + (len(order(lengths, settings.seed, epoch, settings.tokens_per_batch)) if lengths else 0)
        for epoch in range(settings.epochs)
    ]
    return sum(math.ceil(each / settings.batches_per_step) for each in batches)


def _free_bytes(folder: Path) -> int:
    there = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.is_dir())
    return shutil.disk_usage(there).free


def _peak_bytes() -> int | None:
    if sys.platform == "win32":
        return None
    import resource

    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else 1024 * most


# ---- how fast it is --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Pace:
    """Seconds to read a token, of a batch, and of the optimiser; and how many weights it steps."""

    read_s: float
    batch_s: float
    optimiser_s: float
    parameters: int

    def step(self, batches: int, processes: int) -> float:
        """Seconds of a step."""
        return math.ceil(batches / processes) * self.batch_s + self.optimiser_s


def _probe(samples: list[Sample], target: Target, limit: int, recipe: Recipe) -> list[Sample]:
    """A batch like those to come: of the samples where there are some, else of made-up ids."""
    size = recipe.train.tokens_per_batch
    if samples:
        batches = order([len(sample) for sample in samples], 0, 0, size)
        batches.sort(key=lambda places: sum(len(samples[place]) for place in places))
        return [samples[place] for place in batches[len(batches) // 2]]
    length = min(limit, PROMPT + recipe.data.max_new_tokens)
    ids = torch.randint(target.vocab_size, (length,), generator=torch.Generator().manual_seed(0), dtype=torch.int32)
    mask = torch.arange(length) >= min(PROMPT, length // 2)
    return [Sample(f"made up {place}", ids, mask) for place in range(max(1, size // length))]


def _pace(
    settings: TrainSettings, lesson: Lesson, reader: Reader, samples: list[Sample], device: torch.device
) -> _Pace:
    """Read a batch and take two steps that change nothing; the second one counts."""
    start = time.perf_counter()
    read = reader.read(samples)
    read_s = (time.perf_counter() - start) / sum(read.lengths)
    batch = batch_of([read.row(place) for place in range(len(samples))]).to(device)
    lesson = lesson.on(device)
    weights = list(lesson.pupil.parameters())
    optimiser = Optimiser(lesson.pupil, settings)
    batch_s = optimiser_s = 0.0
    for _ in range(2):
        start = time.perf_counter()
        objective, _ = lesson(batch)
        objective.backward()
        objective.detach().item()  # waits for the device
        batch_s = time.perf_counter() - start
        start = time.perf_counter()
        optimiser.step(0.0)
        optimiser.forget()
        weights[0].detach().flatten()[0].item()
        optimiser_s = time.perf_counter() - start
    return _Pace(read_s, batch_s, optimiser_s, sum(weight.numel() for weight in weights))


def _answering_s(target: Target, data: Data, invented: int, answered: int) -> float:
    """Seconds to make up and answer so many prompts, by some random ones: the first token of each, and the others."""
    if not invented + answered:
        return 0.0
    rows, room = max(1, min(data.batch_size, answered)), max(1, min(PROMPT, target.max_positions - NEW))
    ids = torch.randint(target.vocab_size, (rows, room), generator=torch.Generator().manual_seed(0)).tolist()
    sampling, spent = Sampling(max(data.temperatures)), []
    for new in (1, NEW):
        requests = [Request(row, sampling, max_new_tokens=new, seed=place) for place, row in enumerate(ids)]
        start = time.perf_counter()
        list(continuations(target, requests, data.batch_size))
        spent.append(time.perf_counter() - start)
    first, whole = spent
    tokens = invented * MOST + answered * data.max_new_tokens
    return (invented + answered) * first / rows + tokens * max(0.0, whole - first) / (rows * (NEW - 1))
