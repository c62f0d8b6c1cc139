"""What a training step reads: texts, and what the target showed and said at every place of them.

Knows nothing of files, models or losses. Texts are padded at their right; what stands there is never read.
"""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from outpace.errors import UsageError


@dataclass(frozen=True)
class Batch:
    """Texts and the target's recording of them.

    Args:
        ids: the tokens.
        loss_mask: True where the token at that place is one of an answer.
        features: the target's hidden states at the taps.
        last_normed: what the target's own head reads at each place.
        argmax: the likeliest next token at each place, by the target's logits over its whole vocabulary.
        logsumexp: of the same logits.
        lengths: tokens of each text, 1 up to ``time``.

    Raises:
        UsageError: there are not as many lengths as texts, or a length is outside its range.
    """

    ids: Int[Tensor, "batch time"]
    loss_mask: Bool[Tensor, "batch time"]
    features: Float[Tensor, "batch time taps hidden"]
    last_normed: Float[Tensor, "batch time hidden"]
    argmax: Int[Tensor, "batch time"]
    logsumexp: Float[Tensor, "batch time"]
    lengths: list[int]

    def __post_init__(self) -> None:
        rows, time = self.ids.shape
        if len(self.lengths) != rows:
            raise UsageError(f"a batch of {rows} texts has {len(self.lengths)} lengths; allowed: one for each")
        if wrong := [length for length in self.lengths if not 1 <= length <= time]:
            raise UsageError(f"a text of a batch has length {wrong[0]}; allowed: 1 to {time}, as far as it is padded")

    @property
    def answers(self) -> Bool[Tensor, "batch time"]:
        """Where a token of an answer stands; nowhere behind the end of a text."""
        places = torch.arange(self.ids.shape[1], device=self.ids.device)
        return self.loss_mask & (places < torch.tensor(self.lengths, device=self.ids.device)[:, None])

    @property
    def by_last(self) -> "Batch":
        """The same with the state before the target's head as the one feature: what EAGLE-1 reads."""
        return replace(self, features=self.last_normed[:, :, None])

    def to(self, device: torch.device | str) -> "Batch":
        """The same on another device; copies overlap with computing where the memory is pinned."""
        ids, mask, features, last, argmax, logsumexp = (
            each.to(device, non_blocking=True)
            for each in (self.ids, self.loss_mask, self.features, self.last_normed, self.argmax, self.logsumexp)
        )
        return Batch(ids, mask, features, last, argmax, logsumexp, self.lengths)
