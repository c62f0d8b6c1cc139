"""``outpace train distil``: a small model under ``--out``, or in the cache, where ``--draft small`` finds it."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from cards import unnamed
from chats import CHAT_VOCAB, EOS, chat_tokenizer
from lessons import target_folder
from outpace.cli import app
from outpace.drafters.load import cached_place, load_drafter
from outpace.drafters.record import read_record
from outpace.errors import UsageError
from outpace.models.load import load_target
from outpace.models.target import Target
from outpace.training import student as module
from outpace.training.recipe import Recipe
from pupils import answers_of, recipe_file
from students import ASKED, prepared, recipe_of, target_at, trained

RECIPES = Path(__file__).parents[2] / "recipes"


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Target:
    return target_at(tmp_path_factory.mktemp("targets") / "tiny")


@pytest.fixture(scope="module")
def answers(target: Target, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return answers_of(target, tmp_path_factory.mktemp("data") / "answers.jsonl", ASKED)


@pytest.fixture(scope="module")
def learnt(target: Target, answers: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("learnt")
    trained(target, recipe_of(answers, epochs=1), folder)
    return folder / "card"


# ---- by its names ----------------------------------------------------------------------------------------------------


def invoked(*words: Any) -> Any:
    return CliRunner().invoke(app, [str(word) for word in words])


def test_without_a_place_it_is_drafted_with_by_name(
    target: Target, answers: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the cache, where ``small`` finds it for this very target and for no other; before, the recipe is named."""
    monkeypatch.setenv("OUTPACE_CACHE", str(tmp_path / "cache"))
    assert target.folder is not None
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(recipe_of(answers, epochs=2).to_toml(), "utf-8")
    asks = ["generate", "Why?", "--target", target.folder, "--dtype", "fp32", "--draft", "small", "--json"]
    before = invoked(*asks)
    assert before.exit_code == 2 and "the drafter is 'small'; allowed: auto, eagle3, lookup, or the" in before.stderr
    assert re.search(
        r"none was distilled here for the target '.*tiny'; `outpace train distil --recipe recipes/distil-smollm2.toml` "
        r"makes one; --plan says in how many minutes",
        before.stderr,
    )
    words = ["train", "distil", "--recipe", recipe, "--target", target.folder, "--json"]
    with unnamed():
        result = invoked(*words)
        assert result.exit_code == 0, result.output
        again = invoked(*words, "--resume")
    place = cached_place(str(target.folder))
    assert json.loads(result.stdout)["path"] == str(place) and again.exit_code == 0
    assert place.parent == tmp_path / "cache" / "drafters" and place.name.startswith("small-tiny-")
    after = invoked(*asks)
    assert after.exit_code == 0 and json.loads(after.stdout)["speculation"]["method"] == "small"
    other = load_target(chat_tokenizer(target_folder(tmp_path / "other", vocab_size=CHAT_VOCAB, eos_id=EOS)))
    with pytest.raises(UsageError, match="the drafter is 'small'"):
        load_drafter("small", other)


def test_places_of_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two folders of one name have two; the default has its own wherever the command runs."""
    monkeypatch.setenv("OUTPACE_CACHE", str(tmp_path))
    for name in ("a/tiny", "b/tiny", "smollm2"):
        (tmp_path / name).mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    names = {name: cached_place(name) for name in ("a/tiny", "b/tiny", "org/tiny", "smollm2")}
    assert len(set(names.values())) == 4
    monkeypatch.chdir(tmp_path / "a")
    assert cached_place("tiny") == names["a/tiny"] and cached_place("smollm2") == names["smollm2"]


def test_a_card_of_another_target(target: Target, answers: Path, learnt: Path, tmp_path: Path) -> None:
    folder = chat_tokenizer(target_folder(tmp_path / "wide", vocab_size=CHAT_VOCAB, eos_id=EOS, layers=3))
    with pytest.raises(UsageError, match=r"was made for '.*tiny', whose architecture is another than that of the targ"):
        load_drafter(str(learnt), load_target(folder, dtype="fp32"))
    twin = chat_tokenizer(target_folder(tmp_path / "twin", vocab_size=CHAT_VOCAB, eos_id=EOS))
    with pytest.warns(UserWarning, match="made for '.*tiny', and the target '.*twin' has other weights"):
        load_drafter(str(learnt), load_target(twin, dtype="fp32"))


def test_the_verb(target: Target, answers: Path, learnt: Path, tmp_path: Path) -> None:
    recipe, out = tmp_path / "recipe.toml", tmp_path / "model"
    recipe.write_text(recipe_of(answers, epochs=2).to_toml(), "utf-8")
    words = ["train", "distil", "--recipe", recipe, "--target", target.folder, "--out", out]
    plan = invoked(*words, "--plan")
    assert plan.exit_code == 0 and not out.exists()
    assert " ".join(plan.stdout.split()).startswith("a distilled model for /")
    refused = invoked(*words, "--from", learnt)
    assert refused.exit_code == 2 and "the recipe says depth and begin_with; allowed: " in refused.stderr
    third = recipe_file(tmp_path / "third.toml", {"answers": (str(answers),)})
    other = invoked("train", "distil", "--recipe", third, "--out", out)
    assert other.exit_code == 2 and "is 'eagle3'; allowed: 'distil', as the verb says" in other.stderr
    recipe.write_text(recipe_of(answers, "", epochs=1).to_toml(), "utf-8")
    result = invoked(*words, "--from", learnt)
    assert result.exit_code == 0 and read_record(out).recipe["head"]["begin_with"] == str(learnt)
    assert result.stdout == f"{out}: trained in 1 steps\n"


# ---- recipes ---------------------------------------------------------------------------------------------------------


def test_the_recipe_of_the_default_makes_about_thirty_million() -> None:
    read = Recipe.read(RECIPES / "distil-smollm2.toml")
    other = Recipe.read(RECIPES / "eagle3-smollm2.toml")
    assert (read.data, read.walk, read.target) == (other.data, other.walk, other.target)
    sizes, rows = read.head, 49152
    layer = sizes.width * (
        2 * sizes.width + 2 * sizes.width * sizes.kv_heads // sizes.heads + 3 * sizes.feed_forward + 2
    )
    assert 28e6 < rows * sizes.width + sizes.depth * layer + sizes.width < 32e6 and sizes.tied


@pytest.mark.parametrize("name", ["distil-gpt2-medium.toml", "distil-124m-30m.toml"])
def test_the_lesson_s_recipes(name: str) -> None:
    read = Recipe.read(RECIPES / name)
    assert read.target.startswith("openai-community/gpt2") and bool(module._sizes(read)) == (
        read.head.begin_with is None
    )
    assert "not run here" in (RECIPES / name).read_text("utf-8")


# ---- refusals --------------------------------------------------------------------------------------------------------

CASES: list[tuple[str, str]] = [
    (
        "depth = 1\nwidth = 32\n",
        r"the recipe says no heads; allowed: depth, width, heads of a new model, or begin_with",
    ),
    ("", "the recipe says no depth; allowed: depth, width, heads of a new model"),
    ('begin_with = "x"\ntied = true\n', "the recipe says tied and begin_with; allowed: the sizes of a new model, or"),
    (
        "depth = 1\nwidth = 30\nheads = 4\n",
        "the width is 30 and there are 4 heads; allowed: heads of equal, even width",
    ),
    ("depth = 1\nwidth = 64\nheads = 4\n", "the width is 64, and the rows to be copied are 32 wide"),
]


@pytest.mark.parametrize(("head", "message"), CASES)
def test_what_cannot_be_made_is_refused(head: str, message: str, target: Target, answers: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=message):
        prepared(target, recipe_of(answers, head), tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[head]\ndepth = 0", r"\[head\]: depth is 0; allowed: 1 or more"),
        ("[head]\nwidth = 0", r"\[head\]: width is 0; allowed: 1 or more"),
        ('[head]\nembeddings = "learnt"', "embeddings is 'learnt'; allowed: one of copied, random"),
        ("[head]\n[train]\non_policy = 1.5", r"\[train\]: on_policy is 1.5; allowed: 0 to 1"),
        ("[head]\n[train]\ntemperature = -1", r"\[train\]: temperature is -1.0; allowed: 0 or more"),
        ("[head]\n[train]\ndepth = 4", r"\[train\]: unknown key 'depth'; allowed: epochs, .*, on_policy, temperature$"),
        ('[head]\n[train]\nloss = "hard"', "loss is 'hard'; allowed: one of"),
        ("[head]\nwarm_start = true", r"\[head\]: unknown key 'warm_start'; allowed: depth, width, heads, "),
    ],
)
def test_settings_that_are_refused(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Recipe.from_toml(f'format_version = 1\nmethod = "distil"\n{text}\n')


def test_texts_that_a_given_model_cannot_read(target: Target, answers: Path, learnt: Path, tmp_path: Path) -> None:
    """Refused before anything is trained."""
    course = prepared(target, recipe_of(answers, f'begin_with = "{learnt}"', epochs=1), tmp_path)
    rows = module.existing_student(str(learnt), target)
    small = torch.nn.Embedding(20, 32)
    rows.model.set_input_embeddings(small)
    rows.model.set_output_embeddings(torch.nn.Linear(32, 20, bias=False))
    with pytest.raises(UsageError, match=r"holds the id \d+; allowed: the 20 ids of"):
        module._require_ids(course.features, rows)
