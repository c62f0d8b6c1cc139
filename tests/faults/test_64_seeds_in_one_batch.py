"""64: requests with different seeds or samplings are judged in groups, and put together again in the wrong order."""

from typing import Any

import pytest

from outpace.decoding import judging
from outpace.decoding.loop import Request, decode
from outpace.models.transformer import Transformer
from outpace.verification.probabilities import Sampling
from outpace.verification.verdict import Verdict
from toys import Scripted, must_fail, reference, right_then_wrong, seeded_reference

PROMPTS = [(5, 6, 7, index) for index in range(9)]
NEW = 12
WARM = Sampling(0.9)


def case(target: Transformer) -> None:
    """Greedy requests with seeds 0 to 7 and one without, then some of them sampled: each is its own single text."""
    greedy = [reference(target, prompt, NEW) for prompt in PROMPTS]
    sampled = [seeded_reference(target, prompt, NEW, WARM, seed) for seed, prompt in enumerate(PROMPTS)]
    for warm in ((), (1, 3, 5, 7), (0, 1, 4, 6)):
        texts: list[list[int]] = [[] for _ in PROMPTS]
        mixed = [sampled[row] if row in warm else greedy[row] for row in range(9)]
        requests = [
            Request(prompt, WARM if row in warm else Sampling(), NEW, seed=row if row < 8 else None)
            for row, prompt in enumerate(PROMPTS)
        ]
        said = [[*prompt, *text, 0, 0, 0] for prompt, text in zip(PROMPTS, mixed, strict=True)]
        guesser = Scripted(right_then_wrong(said, [[row % 4] for row in range(9)]))
        for emission in decode(target, guesser, requests, num_draft_tokens=3):
            texts[emission.index] += emission.ids
        assert texts == mixed


def test_each_row_is_judged_by_its_own_seed(tiny: Transformer) -> None:
    case(tiny)


def test_planted_fault(tiny: Transformer, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = judging._merge

    def in_order_of_groups(parts: list[tuple[list[int], Verdict]], batch: int) -> Any:
        places = iter(range(batch))
        return honest([([next(places) for _ in rows], part) for rows, part in parts], batch)

    monkeypatch.setattr(judging, "_merge", in_order_of_groups)
    with must_fail():
        case(tiny)
