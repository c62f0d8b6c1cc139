"""51: rows of a batch that accept different numbers, or end at different times, share one length."""

from typing import Any

import pytest
from torch import Tensor

from outpace.decoding.loop import FinishReason, Request, decode
from outpace.models.cache import Cache
from outpace.models.transformer import Transformer
from toys import Scripted, must_fail, reference, right_then_wrong

NEW, DEPTH = 24, 5
PROMPTS = [tuple((11 * place + length) % 64 for place in range(length)) for length in (1, 3, 7, 12)]
ENDS: list[int | None] = [2, 9, 20, None]
COUNTS = [[0], [1], [3], [DEPTH]]


def _ending(text: list[int], end: int) -> tuple[int, ...]:
    """The first token from ``end`` on that was not said before."""
    return (next(token for place, token in enumerate(text) if place >= end and token not in text[:place]),)


Outcome = tuple[list[int], FinishReason | None, int]


def outcomes(target: Transformer, rows: list[int]) -> list[Outcome]:
    """Ids, finish reason and number of turns of these rows, decoded together."""
    said = [reference(target, prompt, NEW + DEPTH) for prompt in PROMPTS]
    guesser = Scripted(right_then_wrong([[*p, *text] for p, text in zip(PROMPTS, said, strict=True)], COUNTS))
    eos = [() if end is None else _ending(text, end) for text, end in zip(said, ENDS, strict=True)]
    requests = [Request(PROMPTS[row], max_new_tokens=NEW, eos_ids=eos[row]) for row in rows]
    texts: list[list[int]] = [[] for _ in rows]
    ends: dict[int, Any] = {}
    for emission in decode(target, guesser, requests, num_draft_tokens=DEPTH):
        assert emission.index not in ends, "a row grew after its end"
        texts[emission.index] += emission.ids
        if emission.speculation is not None:
            ends[emission.index] = emission.finish, emission.speculation.turns
    for row, text in zip(rows, texts, strict=True):
        assert text == reference(target, PROMPTS[row], NEW, eos[row])
    return [(text, *ends[place]) for place, text in enumerate(texts)]


def case(target: Transformer) -> None:
    """Four rows that accept 0, 1, 3 and all of 5: each is its own single run, and counts no turn after its end."""
    for order in ([0, 1, 2, 3], [3, 1, 0, 2]):
        assert outcomes(target, order) == [outcomes(target, [row])[0] for row in order]


def test_rows_accept_what_is_theirs(tiny: Transformer) -> None:
    case(tiny)


@pytest.mark.parametrize("fault", [min, max])
def test_planted_fault(fault: Any, tiny: Transformer, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = Cache.keep

    def keep(self: Cache, path: Tensor, num_accepted: list[int]) -> None:
        begun = list(self.lengths)
        honest(self, path, num_accepted)
        if max(begun) == max(map(len, PROMPTS)):  # the first turn is enough, and leaves room for the rest
            self.lengths = [start + 1 + fault(num_accepted) for start in begun]

    monkeypatch.setattr(Cache, "keep", keep)
    with must_fail():
        case(tiny)
