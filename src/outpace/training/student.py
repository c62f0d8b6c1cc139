"""Distillation: a small language model, new or given, is taught its target's law of the next token.

Knows nothing of where texts come from, nor of the loop of training. What is taught is one token ahead; what chains are
accepted, walking tells.
"""

import copy
import hashlib
import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from outpace.drafters.record import FILE, OURS, Card, document, is_card
from outpace.drafters.small import METHOD
from outpace.drafters.stored import require_place
from outpace.errors import UsageError
from outpace.models.ends import read_ends
from outpace.models.staging import staged
from outpace.models.student import Student, new_student
from outpace.models.student_files import TOKENIZER, student_target, write_student
from outpace.models.target import Target
from outpace.training.batch import Batch
from outpace.training.counts import StepCounts, standing
from outpace.training.distil import LOGITS, distil, weights_of
from outpace.training.existing import existing_student
from outpace.training.features import Features
from outpace.training.lesson import Lesson, products
from outpace.training.method import Beginning, Method, digest, require_agreement
from outpace.training.on_policy import OnPolicy, mixed_batch
from outpace.training.reader import Reader
from outpace.training.recipe import Recipe, StudentTraining
from outpace.training.rounds import Ranks, Walked, walked_by
from outpace.training.sampled import WholeLesson
from outpace.training.teacher import Teacher

NEEDED = ("depth", "width", "heads")
"""What a recipe must say of a new model."""
ASSUMED: Mapping[str, Any] = {"tied": True, "embeddings": "copied"}
"""What it is taken to say of the rest."""
DEPTH = 4
"""Tokens of the chains that are walked, if the recipe does not say."""


class StudentLesson(WholeLesson):
    """The divergence from the target's law at every place of its answers, or of the student's own.

    Own answers are drawn anew in every step by what the weights are at its beginning, a batch once; they are named by
    seed, step and text. Held-out texts are read as they are.

    Args:
        student: fp32; trained in place.
        teacher: the rows of the target's whole head.
        settings: loss, share of its own answers, precision.
        target: who reads these; nothing is drawn without it.
    """

    pupil: Student

    def __init__(
        self, student: Student, teacher: Teacher, settings: StudentTraining, target: Target | None = None
    ) -> None:
        super().__init__(student, 1, teacher, settings)
        self.settings = settings
        self.reader = None if target is None or not settings.on_policy else Reader(target, ())
        self.policy = OnPolicy(settings.on_policy, settings.temperature, settings.seed)
        self.speaker: Target | None = None  # the student as it is at the beginning of a step
        self.drawn: dict[str, Batch] = {}

    def begin(self, step: int) -> None:
        super().begin(step)
        self.speaker, self.drawn = None, {}

    def weights(self, batch: Batch) -> Float[Tensor, " 1"]:
        """As for ``Lesson``; what is drawn here is what ``forward`` will read."""
        shown = self._shown(batch)
        if shown is not batch:
            self.drawn[_name(batch)] = shown
        return weights_of(shown)

    def forward(self, batch: Batch, weights: Tensor | None = None) -> tuple[Tensor, StepCounts]:
        shown = self._shown(batch).to(batch.ids.device)
        with products(self.settings.precision, batch.ids.device):
            found = distil(self.pupil, shown, self.teacher, loss=self.settings.loss, some=self.some(shown))
        return found.objective(weights), found.counts

    def _shown(self, batch: Batch) -> Batch:
        """What is read of a batch: some of its answers may be the student's own while it is taught."""
        if self.reader is None or not self.training:
            return batch
        if (found := self.drawn.pop(_name(batch), None)) is not None:
            return found
        if self.speaker is None:
            self.speaker = student_target(self.pupil, self.reader.target)
        return mixed_batch(self.speaker, batch, self.policy, self.step, self.reader)


def _name(batch: Batch) -> str:
    """A batch by its tokens and answers, on whatever device."""
    whole = [each.cpu().contiguous().numpy().tobytes() for each in (batch.ids, batch.answers)]
    return hashlib.sha256(b"".join(whole) + repr(batch.lengths).encode()).hexdigest()


class Distillation(Method):
    """A small language model: new, with embeddings of its target, or one that stands and is trained on.

    Args, Raises: as for ``Method`` and ``existing_student``; UsageError too where a recipe gives a model and says a
        size as well, or neither.
    """

    article, what, carded = "a", "distilled model", METHOD
    files = (*OURS, *TOKENIZER, "generation_config.json")

    def __init__(self, recipe: Recipe, target: Target) -> None:
        super().__init__(recipe, target)
        self.sizes = _sizes(recipe)
        self.given = None if self.sizes else existing_student(recipe.head.begin_with, target)
        self.taps = ()
        self.max_positions = target.max_positions
        if self.given is not None:
            self.max_positions = min(self.given.max_positions, target.max_positions)

    @classmethod
    def require_place(cls, folder: Path) -> None:
        """As for ``Method``; a model that has no card of ours is never replaced."""
        carded = folder.is_dir() and is_card(folder)
        require_place(folder, [file.name for one in cls.files for file in folder.glob(one)] if carded else ())

    def begin(self, features: Features) -> Beginning:
        """The student; Raises: as for ``Method`` and ``new_student``."""
        lesson = self.trial()
        require_agreement(features, lesson.teacher, torch.arange(self.target.vocab_size), self.target)
        _require_ids(features, lesson.pupil)
        lesson.choose(features.samples, self.target.eos_ids)
        told = {f"head.{name}": value for name, value in self.sizes.items()}
        begun = {} if self.given is None else {"begin_with": digest(self.given)}
        return Beginning(lesson, {"method": self.recipe.method, **told, **begun}, {})

    def trial(self) -> StudentLesson:
        ends, settings = read_ends(self.target), self.recipe.train
        assert isinstance(settings, StudentTraining)
        student = self.given
        if student is None:
            student = new_student(self.target, **self.sizes, seed=settings.seed)
        lesson = StudentLesson(student, Teacher(ends.embeddings, ends.head), settings, self.target)
        lesson.choose(None, self.target.eos_ids)
        return lesson

    def walk(self, pupil: nn.Module, lesson: Lesson, prompts: Sequence[Sequence[int]]) -> Walked:
        assert isinstance(pupil, Student)
        chosen, drafting = self.recipe.walk, rounded(pupil)
        depth = chosen.depth or DEPTH
        return walked_by(
            lambda batch: ranks_of(drafting, batch, depth, self.target.vocab_size),
            self.target,
            prompts,
            taps=self.taps,
            positions=pupil.max_positions - 1,  # it reads a token more than a head that is given states
            depth=depth,
            max_new_tokens=chosen.new_tokens,
            batch_size=self.recipe.data.batch_size,
        )

    def card(self, pupil: nn.Module, **said: Any) -> Card:
        return Card.made(
            self.target,
            method=METHOD,
            taps=self.taps,
            flags={},
            draft_vocab_size=self.target.vocab_size,
            depth_trained=1,
            **said,
        )

    def write(self, folder: Path, pupil: nn.Module, card: Card, beside: Mapping[str, Path]) -> None:
        """As for ``Method``: a model's folder, and its card in it."""
        assert isinstance(pupil, Student)
        self.require_place(folder)
        with staged(folder.absolute()) as growing:
            write_student(growing, pupil, self.target, dtype=torch.bfloat16)
            for name, source in beside.items():
                shutil.copyfile(source, growing / name)
            (growing / FILE).write_text(json.dumps(document(card), indent=2) + "\n", encoding="utf-8")


def _sizes(recipe: Recipe) -> dict[str, Any]:
    """What a recipe says of a new model, as ``new_student`` takes it; nothing where it gives one."""
    said = {name: value for name, value in vars(recipe.head).items() if value is not None}
    if said.pop("begin_with", None) is not None:
        if said:
            raise UsageError(
                f"the recipe says {next(iter(said))} and begin_with; allowed: the sizes of a new model, or the model "
                "that is begun with, which has its own",
                hint=f"leave {', '.join(said)} out",
            )
        return {}
    if missing := [name for name in NEEDED if name not in said]:
        raise UsageError(f"the recipe says no {missing[0]}; allowed: {', '.join(NEEDED)} of a new model, or begin_with")
    return {**ASSUMED, **said}


def _require_ids(features: Features, student: Student) -> None:
    """Refuse texts that a given model cannot read."""
    for sample in features.samples:
        if (largest := int(sample.ids.max())) >= student.vocab_size:
            raise UsageError(
                f"{sample.key} holds the id {largest}; allowed: the {student.vocab_size} ids of {student.name!r}"
            )


# ---- what it would draft ---------------------------------------------------------------------------------------------


@torch.no_grad()
def rounded(student: Student) -> Student:
    """A copy with the weights that are written, in fp32."""
    found = copy.deepcopy(student)
    for weight in found.parameters():
        weight.copy_(weight.bfloat16())
    return found


@torch.no_grad()
def ranks_of(student: Student, batch: Batch, depth: int, vocab_size: int) -> Ranks:
    """Where the text's own tokens stand among the student's, as ``walked_by`` asks for them.

    As long as a chain matches, it reads the text's own tokens: its step ``s`` behind place ``t`` is what the student
    says behind place ``t + 1 + s``. Behind an id that it lacks, or its last position, it drafts nothing.

    Args:
        student: on the CPU.
        batch: only the places before an answer's tokens are looked at; elsewhere the rank is 0.
        depth: steps, 1 or more.
        vocab_size: the target's; what the student says beyond it is never drafted.
    """
    ids, answers, table = batch.ids.long().cpu(), batch.answers.cpu(), student.rows[:vocab_size]
    rows, time = ids.shape
    read = ids[:, : student.max_positions]
    known = ((read >= 0) & (read < student.vocab_size)).int().cumprod(1).bool()
    asked = known & nn.functional.pad(answers[:, 1:], (0, 1))[:, : read.shape[1]]
    following = nn.functional.pad(ids[:, 1:], (0, 1))[:, : read.shape[1]]
    states, tokens = student(read.where(known, 0))[asked], following[asked]
    size = max(1, LOGITS // len(table))
    parts = zip(torch.split(states, size), torch.split(tokens, size), strict=True)
    stood = [_standing(part @ table.mT, some) for part, some in parts]
    one = torch.zeros(rows, time + depth, dtype=torch.int64)
    one[:, : read.shape[1]][asked] = torch.cat([*stood, tokens[:0]])
    told: Ranks = one.unfold(1, depth, 1)[:, 1:].tolist()
    return told


def _standing(logits: Float[Tensor, "places vocab"], tokens: Int[Tensor, " places"]) -> Int[Tensor, " places"]:
    """Where tokens stand, from 1 on: the lower id first on ties, as drafts are picked; 0 where there is no such id."""
    lacking = tokens >= logits.shape[1]
    return standing(logits, tokens.where(~lacking, 0)).where(~lacking, 0)
