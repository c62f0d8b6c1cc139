"""What a method decides of a training: where the target is read, the pupil and its lesson, its measure and its card.

Knows nothing of how data is gathered, of the loop of training or of terminals.
"""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from jaxtyping import Int
from torch import Tensor, nn

from outpace.drafters.record import OURS, Card
from outpace.drafters.stored import require_place
from outpace.errors import WeightsError
from outpace.models.target import Target
from outpace.training.features import Features
from outpace.training.lesson import Lesson
from outpace.training.recipe import Recipe
from outpace.training.rounds import Walked
from outpace.training.teacher import Teacher, agreement

AGREEMENT = 0.97
"""The share of places where the teacher's rows must say what was recorded; near-ties of bf16 take a little of it."""


@dataclass(frozen=True)
class Beginning:
    """A pupil before its first step.

    Args:
        lesson: it, and what it is taught.
        identity: what of it must be the same for a training to be gone on with; JSON gives it back as it is.
        data: what a card tells of the data that the method alone knows.
    """

    lesson: Lesson
    identity: Mapping[str, Any]
    data: Mapping[str, Any]


class Method(ABC):
    """One method's part of one training. It is made before any data is read.

    Attributes:
        article, what: how people call what is trained.
        files: what may stand where it is written, and is replaced.
        carded: the method that its card names, where that is not the name of its training.
        taps: which of the target's states it reads, as indices of ``hidden_states``; none where the one before the
            target's head is enough, which is always recorded.
        max_positions: the longest text that it can be taught.

    Args:
        recipe: what to do.
        target: opened as the recipe says.

    Raises:
        UsageError, WeightsError, UnsupportedError: the recipe asks for what cannot be made for this target.
    """

    article: ClassVar[str]
    what: ClassVar[str]
    files: ClassVar[tuple[str, ...]] = OURS
    carded: ClassVar[str | None] = None
    taps: tuple[int, ...]
    max_positions: int

    def __init__(self, recipe: Recipe, target: Target) -> None:
        self.recipe, self.target = recipe, target

    @classmethod
    def require_place(cls, folder: Path) -> None:
        """Refuse to write where something else stands.

        Raises:
            UsageError: the folder is a file, or holds another thing than ``files``.
        """
        require_place(folder, cls.files)

    @abstractmethod
    def begin(self, features: Features) -> Beginning:
        """The pupil, given or new.

        Its identity says by which method it is, but for EAGLE-3: that one's trainings are older than the others.

        Args:
            features: what it will be trained on.

        Raises:
            UsageError, WeightsError: it cannot be taught by this data or this target.
        """

    @abstractmethod
    def trial(self) -> Lesson:
        """A lesson like that of ``begin`` without its data: a step of it takes as long."""

    @abstractmethod
    def walk(self, pupil: nn.Module, lesson: Lesson, prompts: Sequence[Sequence[int]]) -> Walked:
        """What chains of a trained pupil would be accepted on some prompts, its weights rounded as they are written.

        Args:
            pupil: on the CPU.
            lesson: that of ``begin``.
            prompts: ids of each, one or more.
        """

    @abstractmethod
    def card(self, pupil: nn.Module, **said: Any) -> Card:
        """The card of a trained pupil.

        Args:
            said: data, recipe, steps, rates and tau, as in ``Card``.
        """

    @abstractmethod
    def write(self, folder: Path, pupil: nn.Module, card: Card, beside: Mapping[str, Path]) -> None:
        """Write a trained pupil with its card, whole or not at all; what stood there is replaced.

        Args:
            beside: what else is copied into the folder, by name.

        Raises:
            UsageError: the folder holds another thing than ``files``.
            WeightsError: a weight is not finite, or the disk is full.
        """


def require_agreement(features: Features, teacher: Teacher, ids: Int[Tensor, " draft"], target: Target) -> None:
    """Refuse states from before the last norm, or normed twice: what they teach is another law than the target's.

    Args:
        features: whose first texts are looked at.
        teacher: rows of the target's head, for these ids.
        ids: target ids, rising.

    Raises:
        WeightsError: the recorded states do not lead to the recorded tokens.
    """
    agreed = agreement(features.fetch(range(min(4, len(features.samples)))), teacher, ids)
    if agreed < AGREEMENT:
        raise WeightsError(
            f"the states recorded of {target.name!r} lead to its own tokens in {agreed:.1%} of all places; allowed: "
            f"{AGREEMENT:.0%} or more",
            hint="are they from behind the last norm, and of this target?",
        )


def digest(pupil: nn.Module) -> str:
    """Names the weights of a pupil."""
    found = hashlib.sha256()
    for name, tensor in sorted(pupil.state_dict().items()):
        found.update(name.encode() + tensor.contiguous().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()[:16]
