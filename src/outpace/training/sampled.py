"""Some of the vocabulary for one batch: ids that matter as they are, and a draw of all others that stands for them.

Knows nothing of what pupils are or of losses. A step over a whole vocabulary multiplies tens of thousands of rows at
every place, though nearly all of a law lies on a few thousand ids. What is left out altogether would never be learnt to
be unlikely; an id that is drawn for many adds the logarithm of their number to its logits, the pupil's and the
target's, and so weighs as much as they do together on average. Losses between the laws are then those between groups.

Source: sampled softmax (Jean et al., arXiv 1412.2007), its draw uniform and for both laws.
"""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from outpace.training.batch import Batch
from outpace.training.lesson import Lesson
from outpace.training.masks import Sample
from outpace.training.recipe import WholeTraining
from outpace.training.reduced import reduced_vocabulary
from outpace.training.teacher import Teacher

DRAWN = 8
"""One of so many ids is drawn, the rest are the most frequent ones."""


@dataclass(frozen=True)
class Some:
    """Ids that the laws of one batch are compared on.

    Args:
        ids: rising.
        shift: added to the logits of each: 0, or the logarithm of how many ids it stands for.
    """

    ids: Int[Tensor, " some"]
    shift: Float[Tensor, " some"]


@dataclass(frozen=True)
class Vocabulary:
    """How the ids of a batch are chosen.

    Args:
        frequent: ids that always take part.
        drawn: how many of the others are drawn for each batch.
        size: of the whole vocabulary.
    """

    frequent: Int[Tensor, " frequent"]
    drawn: int
    size: int

    @classmethod
    def of(
        cls, samples: Sequence[Sample] | None, count: int | None, size: int, eos_ids: Sequence[int]
    ) -> "Vocabulary | None":
        """The most frequent tokens of all answers, and room for others.

        Args:
            samples: what is trained on; None takes the lowest ids, with which a step takes as long.
            count: frequent and drawn ids together, 8 or more; None, or as many as there are, takes all.
            size: of the whole vocabulary.
            eos_ids: always among the frequent ones.

        Returns:
            None for the whole vocabulary.

        Raises:
            UsageError: as for ``reduced_vocabulary``.
        """
        if count is None or count >= size:
            return None
        kept = count - count // DRAWN
        if samples is None:
            return cls(torch.arange(kept), count - kept, size)
        return cls(reduced_vocabulary(samples, kept, size, eos_ids).ids, count - kept, size)

    def draw(self, batch: Batch, seed: int, step: int) -> Some:
        """The ids of one batch: the frequent ones, the target's likeliest at any of its places, its tokens, and a draw.

        Args:
            batch: by which, with seed and step, the draw is named: it is the same in any process.
        """
        told = torch.cat([batch.ids.flatten(), batch.argmax.flatten()]).cpu().long()
        certain = torch.zeros(self.size, dtype=torch.bool)
        certain[self.frequent] = True
        certain[told[(told >= 0) & (told < self.size)]] = True
        others = (~certain).nonzero().squeeze(1)
        chance = generator("vocabulary", seed, step, batch)
        drawn = others[torch.randperm(len(others), generator=chance)[: self.drawn]]
        shift = torch.zeros(self.size)
        if len(drawn):
            shift[drawn] = math.log(len(others) / len(drawn))
            certain[drawn] = True
        ids = certain.nonzero().squeeze(1)
        return Some(ids.to(batch.ids.device), shift[ids].to(batch.ids.device))


def generator(what: str, seed: int, step: int, batch: Batch) -> torch.Generator:
    """Chance that is named by what it is for, a seed, a step and the tokens of a batch, and by nothing else."""
    named = f"{what} {seed} {step} {batch.lengths} ".encode() + batch.ids.cpu().contiguous().numpy().tobytes()
    return torch.Generator().manual_seed(int.from_bytes(hashlib.sha256(named).digest()[:7]))


class WholeLesson(Lesson):
    """A lesson of a pupil that can say every id of its target, whose laws are compared on some of them or on all.

    Args:
        pupil, steps: as for ``Lesson``.
        teacher: the rows of the target's whole head.
        settings: how many ids take part, and the seed of what is drawn.
    """

    vocabulary: Vocabulary | None = None

    def __init__(self, pupil: nn.Module, steps: int, teacher: Teacher, settings: WholeTraining) -> None:
        super().__init__(pupil, steps)
        self.teacher, self.step, self._whole = teacher, 0, settings

    def on(self, device: torch.device) -> Lesson:
        self.teacher = self.teacher.to(device)
        return self.to(device)

    def begin(self, step: int) -> None:
        self.step = step

    def choose(self, samples: Sequence[Sample] | None, eos_ids: Sequence[int]) -> None:
        """Choose the frequent ids, as the settings have it; Args, Raises: as for ``Vocabulary.of``."""
        self.vocabulary = Vocabulary.of(samples, self._whole.vocabulary, len(self.teacher.rows), eos_ids)

    def some(self, batch: Batch) -> Some | None:
        """The ids of a batch in this step; None for all of them, as where it is measured."""
        if self.vocabulary is None or not self.training:
            return None
        return self.vocabulary.draw(batch, self._whole.seed, self.step)
