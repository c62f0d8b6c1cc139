"""A whole training of EAGLE-1 on a tiny target: what it learnt by heart it drafts, and its card is read back the same.

It is taught one step: the first token of each of its chains is right wherever it learnt a text by heart. Further ones
are drafted on its own guesses, which it was never taught to read, and nothing is promised of them.
"""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from cards import LAYERS, unnamed
from chats import CHAT_VOCAB, EOS, chat_tokenizer
from lessons import target_folder
from outpace.cli import app
from outpace.decoding.loop import Request
from outpace.decoding.text import text_of
from outpace.drafters.eagle import Eagle
from outpace.drafters.first_card import read_first_card
from outpace.drafters.first_head import FirstHead
from outpace.drafters.load import load_drafter
from outpace.drafters.record import Card, read_record
from outpace.errors import UsageError
from outpace.export.formats import FIRST, export
from outpace.models.load import load_target
from outpace.models.target import Target
from outpace.models.weights import load_tensors, save_tensors
from outpace.training.course import Course, prepare, run
from outpace.training.eagle1 import Eagle1
from outpace.training.forecast import forecast
from outpace.training.ledger import read_ledger
from outpace.training.recipe import Recipe
from pupils import answers_of, recipe_file
from toys import must_fail, reference
from toys import run as decoded

TINY = Path(__file__).parents[2] / "recipes" / "tiny-eagle1.toml"
ASKED = ("Why?", "2+3=", "Tell me of the sea.", "ok")
NEW, DEPTH, SURE = 24, 3, 4


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Target:
    """As in ``test_course``: on disk, and surer of its words than a random one would be."""
    folder = tmp_path_factory.mktemp("targets") / "tiny"
    target_folder(folder, vocab_size=CHAT_VOCAB, eos_id=EOS, layers=LAYERS)
    tensors = load_tensors(folder)
    save_tensors(folder, tensors | {"lm_head.weight": SURE * tensors["lm_head.weight"]})
    return load_target(chat_tokenizer(folder), dtype="fp32")


@pytest.fixture(scope="module")
def answers(target: Target, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return answers_of(target, tmp_path_factory.mktemp("data") / "answers.jsonl", ASKED)


def requests(target: Target) -> list[Request]:
    assert target.folder is not None
    text = text_of(target.folder)
    return [Request(text.encode(asked), max_new_tokens=NEW, eos_ids=target.eos_ids) for asked in ASKED]


def recipe_of(answers: Path, **train: Any) -> Recipe:
    return Recipe.read(TINY).with_changes("data", answers=(str(answers),)).with_changes("train", **train)


def trained(target: Target, recipe: Recipe, folder: Path, **options: Any) -> tuple[Course, Card]:
    course = prepare(recipe, target, folder / "work", folder / "features")
    return course, run(course, recipe, folder / "card", folder / "work", **options)[1]


@pytest.fixture(scope="module")
def learnt(target: Target, answers: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("learnt")
    trained(target, recipe_of(answers), folder)
    return folder / "card"


# ---- by heart --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Told:
    """What came out with a drafter: the answers, every draft, and how many drafts of each depth were accepted."""

    ids: list[list[int]]
    drafts: list[Any]
    rates: list[tuple[float, ...]]


def told(target: Target, folder: Path, depth: int = DEPTH) -> Told:
    drafter, drafts = load_drafter(str(folder), target), []
    assert isinstance(drafter, Eagle) and isinstance(drafter.walker.head, FirstHead)
    honest = drafter.propose

    def propose(*args: Any) -> Any:
        proposal = honest(*args)
        drafts.append(proposal.tree.to_lists())
        return proposal

    drafter.propose = propose  # type: ignore[method-assign]
    ended = decoded(target, drafter, requests(target), num_draft_tokens=depth)
    return Told([one.ids for one in ended], drafts, [one.stats.acceptance_by_position for one in ended])


def by_heart(target: Target, folder: Path) -> None:
    """The first draft of every turn is accepted, in chains of any length, and the text is the plain one."""
    said = [reference(target, tuple(each.ids), NEW, target.eos_ids) for each in requests(target)]
    for depth in (1, DEPTH):
        found = told(target, folder, depth)
        assert found.ids == said
        assert [rates[0] for rates in found.rates] == [1.0] * len(ASKED)


def test_what_it_learnt_by_heart_it_drafts(target: Target, learnt: Path) -> None:
    by_heart(target, learnt)
    _, card = read_first_card(learnt)
    assert (card.method, card.taps, card.depth_trained, card.flags) == ("eagle1", (), 1, {"fc_bias": True})
    assert card.data["samples"] == len(ASKED) and card.tau is None
    assert card.recipe["train"]["noise"] == 0.0 and "depth" not in card.recipe["train"]


@pytest.mark.parametrize("layout", FIRST)
def test_exported_it_drafts_the_same_tokens(layout: str, target: Target, learnt: Path, tmp_path: Path) -> None:
    """Of the ends that a layout holds, those of the target are passed over."""
    with unnamed():
        export(str(learnt), layout, tmp_path / layout)
    assert told(target, tmp_path / layout) == told(target, learnt)


def test_planted_fault_of_learning(
    target: Target, answers: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rate never rises from nothing: a head that learnt nothing is not taken for one that did."""
    monkeypatch.setattr("outpace.training.trainer.rate", lambda settings, step, steps: 0.0)
    trained(target, recipe_of(answers, epochs=2), tmp_path)
    with must_fail():
        by_heart(target, tmp_path / "card")


# ---- what is measured ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def half(target: Target, answers: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Course, Card, Path]:
    """Some prompts only measure."""
    folder = tmp_path_factory.mktemp("half")
    recipe = recipe_of(answers, epochs=30).with_changes("data", held_out=0.4)
    return *trained(target, recipe, folder), folder


def decoded_tau(target: Target, folder: Path, asked: list[list[int]], new: int) -> float:
    """Tokens a turn, pooled, of greedy chains of a drafter that was written."""
    held = [Request(prompt, max_new_tokens=new, eos_ids=target.eos_ids) for prompt in asked]
    drafter = load_drafter(str(folder), target)
    stats = [one.stats for one in decoded(target, drafter, held, num_draft_tokens=DEPTH)]
    return float(sum(each.emitted for each in stats) / sum(each.turns for each in stats))


def test_walking_shows_what_decoding_shows(target: Target, answers: Path, learnt: Path) -> None:
    """On texts that it knows, where much is accepted, and on one that it does not."""
    head, _ = read_first_card(learnt)
    method = Eagle1(recipe_of(answers), target)
    asked = [list(one.ids) for one in requests(target)]
    for prompts in (asked, [asked[0][:-1]]):
        found = method.walk(head.float(), method.trial(), prompts)
        assert found.tau == decoded_tau(target, learnt, prompts, 32)
    assert method.walk(head.float(), method.trial(), asked).tau > 1.5  # type: ignore[operator]


def test_held_out_prompts_are_walked(target: Target, half: tuple[Course, Card, Path]) -> None:
    """The card has the figures of its own weights."""
    course, card, folder = half
    assert course.held_out is not None and 0 < len(course.held_out.samples) < len(ASKED)
    asked = [one.ids[: int(one.loss_mask.int().argmax())].tolist() for one in course.held_out.samples]
    assert card.tau == decoded_tau(target, folder / "card", asked, 32)
    assert card.acceptance_by_rank is not None and card.acceptance_by_position is not None


def test_validation_is_of_one_step(half: tuple[Course, Card, Path]) -> None:
    lines = read_ledger(half[2] / "work" / "log.jsonl")
    [*_, last] = [line["validation"] for line in lines if "validation" in line]
    assert len(last["conditional"]) == 1 and last["tau"] == pytest.approx(1 + last["conditional"][0])
    assert last["accuracy"] == last["conditional"]


def test_it_is_planned_without_writing(target: Target, answers: Path, tmp_path: Path) -> None:
    recipe = recipe_of(answers, epochs=3).with_changes("data", features="recorded")
    found = forecast(recipe, target, tmp_path / "work", tmp_path / "features")
    course, card = trained(target, recipe, tmp_path)
    assert found.steps == card.steps and course.features.fetch([0]).features.shape[2] == 0
    assert found.parameters == sum(weight.numel() for weight in course.lesson.pupil.parameters())


# ---- going on --------------------------------------------------------------------------------------------------------


def same_weights(ours: Path, theirs: Path) -> bool:
    left, right = (read_first_card(folder)[0].state_dict() for folder in (ours, theirs))
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


def test_it_is_gone_on_with(target: Target, answers: Path, tmp_path: Path) -> None:
    recipe = recipe_of(answers, epochs=4, noise=0.05)
    trained(target, recipe, tmp_path / "straight")

    def stop(report: Any) -> None:
        if report.place.epoch == 2:
            raise KeyboardInterrupt

    cut = tmp_path / "cut"
    with pytest.raises(KeyboardInterrupt):
        trained(target, recipe, cut, watch=stop)
    with pytest.raises(UsageError, match=r"was begun with noise = 0.05.* not with 0.1"):
        trained(target, recipe.with_changes("train", noise=0.1), cut, resume=True)
    trained(target, recipe, cut, resume=True)
    assert same_weights(tmp_path / "straight" / "card", cut / "card")


def test_it_begins_as_the_head_that_is_given(target: Target, answers: Path, learnt: Path, tmp_path: Path) -> None:
    given, _ = read_first_card(learnt)
    recipe = recipe_of(answers).with_changes("head", begin_with=str(learnt))
    course = prepare(recipe, target, tmp_path / "work", tmp_path / "features")
    mine, theirs = course.lesson.pupil.state_dict(), given.state_dict()
    assert mine.keys() == theirs.keys() and all(torch.equal(mine[name], theirs[name].float()) for name in theirs)
    assert course.identity["begin_with"]
    with pytest.raises(UsageError, match=r"feed_forward of the recipe is 40, and the head .* has 48; allowed: the sam"):
        prepare(recipe.with_changes("head", feed_forward=40), target, tmp_path / "work", tmp_path / "features")
    with pytest.raises(UsageError, match=r"fc_bias of the recipe is False, and the head .* has True; allowed: the sam"):
        prepare(recipe.with_changes("head", fc_bias=False), target, tmp_path / "work", tmp_path / "features")


# ---- the verb --------------------------------------------------------------------------------------------------------


def invoked(*words: Any) -> Any:
    return CliRunner().invoke(app, [str(word) for word in words])


def test_the_verb(target: Target, answers: Path, tmp_path: Path) -> None:
    recipe, out = tmp_path / "recipe.toml", tmp_path / "head"
    recipe.write_text(recipe_of(answers, epochs=2).to_toml(), "utf-8")
    words = ["train", "eagle1", "--recipe", recipe, "--target", target.folder, "--out", out]
    plan = invoked(*words, "--plan")
    assert (
        plan.exit_code == 0 and " ".join(plan.stdout.split()).startswith("an EAGLE-1 head for /") and not out.exists()
    )
    result = invoked(*words, "--json")
    assert result.exit_code == 0, result.output
    card = read_record(out, "eagle1")
    assert json.loads(result.stdout)["steps"] == card.steps > 0
    again = invoked(*words[:-1], tmp_path / "more", "--from", out, "--json")
    assert again.exit_code == 0 and read_record(tmp_path / "more").recipe["head"]["begin_with"] == str(out)


def test_a_recipe_or_a_head_of_another_method_is_refused(
    target: Target, answers: Path, learnt: Path, tmp_path: Path
) -> None:
    third, first = tmp_path / "third.toml", tmp_path / "first.toml"
    recipe_file(third, {"answers": (str(answers),)})
    first.write_text(recipe_of(answers).to_toml(), "utf-8")
    rest = ["--target", target.folder, "--out", tmp_path / "head"]
    for verb, recipe, other in (("eagle1", third, "eagle3"), ("eagle3", first, "eagle1")):
        result = invoked("train", verb, "--recipe", recipe, *rest)
        assert result.exit_code == 2
        assert f"is '{other}'; allowed: '{verb}', as the verb says" in result.stderr
    result = invoked("train", "eagle3", "--recipe", third, *rest, "--from", learnt)
    assert result.exit_code == 2
    assert f"the head '{learnt}' is of the method 'eagle1'; allowed: one of 'eagle3'" in result.stderr


def test_the_recipe_of_the_default_model_is_read() -> None:
    """And with other sizes it makes a head as large as that of EAGLE-3."""
    recipe = Recipe.read(TINY.with_name("eagle1-smollm2.toml"))
    other = Recipe.read(TINY.with_name("eagle3-smollm2.toml"))
    assert (recipe.data, recipe.walk.prompts, recipe.target) == (other.data, other.walk.prompts, other.target)
    alike = ("epochs", "tokens_per_batch", "batches_per_step", "optimiser", "learning_rate", "schedule", "seed")
    assert all(getattr(recipe.train, name) == getattr(other.train, name) for name in alike)
    assert replace(recipe, head=replace(recipe.head, feed_forward=4780)).head.feed_forward == 4780
