"""EAGLE-1's lesson: its noise is named by seed, step and text, and a training is gone on with to the bit."""

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from lessons import same, samples_of, student
from outpace.drafters.first_head import FirstHead
from outpace.errors import UsageError, WeightsError
from outpace.models.ends import read_ends
from outpace.models.weights import load_tensors, save_tensors
from outpace.training.anatomy import first_shape_for, new_first
from outpace.training.batch import Batch
from outpace.training.checkpoint import checkpoints
from outpace.training.eagle1 import Eagle1, Eagle1Lesson
from outpace.training.features import Features, online
from outpace.training.recipe import FirstSettings, FirstTraining, Recipe
from outpace.training.teacher import Teacher
from outpace.training.trainer import Report, Trainer
from toys import must_fail

OFTEN = 1e-9
"""Minutes between checkpoints: one after every step."""
CUT = 5


def settings_of(**changes: Any) -> FirstTraining:
    said: dict[str, Any] = {
        "epochs": 3,
        "tokens_per_batch": 30,
        "batches_per_step": 2,
        "learning_rate": 3e-3,
        "precision": "fp32",
        "checkpoint_minutes": OFTEN,
        "noise": 0.01,
    }
    return FirstTraining(**(said | changes))


def lesson_of(kind: type[Eagle1Lesson] = Eagle1Lesson, **changes: Any) -> Eagle1Lesson:
    ends = read_ends(student())
    head = new_first(first_shape_for(student(), FirstSettings(fc_bias=True)), 0)
    return kind(head, Teacher(ends.embeddings, ends.head), settings_of(**changes))


def trainer_of(folder: Path, *, stop: int = 0, kill: bool = False, **options: Any) -> Trainer:
    """A trainer of a tiny head on the tiny target; it may end behind a step."""

    def watch(report: Report) -> None:
        if report.place.step == stop:
            if kill:
                os.kill(os.getpid(), signal.SIGKILL)
            raise InterruptedError

    made, model = lesson_of(**options), student()
    features, held = online(model, samples_of(), taps=()), online(model, samples_of(3, 1), taps=())
    return Trainer(made, features, held, made.settings, folder, identity={"method": "eagle1"}, watch=watch)


def everything(trainer: Trainer) -> dict[str, Tensor]:
    weights = {name: weight.detach().clone() for name, weight in trainer.pupil.state_dict().items()}
    return weights | {name: tensor.clone() for name, tensor in trainer.optimiser.tensors().items()}


# ---- noise -----------------------------------------------------------------------------------------------------------


def batch_of(places: list[int]) -> Batch:
    return online(student(), samples_of(), taps=()).fetch(places)


def test_noise_is_as_wide_as_it_is_said() -> None:
    """Around 0, 512 over the length times the setting in all, nowhere behind a text; drawn by a fixed seed."""
    lesson, batch = lesson_of(noise=0.2), batch_of(list(range(10)))
    found = lesson.noise(batch)
    for row, length in enumerate(batch.lengths):
        half, drawn = 0.1 * 512 / length, found[row, :length]
        assert (
            bool((drawn.abs() <= half).all()) and float(drawn.max()) > 0.9 * half and float(drawn.min()) < -0.9 * half
        )
        assert not found[row, length:].any()
    assert len(set(batch.lengths)) > 3


def test_noise_is_of_a_text_and_not_of_its_batch() -> None:
    """In any batch, at any place of it; another step, seed or text has its own."""
    lesson = lesson_of()
    one, many = batch_of([4]), batch_of([2, 4])
    length = one.lengths[0]
    mine = lesson.noise(one)[0, :length]
    assert torch.equal(lesson.noise(many)[many.lengths.index(length), :length], mine)
    others = [lesson_of(seed=1).noise(one), lesson.noise(batch_of([5]))]
    lesson.begin(1)
    assert torch.equal(lesson.noise(one), lesson.noise(one))
    assert all(not torch.equal(each[0, :3], mine[:3]) for each in [*others, lesson.noise(one)])


def test_noise_is_for_training_alone() -> None:
    lesson, batch = lesson_of(), batch_of([0, 1, 2])
    quiet = lesson_of(noise=0.0)
    said = quiet(batch)[0].detach()
    assert not torch.equal(lesson(batch)[0].detach(), said)
    assert torch.equal(lesson.eval()(batch)[0].detach(), said)


# ---- going on --------------------------------------------------------------------------------------------------------


def case(folder: Path, kind: type[Eagle1Lesson] = Eagle1Lesson) -> None:
    """Cut within an epoch and gone on with, it is what it would have been; without noise it is another."""
    straight = trainer_of(folder / "straight", kind=kind)
    straight.train()
    with pytest.raises(InterruptedError):
        trainer_of(folder / "cut", stop=CUT, kind=kind).train()
    again = trainer_of(folder / "cut", kind=kind)
    again.train(resume=True)
    assert again.place.step == straight.place.step > CUT + 1
    assert same(everything(straight), everything(again))
    quiet = trainer_of(folder / "quiet", kind=kind, noise=0.0)
    quiet.train()
    assert not same(everything(straight), everything(quiet))


def test_it_is_gone_on_with_to_the_bit(tmp_path: Path) -> None:
    case(tmp_path)


class CountsItself(Eagle1Lesson):
    """Planted: noise begins anew with the process."""

    def begin(self, step: int) -> None:
        self.step += 1


class DrawsOn(Eagle1Lesson):
    """Planted: noise by whatever numbers come next, of a generator that no checkpoint knows."""

    generator = torch.Generator().manual_seed(0)

    def noise(self, batch: Batch) -> Tensor:
        return 0.01 * torch.rand(batch.last_normed.shape, generator=self.generator)


@pytest.mark.parametrize("kind", [CountsItself, DrawsOn])
def test_planted_faults_of_noise(kind: type[Eagle1Lesson], tmp_path: Path) -> None:
    with must_fail():
        case(tmp_path, kind)


def test_killed_it_is_gone_on_with(tmp_path: Path) -> None:
    """By a signal that nothing can be saved after, in a process of its own."""
    env = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, __file__, str(tmp_path / "cut")]
    assert subprocess.run(command, env=env, check=False, timeout=120).returncode == -signal.SIGKILL
    assert checkpoints(tmp_path / "cut")
    again, straight = trainer_of(tmp_path / "cut"), trainer_of(tmp_path / "straight")
    again.train(resume=True)
    straight.train()
    assert same(everything(straight), everything(again))


# ---- how it begins ---------------------------------------------------------------------------------------------------


def test_it_passes_the_state_on() -> None:
    """Beside what random weights make of it, and without anything else of the embedding."""
    shape = first_shape_for(student(), FirstSettings(fc_bias=True))
    plain, passing = new_first(shape, 5), new_first(shape, 5, pass_state=True)
    embedded, state = torch.randn(3, 32), torch.randn(3, 32)
    torch.testing.assert_close(passing.enter(embedded, state)[0], plain.enter(embedded, state)[0] + state)
    rest = passing.state_dict().keys() - {"fc.weight"}
    assert all(torch.equal(passing.state_dict()[name], plain.state_dict()[name]) for name in rest)
    for chosen in (True, False):
        made = replace(recipe_of(), head=FirstSettings(fc_bias=True, pass_state=chosen))
        features = online(student(), samples_of(), taps=())
        begun = Eagle1(made, student()).begin(features)
        assert begun.identity["pass_state"] is chosen and isinstance(begun.lesson.pupil, FirstHead)
        wanted = new_first(begun.lesson.pupil.shape, 0, pass_state=chosen)
        assert torch.equal(begun.lesson.pupil.fc.weight, wanted.fc.weight)


def recipe_of(**train: Any) -> Recipe:
    text = 'format_version = 1\nmethod = "eagle1"\ndtype = "fp32"\n[head]\nfc_bias = true\n'
    return Recipe.from_toml(text).with_changes("train", **train)


def scaled(features: Features) -> Features:
    """Planted: states from before the last norm."""

    def fetch(places: Any) -> Batch:
        batch = honest.fetch(places)
        return replace(batch, last_normed=batch.features[:, :, 0])

    honest = online(student(), samples_of(), taps=(student().shape.layers,))
    return replace(features, fetch=fetch)


def test_states_from_before_the_last_norm_are_refused() -> None:
    method, features = Eagle1(recipe_of(), student()), online(student(), samples_of(), taps=())
    begun = method.begin(features)
    assert begun.identity["method"] == "eagle1" and begun.identity["head.fc_bias"] is True
    with pytest.raises(WeightsError, match=r"lead to its own tokens in \d+\.\d% of all places; allowed: 97%"):
        method.begin(scaled(features))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"\[head\]: fc_bias is missing; allowed: true or false"),
        ("fc_bias = true\nnorm_output = true", r"\[head\]: unknown key 'norm_output'; allowed: fc_bias, heads"),
        ("fc_bias = true\n[train]\ndepth = 3", r"\[train\]: unknown key 'depth'; allowed: epochs, .*, noise$"),
        ("fc_bias = true\n[train]\nnoise = -0.1", r"\[train\]: noise is -0.1; allowed: 0 or more"),
        ("fc_bias = true\n[train]\ntoken_weight = -1", r"\[train\]: token_weight is -1.0; allowed: 0 or more"),
    ],
)
def test_recipes_say_what_is_its_own(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Recipe.from_toml(f'format_version = 1\nmethod = "eagle1"\n[head]\n{text}\n')


def test_something_must_weigh() -> None:
    with pytest.raises(UsageError, match="feature_weight and token_weight are both 0; allowed: one of them above 0"):
        Eagle1(recipe_of(feature_weight=0.0, token_weight=0.0), student())


def test_it_is_as_large_as_is_asked_for(tmp_path: Path) -> None:
    """Whatever the target's own measures are: of so many weights as another method's head has."""
    recipe = replace(recipe_of(), head=FirstSettings(fc_bias=False, heads=2, kv_heads=1, head_width=6, feed_forward=77))
    head = Eagle1(recipe, student()).trial().pupil
    assert isinstance(head, FirstHead)
    save_tensors(tmp_path, dict(head.state_dict()))
    sizes = {name: list(tensor.shape) for name, tensor in load_tensors(tmp_path).items()}
    assert sizes["layers.0.self_attn.q_proj.weight"] == [12, 32] and sizes["layers.0.mlp.up_proj.weight"] == [77, 32]
    assert sum(tensor.numel() for tensor in head.parameters()) == 2 * 32 * 32 + 36 * 32 + 3 * 77 * 32 + 32


if __name__ == "__main__":
    torch.set_num_threads(1)
    trainer_of(Path(sys.argv[1]), stop=CUT + 1, kill=True).train()
