"""91: samples of one batch see each other: attention or labels go over the border between them."""

from typing import Any

import pytest
import torch
from torch import Tensor

from outpace.training import unroll as module
from outpace.training.attention import Spans
from outpace.training.batch import Batch
from outpace.training.unroll import unroll
from toys import must_fail
from unrolled import Recorded, gradients, recorded, toy_head, toy_shape

NEAR = {"atol": 1e-9, "rtol": 1e-9}
MASKS = ([0, 0, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1, 1], [0, 1, 0, 1, 1, 0, 1])
STEPS = 3


def alone(made: Recorded, row: int) -> Batch:
    batch, length = made.batch, made.batch.lengths[row]
    cut = [
        grid[row : row + 1, :length]
        for grid in (batch.ids, batch.loss_mask, batch.features, batch.last_normed, batch.argmax, batch.logsumexp)
    ]
    return Batch(*cut, [length])


def case() -> None:
    """Texts side by side, which are read as one flat list, give the losses and gradients that each gives alone; what a
    neighbour says changes nothing; and a step s speaks of no token of a text's first s + 2, and of none behind it."""
    shape = toy_shape()
    head, made, other = toy_head(shape), recorded(shape, MASKS, seed=1), recorded(shape, MASKS, seed=2)
    teacher = made.teacher(head)

    def told(batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        losses = unroll(head, batch, teacher, steps=STEPS).losses
        return losses.detach(), gradients(head, losses.sum())

    whole, parts = told(made.batch), [told(alone(made, row)) for row in range(3)]
    torch.testing.assert_close(whole[0], sum(losses for losses, _ in parts), **NEAR)
    for name, gradient in whole[1].items():
        torch.testing.assert_close(gradient, sum(each[name] for _, each in parts), **NEAR)
    for row in range(3):
        mixed = [grid.clone() for grid in grids(made.batch)]
        for grid, given in zip(mixed, grids(other.batch), strict=True):
            grid[row] = given[row]
        changed, own = told(Batch(*mixed, made.batch.lengths))[0], told(alone(other, row))[0]
        torch.testing.assert_close(changed - own, whole[0] - parts[row][0], **NEAR)
    everything = recorded(shape, [[1] * 7, [1] * 6, [1] * 4], seed=3).batch
    counts = unroll(head, everything, teacher, steps=STEPS).counts.places
    assert counts.tolist() == [sum(max(0, length - 2 - step) for length in (7, 6, 4)) for step in range(STEPS)]


def grids(batch: Batch) -> tuple[Tensor, ...]:
    return batch.ids, batch.loss_mask, batch.features, batch.last_normed, batch.argmax, batch.logsumexp


def test_case() -> None:
    case()


def one_document(keys: list[int], queries: list[int], places: Tensor) -> Spans:
    """All texts of a batch are taken for one."""
    starts = torch.tensor([0, *keys[:-1]]).cumsum(0).repeat_interleave(torch.tensor(queries))
    return Spans([sum(keys)], [sum(queries)], places + starts)


def over_the_border(grid: Tensor, by: int) -> Tensor:
    """What stands ahead is looked up in the flat list."""
    flat = torch.zeros_like(grid).flatten()
    flat[: max(0, flat.numel() - by)] = grid.flatten()[by:]
    return flat.view_as(grid)


@pytest.mark.parametrize(("name", "fault"), [("Spans", one_document), ("_ahead", over_the_border)])
def test_planted_fault(name: str, fault: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, name, fault)
    with must_fail():
        case()
