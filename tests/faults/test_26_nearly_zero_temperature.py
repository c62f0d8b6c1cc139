"""26: two halves have different ideas of a temperature of nearly zero: one is greedy, the other divides by it."""

import pytest
import torch
from torch import Tensor

from outpace.decoding.loop import Request, decode
from outpace.drafters import small
from outpace.drafters.lookup import Lookup
from outpace.drafters.small import Small
from outpace.models.toy import table_target
from outpace.verification import probabilities
from outpace.verification.probabilities import Sampling, batch_probability_rows
from toys import must_fail, reference, seeded_reference

# Every row has two largest logits: greedy takes the lower id, a draw takes either. Divided by 1e-6 they are infinite.
NOISE = torch.randn(16, 16, generator=torch.Generator().manual_seed(3))
TABLE = 1e34 * NOISE.where(NOISE.topk(2).values[:, 1:] > NOISE, 3.0)
GREEDY, SOFT = (Sampling(), Sampling(1e-8), Sampling(1e-6), Sampling(1e-5)), (Sampling(1e34), Sampling(1e-4))
NEW = 24


def case() -> None:
    """All finite; what counts as greedy is greedy in target and drafter; greedy rows leave their neighbours alone."""
    samplings = [*GREEDY, *SOFT]
    assert bool(batch_probability_rows(TABLE.expand(6, -1, -1), samplings).isfinite().all())
    target = table_target(TABLE)
    said = [reference(target, (1,), NEW)] * len(GREEDY)
    said += [seeded_reference(target, (1,), NEW, sampling, 7) for sampling in SOFT]
    for drafter in (None, Lookup(), Small(target, target)):
        for rule in (None, "rejection"):
            texts: list[list[int]] = [[] for _ in samplings]
            requests = [Request([1], sampling, NEW, seed=7) for sampling in samplings]
            for emission in decode(target, drafter, requests, rule=rule):
                texts[emission.index] += emission.ids
                if emission.speculation is not None and isinstance(drafter, Small):
                    assert emission.speculation.acceptance == 1.0, "the drafter is not as greedy as the target"
            assert texts[: len(GREEDY)] == said[: len(GREEDY)]
            assert rule is not None or texts == said


def test_one_border_for_all() -> None:
    case()


@pytest.mark.parametrize("fault", ["no border", "the drafter divides"])
def test_planted_fault(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def divided(logits: Tensor, samplings: list[Sampling]) -> Tensor:
        return batch_probability_rows(logits, [Sampling(max(one.temperature, 1e-4)) for one in samplings])

    if fault == "no border":
        monkeypatch.setattr(probabilities, "GREEDY_BELOW", 0.0)
    else:
        monkeypatch.setattr(small, "batch_probability_rows", divided)
    with must_fail():
        case()
