"""Where two texts part, and whether that was a near-tie: a judge reads the same prefix in a better precision.

Knows nothing of who wrote the texts. Rounding may exchange two tokens whose logits nearly agree; it explains nothing
else.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from outpace.evaluation.machine import MEGABYTE, available_mb
from outpace.models.load import DTYPES, load_target
from outpace.models.target import Target

NEAR_TIE = {"bf16": ("fp32", 0.25), "fp32": ("fp64", 1e-4)}
"""For each dtype compared: the dtype of the judge, and the logit gap that rounding may explain."""

LOADING = 1.5  # of the judge's weights: what opening them takes at most


@dataclass(frozen=True)
class Difference:
    """The first place at which two texts differ.

    Args:
        place: counted from the first new token.
        gap: how far apart the logits of the two tokens are there, after the common prefix; None where nobody judged,
            or where one text simply goes on.
        excused: whether that is a near-tie.
    """

    place: int
    gap: float | None = None
    excused: bool = False


def first_difference(first: Sequence[int], second: Sequence[int]) -> int | None:
    """The first place at which two texts differ; None where they are equal as far as both go."""
    return next((place for place, pair in enumerate(zip(first, second, strict=False)) if pair[0] != pair[1]), None)


class Judge:
    """Reads a prefix in a better precision than that of the texts compared.

    Args:
        model: a copy of the target in that precision.
        dtype: its name.
        tolerance: the logit gap that is a near-tie.
    """

    def __init__(self, model: Target, dtype: str, tolerance: float) -> None:
        self.model, self.dtype, self.tolerance = model, dtype, tolerance

    def logits(self, text: Sequence[int]) -> Float[Tensor, " vocab"]:
        """The logits behind a text, float64, read afresh."""
        state = self.model.open(1, len(text))
        return self.model.prefill(state, torch.tensor([list(text)]), [len(text)]).logits[0, 0].double()

    def excuse(self, prompt: Sequence[int], first: Sequence[int], second: Sequence[int], place: int) -> Difference:
        """Judge two continuations of one prompt that are equal before ``place`` and differ there."""
        logits = self.logits([*prompt, *first[:place]])
        gap = abs(float(logits[first[place]] - logits[second[place]]))
        return Difference(place, gap, gap < self.tolerance)


def compare(
    judge: Judge | None, prompt: Sequence[int], first: Sequence[int], second: Sequence[int]
) -> Difference | None:
    """The first difference of two continuations of one prompt; None where they are the same text."""
    place = first_difference(first, second)
    if place is None:
        return None if len(first) == len(second) else Difference(min(len(first), len(second)))
    return Difference(place) if judge is None else judge.excuse(prompt, first, second, place)


def open_judge(target: Target) -> Judge | None:
    """A copy of the target in a better precision; None where there is none, or where memory does not hold it."""
    name = next((name for name, dtype in DTYPES.items() if dtype == target.dtype), "")
    if name not in NEAR_TIE or target.folder is None:
        return None
    better, tolerance = NEAR_TIE[name]
    if not affordable(target.folder, better):
        return None
    return Judge(load_target(target.folder, dtype=better, device=str(target.device)), better, tolerance)


def affordable(folder: Path, dtype: str) -> bool:
    """Whether a copy in this dtype fits into the memory that is free; files are taken to hold two bytes a weight."""
    weights = sum(path.stat().st_size for path in folder.iterdir() if path.is_file()) / 2
    free = available_mb()
    return free is not None and weights * DTYPES[dtype].itemsize * LOADING < free * MEGABYTE
