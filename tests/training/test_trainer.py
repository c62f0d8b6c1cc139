"""What is gone on with becomes what it would have become, and what cannot be learnt from is passed by and counted."""

import json
import math
import signal
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from lessons import everything, same, samples_of, settings_of, start, student, trainer_of
from outpace.errors import NumericsError, UsageError
from outpace.training.checkpoint import checkpoints, newest
from outpace.training.features import Features
from outpace.training.ledger import read_ledger
from outpace.training.trainer import Report, Trainer

OFTEN = 1e-9
"""Minutes between checkpoints: one after every step."""


class Stopped(Exception):
    """A training that dies in the middle."""


def dies_after(step: int) -> Any:
    def watch(report: Report) -> None:
        if report.place.step == step:
            raise Stopped

    return watch


def whole(folder: Path, **changes: Any) -> Trainer:
    trainer = trainer_of(folder, **changes)
    trainer.train()
    return trainer


def test_a_training_learns(tmp_path: Path) -> None:
    trainer = whole(tmp_path, epochs=30, loss="forward-kl", learning_rate=1e-2)
    lines = [line for line in read_ledger(tmp_path / "log.jsonl") if "loss" in line]
    assert len(lines) == trainer.steps == trainer.place.step
    assert lines[-1]["loss"][0] < 0.5 * lines[0]["loss"][0]
    assert lines[-1]["tokens"] == 30 * sum(map(len, samples_of()))
    assert lines[-1]["tau"] > lines[0]["tau"]


def test_two_in_one_folder_are_one_too_many(tmp_path: Path) -> None:
    """The second is refused before it writes anything; the folder is free again when the first has ended."""

    def meanwhile(report: Report) -> None:
        before = (tmp_path / "log.jsonl").read_bytes()
        with pytest.raises(UsageError, match=r"another process is training in .*; allowed: one at a time"):
            trainer_of(tmp_path).train()
        assert (tmp_path / "log.jsonl").read_bytes() == before

    trainer_of(tmp_path, watch=meanwhile).train()
    whole(tmp_path)


@pytest.mark.parametrize("step", [1, 2, 3, 5])
def test_what_is_gone_on_with_is_what_it_would_have_become(step: int, tmp_path: Path) -> None:
    straight = whole(tmp_path / "straight", held_out=samples_of(3, 1), checkpoint_minutes=OFTEN)
    with pytest.raises(Stopped):
        trainer_of(
            tmp_path / "cut", held_out=samples_of(3, 1), watch=dies_after(step + 1), checkpoint_minutes=OFTEN
        ).train()
    found = newest(tmp_path / "cut")
    assert found is not None and found.place.step == step
    again = trainer_of(tmp_path / "cut", held_out=samples_of(3, 1), checkpoint_minutes=OFTEN)
    again.train(resume=True)
    assert same(everything(straight), everything(again))
    assert again.place.best_tau == straight.place.best_tau and again.place.best_epoch == straight.place.best_epoch
    ours, theirs = (
        [
            {name: line[name] for name in ("step", "loss", "learning_rate", "tokens", "gradient_norm")}
            for line in read_ledger(tmp_path / name / "log.jsonl")
            if "loss" in line
        ]
        for name in ("straight", "cut")
    )
    assert ours == theirs, "the log tells every step once, with the same figures"


def test_a_killed_process_is_gone_on_with(tmp_path: Path) -> None:
    """Not even a handler runs: what stands on disk is all there is."""
    process = start(tmp_path / "cut", 4, checkpoint_minutes=OFTEN)
    assert process.wait(120) == -signal.SIGKILL
    again = trainer_of(tmp_path / "cut")
    again.train(resume=True)
    assert again.place.step > 4
    assert same(everything(whole(tmp_path / "straight")), everything(again))


def forgets_moments(self: Trainer, found: Any) -> None:
    honest_restore(self, found)
    self.optimiser.restore({})


def begins_the_data_again(self: Trainer, found: Any) -> None:
    honest_restore(self, replace(found, place=replace(found.place, window=0)))


def counts_steps_anew(self: Trainer, found: Any) -> None:
    honest_restore(self, replace(found, place=replace(found.place, step=0)))


def keeps_its_own_weights(self: Trainer, found: Any) -> None:
    before = {name: weight.clone() for name, weight in self.pupil.state_dict().items()}
    honest_restore(self, found)
    self.pupil.load_state_dict(before)


honest_restore = Trainer._restore


@pytest.mark.parametrize("fault", [forgets_moments, begins_the_data_again, counts_steps_anew, keeps_its_own_weights])
def test_planted_faults_of_going_on(fault: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    straight = everything(whole(tmp_path / "straight"))
    with pytest.raises(Stopped):
        trainer_of(tmp_path / "cut", watch=dies_after(3), checkpoint_minutes=OFTEN).train()
    monkeypatch.setattr(Trainer, "_restore", fault)
    again = trainer_of(tmp_path / "cut")
    again.train(resume=True)
    assert not same(straight, everything(again))


def test_an_interrupt_finishes_the_step_and_keeps_it(tmp_path: Path) -> None:
    def watch(report: Report) -> None:
        if report.place.step == 2:
            signal.raise_signal(signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        trainer_of(tmp_path / "cut", watch=watch).train()
    assert signal.getsignal(signal.SIGINT) is before
    found = newest(tmp_path / "cut")
    assert found is not None and found.place.step == 3, "the flag is looked at before a step, which is then finished"
    again = trainer_of(tmp_path / "cut")
    again.train(resume=True)
    assert same(everything(whole(tmp_path / "straight")), everything(again))


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"learning_rate": 1.0}, "learning_rate = 0.003; allowed: to go on with the same, not with 1.0"),
        ({"depth": 2}, "depth = 3"),
        ({"identity": {"data": "others"}}, "data = 'toys'; allowed: to go on with the same, not with 'others'"),
        ({"identity": {"data": "toys", "more": 1}}, "more = None"),
    ],
)
def test_other_settings_are_refused_by_name(changes: dict[str, Any], named: str, tmp_path: Path) -> None:
    with pytest.raises(Stopped):
        trainer_of(tmp_path, watch=dies_after(2), checkpoint_minutes=OFTEN).train()
    with pytest.raises(UsageError, match=named):
        trainer_of(tmp_path, **changes).train(resume=True)
    trainer_of(tmp_path, checkpoint_minutes=7.0, max_bad_steps=3).train(resume=True)  # these may change


# ---- what cannot be learnt from --------------------------------------------------------------------------------------


def spoilt(bad: set[int]) -> Features:
    """Features of the tiny target; those of some texts are not numbers."""
    honest = trainer_of(Path()).features

    def fetch(places: Any) -> Any:
        batch = honest.fetch(places)
        for row, place in enumerate(places):
            if place in bad:
                batch.features[row] = math.nan
        return batch

    return replace(honest, fetch=fetch)


def test_a_loss_that_is_no_number_is_skipped_and_counted(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match=r"step \d+ has losses .*nan.*; it is skipped"):
        trainer = whole(tmp_path, features=spoilt({3}), epochs=3)
    assert trainer.place.bad == 3 and trainer.place.bad_in_row == 0
    assert all(bool(weight.isfinite().all()) for weight in trainer.pupil.parameters())
    lines = [line for line in read_ledger(tmp_path / "log.jsonl") if "loss" in line]
    assert lines[-1]["bad"] == 3
    assert json.loads(json.dumps(lines, allow_nan=False)) == lines, "no line holds what JSON does not"


def test_too_many_of_them_end_the_training(tmp_path: Path) -> None:
    everyone = set(range(len(samples_of())))
    with warnings.catch_warnings(), pytest.raises(NumericsError, match="with up to 2 steps in a row that are skipped"):
        warnings.simplefilter("ignore")
        whole(tmp_path, features=spoilt(everyone), max_bad_steps=2)


def test_a_step_without_anything_to_teach_is_passed_by(tmp_path: Path) -> None:
    """Texts whose answers the head cannot say: no step, no division by nothing, and the weights stay as they are."""
    trainer = trainer_of(tmp_path, mute=range(len(samples_of())))
    before = {name: weight.clone() for name, weight in trainer.pupil.state_dict().items()}
    trainer.train()
    assert trainer.place.empty == trainer.steps > 0 and trainer.place.bad == 0
    assert all(torch.equal(before[name], weight) for name, weight in trainer.pupil.state_dict().items())


# ---- windows ---------------------------------------------------------------------------------------------------------


def test_every_batch_of_an_epoch_is_learnt_from(tmp_path: Path) -> None:
    """Seven batches in windows of four make two steps an epoch, and the rates are those of four steps."""
    seen: list[list[int]] = []
    rates: list[float] = []
    trainer = trainer_of(tmp_path, samples=samples_of(7), tokens_per_batch=15, batches_per_step=4, warmup=0.0)
    assert [len(order) for order in trainer.epochs] == [7, 7]
    fetch = trainer.features.fetch
    trainer.features = replace(trainer.features, fetch=lambda places: seen.append(list(places)) or fetch(places))
    honest = trainer.optimiser.step

    def step(rate: float) -> None:
        rates.append(rate)
        honest(rate)

    trainer.optimiser.step = step  # type: ignore[method-assign]
    trainer.train()
    assert sorted(place for places in seen for place in places) == sorted([*range(7), *range(7)])
    assert trainer.place.step == trainer.steps == 4
    chosen = settings_of()
    expected = [chosen.learning_rate * (0.05 + 0.95 * (1 + math.cos(math.pi * step / 4)) / 2) for step in range(4)]
    assert rates == pytest.approx(expected)


def test_a_step_is_the_same_however_it_is_cut(tmp_path: Path) -> None:
    """One batch of two texts, or two of one each: the gradient is a mean over tokens, not over batches."""
    texts = samples_of(2)
    longest = max(map(len, texts))
    joint = whole(tmp_path / "joint", samples=texts, tokens_per_batch=2 * longest, batches_per_step=1, epochs=3)
    parts = whole(tmp_path / "parts", samples=texts, tokens_per_batch=longest, batches_per_step=2, epochs=3)
    assert joint.steps == parts.steps == 3
    for name, weight in joint.pupil.named_parameters():
        torch.testing.assert_close(weight, dict(parts.pupil.named_parameters())[name], atol=1e-5, rtol=1e-4)


def test_the_best_head_is_kept(tmp_path: Path) -> None:
    """A rate that ruins the last epoch: what is handed out is from before."""
    trainer = trainer_of(tmp_path, held_out=samples_of(), epochs=8, learning_rate=1e-2)
    honest = trainer._step

    def step(interrupted: bool) -> bool:
        stop = honest(interrupted)
        if trainer.place.epoch == trainer.settings.epochs:
            with torch.no_grad():
                trainer.pupil.lm_head.weight.zero_()
        return stop

    trainer._step = step  # type: ignore[method-assign]
    trained = trainer.train()
    assert trained.place.best_epoch is not None and trained.place.best_epoch < 8
    assert bool((trained.pupil.lm_head.weight != 0).any())
    assert trained.validation is not None and trained.validation.tau == trained.place.best_tau


def test_precision_is_that_of_products_alone(tmp_path: Path) -> None:
    half = whole(tmp_path, precision="bf16", epochs=8)
    assert {weight.dtype for weight in half.pupil.parameters()} == {torch.float32}
    assert {one.dtype for one in half.optimiser.tensors().values()} == {torch.float32}
    exact = whole(tmp_path / "exact", epochs=8)
    ours, theirs = (read_ledger(one / "log.jsonl")[-1]["loss"][0] for one in (tmp_path, tmp_path / "exact"))
    assert ours == pytest.approx(theirs, rel=0.05) and ours != theirs
    assert exact.steps == half.steps


# ---- several processes -----------------------------------------------------------------------------------------------


def two(folder: Path, port: int, **changes: Any) -> dict[str, torch.Tensor]:
    """The same training in two processes."""
    shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    ranks = [{"RANK": str(rank), "LOCAL_RANK": str(rank)} | shared for rank in range(2)]
    processes = [start(folder, 0, env | {"ACCELERATE_USE_CPU": "true"}, **changes) for env in ranks]
    assert [process.wait(240) for process in processes] == [0, 0]
    assert json.loads((folder / "world.json").read_text("utf-8")) == 2, "they trained together"
    return load_file(folder / "result.safetensors")


def free_port() -> int:
    import socket

    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@pytest.mark.parametrize("masked", [False, True])
def test_two_processes_make_the_same_steps(masked: bool, tmp_path: Path) -> None:
    """Batches of one text each, an odd number of them, and in one case every second one teaches nothing."""
    mute, longest = [1, 3, 5, 7, 8, 9] if masked else [], max(map(len, samples_of()))
    one = whole(tmp_path / "one", mute=mute, tokens_per_batch=longest)
    both = two(tmp_path / "two", free_port(), mute=mute, tokens_per_batch=longest)
    for name, tensor in everything(one).items():
        torch.testing.assert_close(both[name], tensor, atol=1e-6, rtol=1e-4)
    assert len(read_ledger(tmp_path / "two" / "log.jsonl")) == 1 + one.steps, "one of them writes"
    assert checkpoints(tmp_path / "two")


def test_only_the_head_is_trained(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path)
    assert {id(weight) for weight in trainer.optimiser.weights.values()} == {
        id(weight) for weight in trainer.pupil.parameters()
    }
    before = student().embeddings.clone(), trainer.lesson.teacher.rows.clone()
    trainer.train()
    assert torch.equal(before[0], student().embeddings) and torch.equal(before[1], trainer.lesson.teacher.rows)
