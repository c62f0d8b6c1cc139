"""A recipe that is written is read as the same."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outpace.training.losses import LOSSES
from outpace.training.ranges import FACTOR, FEATURES, MUON, OPTIMISERS, SCHEDULES
from outpace.training.recipe import Data, HeadSettings, Recipe, TrainSettings, WalkSettings
from toys import must_fail

RECIPES = sorted((Path(__file__).parents[2] / "recipes").glob("*.toml"))
WORDS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
SHARES = st.floats(0, 1, exclude_max=True)
RATES = st.floats(1e-12, 1e12, allow_subnormal=False)
SIZES = st.none() | st.integers(1, 10**9)
FLAGS = {name: st.booleans() for name in ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")}

HEADS = {
    **FLAGS,
    "taps": st.none() | st.sets(st.integers(0, 99), min_size=1, max_size=4).map(lambda taps: tuple(sorted(taps))),
    "draft_vocab_size": SIZES,
    "heads": SIZES,
    "warm_start": st.booleans(),
}
DATA = {
    "answers": st.lists(WORDS, max_size=3).map(tuple),
    "invent": st.integers(0, 10**9),
    "temperatures": st.lists(st.floats(0, 9), min_size=1, max_size=3).map(tuple),
    "held_out": SHARES,
    "features": st.sampled_from(FEATURES),
}
TRAIN = {
    "learning_rate": RATES,
    "optimiser": st.sampled_from(OPTIMISERS),
    "muon_factor": RATES,
    "betas": st.tuples(SHARES, SHARES),
    "schedule": st.sampled_from(SCHEDULES),
    "loss": st.sampled_from(sorted(LOSSES)),
    "mask_outside": st.booleans(),
    "epochs": st.integers(1, 10**6),
}


def is_read_as_the_same(recipe: Recipe) -> None:
    assert Recipe.from_toml(recipe.to_toml()) == recipe


@given(WORDS, st.fixed_dictionaries(HEADS), st.fixed_dictionaries(DATA), st.fixed_dictionaries(TRAIN), SIZES)
def test_it_is_read_as_the_same(target: str, head: Any, data: Any, train: Any, depth: int | None) -> None:
    walk = WalkSettings(depth=depth)
    train |= {} if train["optimiser"] == MUON else {"muon_factor": FACTOR}
    is_read_as_the_same(
        Recipe(HeadSettings(**head), target=target, data=Data(**data), train=TrainSettings(**train), walk=walk)
    )


@pytest.mark.parametrize("target", ['a"b\\c', "a\nb\tc", "\x7f\x00\x1f", "é 🜁 #", "[data]", "'''", ""])
def test_characters_that_mean_something_to_toml(target: str) -> None:
    is_read_as_the_same(Recipe(HeadSettings(True, False, False, True), target=target))


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.name)
def test_shipped_recipes_too(path: Path) -> None:
    recipe = Recipe.read(path)
    assert Recipe.from_toml(recipe.to_toml()) == recipe
    with must_fail():
        assert Recipe.from_toml(replace(recipe, target="another").to_toml()) == recipe
