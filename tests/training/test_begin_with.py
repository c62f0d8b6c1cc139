"""A training may begin with a trained head: its weights, its shape and its vocabulary are gone on with."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from outpace.cli import app
from outpace.drafters.card import read_card
from outpace.errors import UsageError
from outpace.models.target import Target
from outpace.training.course import Course, prepare, run
from outpace.training.forecast import forecast
from outpace.training.ledger import read_ledger
from outpace.training.recipe import Recipe
from pupils import answers_of, model_folder, opened, recipe_file, recipe_of
from toys import must_fail

EPOCHS = 30


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Target:
    return opened(model_folder(tmp_path_factory.mktemp("targets") / "tiny"))


@pytest.fixture(scope="module")
def recipe(target: Target, tmp_path_factory: pytest.TempPathFactory) -> Recipe:
    answers = answers_of(target, tmp_path_factory.mktemp("data") / "answers.jsonl")
    return recipe_of({"answers": (str(answers),)}, epochs=EPOCHS)


@pytest.fixture(scope="module")
def first(target: Target, recipe: Recipe, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A head that learnt for a while, in a card."""
    folder = tmp_path_factory.mktemp("first")
    run(prepared(recipe, target, folder), recipe, folder / "card", folder / "work")
    return folder / "card"


def prepared(recipe: Recipe, target: Target, folder: Path) -> Course:
    return prepare(recipe, target, folder / "work", folder / "features")


def begun(recipe: Recipe, first: Path, **head: Any) -> Recipe:
    return recipe.with_changes("head", begin_with=str(first), **head)


def losses(work: Path) -> list[float]:
    return [line["loss"][0] for line in read_ledger(work / "log.jsonl") if "loss" in line]


def test_it_begins_as_the_head_that_is_given(target: Target, recipe: Recipe, first: Path, tmp_path: Path) -> None:
    """Weights and ids are those of the card; without it they are not."""
    given, _ = read_card(first)
    course = prepared(begun(recipe, first), target, tmp_path)
    assert torch.equal(course.lesson.pupil.target_ids, given.target_ids) and 0.9 < course.data["coverage"] <= 1

    def same(head: Any) -> None:
        ours, theirs = head.state_dict(), given.state_dict()
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(ours[name], theirs[name].to(ours[name])) for name in ours)

    same(course.lesson.pupil)
    assert all(weight.dtype == torch.float32 and weight.requires_grad for weight in course.lesson.pupil.parameters())
    with must_fail():  # planted: a fresh head
        same(prepared(recipe, target, tmp_path).lesson.pupil)


def test_it_goes_on_where_the_other_ended(target: Target, recipe: Recipe, first: Path, tmp_path: Path) -> None:
    """Its first loss is about the last one of the first training, far below that of a fresh head."""
    again = begun(recipe, first).with_changes("train", epochs=1, learning_rate=1e-4)
    run(prepared(again, target, tmp_path), again, tmp_path / "card", tmp_path / "work")
    before = losses(first.with_name("work"))
    assert losses(tmp_path / "work")[0] < 0.5 * before[0]
    assert read_card(tmp_path / "card")[1].recipe["head"]["begin_with"] == str(first)


def test_what_a_recipe_says_must_be_so(target: Target, recipe: Recipe, first: Path, tmp_path: Path) -> None:
    said = begun(recipe, first)
    for wrong, words in (
        ({"norm_output": True}, r"norm_output of the recipe is True, and the head .* has False; allowed: the same"),
        ({"taps": (0, 1)}, r"taps of the recipe is \(0, 1\), and the head .* has \("),
        ({"heads": 2}, r"heads of the recipe is 2, and the head .* has 4"),
    ):
        with pytest.raises(UsageError, match=words):
            prepared(replace(said, head=replace(said.head, **wrong)), target, tmp_path)
    with pytest.raises(UsageError, match="is no trained head; allowed: the folder or id of one"):
        prepared(begun(recipe, Path(str(target.folder))), target, tmp_path)


def test_another_head_is_another_training(target: Target, recipe: Recipe, first: Path, tmp_path: Path) -> None:
    """Gone on with from a checkpoint, a training asks for the head that it began with."""
    said = begun(recipe, first).with_changes("train", epochs=1)
    run(prepared(said, target, tmp_path), said, tmp_path / "card", tmp_path / "work")
    course = prepared(recipe.with_changes("train", epochs=1), target, tmp_path)
    with pytest.raises(UsageError, match=r"was begun with begin_with = '[0-9a-f]{16}'; allowed: .* not with None"):
        run(course, recipe.with_changes("train", epochs=1), tmp_path / "card", tmp_path / "work", resume=True)


def test_a_forecast_knows_its_shape(target: Target, recipe: Recipe, first: Path, tmp_path: Path) -> None:
    told = forecast(begun(recipe, first), target, tmp_path / "work", tmp_path / "features")
    assert told.parameters == sum(weight.numel() for weight in read_card(first)[0].parameters())


def test_the_flag(target: Target, recipe: Recipe, first: Path, tmp_path: Path) -> None:
    path = recipe_file(tmp_path / "recipe.toml", {"answers": recipe.data.answers}, epochs=1)
    words = ["train", "eagle3", "--recipe", str(path), "--target", str(target.folder), "--out", str(tmp_path / "head")]
    result = CliRunner().invoke(app, [*words, "--from", str(first)])
    assert result.exit_code == 0, result.output
    assert read_card(tmp_path / "head")[1].recipe["head"]["begin_with"] == str(first)
