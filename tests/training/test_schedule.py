"""The rate of a step depends on its number alone: a rise, a highest point, a fall."""

import math
from itertools import pairwise

import pytest

from lessons import settings_of
from outpace.training.schedule import rate


@pytest.mark.parametrize("schedule", ["cosine", "linear", "constant"])
def test_rise_and_fall(schedule: str) -> None:
    chosen = settings_of(learning_rate=2.0, warmup=0.25, schedule=schedule, final_rate=0.1)
    rates = [rate(chosen, step, 40) for step in range(40)]
    assert rates[:10] == pytest.approx([0.2 * (step + 1) for step in range(10)])
    assert rates[10] == 2.0 and max(rates) == 2.0
    assert all(left >= right for left, right in pairwise(rates[10:]))
    half = rates[25]
    expected = {"cosine": 1.1, "linear": 1.1, "constant": 2.0}[schedule]
    assert half == pytest.approx(expected)


def test_the_fall_ends_at_its_share() -> None:
    chosen = settings_of(learning_rate=1.0, warmup=0.0, schedule="linear", final_rate=0.2)
    assert rate(chosen, 9, 10) == pytest.approx(0.2 + 0.8 * 0.1)
    cosine = settings_of(learning_rate=1.0, warmup=0.0, schedule="cosine", final_rate=0.2)
    assert rate(cosine, 9, 10) == pytest.approx(0.2 + 0.8 * (1 + math.cos(0.9 * math.pi)) / 2)


def test_one_step_alone() -> None:
    for schedule in ("cosine", "linear", "constant"):
        assert rate(settings_of(learning_rate=1.0, warmup=0.5, schedule=schedule), 0, 1) == 1.0
