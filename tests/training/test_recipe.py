"""A recipe is read under one strict schema: every key, kind and range is checked, and named where it is wrong."""

from dataclasses import fields
from pathlib import Path

import pytest

from outpace.errors import UsageError
from outpace.training.recipe import Data, HeadSettings, Recipe, TrainSettings, WalkSettings

LEAST = """
format_version = 1
[head]
norm_before_residual = false
norm_before_fc = true
fc_norm = false
norm_output = true
"""


def test_what_is_left_out_is_the_default() -> None:
    recipe = Recipe.from_toml(LEAST)
    assert recipe.head == HeadSettings(False, True, False, True)
    assert recipe.train == TrainSettings() and recipe.data == Data() and recipe.walk == WalkSettings()


def test_every_value_is_read() -> None:
    recipe = Recipe.from_toml(
        LEAST
        + 'taps = [1, 2]\ndraft_vocab_size = 7\n[data]\nprompts = ["a"]\ntemperatures = [0, 0.5]\nheld_out = 0\n'
        + "[train]\nlearning_rate = 1\nmask_outside = false\n[walk]\nprompts = 0\n"
    )
    assert recipe.head.taps == (1, 2) and recipe.head.draft_vocab_size == 7
    assert recipe.data.prompts == ("a",) and recipe.data.temperatures == (0.0, 0.5)
    assert recipe.train.learning_rate == 1.0 and isinstance(recipe.train.learning_rate, float)
    assert not recipe.train.mask_outside and recipe.walk.prompts == 0


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("[train]\nepoch = 3", r"\[train\]: unknown key 'epoch'; allowed: depth, epochs, tokens_per_batch"),
        ("speed = 3", r"\[head\]: unknown key 'speed'; allowed: norm_before_residual"),
        ("[trian]", r"unknown key 'trian'; allowed: head, method, target"),
        ("[train]\nepochs = 0", r"\[train\]: epochs is 0; allowed: 1 or more"),
        ("[train]\nepochs = 1.5", r"\[train\]: epochs is 1.5; allowed: a whole number"),
        ("[train]\nepochs = true", r"\[train\]: epochs is True; allowed: a whole number"),
        ("[train]\nlearning_rate = nan", "learning_rate is nan; allowed: a number"),
        ("[train]\nbetas = [0.9]", r"betas is \(0.9,\); allowed: two numbers from 0 to below 1"),
        ('[train]\nloss = "mse"', "loss is 'mse'; allowed: one of cross-entropy, forward-kl"),
        ('[train]\nschedule = "step"', "schedule is 'step'; allowed: one of cosine, linear, constant"),
        ("[train]\nmuon_factor = 4", "muon_factor is 4.0 and optimiser 'adamw'; allowed: muon_factor of 'muon'"),
        ('[train]\nprecision = "fp16"', "precision is 'fp16'; allowed: one of bf16, fp32"),
        ("[data]\nheld_out = 1", "held_out is 1.0; allowed: 0 up to, not including, 1"),
        ('[data]\nprompts = "a"', "prompts is 'a'; allowed: a list, each a string"),
        ("[data]\ntemperatures = []", r"temperatures is \(\); allowed: one or more"),
        ("taps = [2, 2]", r"taps is \(2, 2\); allowed: one or more, each beyond the one before"),
        ("[walk]\nprompts = -1", r"\[walk\]: prompts is -1; allowed: 0 or more"),
        ("[train", "is not TOML"),
    ],
)
def test_what_is_wrong_is_named(more: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Recipe.from_toml(LEAST + more + "\n")


def test_a_table_that_is_none() -> None:
    with pytest.raises(UsageError, match=r"\[train\] is 3; allowed: a table"):
        Recipe.from_toml("format_version = 1\ntrain = 3\n" + LEAST.replace("format_version = 1", ""))


@pytest.mark.parametrize("flag", ["norm_before_residual", "norm_before_fc", "fc_norm", "norm_output"])
def test_no_flag_of_the_mathematics_is_assumed(flag: str) -> None:
    said = "\n".join(line for line in LEAST.splitlines() if not line.startswith(flag))
    with pytest.raises(UsageError, match=f"{flag} is missing; allowed: true or false"):
        Recipe.from_toml(said)


def test_another_version_and_no_head() -> None:
    with pytest.raises(UsageError, match="format_version is 2; allowed: 1"):
        Recipe.from_toml(LEAST.replace("= 1", "= 2"))
    with pytest.raises(UsageError, match="head is missing; allowed: a table"):
        Recipe.from_toml("format_version = 1")


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read: No such file"):
        Recipe.read(tmp_path / "none.toml")
    (tmp_path / "bytes.toml").write_bytes(b"\xff")
    with pytest.raises(UsageError, match="it is not UTF-8"):
        Recipe.read(tmp_path / "bytes.toml")


def test_a_change_is_checked_like_the_file() -> None:
    recipe = Recipe.from_toml(LEAST)
    assert recipe.with_changes("train", epochs=5).train.epochs == 5
    with pytest.raises(UsageError, match=r"\[train\]: epochs is 0"):
        recipe.with_changes("train", epochs=0)


def test_every_number_has_a_range() -> None:
    """A field that nobody gave a range would take any number."""
    from outpace.training.ranges import RANGES
    from outpace.training.recipe import METHODS

    numbers = {
        one.name
        for schema in METHODS.values()
        for table in schema.tables.values()
        for one in fields(table)
        if any(kind in str(one.type) for kind in ("int", "float"))
    }
    assert numbers <= set(RANGES)


RECIPES = sorted((Path(__file__).parents[2] / "recipes").glob("*.toml"))


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.name)
def test_shipped_recipes(path: Path) -> None:
    """Each is valid, and opens with its command, hardware, minutes and expected acceptance, or that it was not run."""
    method = Recipe.read(path).method
    head = [line.removeprefix("# ") for line in path.read_text("utf-8").split("\n\n")[0].splitlines()]
    assert any(line.startswith(f"outpace train {method} --recipe recipes/") and path.name in line for line in head), (
        head
    )
    told = "\n".join(head)
    assert "Hardware: " in told and "Time: " in told
    assert "Acceptance: " in told or "not run here" in told


def test_there_are_recipes() -> None:
    assert {"tiny.toml", "eagle3-smollm2.toml", "eagle3-1b-8b.toml", "eagle3-70b.toml"} <= {one.name for one in RECIPES}
