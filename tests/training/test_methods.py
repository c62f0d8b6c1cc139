"""Another method is a file of its own and a line in the tables: it is trained, gone on with, measured and written by
what EAGLE-3 is trained with."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

import unigrams
from lessons import same, samples_of, student
from outpace.drafters import record
from outpace.drafters.record import BESIDE, read_record
from outpace.errors import UsageError
from outpace.models.ends import read_ends
from outpace.models.target import Target
from outpace.models.weights import load_tensors
from outpace.training import methods, recipe
from outpace.training.course import Course, prepare, run
from outpace.training.features import online
from outpace.training.forecast import forecast
from outpace.training.ledger import read_ledger
from outpace.training.recipe import Recipe, TrainSettings
from outpace.training.teacher import Teacher
from outpace.training.trainer import Report, Trainer
from pupils import answers_of, model_folder, opened
from toys import must_fail, reference
from unigrams import NAME, STEPS, Unigram, UnigramLesson, UnigramSettings, UnigramTraining

OFTEN = 1e-9
"""Minutes between checkpoints: one after every step."""


@pytest.fixture(autouse=True)
def plugged(monkeypatch: pytest.MonkeyPatch) -> None:
    unigrams.plugged(monkeypatch)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Target:
    return opened(model_folder(tmp_path_factory.mktemp("targets") / "tiny"))


@pytest.fixture(scope="module")
def answers(target: Target, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return answers_of(target, tmp_path_factory.mktemp("data") / "answers.jsonl")


def prepared(chosen: Recipe, target: Target, folder: Path) -> Course:
    return prepare(chosen, target, folder / "work", folder / "features")


# ---- a whole training ------------------------------------------------------------------------------------------------


def test_it_is_trained_and_written(target: Target, answers: Path, tmp_path: Path) -> None:
    """From a recipe to a card with its log: features without taps, a loss that falls, and nothing of a head."""
    chosen = unigrams.recipe_of(answers)
    told = forecast(chosen, target, tmp_path / "work", tmp_path / "features")
    course = prepared(chosen, target, tmp_path)
    assert course.features.taps == () and course.features.fetch([0]).features.shape[2] == 0
    trained, card = run(course, chosen, tmp_path / "card", tmp_path / "work")
    assert told.steps == trained.place.step and told.parameters == target.vocab_size + 3
    lines = [line for line in read_ledger(tmp_path / "work" / "log.jsonl") if "loss" in line]
    assert len(lines[0]["loss"]) == STEPS and lines[-1]["loss"][0] < lines[0]["loss"][0]
    files = {path.name for path in (tmp_path / "card").iterdir()}
    assert files >= {"config.json", "model.safetensors", "outpace.json", *BESIDE[:2]}
    back = read_record(tmp_path / "card", NAME)
    assert replace(back, recipe={}) == replace(card, recipe={})
    assert (back.method, back.taps, back.depth_trained) == (NAME, (), STEPS)
    assert back.data["seen"] == len(course.features.samples) and json.loads(json.dumps(chosen.to_dict())) == back.recipe
    pupil = trained.pupil
    assert isinstance(pupil, Unigram) and torch.equal(load_tensors(tmp_path / "card")["bias"], pupil.bias.detach())
    assert bool((pupil.bias != 0).all()) and bool((pupil.fixed == 1).all())


def chains(target: Target, prompts: list[list[int]], best: int, new: int, depth: int) -> tuple[int, int]:
    """Turns and tokens of greedy decoding with a drafter that always says one token."""
    turns = emitted = 0
    for prompt in prompts:
        text, done = reference(target, tuple(prompt), new, target.eos_ids), 1
        while done < len(text):
            room = min(depth, new - done - 1)
            matched = next((place for place in range(room) if text[done + place : done + place + 1] != [best]), room)
            step = min(matched + 1, len(text) - done)
            turns, emitted, done = turns + 1, emitted + step, done + step
    return turns, emitted


def test_it_is_walked(target: Target, answers: Path, tmp_path: Path) -> None:
    """Whatever it says, the figures of the card are those of chains that are drafted and judged one by one."""
    chosen = unigrams.recipe_of(answers, epochs=1)
    course = prepared(chosen, target, tmp_path)
    assert course.held_out is not None
    prompts = [one.ids[: int(one.loss_mask.int().argmax())].tolist() for one in course.held_out.samples]
    said = reference(target, tuple(prompts[0]), 12, target.eos_ids)
    taus = set()
    for best in said[1:]:
        pupil = Unigram(target.vocab_size)
        pupil.bias.data[best] = 1.0
        walked = course.method.walk(pupil, course.lesson, prompts)
        turns, emitted = chains(target, prompts, best, 12, STEPS)
        assert (walked.turns, walked.emitted, walked.tau) == (turns, emitted, emitted / turns)
        taus.add(walked.tau)
    assert max(taus) > 1, "one that is never right would agree with anything"


# ---- going on --------------------------------------------------------------------------------------------------------


class Stopped(Exception):
    """A training that dies in the middle."""


def trainer_of(folder: Path, *, stop: int = 0, lesson: type[UnigramLesson] = UnigramLesson, **train: Any) -> Trainer:
    """A trainer of a unigram on the tiny target, by its own lesson."""
    model, ends = student(), read_ends(student())
    settings = UnigramTraining(
        epochs=3, tokens_per_batch=30, batches_per_step=2, precision="fp32", checkpoint_minutes=OFTEN, **train
    )

    def watch(report: Report) -> None:
        if report.place.step == stop:
            raise Stopped

    made = lesson(Unigram(64), Teacher.of(ends.embeddings, ends.head, torch.arange(64)), settings, noise=2.0)
    features, held = online(model, samples_of(), taps=()), online(model, samples_of(3, 1), taps=())
    return Trainer(made, features, held, settings, folder, identity={"method": NAME}, watch=watch)


def everything(trainer: Trainer) -> dict[str, Tensor]:
    found = {"bias": trainer.pupil.bias, **trainer.optimiser.tensors()}
    return {name: tensor.detach().clone() for name, tensor in found.items()}


def case(folder: Path, lesson: type[UnigramLesson] = UnigramLesson) -> None:
    """Cut in the middle of an epoch and gone on with, it becomes what it would have become, noise included; without
    noise it becomes something else."""
    straight = trainer_of(folder / "straight", lesson=lesson)
    straight.train()
    with pytest.raises(Stopped):
        trainer_of(folder / "cut", stop=5, lesson=lesson).train()
    again = trainer_of(folder / "cut", lesson=lesson)
    again.train(resume=True)
    assert again.place.step == straight.place.step > 6
    assert again.pupil.tied is again.pupil.bias
    assert same(everything(straight), everything(again))
    quiet = trainer_of(folder / "quiet", lesson=lesson)
    quiet.given.noise = 0.0
    quiet.train()
    assert not same(everything(straight), everything(quiet))


def test_it_is_gone_on_with_to_the_bit(tmp_path: Path) -> None:
    case(tmp_path)


class CountsItself(UnigramLesson):
    """Planted: it counts its steps from where it was made, instead of listening."""

    def begin(self, step: int) -> None:
        self.step += 1


def test_planted_fault_of_drawing(tmp_path: Path) -> None:
    with must_fail():
        case(tmp_path, CountsItself)


def test_held_out_texts_are_measured_without_noise(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path)
    trainer.train()
    first = trainer.validate()
    trainer.given.begin(99)
    assert trainer.given.training and vars(first).keys() == vars(trainer.validate()).keys()
    assert all(torch.equal(one, vars(first)[name]) for name, one in vars(trainer.validate()).items())


def test_settings_of_its_own_must_be_the_same(tmp_path: Path) -> None:
    """Those that it has are held against the checkpoint; those that it has no use for are not in it."""
    with pytest.raises(Stopped):
        trainer_of(tmp_path, stop=2).train()
    with pytest.raises(UsageError, match=r"begun with gain = 1.0; allowed: to go on with the same, not with 2.0"):
        trainer_of(tmp_path, gain=2.0).train(resume=True)
    [begun] = [line["settings"] for line in read_ledger(tmp_path / "log.jsonl") if "settings" in line]
    assert begun["method"] == NAME and begun["gain"] == 1.0 and not set(UnigramTraining.untold) & begun.keys()


# ---- recipes ---------------------------------------------------------------------------------------------------------

LEAST = f'format_version = 1\nmethod = "{NAME}"\n[head]\n'
EAGLE = 'format_version = 1\nmethod = "eagle3"\n[head]\nnorm_before_residual = false\nnorm_before_fc = false\n'
EAGLE += "fc_norm = false\nnorm_output = false\n"


def test_each_method_has_its_own_tables() -> None:
    """And its own defaults, whether the table is there or not."""
    for more in ("", "[train]\n"):
        read = Recipe.from_toml(LEAST + more)
        assert (read.head, read.train) == (UnigramSettings(), UnigramTraining()) and read.train.learning_rate == 0.1
    assert type(Recipe.from_toml(EAGLE).train) is TrainSettings


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (LEAST + "norm_output = true", r"\[head\]: unknown key 'norm_output'; allowed: noise$"),
        (LEAST + "noise = true", r"\[head\]: noise is True; allowed: a number"),
        (LEAST + "[train]\ndepth = 3", r"\[train\]: unknown key 'depth'; allowed: epochs, tokens_per_batch, .*, gain$"),
        (LEAST + "[train]\nmask_outside = true", r"\[train\]: unknown key 'mask_outside'; allowed: epochs"),
        (LEAST + "[train]\nepochs = 0", r"\[train\]: epochs is 0; allowed: 1 or more"),
        (EAGLE + "noise = 0.5", r"\[head\]: unknown key 'noise'; allowed: norm_before_residual"),
        (EAGLE + "[train]\ngain = 2.0", r"\[train\]: unknown key 'gain'; allowed: depth, epochs"),
        (EAGLE.replace("eagle3", "tree"), rf"method is 'tree'; allowed: one of eagle3, .*{NAME}"),
        (EAGLE.replace('"eagle3"', '["eagle3"]'), r"method is \['eagle3'\]; allowed: one of eagle3"),
    ],
)
def test_what_is_another_method_s_is_named(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Recipe.from_toml(text + "\n")


def test_a_recipe_comes_back(answers: Path) -> None:
    """Without what its method has no use for."""
    chosen = unigrams.recipe_of(answers, gain=3.0)
    assert Recipe.from_toml(chosen.to_toml()) == chosen
    assert chosen.to_dict()["train"].keys() == vars(chosen.train).keys() - set(UnigramTraining.untold)
    with must_fail():
        assert Recipe.from_toml(replace(chosen, head=UnigramSettings(9.0)).to_toml()) == chosen


def test_without_its_line_it_is_no_method(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    with pytest.raises(UsageError, match=rf"method is '{NAME}'; allowed: one of {', '.join(recipe.METHODS)}$"):
        Recipe.from_toml(LEAST)


def test_the_tables_know_the_same_methods(monkeypatch: pytest.MonkeyPatch) -> None:
    """What recipes may name can be trained, and has a card."""
    monkeypatch.undo()
    assert recipe.METHODS.keys() == methods.METHODS.keys()
    assert {made.carded or name for name, made in methods.METHODS.items()} <= record.METHODS.keys()


# ---- EAGLE-3 as it was -----------------------------------------------------------------------------------------------

SHAPE = (
    "hidden_size", "target_hidden_size", "taps", "heads", "kv_heads", "head_width", "feed_forward", "vocab_size",
    "draft_vocab_size", "norm_eps", "max_positions", "rotary", "norm_before_residual", "norm_before_fc", "fc_norm",
    "norm_output",
)  # fmt: skip
IDENTITY = ("target", "dtype", "data", "held_out", "vocabulary", *(f"head.{name}" for name in SHAPE), "warm_start")
SETTINGS = (
    "depth", "epochs", "tokens_per_batch", "batches_per_step", "learning_rate", "warmup", "schedule", "final_rate",
    "optimiser", "muon_factor", "betas", "weight_decay", "clip", "loss", "decay", "mask_outside", "precision", "seed",
)  # fmt: skip


def test_what_older_trainings_of_eagle3_are_gone_on_by(target: Target, answers: Path, tmp_path: Path) -> None:
    """Names and their order, typed out: what is begun by one version is gone on with by the next."""
    chosen = Recipe.from_toml(
        EAGLE + f'[data]\nanswers = ["{answers}"]\nheld_out = 0.4\n[train]\nepochs = 1\nprecision = "fp32"\n'
    )
    course = prepared(chosen, target, tmp_path)
    run(course, chosen, tmp_path / "card", tmp_path / "work")
    [state] = (tmp_path / "work").glob("step-*/state.json")
    said = json.loads(state.read_text("utf-8"))["settings"]
    assert tuple(said) == (*IDENTITY, *SETTINGS)
    assert tuple(read_ledger(tmp_path / "work" / "log.jsonl")[0]["settings"]) == tuple(said)
    ids = ids_of(course)
    assert (said["dtype"], said["head.taps"], said["head.draft_vocab_size"]) == ("float32", [0, 1, 2], len(ids))
    names = set(load_file(state.with_name("state.safetensors")))
    weights = [name for name, _ in course.lesson.pupil.named_parameters()]
    parts = ("step", "exp_avg", "exp_avg_sq")
    assert {"fc.weight", "midlayer.self_attn.q_proj.weight", "lm_head.weight"} < set(weights)
    moments = {f"optimiser.{part}.{name}" for part in parts for name in weights}
    assert names == {"random", *(f"head.{name}" for name in weights), *moments}
    card = json.loads((tmp_path / "card" / "outpace.json").read_text("utf-8"))
    assert list(card["data"])[-2:] == ["coverage", "rejected"] and list(card["recipe"]["train"])[:2] == [
        "depth",
        "epochs",
    ]


def ids_of(course: Course) -> list[int]:
    found: list[int] = course.lesson.pupil.target_ids.tolist()  # type: ignore[operator]
    return found
