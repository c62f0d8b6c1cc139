"""The lesson's own check: 10,000 samples of the speculative decoder against the target's law, KL below 0.01.

For total variation no such number can be asked for: a perfect sampler of n samples is about sqrt(V / 2 pi n) away from
its law. The threshold is that distance, exactly, and what chance adds to it once in a billion runs.
"""

import math

import pytest
import torch
from scipy.stats import binom
from torch import Tensor

from outpace.decoding.generate import speculative_decode
from outpace.models.toy import random_table
from outpace.verification.probabilities import Sampling, probability_rows

SAMPLES, ALARM = 10_000, 1e-9

pytestmark = pytest.mark.usefixtures("unchecked")


def expected_distance(law: Tensor, count: int) -> float:
    """E[TV] between a law and ``count`` samples of it, by De Moivre's mean deviation of a binomial."""
    total = 0.0
    for p in law.tolist():
        if 0 < p < 1:
            middle = math.floor(count * p) + 1
            total += 2 * middle * (1 - p) * float(binom.pmf(middle, count, p))
    return total / (2 * count)


def distances(law: Tensor, counts: Tensor) -> tuple[float, float, float]:
    """KL of the samples from the law, TV, and the TV that a perfect sampler exceeds with probability ``ALARM``."""
    shares = counts.double() / counts.sum()
    seen = shares > 0
    divergence = float((shares[seen] * (shares[seen] / law[seen]).log()).sum())
    threshold = expected_distance(law, int(counts.sum())) + math.sqrt(math.log(1 / ALARM) / (2 * int(counts.sum())))
    return divergence, float((shares - law).abs().sum() / 2), threshold


def lesson(temperature: float, shown: Tensor, K: int = 4) -> tuple[float, float, float]:
    """Three tokens behind [0, 2]: target and draft are functions of ids, as in the lesson."""
    draft = random_table(4, seed=8)
    tokens = speculative_decode(
        lambda ids: shown[ids],
        lambda ids: draft[ids],
        [0, 2],
        K,
        temperature,
        max_new_tokens=3,
        num_samples=SAMPLES,
        batch_size=SAMPLES,
        rule="rejection",
        seed=2,
    )
    rows = probability_rows(random_table(4, seed=7), Sampling(temperature))
    law = (rows[2][:, None, None] * rows[:, :, None] * rows[None]).flatten()
    return distances(law, torch.bincount((tokens * torch.tensor([16, 4, 1])).sum(1), minlength=64))


@pytest.mark.parametrize("temperature", [0.7, 1.0])
def test_ten_thousand_samples(temperature: float) -> None:
    """With a perfect sampler 2 n KL is about chi-square of 63: KL above 0.01 has probability below 1e-15."""
    divergence, distance, threshold = lesson(temperature, random_table(4, seed=7))
    print(f"KL {divergence:.4f} (allowed 0.01), TV {distance:.4f} (a perfect sampler: up to {threshold:.4f})")
    assert divergence < 0.01
    assert distance < threshold


def test_a_slightly_other_target_is_noticed() -> None:
    """The control: logits a tenth too large."""
    divergence, distance, threshold = lesson(1.0, 1.25 * random_table(4, seed=7))
    assert divergence > 0.01 and distance > threshold


def test_the_expected_distance_is_that_of_a_perfect_sampler() -> None:
    """The mean of 200 runs; its standard error is 0.0001, so a false alarm at 0.001 has probability below 1e-9."""
    law = random_table(8, seed=3)[0].softmax(-1)
    generator = torch.Generator().manual_seed(0)
    seen = torch.multinomial(law, 200 * 1_000, replacement=True, generator=generator).view(200, 1_000)
    mean = sum(float((torch.bincount(row, minlength=8) / 1_000 - law).abs().sum() / 2) for row in seen) / 200
    assert mean == pytest.approx(expected_distance(law, 1_000), abs=1e-3)
