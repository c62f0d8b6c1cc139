"""A whole training of a tiny target: what it learnt by heart it drafts, and its card is read back the same."""

import json
import math
import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from cards import LAYERS, exported
from chats import CHAT_VOCAB, EOS, chat_tokenizer
from lessons import target_folder
from outpace.decoding.loop import Request
from outpace.decoding.text import text_of
from outpace.drafters.card import read_card
from outpace.drafters.load import load_drafter
from outpace.drafters.record import Card
from outpace.errors import UsageError, WeightsError
from outpace.export.formats import FORMATS
from outpace.models.load import load_target
from outpace.models.target import Target
from outpace.models.weights import load_tensors, save_tensors
from outpace.training import course as module
from outpace.training import eagle3
from outpace.training.course import Course, prepare, run
from outpace.training.recipe import Recipe
from outpace.training.rounds import Walked, walked
from outpace.training.trainer import Trained
from toys import must_fail
from toys import run as decoded

TINY = Path(__file__).parents[2] / "recipes" / "tiny.toml"
ASKED = ("Why?", "2+3=", "Tell me of the sea.", "ok")
NEW, DEPTH, SURE = 24, 3, 4


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Target:
    """On disk, with a tokenizer of single characters and a chat template; of so many layers that every layout has its
    taps, and four times as sure of its words as it would be. Else its likeliest token is often hardly likelier than the
    next one, and a head that has learnt its law closely still takes one for the other."""
    folder = tmp_path_factory.mktemp("targets") / "tiny"
    target_folder(folder, vocab_size=CHAT_VOCAB, eos_id=EOS, layers=LAYERS)
    tensors = load_tensors(folder)
    save_tensors(folder, tensors | {"lm_head.weight": SURE * tensors["lm_head.weight"]})
    return load_target(chat_tokenizer(folder), dtype="fp32")


def requests(target: Target) -> list[Request]:
    assert target.folder is not None
    text = text_of(target.folder)
    return [Request(text.encode(asked), max_new_tokens=NEW, eos_ids=target.eos_ids) for asked in ASKED]


@pytest.fixture(scope="module")
def said(target: Target) -> list[list[int]]:
    """The target's greedy answers to a few prompts."""
    found = [one.ids for one in decoded(target, None, requests(target))]
    assert len({tuple(ids) for ids in found}) == len(ASKED) and len({token for ids in found for token in ids}) > 12
    return found


@pytest.fixture(scope="module")
def answers(said: list[list[int]], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "answers.jsonl"
    lines = [{"user": asked, "answer_ids": ids} for asked, ids in zip(ASKED, said, strict=True)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
    return path


def recipe_of(answers: Path, **train: Any) -> Recipe:
    return Recipe.read(TINY).with_changes("data", answers=(str(answers),)).with_changes("train", **train)


def trained(target: Target, recipe: Recipe, folder: Path, **options: Any) -> tuple[Course, Trained, Card]:
    course = prepare(recipe, target, folder / "work", folder / "features")
    return course, *run(course, recipe, folder / "card", folder / "work", **options)


@pytest.fixture(scope="module")
def learnt(target: Target, answers: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("learnt")
    trained(target, recipe_of(answers), folder)
    return folder / "card"


# ---- by heart --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Told:
    """What came out with a drafter: the answers, every draft, and how much of each answer's drafts was accepted."""

    ids: list[list[int]]
    drafts: list[Any]
    acceptance: list[float]
    tau: list[float]


def told(target: Target, folder: Path) -> Told:
    drafter, drafts = load_drafter(str(folder), target), []
    honest = drafter.propose

    def propose(*args: Any) -> Any:
        proposal = honest(*args)
        drafts.append(proposal.tree.to_lists())
        return proposal

    drafter.propose = propose  # type: ignore[method-assign]
    ended = decoded(target, drafter, requests(target), num_draft_tokens=DEPTH)
    return Told(
        [one.ids for one in ended], drafts, [one.stats.acceptance for one in ended], [one.stats.tau for one in ended]
    )


@pytest.fixture(scope="module")
def own(target: Target, learnt: Path) -> Told:
    return told(target, learnt)


def by_heart(found: Told, said: list[list[int]]) -> None:
    """No draft is lost: every turn but the last of an answer has all of its drafts, and the token behind them."""
    assert found.ids == said and found.acceptance == [1.0] * len(ASKED)
    behind = [len(ids) - 1 for ids in said]
    assert found.tau == [count / math.ceil(count / (DEPTH + 1)) for count in behind]


def test_what_it_learnt_by_heart_it_drafts(own: Told, said: list[list[int]], learnt: Path) -> None:
    """Read back from its card: every drafted token is accepted."""
    by_heart(own, said)
    _, card = read_card(learnt)
    assert card.depth_trained == DEPTH and card.data["samples"] == len(ASKED) and card.tau is None


@pytest.mark.parametrize("layout", FORMATS)
def test_exported_it_drafts_the_same_tokens(
    layout: str, own: Told, said: list[list[int]], target: Target, learnt: Path, tmp_path: Path
) -> None:
    found = told(target, exported(tmp_path / layout, layout, *read_card(learnt)))
    by_heart(found, said)
    assert found == own


def test_planted_fault_of_learning(
    target: Target, answers: Path, said: list[list[int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rate never rises from nothing: a head that learnt nothing is not taken for one that did."""
    monkeypatch.setattr("outpace.training.trainer.rate", lambda settings, step, steps: 0.0)
    trained(target, recipe_of(answers, epochs=2), tmp_path)
    with must_fail():
        by_heart(told(target, tmp_path / "card"), said)


# ---- the card --------------------------------------------------------------------------------------------------------


def test_the_card_tells_where_it_is_from(target: Target, answers: Path, learnt: Path) -> None:
    _, card = read_card(learnt)
    assert card.target.fingerprint == target.fingerprint
    assert card.data["sources"] == [
        {"answers": answers.name, "sha256": card.data["sources"][0]["sha256"], "samples": 4}
    ]
    train = card.recipe["train"]
    assert train == {**train, "depth": DEPTH, "precision": "fp32"} and card.steps >= train["epochs"]
    assert 0.9 < card.data["coverage"] <= 1


def test_acceptance_on_held_out_prompts_is_measured(target: Target, answers: Path, tmp_path: Path) -> None:
    """The card has the figures of a walk with the weights that it holds."""
    recipe = recipe_of(answers, epochs=8).with_changes("data", held_out=0.4)
    course, _, card = trained(target, recipe, tmp_path)
    assert course.held_out is not None and 0 < len(course.held_out.samples) < len(ASKED)
    head, _ = read_card(tmp_path / "card")
    prompts = [one.ids[: int(one.loss_mask.int().argmax())].tolist() for one in course.held_out.samples]
    found: Walked = walked(head.float(), target, course.lesson.teacher, prompts, depth=DEPTH, max_new_tokens=32)
    assert card.tau == found.tau and card.acceptance_by_position == found.acceptance_by_position
    none = replace(recipe, walk=replace(recipe.walk, prompts=0))
    assert module.walk(course, none, head.float()) is None


# ---- going on, and other data ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("features", ["online", "recorded"])
def test_it_is_gone_on_with(features: str, target: Target, answers: Path, tmp_path: Path) -> None:
    recipe = recipe_of(answers, epochs=4).with_changes("data", features=features)
    trained(target, recipe, tmp_path / "straight")

    def stop(report: Any) -> None:
        if report.place.epoch == 2:
            raise KeyboardInterrupt

    cut = tmp_path / "cut"
    with pytest.raises(KeyboardInterrupt):
        trained(target, recipe, cut, watch=stop)
    with pytest.raises(UsageError, match="holds a training already; allowed: to go on with it"):
        trained(target, recipe, cut)
    with pytest.raises(UsageError, match=r"was begun with loss = 'forward-kl'.* not with 'cross-entropy'"):
        trained(target, recipe.with_changes("train", loss="cross-entropy"), cut, resume=True)
    trained(target, recipe, cut, resume=True)
    ours, theirs = (read_card(folder / "card")[0].state_dict() for folder in (tmp_path / "straight", cut))
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_prompts_are_invented_and_answered(target: Target, tmp_path: Path) -> None:
    recipe = Recipe.read(TINY).with_changes("data", invent=6, max_new_tokens=12, batch_size=8, limit=256)
    recipe = recipe.with_changes("train", epochs=1, tokens_per_batch=512)
    with warnings.catch_warnings(action="ignore"):  # of so few, some may be too many
        course, _, card = trained(target, recipe, tmp_path)
    assert card.data["samples"] == len(course.features.samples) > 0
    assert {"invented", "seed"} <= set(card.data["sources"][0])
    assert (tmp_path / "work" / "answers.jsonl").is_file()


# ---- what is refused -------------------------------------------------------------------------------------------------


def test_states_that_do_not_lead_to_the_targets_words(
    target: Target, answers: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = eagle3.read_ends

    def shuffled(target: Target) -> Any:
        ends = honest(target)
        return replace(ends, head=ends.head.roll(1, 0))

    monkeypatch.setattr(eagle3, "read_ends", shuffled)
    with pytest.raises(WeightsError, match=r"lead to its own tokens in \d+\.\d% of all places; allowed: 97%"):
        trained(target, recipe_of(answers), tmp_path)


def test_bad_beginnings_are_named(target: Target, answers: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="the recipe has no data; allowed: answers, prompts, or invent above 0"):
        trained(target, Recipe.read(TINY), tmp_path)
    with pytest.raises(UsageError, match="all 4 samples are held out"):
        trained(target, recipe_of(answers).with_changes("data", held_out=0.9999999), tmp_path)
    recipe = recipe_of(answers)
    with pytest.raises(UsageError, match=f"the tap {LAYERS + 1} is not of"):
        trained(target, replace(recipe, head=replace(recipe.head, taps=(1, LAYERS + 1))), tmp_path)
