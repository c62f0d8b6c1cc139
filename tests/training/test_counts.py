"""The figures of a training-time test, worked out by hand from small counts."""

import pytest
import torch

from outpace.training.counts import StepCounts


def counts(*rows: list[float]) -> StepCounts:
    return StepCounts(*(torch.tensor(row, dtype=torch.float64) for row in rows))


MADE = counts([6, 8], [4, 2], [5, 4], [3, 2], [5, 3], [3, 1], [2.5, 1])


def test_figures() -> None:
    assert MADE.loss == (1.5, 4.0)
    assert MADE.accuracy == (0.6, 0.5)
    assert MADE.conditional == pytest.approx((0.6, 1 / 3))
    assert MADE.acceptance == (0.5, 0.25)
    assert MADE.tau == pytest.approx(1 + 0.6 + 0.6 / 3)


def test_batches_are_pooled_and_not_averaged() -> None:
    other = counts([0, 1], [1, 0], [1, 0], [1, 0], [1, 0], [1, 0], [1, 0])
    both = MADE + other
    assert both.accuracy == (4 / 6, 0.5) and both.loss == (6 / 5, 4.5)
    assert vars(MADE + StepCounts.none(2)).keys() == vars(MADE).keys()
    assert all(torch.equal(vars(MADE + StepCounts.none(2))[name], sums) for name, sums in vars(MADE).items())


def test_what_was_never_counted_has_no_figure() -> None:
    assert StepCounts.none(2).tau is None and StepCounts.none(2).conditional == (None, None)
    unreached = counts([1, 1], [1, 1], [2, 2], [0, 1], [2, 0], [0, 0], [1, 1])
    assert unreached.conditional == (0.0, None) and unreached.tau == 1
