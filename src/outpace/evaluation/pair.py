"""A pair of target and drafter under test, what a check finds of it, and the judge of near-ties.

Knows nothing of any single check.
"""

from dataclasses import dataclass, field
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from outpace.drafters.budget import CHAIN, Branching
from outpace.drafters.drafter import Drafter
from outpace.evaluation import ties
from outpace.models.load import DTYPES
from outpace.models.target import Target, padded

Kind = Literal["law", "equality", "cache", "mask", "control"]


@dataclass(frozen=True)
class Check:
    """One question and its answer.

    Args:
        name: what was asked.
        kind: of which sort; a ``control`` passes when its planted fault was caught.
        passed: the answer.
        statistic, threshold: what was measured, and the most (for a control: the least) it may be.
        false_alarm: how probably a flawless pair fails here; 0 where nothing is left to chance.
        detail: what lies behind the figure, in words.
    """

    name: str
    kind: Kind
    passed: bool
    statistic: float
    threshold: float
    false_alarm: float
    detail: str


@dataclass(frozen=True)
class Report:
    """What all checks say of one pair.

    Args:
        target, drafter: their names.
        rule: the acceptance rule whose law was tested.
        checks: in the order in which they ran.
    """

    target: str
    drafter: str
    rule: str
    checks: tuple[Check, ...]

    @property
    def lossless(self) -> bool:
        """Whether every check passed, the controls included: a proof that cannot fail is none."""
        return all(check.passed for check in self.checks)

    @property
    def false_alarm(self) -> float:
        """How probably a flawless pair fails at least one check, at most."""
        return sum(check.false_alarm for check in self.checks)


@dataclass(frozen=True)
class Size:
    """How much is decoded.

    Args:
        new: tokens of a greedy or seeded text.
        rows, length, rounds: of each sampling so many texts of so many tokens, so many times.
        firsts: samples behind one prompt.
        looks: texts and tokens for the laws in which a planted fault is looked for.
    """

    new: int = 48
    rows: int = 16
    length: int = 32
    rounds: int = 2
    firsts: int = 384
    looks: tuple[int, int] = (24, 24)


QUICK = Size(new=24, rows=8, length=24, rounds=1, firsts=192, looks=(24, 20))

NEAR_TIE = {DTYPES[name]: gap for name, (_, gap) in ties.NEAR_TIE.items()} | {torch.float16: 0.06, torch.float64: 1e-9}
"""By dtype: how far apart two logits may lie, in a better precision, and still change places by rounding."""


class Judge:
    """Reads a text afresh, in a better precision than the texts compared where there is one and memory holds it.

    The copy is opened when it is first needed.
    """

    def __init__(self, target: Target) -> None:
        self.target = target
        self.tolerance = NEAR_TIE[target.dtype]
        self.model: Target | None = None

    def logits(self, text: list[int]) -> Float[Tensor, " vocab"]:
        """The logits behind a text, float64, of one reading without drafts."""
        if self.model is None:
            opened = ties.open_judge(self.target)
            self.model = self.target if opened is None else opened.model
        return read(self.model, [text])[0].double()


def read(target: Target, texts: list[list[int]], at_once: int = 2048) -> Float[Tensor, "texts vocab"]:
    """The logits behind each text, read afresh: nothing that was cached before. So many tokens at once at most."""
    rows: list[Tensor] = []
    count = max(1, at_once // max(map(len, texts)))
    for start in range(0, len(texts), count):
        part = texts[start : start + count]
        ids = padded(part, 0)
        state = target.open(len(part), ids.shape[1])
        logits = target.prefill(state, ids, [len(text) for text in part]).logits[:, 0]
        rows.append(logits if logits.dtype == torch.float64 else logits.float())
    return torch.cat(rows)


@dataclass(frozen=True)
class Pair:
    """Target and drafter as their user puts them together.

    Args:
        target, drafter: who decides and who guesses.
        judge: who decides on near-ties.
        prompts: of different lengths.
        rule: the rule that was asked for; None leaves the choice to the turn.
        branching, num_draft_tokens: how the drafter's own drafts branch, and their nodes.
        seed: of everything that is left to chance.
        size: how much is decoded.
        alarm: the false-alarm probability of one check.
        plain: the target's plain greedy texts behind the prompts.
    """

    target: Target
    drafter: Drafter
    judge: Judge
    prompts: tuple[tuple[int, ...], ...]
    rule: str | None = None
    branching: Branching = CHAIN
    num_draft_tokens: int = 4
    seed: int = 0
    size: Size = field(default_factory=Size)
    alarm: float = 1e-7
    plain: tuple[tuple[int, ...], ...] = ()

    @property
    def tolerance(self) -> float:
        """The gap of two logits that rounding may close."""
        return self.judge.tolerance
