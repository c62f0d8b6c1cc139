"""63: a seed is ignored, or its numbers are shared with whatever else the engine decodes."""

import itertools
from typing import Any

import pytest

from outpace.decoding import loop
from outpace.decoding.loop import Request, decode
from outpace.drafters.small import Small
from outpace.models.transformer import Transformer
from outpace.verification import coins
from outpace.verification.probabilities import Sampling
from toys import must_fail

WARM = Sampling(2.0)


def texts(target: Transformer, draft: Transformer, requests: list[Request], rule: str | None) -> list[list[int]]:
    said: list[list[int]] = [[] for _ in requests]
    for emission in decode(target, Small(draft, target), requests, rule=rule, slots=4):
        said[emission.index] += emission.ids
    return said


def case(target: Transformer, draft: Transformer) -> None:
    """Alone, again, in company that ends early, and after ten others; two unseeded ones differ.

    False alarm: two unseeded texts of 16 tokens are equal with a probability far below 1e-9.
    """
    mine = Request((5, 6, 7), WARM, 16, seed=1)
    others = [Request((9, 8), WARM, 1 + seed, seed=seed) for seed in range(10)]
    for rule in (None, "block"):
        alone, again = (texts(target, draft, [mine], rule)[0] for _ in "ab")
        assert alone == again
        one, _, two, _ = texts(target, draft, [mine, others[1], mine, others[4]], rule)
        assert one == two == alone
        assert texts(target, draft, [*others, mine], rule)[-1] == alone
        first, second = texts(target, draft, [Request((5, 6, 7), WARM, 16)] * 2, rule)
        assert first != second


def test_a_seed_is_its_requests_own(tiny: Transformer, tiny_draft: Transformer) -> None:
    case(tiny, tiny_draft)


@pytest.mark.parametrize("fault", ["one stream for all", "keyed by the row", "one seed for all"])
def test_planted_fault(fault: str, tiny: Transformer, tiny_draft: Transformer, monkeypatch: pytest.MonkeyPatch) -> None:
    honest, counter = coins.uniforms, itertools.count()

    def uniforms(keys: Any, counters: Any) -> Any:
        if fault == "keyed by the row":
            return honest([key + row for row, key in enumerate(keys)], counters)
        return honest([next(counter) for _ in keys], counters)

    if fault == "one seed for all":
        monkeypatch.setattr(loop.secrets, "randbits", lambda bits: 7)
    else:
        monkeypatch.setattr(coins, "uniforms", uniforms)
    with must_fail():
        case(tiny, tiny_draft)
