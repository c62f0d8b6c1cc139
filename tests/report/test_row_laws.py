"""The law that a trace tells is that of the whole row: exact where the trace holds it, within its slack elsewhere."""

import pytest
import torch

from outpace.decoding.trace import Logits
from outpace.report.laws import Law, law
from outpace.verification.expectation import acceptance
from outpace.verification.probabilities import Sampling, probability_rows

SAMPLINGS = [
    Sampling(),
    Sampling(1.0),
    Sampling(0.6),
    Sampling(1.7),
    Sampling(0.8, top_k=3),
    Sampling(1.2, top_p=0.7),
    Sampling(1.0, min_p=0.2),
    Sampling(0.9, top_k=6, top_p=0.8, min_p=0.1),
]


def row(vocab: int, seed: int, spread: float = 2.0) -> torch.Tensor:
    return torch.randn(1, vocab, generator=torch.Generator().manual_seed(seed)) * spread


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
@pytest.mark.parametrize("seed", range(4))
def test_a_whole_row_gives_its_law(sampling: Sampling, seed: int) -> None:
    logits = row(12, seed)
    found = law(Logits.of(logits)[0], sampling, 12)
    true = probability_rows(logits.double(), sampling)[0]
    assert found.rest == 0 and found.slack == 0
    assert [found.prob(token) for token in range(12)] == pytest.approx(true.tolist(), abs=1e-6)
    assert list(found.probs.values()) == sorted(found.probs.values(), reverse=True)


@pytest.mark.parametrize("temperature", [0.3, 0.7, 1.0, 1.5, 3.0])
@pytest.mark.parametrize("spread", [1.0, 4.0])
def test_a_cut_row_keeps_its_promise(temperature: float, spread: float) -> None:
    """No figure is further off than ``slack`` says, and at temperature 1 none is off at all."""
    for seed in range(5):
        logits = row(300, seed, spread)
        found = law(Logits.of(logits)[0], Sampling(temperature), 300)
        true = probability_rows(logits.double(), Sampling(temperature))[0]
        assert found.mass == pytest.approx(1, abs=1e-6)
        for token, prob in found.probs.items():
            assert abs(prob / float(true[token]) - 1) <= found.slack + 1e-4
        if temperature == 1:
            assert found.slack == 0
            assert found.rest == pytest.approx(1 - float(true[list(found.probs)].sum()), abs=1e-5)


def test_slack_can_be_too_small() -> None:
    """The control of the promise: with half of it, some figure is further off."""
    worst = 0.0
    for seed in range(20):
        logits = row(300, seed, 1.0)
        found = law(Logits.of(logits)[0], Sampling(3.0), 300)
        true = probability_rows(logits.double(), Sampling(3.0))[0]
        worst = max(worst, *(abs(prob / float(true[token]) - 1) / found.slack for token, prob in found.probs.items()))
    assert 0.5 < worst <= 1


def test_filters_that_cut_among_the_told_tokens_are_exact() -> None:
    logits = row(300, 1, 4.0)
    for sampling in (Sampling(1.0, top_k=5), Sampling(1.0, top_p=0.5), Sampling(1.0, min_p=0.3)):
        found = law(Logits.of(logits)[0], sampling, 300)
        true = probability_rows(logits.double(), sampling)[0]
        assert found.rest == 0 and {*found.probs} == {*true.nonzero()[:, 0].tolist()}
        assert all(prob == pytest.approx(float(true[token]), abs=1e-6) for token, prob in found.probs.items())


@pytest.mark.parametrize(
    "sampling",
    [Sampling(1.0, top_k=50), Sampling(1.0, top_k=50, top_p=0.95), Sampling(1.0, top_p=0.9), Sampling(1.0, min_p=0.05)],
    ids=str,
)
def test_filters_that_cut_behind_the_told_tokens_keep_the_promise(sampling: Sampling) -> None:
    for seed in range(20):
        logits = row(300, seed, 1.0)
        found = law(Logits.of(logits)[0], sampling, 300)
        true = probability_rows(logits.double(), sampling)[0]
        assert found.rest > 0 and found.mass == pytest.approx(1)
        for token, prob in found.probs.items():
            assert abs(prob / float(true[token]) - 1) <= found.slack + 1e-4


def test_a_known_token_is_told_apart() -> None:
    """A node's token may be among the others; the trace knows its probability all the same."""
    logits = row(300, 2)
    last = int(logits[0].argmin())
    raw = float(logits[0].double().softmax(-1)[last])
    for temperature in (1.0, 0.5):
        found = law(Logits.of(logits)[0], Sampling(temperature), 300, {last: raw})
        true = float(probability_rows(logits.double(), Sampling(temperature))[0, last])
        assert found.prob(last) == pytest.approx(true, rel=found.slack + 1e-3)
    told = law(Logits.of(logits)[0], Sampling(2.0), 300).telling(
        {int(logits[0].argmax()): float((logits[0].double() / 2).softmax(-1).max())}
    )
    assert told.slack == 0 and told.prob(int(logits[0].argmax())) == max(told.probs.values())
    assert told.mass == pytest.approx(1)


def test_differences_and_overlaps_are_those_of_whole_rows() -> None:
    target, draft = (law(Logits.of(row(10, seed))[0], Sampling(1.0), 10) for seed in (1, 2))
    p, q = (torch.tensor([one.prob(token) for token in range(10)]) for one in (target, draft))
    rest = target.minus(draft)
    assert [rest.prob(token) for token in range(10)] == pytest.approx((p - q).clamp(min=0).tolist(), abs=1e-7)
    assert target.overlap(draft) == pytest.approx(float(acceptance(p, q)), abs=1e-6)
    assert rest.mass == pytest.approx(1 - target.overlap(draft), abs=1e-6)
    top = next(iter(draft.probs))
    assert top not in draft.without(top).probs and draft.without(top).mass == pytest.approx(1)


def test_an_empty_row_tells_nothing() -> None:
    assert law(Logits([], [], 0.0), Sampling(1.0), 5) == Law({}, 1.0, 1.0)
