"""82: the loss is averaged over masked places: long prompts count less, and padding changes the step."""

from typing import Any

import pytest
import torch
from torch import Tensor

from outpace.drafters.head import Head
from outpace.training.batch import Batch
from outpace.training.unroll import Unrolled, unroll, weights_of
from toys import must_fail
from unrolled import Recorded, gradients, recorded, toy_head, toy_shape

MASKS = ([0] * 9 + [1, 1, 1, 1], [0, 1, 1, 1, 1, 1], [1, 1, 1])


def of_rows(made: Recorded, rows: list[int], longest: int) -> Batch:
    """Some texts of a recording, cut to a length."""
    batch = made.batch
    cut = [
        grid[rows, :longest]
        for grid in (batch.ids, batch.loss_mask, batch.features, batch.last_normed, batch.argmax, batch.logsumexp)
    ]
    return Batch(*cut, [batch.lengths[row] for row in rows])


def case() -> None:
    """A text has the same gradient padded or not; and however texts are put together in batches of one step, its
    gradient is that of the mean over all tokens that count, a long prompt before them or not."""
    shape = toy_shape()
    head, made = toy_head(shape), recorded(shape, MASKS, padding=50)
    teacher, lengths = made.teacher(head), made.batch.lengths

    def gradient(parts: list[Batch]) -> dict[str, Tensor]:
        """Of one step over several batches."""
        weights = sum((weights_of(part, head.target_ids) for part in parts), torch.zeros(4, dtype=torch.float64))
        objectives = [unroll(head, part, teacher).objective(weights=weights) for part in parts]
        return gradients(head, torch.stack(objectives).sum())

    def require(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> None:
        for name, expected in theirs.items():
            torch.testing.assert_close(ours[name], expected, atol=1e-9, rtol=1e-6)

    for row, length in enumerate(lengths):
        require(gradient([of_rows(made, [row], length + 50)]), gradient([of_rows(made, [row], length)]))
    whole = gradient([of_rows(made, [0, 1, 2], max(lengths))])
    alone = [of_rows(made, [row], length) for row, length in enumerate(lengths)]
    require(gradient(alone), whole)
    require(gradient([of_rows(made, [0, 2], 13), alone[1]]), whole)
    require(gradient([of_rows(made, [1, 2], 40), alone[0]]), whole)
    sums = [unroll(head, part, teacher) for part in alone]
    shares = 0.8 ** torch.arange(4) / sum(one.counts.weights for one in sums)
    require(gradients(head, (torch.stack([one.losses for one in sums]).sum(0) * shares).sum()), whole)


def test_case() -> None:
    case()


def over_all_places(self: Unrolled, decay: float = 0.8, weights: Any = None) -> Tensor:
    """Prompts and padding are places like others."""
    return (self.losses * decay ** torch.arange(len(self.losses)) / vars(self)["places"]).sum()


def over_its_own(self: Unrolled, decay: float = 0.8, weights: Any = None) -> Tensor:
    """A mean of every batch, and those are added up."""
    return honest_objective(self, decay)


def over_all_steps(self: Unrolled, decay: float = 0.8, weights: Any = None) -> Tensor:
    """One mean for all steps together, though the later ones count fewer tokens."""
    whole = self.counts.weights if weights is None else weights
    return honest_objective(self, decay, whole.mean().expand_as(whole))


def with_places(head: Head, batch: Batch, *others: Any, **options: Any) -> Unrolled:
    found = honest_unroll(head, batch, *others, **options)
    vars(found)["places"] = batch.ids.numel()
    return found


honest_objective, honest_unroll = Unrolled.objective, unroll


@pytest.mark.parametrize("fault", [over_all_places, over_its_own, over_all_steps])
def test_planted_fault(fault: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "unroll", with_places)
    monkeypatch.setattr(Unrolled, "objective", fault)
    with must_fail():
        case()
