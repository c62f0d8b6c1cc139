"""One verb for each method, all of one body: a recipe of another method is refused, with both names."""

from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

import unigrams
from outpace.cli import app, guarded, methods
from outpace.cli.train import Asked, Flags, Json, Other, Out, Planned, _train
from outpace.drafters.record import read_record
from outpace.training.methods import METHODS
from pupils import answers_of, model_folder, opened, recipe_file


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model_folder(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="module")
def answers(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return answers_of(opened(model), tmp_path_factory.mktemp("data") / "answers.jsonl")


def unigram(
    recipe: Asked, out: Out, target: Other = None, plan: Planned = False, noise: float | None = None, json: Json = False
) -> None:
    """A verb as another method would have it."""
    flags = Flags(recipe, out, target, None, None, plan, False, None, json)
    _train(unigrams.NAME, flags, noise=noise)


def verb(*words: Any) -> Any:
    """That verb alone."""
    door = typer.Typer()
    door.command()(guarded(unigram))
    return CliRunner().invoke(door, [str(word) for word in words])


def test_every_method_has_its_verb() -> None:
    names = {one.name or getattr(one.callback, "__name__", "") for one in methods.registered_commands}
    assert names == METHODS.keys()


def test_a_recipe_of_another_method_is_refused(
    model: Path, answers: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before anything is made; the hint says who takes it."""
    unigrams.plugged(monkeypatch)
    ours, theirs, out = tmp_path / "ours.toml", tmp_path / "theirs.toml", tmp_path / "head"
    ours.write_text(unigrams.recipe_of(answers).to_toml(), "utf-8")
    recipe_file(theirs, {"answers": (str(answers),)})
    words = ["--recipe", ours, "--target", model, "--out", out]
    result = CliRunner().invoke(app, ["train", "eagle3", *map(str, words)])
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == (
        f"outpace: the method of the recipe {ours} is 'unigram'; allowed: 'eagle3', as the verb says\n"
        "hint: outpace train unigram takes this recipe\n"
    )
    result = verb("--recipe", theirs, "--target", model, "--out", out)
    assert result.exit_code == 2
    assert f"the method of the recipe {theirs} is 'eagle3'; allowed: 'unigram', as the verb says" in result.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ours.toml", "theirs.toml"]


def test_a_verb_of_a_few_lines_plans_and_trains(
    model: Path, answers: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its plan is told in its own words, and its flag stands in place of the recipe's."""
    unigrams.plugged(monkeypatch)
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(unigrams.recipe_of(answers).to_toml(), "utf-8")
    words = ["--recipe", recipe, "--target", model, "--out", tmp_path / "made"]
    plan = verb(*words, "--plan")
    said = " ".join(plan.stdout.split())
    assert plan.exit_code == 0 and said.startswith("a unigram for /") and " unigram " in said and "weights" in said
    assert verb(*words, "--noise", "0.5").exit_code == 0
    card = read_record(tmp_path / "made", unigrams.NAME)
    assert card.recipe["head"] == {"noise": 0.5} and card.target.name == str(model)
