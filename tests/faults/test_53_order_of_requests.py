"""53: requests come and go in another order than the engine assumes, and one gets another's tokens."""

import random
from typing import Any

import pytest
from torch import Tensor

from outpace.decoding.loop import Request, decode
from outpace.drafters.lookup import Lookup
from outpace.models.cache import Cache
from outpace.models.transformer import Transformer
from toys import must_fail, reference

RANDOM = random.Random(2)
# Every other prompt repeats itself, so that lookups find something; lengths and limits differ.
PROMPTS = [tuple(RANDOM.randrange(64) for _ in range(RANDOM.randint(2, 5))) * (1 + 2 * (i % 2)) for i in range(16)]
NEW = [RANDOM.randint(1, 14) for _ in PROMPTS]


def case(target: Transformer) -> None:
    """Sixteen requests in five slots, for five orders of arrival: each is its own plain text."""
    for seed in range(5):
        order = random.Random(seed).sample(range(16), 16)
        texts: list[list[int]] = [[] for _ in order]
        requests = [Request(PROMPTS[index], max_new_tokens=NEW[index]) for index in order]
        for emission in decode(target, Lookup(), requests, slots=5, num_draft_tokens=3):
            texts[emission.index] += emission.ids
        assert texts == [reference(target, PROMPTS[index], NEW[index]) for index in order]


def test_every_request_gets_its_own_tokens(tiny: Transformer) -> None:
    case(tiny)


@pytest.mark.parametrize("fault", ["rows that go on stand still", "new rows come first"])
def test_planted_fault(fault: str, tiny: Transformer, monkeypatch: pytest.MonkeyPatch) -> None:
    select, prefill = Cache.select, Transformer.prefill

    def still(self: Cache, rows: list[int]) -> None:
        lengths = [self.lengths[row] for row in rows]
        select(self, list(range(len(rows))))
        self.lengths = lengths

    def first(self: Transformer, state: Any, ids: Tensor, lengths: list[int], taps: Any = ()) -> Any:
        old = len(state.lengths)
        scores = prefill(self, state, ids, lengths, taps)
        state.select([*range(old, old + len(lengths)), *range(old)])
        return scores

    if fault == "new rows come first":
        monkeypatch.setattr(Transformer, "prefill", first)
    else:
        monkeypatch.setattr(Cache, "select", still)
    with must_fail():
        case(tiny)
