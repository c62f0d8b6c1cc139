"""A whole distillation on a tiny target: what was learnt by heart is drafted, and the card has what decoding shows."""

import copy
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from outpace.decoding.generate import generate
from outpace.decoding.loop import Request
from outpace.drafters.load import load_drafter
from outpace.drafters.record import Card, read_record
from outpace.drafters.small import Small
from outpace.errors import UsageError
from outpace.models.load import load_target
from outpace.models.student import Student
from outpace.models.student_files import save_student
from outpace.models.target import Target
from outpace.models.weights import load_tensors, read_config
from outpace.training import student as module
from outpace.training.course import Course
from outpace.training.features import online
from outpace.training.forecast import forecast
from outpace.training.ledger import read_ledger
from outpace.training.masks import Sample
from outpace.training.student import ranks_of, rounded
from pupils import answers_of
from students import ASKED, DEPTH, NEW, prepared, recipe_of, requests, target_at, texts_of, trained
from toys import must_fail, reference
from toys import run as decoded


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Target:
    return target_at(tmp_path_factory.mktemp("targets") / "tiny")


@pytest.fixture(scope="module")
def answers(target: Target, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return answers_of(target, tmp_path_factory.mktemp("data") / "answers.jsonl", ASKED)


@pytest.fixture(scope="module")
def learnt(target: Target, answers: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("learnt")
    trained(target, recipe_of(answers), folder)
    return folder / "card"


# ---- by heart --------------------------------------------------------------------------------------------------------


def by_heart(target: Target, folder: Path) -> None:
    """More than nine of ten drafts are accepted, greedy and drawn alike, and the text is the plain one."""
    said = [reference(target, tuple(each.ids), NEW, target.eos_ids) for each in requests(target)]
    drafter = load_drafter(str(folder), target, dtype="fp32")
    ended = decoded(target, drafter, requests(target), num_draft_tokens=DEPTH)
    assert [one.ids for one in ended] == said
    assert sum(one.stats.accepted for one in ended) > 0.9 * sum(one.stats.drafted for one in ended) > 0
    [*_, last] = [line for line in read_ledger(folder / "log.jsonl") if "acceptance" in line]
    assert last["acceptance"][0] > 0.9


def test_what_it_learnt_by_heart_it_drafts(target: Target, learnt: Path) -> None:
    by_heart(target, learnt)
    card = read_record(learnt, "small")
    assert (card.taps, card.flags, card.depth_trained, card.draft_vocab_size) == ((), {}, 1, target.vocab_size)
    assert card.recipe["method"] == "distil" and card.recipe["train"]["loss"] == "forward-kl"
    assert not {"depth", "decay", "mask_outside"} & card.recipe["train"].keys()


def test_planted_fault_of_learning(
    target: Target, answers: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rate never rises from nothing: a student that learnt nothing is not taken for one that did."""
    monkeypatch.setattr("outpace.training.trainer.rate", lambda settings, step, steps: 0.0)
    trained(target, recipe_of(answers, epochs=2), tmp_path)
    with must_fail():
        by_heart(target, tmp_path / "card")


# ---- what is measured ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def half(target: Target, answers: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Course, Card, Path]:
    """Some prompts only measure."""
    folder = tmp_path_factory.mktemp("half")
    recipe = recipe_of(answers, epochs=12).with_changes("data", held_out=0.4)
    return *trained(target, recipe, folder), folder


@pytest.fixture(scope="module")
def part(target: Target, answers: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Course, Path]:
    """One that knows some of it by heart."""
    folder = tmp_path_factory.mktemp("part")
    return trained(target, recipe_of(answers, epochs=25), folder)[0], folder / "card"


def prompts_of(texts: Sequence[Sample]) -> list[list[int]]:
    return [one.ids[: int(one.loss_mask.int().argmax())].tolist() for one in texts]


def walk(course: Course, texts: Sequence[Sample]) -> Any:
    return course.method.walk(course.lesson.pupil, course.lesson, prompts_of(texts))


def as_decoded(target: Target, course: Course, folder: Path) -> None:
    """Its texts, decoded with the drafter that was written: the same turns, tokens and rates."""
    texts = course.features.samples
    drafter = load_drafter(str(folder), target, dtype="fp32")
    wanted = [Request(prompt, max_new_tokens=32, eos_ids=target.eos_ids) for prompt in prompts_of(texts)]
    stats = [one.stats for one in decoded(target, drafter, wanted, num_draft_tokens=DEPTH)]
    turns, emitted = (sum(getattr(each, name) for each in stats) for name in ("turns", "emitted"))
    found = walk(course, texts)
    assert (found.turns, found.emitted, found.tau) == (turns, emitted, emitted / turns)


def test_the_walk_has_what_decoding_shows(target: Target, part: tuple[Course, Path]) -> None:
    """And it is neither always right nor never: that would agree with much."""
    as_decoded(target, *part)
    found = walk(part[0], part[0].features.samples)
    assert 1.3 < found.tau < 3.5 and sum(found.acceptance_by_rank[1:]) > 0.05


def test_the_card_has_what_the_walk_shows(target: Target, half: tuple[Course, Card, Path]) -> None:
    course, card, folder = half
    assert course.held_out is not None and 0 < len(course.held_out.samples) < len(ASKED)
    found = walk(course, course.held_out.samples)
    assert (card.tau, card.acceptance_by_position) == (found.tau, found.acceptance_by_position)
    assert card.acceptance_by_rank == found.acceptance_by_rank and any(found.acceptance_by_rank)
    drafter = load_drafter(str(folder / "card"), target, dtype="fp32")
    assert isinstance(drafter, Small) and drafter.rates


def one_place_late(*given: Any) -> Any:
    """A step behind a place is what the student says behind that very place."""
    return [[[0] * DEPTH, *text[:-1]] for text in module_ranks(*given)]


def unrounded(student: Student) -> Student:
    """What is walked is not what is written."""
    copied = type(student)(copy.deepcopy(student.model))
    with torch.no_grad():
        for weight in copied.parameters():
            weight.copy_(weight.to(torch.float8_e4m3fn))
    return copied


module_ranks = module.ranks_of


@pytest.mark.parametrize(("name", "fault"), [("ranks_of", one_place_late), ("rounded", unrounded)])
def test_planted_faults_of_walking(
    name: str, fault: Any, target: Target, part: tuple[Course, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, name, fault)
    with must_fail():
        as_decoded(target, *part)


def test_a_tree_of_its_own_rates(target: Target, half: tuple[Course, Card, Path]) -> None:
    drafter = load_drafter(str(half[2] / "card"), target, dtype="fp32")
    options: dict[str, Any] = {"max_new_tokens": NEW, "raw": True}
    plain = generate(target, None, [1, 2, 3], **options)
    found = generate(target, drafter, [1, 2, 3], num_draft_tokens=6, tree="static", **options)
    assert found.token_ids == plain.token_ids and found.stats.speculation.drafted > 0


@torch.no_grad()
def brute_ranks(student: Student, text: list[int], answers: list[bool], depth: int, vocab_size: int) -> Any:
    """One place at a time, by sorting."""

    def stands(place: int) -> int:
        if place + 1 >= len(text) or not answers[place + 1] or place >= student.max_positions:
            return 0
        logits = (student.rows @ student(torch.tensor([text[: place + 1]]))[0, -1])[:vocab_size].tolist()
        order = sorted(range(len(logits)), key=lambda token: (-logits[token], token))
        return order.index(text[place + 1]) + 1

    return [[stands(place + 1 + step) for step in range(depth)] for place in range(len(text))]


def test_ranks(target: Target, learnt: Path) -> None:
    """Of several texts, padded, against one place at a time; beyond its context, and behind an id that it lacks, 0."""
    student = module.existing_student(str(learnt), target)
    texts = [[5, 9, 20, 33, 7, 7], [3, 4, 5, 6], [11, 40, 8, 30, 2]]
    masks = [[place > 1 for place in range(len(text))] for text in texts]
    samples = [
        Sample("t", torch.tensor(text, dtype=torch.int32), torch.tensor(mask))
        for text, mask in zip(texts, masks, strict=True)
    ]
    batch = online(target, samples, taps=()).fetch([0, 1, 2])

    def case(wanted: Any) -> None:
        found = ranks_of(student, batch, DEPTH, target.vocab_size)
        for text, ours, theirs in zip(texts, found, wanted, strict=True):
            assert ours[: len(text)] == theirs

    told = [brute_ranks(student, text, mask, DEPTH, target.vocab_size) for text, mask in zip(texts, masks, strict=True)]
    assert len({rank for text in told for place in text for rank in place}) > 6
    case(told)
    with must_fail():
        case([[[0] * DEPTH, *text[:-1]] for text in told])
    student.model.config.max_position_embeddings = 4
    short = [
        brute_ranks(student, text, mask, DEPTH, target.vocab_size) for text, mask in zip(texts, masks, strict=True)
    ]
    assert short != told
    case(short)


def test_it_is_planned_without_writing(target: Target, answers: Path, tmp_path: Path) -> None:
    recipe = recipe_of(answers, epochs=3, on_policy=0.5).with_changes("data", features="recorded")
    found = forecast(recipe, target, tmp_path / "work", tmp_path / "features")
    assert list(tmp_path.iterdir()) == []
    course, card = trained(target, recipe, tmp_path)
    assert found.steps == card.steps and course.features.fetch([0]).features.shape[2] == 0
    assert isinstance(course.lesson.pupil, Student) and found.parameters == course.lesson.pupil.num_parameters


# ---- from a model that stands ----------------------------------------------------------------------------------------


def test_it_begins_as_the_model_that_is_given(target: Target, answers: Path, learnt: Path, tmp_path: Path) -> None:
    recipe = recipe_of(answers, f'begin_with = "{learnt}"', epochs=1)
    course, card = trained(target, recipe, tmp_path)
    first = course.lesson.pupil
    assert course.identity["begin_with"] and card.steps == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again = prepared(target, recipe, tmp_path / "more").lesson.pupil
    tensors = load_tensors(learnt)
    for name, weight in again.named_parameters():
        assert torch.equal(weight, tensors[name.removeprefix("model.")].float()), name
    assert any(not torch.equal(*pair) for pair in zip(first.parameters(), again.parameters(), strict=True))


def test_one_with_a_shorter_context_is_walked_as_it_drafts(
    target: Target, answers: Path, learnt: Path, tmp_path: Path
) -> None:
    """Its card has what decoding shows though texts outgrow it."""
    short = module.existing_student(str(learnt), target)
    room = 2 + max(len(one) for one in texts_of(target))
    short.model.config.max_position_embeddings = room
    save_student(tmp_path / "short", short, target, dtype=torch.float32)
    recipe = recipe_of(answers, f'begin_with = "{tmp_path / "short"}"', epochs=1)
    course, _ = trained(target, recipe, tmp_path / "made")
    assert (
        course.method.max_positions == room
        and read_config(tmp_path / "made" / "card")["max_position_embeddings"] == room
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a text that outgrows it is told of
        as_decoded(target, course, tmp_path / "made" / "card")


def test_a_draft_of_the_target_s_own_size_is_told(target: Target, answers: Path, tmp_path: Path) -> None:
    """It is made all the same: how it loses can be measured."""
    wide = "depth = 2\nwidth = 32\nheads = 4\nfeed_forward = 96\ntied = false\n"
    with pytest.warns(UserWarning, match=r"parameters and the target .*: a drafted token costs what one of the target"):
        prepared(target, recipe_of(answers, wide), tmp_path)


# ---- what is written -------------------------------------------------------------------------------------------------


def test_its_folder_opens_as_a_model_too(target: Target, learnt: Path) -> None:
    opened = load_target(learnt, dtype="fp32")
    assert opened.vocab_size == target.vocab_size and opened.eos_ids == target.eos_ids
    files = {path.name for path in learnt.iterdir()}
    assert {"outpace.json", "recipe.toml", "log.jsonl", "config.json", "model.safetensors", "tokenizer.json"} <= files


def test_it_is_written_whole_or_not_at_all(
    target: Target, answers: Path, learnt: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    course = prepared(target, recipe_of(answers), tmp_path)
    card, beside = read_record(learnt), {"recipe.toml": learnt / "recipe.toml"}
    course.method.write(tmp_path / "card", course.lesson.pupil, card, beside)
    before = {path.name: path.read_bytes() for path in (tmp_path / "card").iterdir()}

    def broken(card: Card) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "document", broken)
    for name in ("card", "fresh"):
        with pytest.raises(KeyboardInterrupt):
            course.method.write(tmp_path / name, course.lesson.pupil, card, beside)
    assert before == {path.name: path.read_bytes() for path in (tmp_path / "card").iterdir()}
    assert not (tmp_path / "fresh").exists()


def test_what_may_stand_where_it_is_written(target: Target, learnt: Path, tmp_path: Path) -> None:
    """A card of its own; but no model without one, and nothing beside it."""
    place = module.Distillation.require_place
    place(learnt)
    place(tmp_path / "none")
    assert target.folder is not None
    with pytest.raises(UsageError, match=r"holds .*; allowed: a folder that is new or empty"):
        place(target.folder)
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "outpace.json").write_bytes((learnt / "outpace.json").read_bytes())
    place(mine)
    (mine / "thesis.txt").write_text("all of it", "utf-8")
    with pytest.raises(UsageError, match=r"holds thesis.txt; allowed: a folder that is new or empty"):
        place(mine)


def test_rounded_weights(learnt: Path, target: Target) -> None:
    """Those of the file, and no buffer is rounded: rotary frequencies stay what they are."""
    student = module.existing_student(str(learnt), target)
    with torch.no_grad():
        for weight in student.parameters():
            weight.mul_(1.0 + 2**-12)
    found = rounded(student)
    for (name, mine), theirs in zip(found.named_parameters(), student.parameters(), strict=True):
        assert torch.equal(mine, theirs.bfloat16().float()) and not torch.equal(mine, theirs), name
    for mine, theirs in zip(found.buffers(), student.buffers(), strict=True):
        assert torch.equal(mine, theirs)
