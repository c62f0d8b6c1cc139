"""Medusa: parallel heads on the state of a frozen target, each taught of another token ahead.

Knows nothing of where texts come from, nor of the loop of training. The target is not trained: this is Medusa-1.
"""

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from outpace.drafters.load import trained_head
from outpace.drafters.medusa_card import METHOD, write_medusa_card
from outpace.drafters.medusa_heads import MedusaHeads, MedusaShape
from outpace.drafters.record import Card
from outpace.errors import UsageError
from outpace.models.ends import read_ends, share_head
from outpace.models.target import Target
from outpace.training.batch import Batch
from outpace.training.counts import StepCounts
from outpace.training.features import Features
from outpace.training.lesson import Lesson, products
from outpace.training.method import Beginning, Method, digest, require_agreement
from outpace.training.parallel import new_heads, ranks_of, speak, weights_of
from outpace.training.recipe import MedusaSettings, MedusaTraining, Recipe
from outpace.training.rounds import Walked, walked_by
from outpace.training.sampled import WholeLesson, generator
from outpace.training.teacher import Teacher


class MedusaLesson(WholeLesson):
    """All heads behind every prefix, each against the target's law of its own token.

    Args:
        heads: fp32; trained in place.
        teacher: the rows of the target's whole head.
        settings: loss, decay, precision, and the share of places, which are drawn by seed, step and texts.
    """

    pupil: MedusaHeads

    def __init__(self, heads: MedusaHeads, teacher: Teacher, settings: MedusaTraining) -> None:
        super().__init__(heads, heads.shape.heads, teacher, settings)
        self.settings = settings
        self.shared = None if heads.shape.own_head else _multiplied(teacher.rows, settings.precision)

    def on(self, device: torch.device) -> "MedusaLesson":
        super().on(device)
        self.shared = None if self.shared is None else _multiplied(self.teacher.rows, self.settings.precision)
        return self

    def kept(self, batch: Batch) -> Bool[Tensor, "batch time"] | None:
        """The places that teach in this step; None where all do, as when it is measured."""
        if self.settings.places == 1 or not self.training:
            return None
        chance = generator("places", self.settings.seed, self.step, batch)
        return (torch.rand(batch.ids.shape, generator=chance) < self.settings.places).to(batch.ids.device)

    def weights(self, batch: Batch) -> Float[Tensor, " steps"]:
        return weights_of(batch, self.steps, self.kept(batch))

    def forward(self, batch: Batch, weights: Tensor | None = None) -> tuple[Tensor, StepCounts]:
        chosen = self.settings
        with products(chosen.precision, batch.ids.device):
            found = speak(
                self.pupil,
                batch,
                self.teacher,
                shared=self.shared,
                loss=chosen.loss,
                kept=self.kept(batch),
                some=self.some(batch),
            )
        return found.objective(chosen.decay, weights), found.counts


def _multiplied(rows: Float[Tensor, "vocab hidden"], precision: str) -> Float[Tensor, "vocab hidden"]:
    """The target's rows as heads without their own multiply by them: bf16 is cast where it is multiplied."""
    return rows if precision == "bf16" else rows.to(torch.promote_types(rows.dtype, torch.float32))


_SAID = ("heads", "layers", "own_head")
"""What a recipe says of heads."""


def given_heads(target: Target, settings: MedusaSettings) -> MedusaHeads | None:
    """The trained heads that a recipe begins with; None where it begins with none.

    Raises:
        UsageError: the recipe says another thing than they are, or as for ``trained_head``.
        WeightsError, UnsupportedError: as for ``trained_head``.
    """
    if settings.begin_with is None:
        return None
    found = trained_head(settings.begin_with, target, method=METHOD)
    assert isinstance(found, MedusaHeads)
    for name in _SAID:
        said, own = getattr(settings, name), getattr(found.shape, name)
        if said != own:
            raise UsageError(
                f"{name} of the recipe is {said}, and {settings.begin_with!r}, with which it begins, has {own}; "
                "allowed: the same"
            )
    return found


class Medusa(Method):
    """Heads on a frozen target: fresh ones, which say what it says of the token before, or trained ones.

    Args: as for ``Method``.

    Raises:
        UsageError: they are to be walked deeper than there are heads, or as for ``given_heads``.
        WeightsError, UnsupportedError: as for ``read_ends`` and ``given_heads``.
    """

    article, what = "", "Medusa heads"

    def __init__(self, recipe: Recipe, target: Target) -> None:
        super().__init__(recipe, target)
        chosen = recipe.head
        if (depth := recipe.walk.depth) is not None and depth > chosen.heads:
            raise UsageError(f"depth of [walk] is {depth}; allowed: 1 to {chosen.heads}, as there are heads")
        ends = read_ends(target)
        self.every = torch.arange(target.vocab_size)
        self.teacher = Teacher(ends.embeddings, ends.head)
        self.shape = MedusaShape(
            hidden_size=ends.head.shape[1],
            vocab_size=target.vocab_size,
            heads=chosen.heads,
            layers=chosen.layers,
            own_head=chosen.own_head,
        )
        self.given = given_heads(target, chosen)
        self.taps, self.max_positions = (), target.max_positions

    def begin(self, features: Features) -> Beginning:
        require_agreement(features, self.teacher, self.every, self.target)
        told = {f"head.{name}": getattr(self.shape, name) for name in _SAID}
        begun = {} if self.given is None else {"begin_with": digest(self.given)}
        lesson = self.trial()
        lesson.choose(features.samples, self.target.eos_ids)
        return Beginning(lesson, {"method": METHOD, **told, **begun}, {})

    def trial(self) -> MedusaLesson:
        heads = new_heads(self.shape, self.teacher.rows)
        if self.given is not None:
            heads.load_state_dict(self.given.state_dict())
        settings = self.recipe.train
        assert isinstance(settings, MedusaTraining)
        lesson = MedusaLesson(heads, self.teacher, settings)
        lesson.choose(None, self.target.eos_ids)
        return lesson

    def walk(self, pupil: nn.Module, lesson: Lesson, prompts: Sequence[Sequence[int]]) -> Walked:
        """As for ``Method``; the heads multiply as they do when they draft, by the target's own head in its dtype."""
        assert isinstance(pupil, MedusaHeads)
        chosen, target = self.recipe.walk, self.target
        heads = copy.deepcopy(pupil).bfloat16().to(target.device, target.dtype)
        shared, depth = None if self.shape.own_head else share_head(target), chosen.depth or self.shape.heads
        return walked_by(
            lambda batch: ranks_of(heads, shared, batch, depth),
            target,
            prompts,
            taps=self.taps,
            positions=self.max_positions,
            depth=depth,
            max_new_tokens=chosen.new_tokens,
            batch_size=self.recipe.data.batch_size,
        )

    def card(self, pupil: nn.Module, **said: Any) -> Card:
        return Card.made(
            self.target,
            method=METHOD,
            taps=self.taps,
            flags={"own_head": self.shape.own_head},
            draft_vocab_size=self.target.vocab_size,
            depth_trained=self.shape.heads,
            **said,
        )

    def write(self, folder: Path, pupil: nn.Module, card: Card, beside: Mapping[str, Path]) -> None:
        assert isinstance(pupil, MedusaHeads)
        write_medusa_card(folder, pupil, card, dtype=torch.bfloat16, beside=beside)
