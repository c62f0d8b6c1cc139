"""What the target teaches a head: its embeddings, and its own logits of the ids that the head can say.

Knows nothing of the target beyond these rows; what the target saw of each place comes with the batch.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from outpace.errors import WeightsError
from outpace.training.batch import Batch

ROUNDING = 0.1
"""How far above 0 a recorded log-probability may seem: half a step of bf16 where logits are around 20."""


@dataclass(frozen=True)
class Teacher:
    """Rows of the target's weights, none of which is trained.

    Args:
        embeddings: of the whole vocabulary.
        rows: of the target's head, for the head's ids alone; in the dtype in which the target multiplied.
    """

    embeddings: Float[Tensor, "vocab hidden"]
    rows: Float[Tensor, "draft hidden"]

    @classmethod
    def of(
        cls,
        embeddings: Float[Tensor, "vocab hidden"],
        head: Float[Tensor, "vocab hidden"],
        target_ids: Int[Tensor, " draft"],
    ) -> "Teacher":
        """From the target's own matrices.

        Args:
            embeddings: the target's embedding rows.
            head: the rows of the target's head; the embeddings once more where the two are tied.
            target_ids: as ``Head.target_ids``.
        """
        return cls(embeddings, head[target_ids.to(head.device)])

    def to(self, device: torch.device) -> "Teacher":
        """The same on another device."""
        return Teacher(self.embeddings.to(device), self.rows.to(device))

    @torch.no_grad()
    def logits(self, last_normed: Float[Tensor, "*lead hidden"]) -> Float[Tensor, "*lead draft"]:
        """The target's logits of the head's ids, multiplied as the target did, whatever precision is set for others."""
        with torch.autocast(self.rows.device.type, enabled=False):
            return functional.linear(last_normed.to(self.rows.dtype), self.rows)


def agreement(batch: Batch, teacher: Teacher, target_ids: Int[Tensor, " draft"]) -> float:
    """The share of places where the teacher's rows say what the recording says.

    They do where the likeliest id is the recorded one, at a probability that is none above 1 by more than rounding.
    Near-ties of two kernels apart the share is 1. It is far below where the last norm was left out or done twice, where
    the recording is another target's, and where the target does more to its logits than multiply (a bias, a scale, a
    cap). Only places count whose recorded id the head can say.

    Raises:
        WeightsError: there is no such place.
    """
    places = torch.arange(batch.ids.shape[1], device=batch.ids.device)
    real = places < torch.tensor(batch.lengths, device=batch.ids.device)[:, None]
    kept = real & torch.isin(batch.argmax, target_ids)
    if not bool(kept.any()):
        raise WeightsError("the target never says an id of the draft vocabulary in this recording")
    largest, said = teacher.logits(batch.last_normed[kept]).max(-1)
    agreed = (target_ids[said] == batch.argmax[kept]) & (largest - batch.logsumexp[kept] < ROUNDING)
    return float(agreed.double().mean())
