"""EAGLE-1: a head that reads its target's last state and guesses at the next one, taught one step at a time.

Knows nothing of where texts come from, nor of the loop of training. What is measured on held-out texts while it is
trained is of that one step: its ``tau`` is of chains of one token. What longer chains are accepted, walking tells.
"""

import copy
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from outpace.drafters.first_card import METHOD, write_first_card
from outpace.drafters.first_head import FirstHead
from outpace.drafters.record import Card
from outpace.errors import UsageError
from outpace.models.ends import SharedHead, read_ends
from outpace.models.target import Target
from outpace.training.anatomy import first_shape_for, given_first, new_first
from outpace.training.batch import Batch
from outpace.training.counts import StepCounts
from outpace.training.features import Features
from outpace.training.lesson import Lesson, products
from outpace.training.method import Beginning, Method, digest, require_agreement
from outpace.training.recipe import FirstTraining, Recipe
from outpace.training.regression import regress, weights_of
from outpace.training.rounds import Walked, walked
from outpace.training.sampled import WholeLesson
from outpace.training.teacher import Teacher

TOKENS = 512
"""How long a text is whose noise is as wide as the setting says."""
DEPTH = 4
"""Tokens of the chains that are walked, if the recipe does not say: as many as EAGLE-3 is trained for by default."""


class Eagle1Lesson(WholeLesson):
    """Regression to the target's next state, with cross-entropy beside it and noise on what is read.

    Args:
        head: fp32; trained in place.
        teacher: the target's rows, all of them.
        settings: weights, noise and precision.
    """

    pupil: FirstHead

    def __init__(self, head: FirstHead, teacher: Teacher, settings: FirstTraining) -> None:
        super().__init__(head, 1, teacher, settings)
        self.settings = settings

    def weights(self, batch: Batch) -> Float[Tensor, " 1"]:
        return weights_of(batch)

    def forward(self, batch: Batch, weights: Tensor | None = None) -> tuple[Tensor, StepCounts]:
        chosen = self.settings
        noise = self.noise(batch) if self.training and chosen.noise else None
        with products(chosen.precision, batch.ids.device):
            found = regress(
                self.pupil,
                batch,
                self.teacher,
                feature_weight=chosen.feature_weight,
                token_weight=chosen.token_weight,
                noise=noise,
                some=self.some(batch),
            )
        return found.objective(weights), found.counts

    def noise(self, batch: Batch) -> Float[Tensor, "batch time hidden"]:
        """Uniform around 0, wider the shorter a text is: ``noise`` times 512 over its length in all.

        Each text has its own, by the seed, the step and its tokens: it is the same in any batch and in any process.
        """
        found = torch.zeros(batch.last_normed.shape)
        for row, (ids, length) in enumerate(zip(batch.ids.cpu(), batch.lengths, strict=True)):
            named = repr((self.settings.seed, self.step, ids[:length].tolist()))
            seed = int.from_bytes(hashlib.sha256(named.encode()).digest()[:8], "little", signed=True)
            drawn = torch.rand(length, found.shape[2], generator=torch.Generator().manual_seed(seed))
            found[row, :length] = (drawn - 0.5) * (self.settings.noise * TOKENS / length)
        return found.to(batch.last_normed.device)


class Eagle1(Method):
    """An EAGLE-1 head: fresh, or a trained one that is trained on.

    Args, Raises: as for ``Method``, ``given_first`` and ``first_shape_for``; UsageError too where nothing has a weight.
    """

    article, what = "an", "EAGLE-1 head"

    def __init__(self, recipe: Recipe, target: Target) -> None:
        super().__init__(recipe, target)
        if not (recipe.train.feature_weight or recipe.train.token_weight):  # type: ignore[attr-defined]
            raise UsageError("feature_weight and token_weight are both 0; allowed: one of them above 0")
        self.given = given_first(target, recipe.head)
        self.shape = first_shape_for(target, recipe.head) if self.given is None else self.given.shape
        self.taps, self.max_positions = (), self.shape.max_positions

    def begin(self, features: Features) -> Beginning:
        lesson = self.trial() if self.given is None else self._lesson(self.given)
        require_agreement(features, lesson.teacher, torch.arange(self.target.vocab_size), self.target)
        lesson.choose(features.samples, self.target.eos_ids)
        identity = {
            "method": METHOD,
            **{f"head.{name}": value for name, value in vars(self.shape).items()},
            "head.rotary": dict(self.shape.rotary),
            "pass_state": self.recipe.head.pass_state,
            **({} if self.given is None else {"begin_with": digest(self.given)}),
        }
        return Beginning(lesson, identity, {})

    def trial(self) -> Eagle1Lesson:
        chosen = self.recipe
        return self._lesson(new_first(self.shape, chosen.train.seed, pass_state=chosen.head.pass_state))

    def _lesson(self, head: FirstHead) -> Eagle1Lesson:
        ends, settings = read_ends(self.target), self.recipe.train
        assert isinstance(settings, FirstTraining)
        lesson = Eagle1Lesson(head, Teacher(ends.embeddings, ends.head), settings)
        lesson.choose(None, self.target.eos_ids)
        return lesson

    def walk(self, pupil: nn.Module, lesson: Lesson, prompts: Sequence[Sequence[int]]) -> Walked:
        assert isinstance(pupil, FirstHead) and isinstance(lesson, Eagle1Lesson)
        teacher, chosen = lesson.teacher.to(torch.device("cpu")), self.recipe.walk
        head = copy.deepcopy(pupil).bfloat16().float()
        head.shared = SharedHead.of_rows(teacher.rows)
        return walked(
            head,
            self.target,
            teacher,
            prompts,
            depth=chosen.depth or DEPTH,
            max_new_tokens=chosen.new_tokens,
            batch_size=self.recipe.data.batch_size,
        )

    def card(self, pupil: nn.Module, **said: Any) -> Card:
        assert isinstance(pupil, FirstHead)
        return Card.made(
            self.target,
            method=METHOD,
            taps=(),
            flags={"fc_bias": pupil.shape.fc_bias},
            draft_vocab_size=pupil.shape.vocab_size,
            depth_trained=1,
            **said,
        )

    def write(self, folder: Path, pupil: nn.Module, card: Card, beside: Mapping[str, Path]) -> None:
        assert isinstance(pupil, FirstHead)
        write_first_card(folder, pupil, card, dtype=torch.bfloat16, beside=beside)
