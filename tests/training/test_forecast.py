"""What is forecast is what comes: samples, tokens, steps and bytes, exactly where the data stands and at most where it
does not."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from outpace.errors import UsageError
from outpace.models.target import Target
from outpace.training import forecast as module
from outpace.training.course import Course, prepare, run
from outpace.training.forecast import Forecast, forecast
from outpace.training.gather import ANSWERS, INVENTED
from outpace.training.recipe import Recipe
from pupils import ASKED, NEW, answers_of, lines_of, model_folder, opened, recipe_of
from toys import must_fail

ROUNDING = 1 << 15
"""Bytes of the headers of files, and of what is in a checkpoint beside weights and moments."""


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Target:
    return opened(model_folder(tmp_path_factory.mktemp("targets") / "tiny"))


@pytest.fixture(scope="module")
def answers(target: Target, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return answers_of(target, tmp_path_factory.mktemp("data") / "answers.jsonl")


def stored(answers: Path, **train: Any) -> Recipe:
    """Two of six answers are held out, and batches hold about one text."""
    data = {"answers": (str(answers),), "held_out": 0.4, "features": "recorded"}
    return recipe_of(data, **{"epochs": 3, "tokens_per_batch": 80, "batches_per_step": 2, **train})


def told(recipe: Recipe, target: Target, folder: Path) -> Forecast:
    return forecast(recipe, target, folder / "work", folder / "features")


def prepared(recipe: Recipe, target: Target, folder: Path) -> Course:
    return prepare(recipe, target, folder / "work", folder / "features")


def bytes_of(folder: Path, pattern: str) -> int:
    return sum(path.stat().st_size for path in folder.glob(pattern))


def counts(found: Forecast) -> tuple[int, ...]:
    return found.samples, found.tokens, found.answer_tokens, found.held_out


def counted(course: Course) -> tuple[int, ...]:
    held = [] if course.held_out is None else course.held_out.samples
    every = [*course.features.samples, *held]
    return len(every), sum(map(len, every)), sum(int(one.loss_mask.sum()) for one in every), len(held)


def case(target: Target, answers: Path, folder: Path, step: Callable[[Forecast], Forecast] = lambda one: one) -> None:
    recipe = stored(answers)
    found = step(told(recipe, target, folder))
    assert list(folder.iterdir()) == [], "a forecast writes nothing"
    assert found.missing_bytes == found.feature_bytes > 0
    course = prepared(recipe, target, folder)
    assert counts(found) == counted(course) and found.held_out > 0 and found.left_out == 0
    assert 0 <= bytes_of(folder / "features", "*.safetensors") - found.feature_bytes < ROUNDING
    assert step(told(recipe, target, folder)).missing_bytes == 0, "what was recorded is not recorded again"
    trained, _ = run(course, recipe, folder / "card", folder / "work")
    assert found.steps == trained.place.step > recipe.train.epochs
    assert found.parameters == sum(weight.numel() for weight in trained.pupil.parameters())
    written = bytes_of(folder / "work", "step-*/*.safetensors") + bytes_of(folder / "work", "best/*")
    assert 0 <= written - found.checkpoint_bytes < ROUNDING
    assert found.training_s == pytest.approx(found.steps * found.step_s) and found.recording_s > 0
    assert (found.answering_s, found.to_answer, found.to_invent) == (0, 0, 0)


def test_stored_answers(target: Target, answers: Path, tmp_path: Path) -> None:
    case(target, answers, tmp_path)


def forgets_what_is_held_out(*_: Any) -> Any:
    return lambda samples, data: (list(samples), [])


def forgets_the_window(honest: Any) -> Any:
    return lambda settings, samples, unknown: honest(replace(settings, batches_per_step=1), samples, unknown)


def forgets_what_stands(honest: Any) -> Any:
    return lambda target, samples, folder, **chosen: honest(target, samples, folder / "another", **chosen)


FAULTS = {"divided": forgets_what_is_held_out, "_steps": forgets_the_window, "estimate": forgets_what_stands}


@pytest.mark.parametrize("name", FAULTS)
def test_planted_fault(
    name: str, target: Target, answers: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, name, FAULTS[name](getattr(module, name)))
    with must_fail():
        case(target, answers, tmp_path)


def test_features_that_are_computed_at_each_use(target: Target, answers: Path, tmp_path: Path) -> None:
    """They take no disk, and are read once an epoch."""
    recipe = stored(answers).with_changes("data", features="online")
    found = told(recipe, target, tmp_path)
    assert found.feature_bytes == found.missing_bytes == 0 < found.recording_s


def test_a_step_is_shared() -> None:
    """Five batches on two processes take as long as three, and the optimiser steps once."""
    assert module._Pace(read_s=9.0, batch_s=2.0, optimiser_s=0.5, parameters=1).step(5, 2) == 6.5


# ---- what is still to come -------------------------------------------------------------------------------------------


def test_prompts_to_answer(target: Target, answers: Path, tmp_path: Path) -> None:
    """One that is repeated or to be avoided is not asked; what is answered is not asked again, and exact."""
    prompts = lines_of(tmp_path / "p.jsonl", *({"prompt": one} for one in [*ASKED, ASKED[0].upper()]))
    avoid = lines_of(tmp_path / "avoid.jsonl", {"prompt": ASKED[1]})
    data = {"prompts": (str(prompts),), "avoid": (str(avoid),), "max_new_tokens": NEW, "answers": (str(answers),)}
    recipe = stored(answers).with_changes("data", **data)
    before = told(recipe, target, tmp_path)
    assert not (tmp_path / "work").exists()
    assert before.to_answer == len(ASKED) - 1 and before.to_invent == 0 and before.answering_s > 0
    course = prepared(recipe, target, tmp_path)
    after = told(recipe, target, tmp_path)
    assert (after.to_answer, after.answering_s) == (0, 0) and counts(after) == counted(course)
    assert all(most >= fewer for most, fewer in zip(counts(before)[:3], counts(after)[:3], strict=True))
    assert before.samples == after.samples and before.steps >= after.steps


@pytest.mark.filterwarnings("ignore::UserWarning")  # of so few, some may be too many
def test_prompts_to_invent(target: Target, tmp_path: Path) -> None:
    data = {"invent": 6, "max_new_tokens": 12, "batch_size": 8, "limit": 256, "features": "recorded"}
    recipe = recipe_of(data, epochs=1, tokens_per_batch=512)
    before = told(recipe, target, tmp_path)
    assert (before.to_invent, before.to_answer) == (6, 6) == (before.samples, before.samples)
    assert list(tmp_path.iterdir()) == []
    course = prepared(recipe, target, tmp_path)
    made, said = ((tmp_path / "work" / name).read_text("utf-8").splitlines()[1:] for name in (INVENTED, ANSWERS))
    after = told(recipe, target, tmp_path)
    assert (after.to_invent, after.to_answer) == (6 - len(made), 6 - len(said))
    assert len(said) - after.left_out == after.samples - after.to_answer == counted(course)[0]


# ---- what is refused -------------------------------------------------------------------------------------------------


def test_what_the_training_would_refuse(target: Target, answers: Path, tmp_path: Path) -> None:
    recipe = stored(answers)
    for changes, message in (
        ({"answers": ()}, "the recipe has no data; allowed: answers, prompts, or invent above 0"),
        ({"held_out": 0.9999999}, "all 6 samples are held out; allowed: a share of them, not all"),
        ({"limit": 4}, "none of 6 samples can be trained on: 6 are longer than 4 tokens, 0 have no answer"),
        ({"answers": ("nowhere.jsonl",)}, "the answers cannot be read from nowhere.jsonl"),
        ({"avoid": ("nowhere.jsonl",)}, "nowhere.jsonl"),
    ):
        with pytest.raises(UsageError, match=message):
            told(recipe.with_changes("data", **changes), target, tmp_path)
    with pytest.raises(UsageError, match="the tap 9 is not of"):
        told(replace(recipe, head=replace(recipe.head, taps=(1, 9))), target, tmp_path)
    assert list(tmp_path.iterdir()) == []
