"""What the steps of a training-time test counted, and the figures that follow.

Knows nothing of heads or losses. Drafts of a training-time test stand behind the text's own tokens (teacher forcing),
so these figures are of texts that the draft never led astray; what a decoder accepts is measured by walking. By step:

* ``accuracy``: of all answer tokens, the share whose likeliest draft is the target's likeliest token. A token that the
  head cannot say counts as wrong.
* ``conditional``: the same among the places where all earlier steps were right, and were answer tokens too.
* ``acceptance``: the mean probability that a drawn draft is accepted, the sum of min(p, q).
* ``tau``: tokens a turn of greedy chains as long as there are steps: 1 + sum over steps of the product of
  ``conditional``.
"""

from dataclasses import dataclass, fields

import torch
from jaxtyping import Float, Int
from torch import Tensor

from outpace.verification.expectation import chain_tokens


@torch.no_grad()
def standing(logits: Float[Tensor, "*lead ids"], tokens: Int[Tensor, "*lead"]) -> Int[Tensor, "*lead"]:
    """Where tokens stand among the logits, from 1 on: the lower id first on ties, behind all others if no number."""
    own, ids = logits.gather(-1, tokens[..., None]), torch.arange(logits.shape[-1], device=logits.device)
    before = ~(logits < own) & ~((logits == own) & (ids >= tokens[..., None]))
    return 1 + before.sum(-1)


@dataclass(frozen=True)
class StepCounts:
    """Sums over places, one a step. Add them up over batches, then read the figures.

    Args:
        losses: the weighted sums of the loss.
        weights: the sums of its weights.
        places: answer tokens, those that the head cannot say included.
        matches: where the likeliest draft was the target's likeliest token.
        reached: places where all earlier steps matched.
        kept: such places where this step matched too.
        accepted: sums of the acceptance.
    """

    losses: Float[Tensor, " steps"]
    weights: Float[Tensor, " steps"]
    places: Float[Tensor, " steps"]
    matches: Float[Tensor, " steps"]
    reached: Float[Tensor, " steps"]
    kept: Float[Tensor, " steps"]
    accepted: Float[Tensor, " steps"]

    @classmethod
    def none(cls, steps: int) -> "StepCounts":
        """What no batch counted."""
        return cls(*(torch.zeros(steps, dtype=torch.float64) for _ in fields(cls)))

    def __add__(self, other: "StepCounts") -> "StepCounts":
        return StepCounts(
            *(own + theirs for own, theirs in zip(vars(self).values(), vars(other).values(), strict=True))
        )

    @property
    def loss(self) -> tuple[float | None, ...]:
        """The mean loss of each step; None where nothing was counted, here and below."""
        return _ratios(self.losses, self.weights)

    @property
    def accuracy(self) -> tuple[float | None, ...]:
        return _ratios(self.matches, self.places)

    @property
    def conditional(self) -> tuple[float | None, ...]:
        return _ratios(self.kept, self.reached)

    @property
    def acceptance(self) -> tuple[float | None, ...]:
        return _ratios(self.accepted, self.places)

    @property
    def tau(self) -> float | None:
        """Tokens a turn; a step that was never reached adds nothing."""
        rates = [rate or 0.0 for rate in self.conditional]
        return chain_tokens(rates, len(rates)) if self.places[0] else None


def _ratios(above: Tensor, below: Tensor) -> tuple[float | None, ...]:
    pairs = zip(above.tolist(), below.tolist(), strict=True)
    return tuple(part / whole if whole else None for part, whole in pairs)
