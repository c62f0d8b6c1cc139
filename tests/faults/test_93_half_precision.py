"""93: half precision overflows or turns to NaN, and the head is trained on with it."""

import math
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from lessons import samples_of, student, trainer_of
from outpace.errors import NumericsError, UsageError
from outpace.models.ends import read_head
from outpace.models.toy import tiny_transformer
from outpace.training import losses
from outpace.training import trainer as module
from outpace.training.batch import Batch
from outpace.training.eagle3 import Eagle3Lesson
from outpace.training.features import Features, online
from outpace.training.losses import LOSSES
from outpace.training.ranges import PRECISIONS
from outpace.training.recipe import Recipe
from outpace.training.trainer import Trainer
from outpace.training.unroll import unroll
from toys import must_fail

TINY = Path(__file__).parents[2] / "recipes" / "tiny.toml"
BEYOND = 7e4
"""More than fp16 can hold."""


def changed(change: Callable[[Batch, list[int]], Batch]) -> Features:
    """The tiny target's features, each batch changed; texts by their places."""
    honest = trainer_of(Path()).features
    return replace(honest, fetch=lambda places: change(honest.fetch(places), list(places)))


def large(batch: Batch, places: list[int]) -> Batch:
    """States beyond fp16; one text without an answer; a target so sure that most of its law is exactly 0."""
    kept = torch.tensor([place != 3 for place in places])
    last = 300.0 * batch.last_normed
    logits = last @ read_head(student()).T
    assert float((logits.softmax(-1) == 0).float().mean()) > 0.5
    return replace(
        batch,
        loss_mask=batch.loss_mask & kept[:, None],
        features=batch.features * (BEYOND / batch.features.abs().max()),
        last_normed=last,
        logsumexp=logits.logsumexp(-1),
    )


def broken(batch: Batch, places: list[int]) -> Batch:
    """States of one text that are no numbers."""
    features = batch.features.clone()
    features[torch.tensor([place == 3 for place in places])] = math.nan
    return replace(batch, features=features)


def whole(folder: Path, **options: Any) -> Trainer:
    trainer = trainer_of(folder, **options)
    trainer.train()
    held = {one.dtype for one in trainer.optimiser.tensors().values()}
    assert held == {torch.float32} == {weight.dtype for weight in trainer.pupil.parameters()}
    assert all(bool(weight.isfinite().all()) for weight in trainer.pupil.parameters())
    return trainer


def range_case(folder: Path) -> None:
    """By every loss, in either precision: no step is lost, and every loss is a number."""
    features = changed(large)
    for loss in LOSSES:
        for precision in PRECISIONS:
            told: list[float | None] = []
            trainer = whole(
                folder / loss / precision,
                features=features,
                loss=loss,
                precision=precision,
                epochs=1,
                watch=lambda report, told=told: told.extend(report.counts.loss),
            )
            assert trainer.place.bad == 0 and trainer.place.step == trainer.steps > 1
            assert told and all(value is not None and math.isfinite(value) for value in told)


def test_what_is_beyond_half_precision(tmp_path: Path) -> None:
    range_case(tmp_path)


def skip_case(folder: Path) -> None:
    """It is left out, counted and told of; weights and moments stay numbers, in fp32."""
    with warnings.catch_warnings(record=True) as notices:
        warnings.simplefilter("always")
        trainer = whole(folder, features=changed(broken), epochs=3, precision="bf16")
    told = [str(one.message) for one in notices if "it is skipped" in str(one.message)]
    assert trainer.place.bad == len(told) == 3 < trainer.place.step


def test_a_step_that_is_no_number(tmp_path: Path) -> None:
    skip_case(tmp_path)


def test_what_is_refused_before_the_first_step(tmp_path: Path) -> None:
    """fp16 is not offered; states that the target's dtype cannot hold are refused by the text they are of."""
    with pytest.raises(UsageError, match="precision is 'fp16'; allowed: one of bf16, fp32"):
        Recipe.read(TINY).with_changes("train", precision="fp16")
    target = tiny_transformer(seed=3)
    text = next(one for one in samples_of() if int(one.ids[-1]) >= 8)  # ids below are read when it is opened
    target.embeddings = target.embeddings.clone()
    target.embeddings[int(text.ids[-1])] = math.inf
    with pytest.raises(NumericsError, match=f"states in {text.key} are not finite in float32; allowed: finite ones"):
        online(target, [text], taps=(0, 1)).fetch([0])


# ---- planted faults --------------------------------------------------------------------------------------------------


def logarithm_of_a_law(rows: Any) -> tuple[Tensor, Tensor]:
    """Nothing times minus infinity."""
    law = rows.inside
    return (law * (law.log() - rows.draft.log())).sum(-1), rows.draft - law


def in_fp16(self: Eagle3Lesson, batch: Batch, weights: Tensor | None = None) -> Any:
    """Products in fp16, whose range ends at 65504."""
    chosen = self.settings
    with torch.autocast("cpu", torch.float16):
        found = unroll(self.pupil, batch, self.teacher, steps=chosen.depth, loss=chosen.loss)
    return found.objective(chosen.decay, weights), found.counts


def quietly(range_or_skip: Callable[[Path], None], folder: Path) -> None:
    with warnings.catch_warnings(), must_fail():
        warnings.simplefilter("ignore")
        range_or_skip(folder)


def test_planted_logarithm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(losses, "FAST", dict(losses.FAST) | {"forward-kl": logarithm_of_a_law})
    quietly(range_case, tmp_path)


def test_planted_fp16(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Eagle3Lesson, "forward", in_fp16)
    quietly(range_case, tmp_path)


def test_planted_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every step is taken."""

    class Trusting:
        isfinite = staticmethod(lambda value: True)

        def __getattr__(self, name: str) -> Any:
            return getattr(math, name)

    monkeypatch.setattr(module, "math", Trusting())
    monkeypatch.setattr(torch.Tensor, "isfinite", lambda tensor: torch.ones_like(tensor, dtype=torch.bool))
    with warnings.catch_warnings(), must_fail():
        warnings.simplefilter("ignore")
        trainer = trainer_of(tmp_path, features=changed(broken), epochs=3, precision="bf16")
        trainer.train()
        monkeypatch.undo()
        assert all(bool(weight.isfinite().all()) for weight in trainer.pupil.parameters())
