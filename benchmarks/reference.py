"""What outpace is measured against: transformers' ``generate`` on the same weights, and a judge of near-ties.

Knows nothing of timing protocols. Texts of two decoders are compared up to their first difference; there the judge
reads the common prefix in a better precision and says how far apart the two tokens' logits are.
"""

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from common import Question, Run

from outpace.decoding.stats import Tally
from outpace.evaluation import ties
from outpace.models.load import DTYPES, load_target


class Reference:
    """transformers' greedy ``generate`` as its users call it: the model in evaluation mode, cache on, one prompt.

    Args:
        folder: weights and configuration.
        dtype: ``bf16`` or ``fp32``.
        eos_ids: what ends a text, the same as on our side.
    """

    def __init__(self, folder: Path, dtype: str, eos_ids: Sequence[int]) -> None:
        from transformers import AutoModelForCausalLM
        from transformers.utils import logging

        logging.set_verbosity_error()
        logging.disable_progress_bar()
        self.model: Any = AutoModelForCausalLM.from_pretrained(str(folder), dtype=DTYPES[dtype]).eval()
        self.ends: dict[str, Any] = {
            "eos_token_id": list(eos_ids) or None,
            "pad_token_id": eos_ids[0] if eos_ids else 0,
        }
        self.forwards = 0
        self.model.register_forward_pre_hook(self._count)

    def _count(self, *_: object) -> None:
        self.forwards += 1

    def run(self, question: Question, max_new_tokens: int, **options: Any) -> Run:
        """Decode one prompt; tau is counted from the forwards of the model."""
        ids = torch.tensor([question.ids])
        before, begin = self.forwards, time.perf_counter()
        out = self.model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=max_new_tokens,
            do_sample=False,
            **self.ends,
            **options,
        )
        seconds = time.perf_counter() - begin
        new = out[0, len(question.ids) :].tolist()
        tally = Tally(turns=self.forwards - before - 1, emitted=len(new) - 1)
        return Run(seconds, new, tally.speculation("transformers"))


@dataclass(frozen=True)
class Difference:
    """Where two texts part, and how near a tie that was, in logits of the better precision.

    ``gap`` is the first text's token less the second's: below 0 the first text was the one that rounded wrongly.
    ``below_best`` is how far the worse of the two lies below the most probable token of all.
    """

    question_id: int
    place: int
    tokens: tuple[int, int]
    gap: float
    below_best: float
    excused: bool

    def record(self) -> dict[str, Any]:
        return asdict(self)


class Judge:
    """Reads a prefix in a better precision than that of the texts compared. The model is opened when first needed."""

    def __init__(self, name: str, dtype: str) -> None:
        self.name = name
        self.judge_dtype, self.tolerance = ties.NEAR_TIE[dtype]
        self.opened: ties.Judge | None = None

    def compare(self, question: Question, first: Sequence[int], second: Sequence[int]) -> Difference | None:
        """The first difference of two continuations of one prompt, judged; None where there is none."""
        place = ties.first_difference(first, second)
        if place is None:
            return None
        if self.opened is None:
            self.opened = ties.Judge(load_target(self.name, dtype=self.judge_dtype), self.judge_dtype, self.tolerance)
        logits = self.opened.logits([*question.ids, *first[:place]])
        one, other = float(logits[first[place]]), float(logits[second[place]])
        gap = one - other
        return Difference(
            question.question_id,
            place,
            (first[place], second[place]),
            gap,
            float(logits.max()) - min(one, other),
            abs(gap) < self.tolerance,
        )


def equality(
    judge: Judge, asked: Sequence[Question], ours: Sequence[Sequence[int]], theirs: Sequence[Sequence[int]]
) -> dict[str, Any]:
    """How far two sets of texts agree: ``equal`` where every first difference is a near-tie, with the evidence.

    ``near_ties_per_1000`` counts excused differences by tokens compared, those up to the first difference of each text.
    """
    found = [judge.compare(*three) for three in zip(asked, ours, theirs, strict=True)]
    differences = [one for one in found if one is not None]
    # Texts that agree as far as both go are equal only if they are equally long.
    lengths = sum(one is None and len(a) != len(b) for one, a, b in zip(found, ours, theirs, strict=True))
    compared = sum(
        min(len(a), len(b)) if one is None else one.place + 1 for one, a, b in zip(found, ours, theirs, strict=True)
    )
    excused = sum(one.excused for one in differences)
    return {
        "equal": excused == len(differences) and lengths == 0,
        "texts": len(asked),
        "texts_identical": len(asked) - len(differences) - lengths,
        "lengths_differ": lengths,
        "tokens_compared": compared,
        "near_ties": excused,
        "near_ties_per_1000": 1000 * excused / compared if compared else None,
        "not_excused": len(differences) - excused,
        "largest_gap": max((abs(one.gap) for one in differences), default=0.0),
        "tolerance": judge.tolerance,
        "judged_in": judge.judge_dtype,
        "differences": [one.record() for one in differences],
    }
