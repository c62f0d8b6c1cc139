"""A method of training that is no more than a seam needs: one number for each token of the vocabulary, whatever stands
before it.

Knows nothing of what is tested. Import it as ``unigrams``: ``conftest.py`` puts this folder on the path. ``plugged``
adds it to the tables for one test, as a real method would be added to them for good.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from outpace.drafters import record
from outpace.drafters.record import FILE, OURS, Card, document, require_agreement
from outpace.drafters.stored import write_folder
from outpace.errors import UsageError
from outpace.models.ends import read_ends
from outpace.models.target import Target
from outpace.training import methods, recipe
from outpace.training.batch import Batch
from outpace.training.counts import StepCounts
from outpace.training.features import Features
from outpace.training.lesson import Lesson, products
from outpace.training.method import Beginning, Method
from outpace.training.method import require_agreement as require_states
from outpace.training.recipe import Recipe, Schema, TrainSettings
from outpace.training.rounds import Ranks, Walked, walked_by
from outpace.training.teacher import Teacher

NAME, STEPS = "unigram", 2


@dataclass(frozen=True)
class UnigramSettings:
    """Its ``[head]``: uniform noise of this width on what it says, while it is taught."""

    noise: float = 0.5


@dataclass(frozen=True)
class UnigramTraining(TrainSettings):
    """Its ``[train]``: no depth, no choice of a loss; a gain of its own, and another rate by default."""

    untold: ClassVar[tuple[str, ...]] = ("depth", "loss", "decay", "mask_outside")

    learning_rate: float = 0.1
    gain: float = 1.0


class Unigram(nn.Module):
    """Logits of the next token, under two names as tied weights are, and numbers that are not trained."""

    def __init__(self, vocab_size: int) -> None:
        super().__init__()
        self.bias = self.tied = nn.Parameter(torch.zeros(vocab_size))
        self.fixed = nn.Parameter(torch.ones(1, 3), requires_grad=False)


class UnigramLesson(Lesson):
    """Cross-entropy under the target's law, of the next token and of the one behind it alike.

    Noise is named by the step and the texts.
    """

    pupil: Unigram

    def __init__(self, pupil: Unigram, teacher: Teacher, settings: TrainSettings, noise: float) -> None:
        super().__init__(pupil, STEPS)
        self.teacher, self.settings, self.noise, self.step = teacher, settings, noise, 0

    def begin(self, step: int) -> None:
        self.step = step

    def spoken(self, batch: Batch) -> Tensor:
        """By step, the places whose next tokens are spoken of: ``[steps, batch, time]``."""
        ahead = functional.pad(batch.answers[:, 1:], (0, STEPS))
        return torch.stack([ahead[:, step : step + batch.ids.shape[1]] for step in range(STEPS)])

    def weights(self, batch: Batch) -> Tensor:
        return self.spoken(batch).sum((1, 2)).double().cpu()

    def said(self, batch: Batch) -> Tensor:
        """Log-probabilities, with noise while it is taught."""
        if not (self.training and self.noise):
            return self.pupil.bias.log_softmax(-1)
        generator = torch.Generator().manual_seed(1000 * self.step + int(batch.ids.sum()))
        drawn = torch.rand(len(self.pupil.bias), generator=generator) - 0.5
        return (self.pupil.bias + self.noise * drawn.to(self.pupil.bias.device)).log_softmax(-1)

    def forward(self, batch: Batch, weights: Tensor | None = None) -> tuple[Tensor, StepCounts]:
        with products(self.settings.precision, batch.ids.device):
            log = self.said(batch)
        taught, alive, found = functional.pad(batch.last_normed, (0, 0, 0, STEPS)), None, []
        argmax, time = functional.pad(batch.argmax, (0, STEPS), value=-1), batch.ids.shape[1]
        for step, places in enumerate(self.spoken(batch)):
            law = self.teacher.logits(taught[:, step : step + time][places]).float().softmax(-1)
            right = torch.zeros_like(places).masked_scatter(
                places, argmax[:, step : step + time][places] == log.argmax()
            )
            reached = places if alive is None else places & alive
            alive = reached & right
            counts = (places.sum(), places.sum(), right.sum(), reached.sum(), alive.sum())
            sums = (-(law @ log).sum(), *counts, torch.minimum(law, log.exp()).sum())
            found.append(torch.stack([each.double() for each in sums]))
        table = torch.stack(found, 1)
        counts = StepCounts(*table.detach().cpu())
        whole = counts.weights if weights is None else weights
        shares = torch.where(whole > 0, 1 / whole, 0.0).to(table)
        gain = getattr(self.settings, "gain", 1.0)
        return gain * (table[0] * shares).sum().float(), counts


class UnigramMethod(Method):
    """As a real one would be written."""

    article, what = "a", "unigram"

    def __init__(self, recipe: Recipe, target: Target) -> None:
        super().__init__(recipe, target)
        self.taps, self.max_positions = (), target.max_positions

    def begin(self, features: Features) -> Beginning:
        lesson = self.trial()
        require_states(features, lesson.teacher, torch.arange(self.target.vocab_size), self.target)
        return Beginning(lesson, {"method": NAME, "noise": self.recipe.head.noise}, {"seen": len(features.samples)})

    def trial(self) -> UnigramLesson:
        ends, every = read_ends(self.target), torch.arange(self.target.vocab_size)
        teacher = Teacher.of(ends.embeddings, ends.head, every)
        return UnigramLesson(Unigram(len(every)), teacher, self.recipe.train, self.recipe.head.noise)

    def walk(self, pupil: nn.Module, lesson: Lesson, prompts: Sequence[Sequence[int]]) -> Walked:
        assert isinstance(pupil, Unigram)
        best, depth = int(pupil.bias.argmax()), self.recipe.walk.depth or STEPS

        def ranks(batch: Batch) -> Ranks:
            ahead = functional.pad(batch.ids, (0, depth + 2), value=-1)
            rows = torch.stack([ahead[:, 2 + step :][:, : batch.ids.shape[1]] for step in range(depth)], -1)
            found: Ranks = (2 - (rows == best).int()).tolist()
            return found

        chosen = {"depth": depth, "max_new_tokens": self.recipe.walk.new_tokens}
        return walked_by(ranks, self.target, prompts, taps=(), positions=self.max_positions, **chosen)

    def card(self, pupil: nn.Module, **said: Any) -> Card:
        return Card.made(
            self.target, method=NAME, taps=(), flags={"loud": True}, draft_vocab_size=self.target.vocab_size,
            depth_trained=STEPS, **said,
        )  # fmt: skip

    def write(self, folder: Path, pupil: nn.Module, card: Card, beside: Mapping[str, Path]) -> None:
        assert isinstance(pupil, Unigram)
        made = {"method": NAME, "vocab_size of the target": len(pupil.bias), "loud": True, "depth_trained": STEPS}
        require_agreement(card, made, UsageError, "the card")
        documents = {"config.json": {"architectures": ["Unigram"]}, FILE: document(card)}
        write_folder(folder, {"bias": pupil.bias.detach()}, documents, copies=beside, over=OURS)


def plugged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Add the method to the tables."""
    monkeypatch.setitem(recipe.METHODS, NAME, Schema(UnigramSettings, UnigramTraining))  # type: ignore[misc]
    monkeypatch.setitem(methods.METHODS, NAME, UnigramMethod)  # type: ignore[misc]
    monkeypatch.setitem(record.METHODS, NAME, ("loud",))  # type: ignore[misc]


def recipe_of(answers: Path, **train: Any) -> Recipe:
    """A few epochs of exact arithmetic on stored answers."""
    chosen = {"epochs": 4, "tokens_per_batch": 80, "batches_per_step": 2, "precision": "fp32"} | train
    lines = [f"{name} = {value!r}".replace("'", '"') for name, value in chosen.items()]
    text = f'format_version = 1\nmethod = "{NAME}"\ndtype = "fp32"\n[data]\nanswers = ["{answers}"]\n'
    text += 'held_out = 0.4\nfeatures = "recorded"\n[head]\nnoise = 0.25\n[train]\n' + "\n".join(lines)
    return Recipe.from_toml(f"{text}\n[walk]\nnew_tokens = 12\n")
