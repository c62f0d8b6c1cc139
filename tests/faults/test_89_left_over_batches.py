"""89: the last batches of an epoch never make a step, or one with too small a gradient; the schedule ends early."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from lessons import samples_of, trainer_of
from outpace.training import trainer as module
from outpace.training.recipe import TrainSettings
from outpace.training.trainer import Trainer
from outpace.training.unroll import unroll
from toys import must_fail

ALONE = 15
"""Tokens of a batch: one text has room, two have not."""
OPTIONS: dict[str, Any] = {"tokens_per_batch": ALONE, "batches_per_step": 4, "warmup": 0.0, "clip": 1e9}


def steps_of(trainer: Trainer) -> tuple[list[float], list[float]]:
    """Train: the rate of every step, and how far its gradient is from that of the mean over the tokens of all of its
    batches, read as one batch, as a share of its largest entry."""
    rates: list[float] = []
    distances: list[float] = []
    honest, weights, teacher = trainer.optimiser.step, list(trainer.pupil.parameters()), trainer.lesson.teacher
    windows = [
        [place for batch in order[start : start + 4] for place in batch]
        for order in trainer.epochs
        for start in range(0, len(order), 4)
    ]

    def joint(places: list[int]) -> tuple[Tensor, ...]:
        chosen = trainer.settings
        found = unroll(
            trainer.pupil,
            trainer.features.fetch(places),
            teacher,
            steps=chosen.depth,
            loss=chosen.loss,
        )
        return torch.autograd.grad(found.objective(chosen.decay), weights)

    def step(rate: float) -> None:
        expected = joint(windows[len(rates)])
        rates.append(rate)
        apart = [float((w.grad - g).abs().max()) for w, g in zip(weights, expected, strict=True) if w.grad is not None]
        distances.append(max(apart) / max(float(g.abs().max()) for g in expected))
        honest(rate)

    trainer.optimiser.step = step  # type: ignore[method-assign]
    trainer.train()
    return rates, distances


def case(folder: Path) -> None:
    """Seven batches, four a step, twice over: four steps, every one of the mean over its own batches, at the rates of a
    schedule of four. Three batches make one step."""
    trainer = trainer_of(folder / "seven", samples=samples_of(7), **OPTIONS)
    assert [len(order) for order in trainer.epochs] == [7, 7]
    rates, distances = steps_of(trainer)
    assert trainer.steps == len(rates) == 4
    assert max(distances) < 1e-4, "fp32, sums in another order"
    highest = trainer.settings.learning_rate
    assert rates == pytest.approx([highest * (0.05 + 0.95 * (1 + math.cos(math.pi * s / 4)) / 2) for s in range(4)])
    few = trainer_of(folder / "three", samples=samples_of(3), epochs=1, **OPTIONS)
    rates, distances = steps_of(few)
    assert len(few.epochs[0]) == 3 and few.steps == len(rates) == 1
    assert rates == pytest.approx([highest]) and max(distances) < 1e-4


def test_case(tmp_path: Path) -> None:
    case(tmp_path)


def only_whole_windows(self: Trainer, window: Any) -> Any:
    """What is left over at the end of an epoch is dropped."""
    batches = honest_share(self, window)
    if len(window) == self.settings.batches_per_step:
        return batches
    return [module.replace(batch, loss_mask=torch.zeros_like(batch.loss_mask)) for batch in batches]


def as_if_there_were_four(self: Trainer, batches: Any, weights: Tensor, learning_rate: float) -> Any:
    """The sum is divided by the number of batches that a whole step has."""
    return honest_learn(self, batches, weights * self.settings.batches_per_step / len(batches), learning_rate)


def a_mean_of_means(self: Trainer, batches: Any, weights: Tensor, learning_rate: float) -> Any:
    """Each batch weighs the same, however few tokens it has."""
    whole, lesson = len(batches), self.lesson

    def own(batch: Any, weights: Tensor) -> Any:
        objective, counts = lesson(batch)
        return objective / whole, counts

    self.lesson = own
    try:
        return honest_learn(self, batches, weights, learning_rate)
    finally:
        self.lesson = lesson


def of_whole_steps(settings: TrainSettings, step: int, steps: int) -> float:
    """The schedule counts no step that is not whole."""
    return honest_rate(settings, step, max(1, 2 * 7 // 4))


honest_share, honest_learn, honest_rate = Trainer._share, Trainer._learn, module.rate


@pytest.mark.parametrize(
    ("owner", "name", "fault"),
    [
        (Trainer, "_share", only_whole_windows),
        (Trainer, "_learn", as_if_there_were_four),
        (Trainer, "_learn", a_mean_of_means),
        (module, "rate", of_whole_steps),
    ],
)
def test_planted_fault(owner: Any, name: str, fault: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owner, name, fault)
    with must_fail():
        case(tmp_path)
