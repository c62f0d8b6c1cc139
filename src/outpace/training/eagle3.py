"""EAGLE-3: a head that reads states of its target and walks on its own, taught by the training-time test.

Knows nothing of where texts come from, nor of the loop of training.
"""

import copy
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from outpace.drafters.card import write_card
from outpace.drafters.head import Head
from outpace.drafters.record import Card
from outpace.models.ends import read_ends
from outpace.models.target import Target
from outpace.training.anatomy import given_head, new_head, shape_for
from outpace.training.batch import Batch
from outpace.training.counts import StepCounts
from outpace.training.features import Features
from outpace.training.lesson import Lesson, products
from outpace.training.method import Beginning, Method, digest, require_agreement
from outpace.training.recipe import Recipe, TrainSettings
from outpace.training.reduced import given_vocabulary, reduced_vocabulary
from outpace.training.rounds import Walked, walked
from outpace.training.teacher import Teacher
from outpace.training.unroll import unroll, weights_of
from outpace.training.warm import warm_start


class Eagle3Lesson(Lesson):
    """The training-time test as a lesson.

    Args:
        head: fp32; trained in place.
        teacher: the target's rows, for the head's ids.
        settings: depth, loss, decay, masking and precision.
    """

    pupil: Head

    def __init__(self, head: Head, teacher: Teacher, settings: TrainSettings) -> None:
        super().__init__(head, settings.depth)
        self.teacher, self.settings = teacher, settings
        self.target_ids = head.target_ids.cpu()

    def on(self, device: torch.device) -> "Eagle3Lesson":
        self.teacher = self.teacher.to(device)
        return self.to(device)

    def weights(self, batch: Batch) -> Float[Tensor, " steps"]:
        return weights_of(batch, self.target_ids, steps=self.steps, mask_outside=self.settings.mask_outside)

    def forward(self, batch: Batch, weights: Tensor | None = None) -> tuple[Tensor, StepCounts]:
        chosen = self.settings
        with products(chosen.precision, batch.ids.device):
            found = unroll(
                self.pupil,
                batch,
                self.teacher,
                steps=chosen.depth,
                loss=chosen.loss,
                mask_outside=chosen.mask_outside,
            )
        return found.objective(chosen.decay, weights), found.counts


class Eagle3(Method):
    """An EAGLE-3 head: fresh, begun as the target's last layer, or a trained one that is trained on.

    Args, Raises: as for ``Method``, ``given_head`` and ``shape_for``.
    """

    article, what = "an", "EAGLE-3 head"

    def __init__(self, recipe: Recipe, target: Target) -> None:
        super().__init__(recipe, target)
        self.given = given_head(target, recipe.head)
        self.shape = shape_for(target, recipe.head) if self.given is None else self.given.shape
        self.taps, self.max_positions = self.shape.taps, self.shape.max_positions

    def begin(self, features: Features) -> Beginning:
        """The head and its vocabulary; Raises: as for ``Method``, ``reduced_vocabulary`` and ``warm_start``."""
        shape, target, chosen = self.shape, self.target, self.recipe
        if self.given is None:
            reduced = reduced_vocabulary(features.samples, shape.draft_vocab_size, target.vocab_size, target.eos_ids)
            head = new_head(shape, reduced.ids, chosen.train.seed)
            if chosen.head.warm_start:
                warm_start(head, target, reduced.ids)
        else:
            reduced = given_vocabulary(features.samples, self.given.target_ids, target.vocab_size)
            head = self.given
        ends = read_ends(target)
        teacher = Teacher.of(ends.embeddings, ends.head, reduced.ids)
        require_agreement(features, teacher, reduced.ids, target)
        identity = {
            "vocabulary": hashlib.sha256(reduced.ids.numpy().tobytes()).hexdigest()[:16],
            **{f"head.{name}": _plain(value) for name, value in vars(shape).items()},
            "warm_start": chosen.head.warm_start,
            **({} if self.given is None else {"begin_with": digest(self.given)}),
        }
        return Beginning(Eagle3Lesson(head, teacher, chosen.train), identity, {"coverage": reduced.coverage})

    def trial(self) -> Eagle3Lesson:
        ids = torch.arange(self.shape.draft_vocab_size)  # it takes as long with any others
        ends = read_ends(self.target)
        head = new_head(self.shape, ids, self.recipe.train.seed)
        return Eagle3Lesson(head, Teacher.of(ends.embeddings, ends.head, ids), self.recipe.train)

    def walk(self, pupil: nn.Module, lesson: Lesson, prompts: Sequence[Sequence[int]]) -> Walked:
        assert isinstance(pupil, Head) and isinstance(lesson, Eagle3Lesson)
        chosen = self.recipe.walk
        return walked(
            copy.deepcopy(pupil).bfloat16().float(),
            self.target,
            lesson.teacher.to(torch.device("cpu")),
            prompts,
            depth=chosen.depth or self.recipe.train.depth,
            max_new_tokens=chosen.new_tokens,
            batch_size=self.recipe.data.batch_size,
        )

    def card(self, pupil: nn.Module, **said: Any) -> Card:
        assert isinstance(pupil, Head)
        return Card.of(pupil, self.target, depth_trained=self.recipe.train.depth, **said)

    def write(self, folder: Path, pupil: nn.Module, card: Card, beside: Mapping[str, Path]) -> None:
        assert isinstance(pupil, Head)
        write_card(folder, pupil, card, dtype=torch.bfloat16, beside=beside)


def _plain(value: Any) -> Any:
    """As JSON gives it back."""
    return list(value) if isinstance(value, tuple) else dict(value) if isinstance(value, Mapping) else value
