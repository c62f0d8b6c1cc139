"""Logits to the one probability row both models share: temperature, top-k, top-p, min-p, in fp32 or better.

Knows nothing of models, drafts or rules.
"""

import math
from dataclasses import dataclass

from outpace.errors import UsageError

GREEDY_BELOW = 1e-5
"""A temperature at or below this is greedy, everywhere: dividing by less overflows fp32 logits."""


@dataclass(frozen=True)
class Sampling:
    """How a row of logits becomes a law: the same for target and drafter, so that the ratio is of what was drawn.

    Args:
        temperature: divides the logits; ``0 <= temperature <= GREEDY_BELOW`` means the argmax, lowest id on ties.
        top_k: keep this many most probable tokens; 0 keeps all.
        top_p: keep the smallest set of most probable tokens whose mass reaches this; in (0, 1], 1 keeps all.
        min_p: drop tokens less probable than this share of the most probable one; in [0, 1), 0 keeps all.

    Raises:
        UsageError: a value is outside its range, or not finite.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise UsageError(f"temperature is {self.temperature}; allowed: 0 (greedy) or any positive number")
        if self.top_k < 0:
            raise UsageError(f"top_k is {self.top_k}; allowed: 0 (off) or a positive count of tokens")
        if not 0 < self.top_p <= 1:
            raise UsageError(f"top_p is {self.top_p}; allowed: above 0, up to 1 (off)")
        if not 0 <= self.min_p < 1:
            raise UsageError(f"min_p is {self.min_p}; allowed: 0 (off) up to, not including, 1")

    @property
    def greedy(self) -> bool:
        """Whether every draw is the argmax."""
        return self.temperature <= GREEDY_BELOW
