"""What a drafter is taught by a batch: the objective of a pupil, and what it counted, whatever the method.

Knows nothing of optimisers, files or several processes. A method writes a lesson of its own; the loop that gives it is
the same for all.
"""

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager, nullcontext

import torch
from jaxtyping import Float
from torch import Tensor, nn

from outpace.training.batch import Batch
from outpace.training.counts import StepCounts


class Lesson(nn.Module, ABC):
    """A pupil and its objective as one module, so that what wraps modules for many processes sees its forward.

    What is read beside the pupil and not trained is no parameter or buffer of it: it is moved by ``on``.

    Args:
        pupil: what is trained, and kept with all that its ``state_dict`` holds; weights that are trained are fp32.
        steps: tokens ahead that it is taught: the length of weights and counts.
    """

    def __init__(self, pupil: nn.Module, steps: int) -> None:
        super().__init__()
        self.pupil, self.steps = pupil, steps

    def on(self, device: torch.device) -> "Lesson":
        """The same with all it reads on a device."""
        return self.to(device)

    def begin(self, step: int) -> None:
        """Told of every step of training before its batches, by number from 0 on.

        A lesson that draws must draw by this number and by what a batch holds: then a training that is gone on with,
        or shared by several processes, draws the same. Most lessons draw nothing.
        """
        return

    @abstractmethod
    def weights(self, batch: Batch) -> Float[Tensor, " steps"]:
        """What ``forward`` would count as the weights of each step, on the CPU and without a forward pass."""

    @abstractmethod
    def forward(self, batch: Batch, weights: Tensor | None = None) -> tuple[Tensor, StepCounts]:
        """The objective, as a share of that of all batches whose weights these are, and the counts.

        Args:
            batch: on the device of the pupil.
            weights: sums over all batches of a step; those of this batch alone if None. The objectives of the batches
                add up to that of the step.

        Returns:
            One number with the gradient, 0 but not detached for a batch that teaches nothing; and the counts, on the
            CPU.
        """


def products(precision: str, device: torch.device) -> AbstractContextManager[object]:
    """Matrix products in ``bf16`` or ``fp32``, as settings have it; weights stay as they are."""
    return torch.autocast(device.type, torch.bfloat16) if precision == "bf16" else nullcontext()
