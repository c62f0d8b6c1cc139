"""88: a resumed run is not the run that was stopped: its rate, moments, data or chance begin anew."""

import os
import signal
import subprocess
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from lessons import everything, same, trainer_of
from outpace.training.checkpoint import checkpoints, newest
from outpace.training.ledger import read_ledger
from outpace.training.trainer import Report, Trainer
from toys import must_fail

OFTEN = 1e-9
"""Minutes between checkpoints: one after every step."""
STEPS, STOPPED = 10, 5
OPTIONS: dict[str, Any] = {"epochs": 4, "checkpoint_minutes": OFTEN}


class Stopped(Exception):
    """A process that is gone: nothing more of it is saved."""


@dataclass
class Run:
    """What a training did, step by step, and what became of it."""

    places: list[list[int]] = field(default_factory=list)
    chances: list[float] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)
    result: dict[str, Tensor] = field(default_factory=dict)


def trained(folder: Path, *, seed: int, resume: bool = False, stop: int | None = None) -> Run:
    """A training that draws a number after every step, as dropout would, and may stop behind one."""
    found = Run()
    torch.manual_seed(seed)

    def watch(report: Report) -> None:
        found.chances.append(float(torch.rand(())))
        if report.place.step == stop:
            raise Stopped

    trainer = trainer_of(folder, watch=watch, **OPTIONS)
    fetch = trainer.features.fetch
    trainer.features = replace(
        trainer.features, fetch=lambda places: found.places.append(list(places)) or fetch(places)
    )
    try:
        trainer.train(resume=resume)
    except Stopped:
        return found
    found.result = everything(trainer)
    found.rates = [line["learning_rate"] for line in read_ledger(folder / "log.jsonl") if "learning_rate" in line]
    return found


def case(folder: Path) -> None:
    """Ten steps and more at once; and six, of which the last is lost, then all behind the fifth: weights, moments,
    rates, the order of the data and the state of chance are equal, to the bit."""
    whole = trained(folder / "whole", seed=0)
    assert len(whole.rates) == len(whole.chances) >= STEPS and len(set(whole.rates)) > STEPS / 2
    lost = trained(folder / "cut", seed=0, stop=STOPPED + 1)
    found = newest(folder / "cut")
    assert found is not None and found.place.step == STOPPED and found.place.window > 0, "within an epoch"
    rest = trained(folder / "cut", seed=99, resume=True)
    assert rest.chances == whole.chances[STOPPED:]
    assert len(lost.chances) == STOPPED + 1 and lost.chances == whole.chances[: STOPPED + 1]
    assert rest.places == whole.places[-len(rest.places) :]
    assert rest.rates == whole.rates
    assert same(whole.result, rest.result)


def test_case(tmp_path: Path) -> None:
    case(tmp_path)


def moments_lost(self: Trainer, found: Any) -> None:
    honest_restore(self, found)
    self.optimiser.restore({})


def rates_begin_anew(self: Trainer, found: Any) -> None:
    honest_restore(self, replace(found, place=replace(found.place, step=0)))


def data_begins_anew(self: Trainer, found: Any) -> None:
    honest_restore(self, replace(found, place=replace(found.place, window=0)))


def chance_begins_anew(self: Trainer, found: Any) -> None:
    before = torch.get_rng_state()
    honest_restore(self, found)
    torch.set_rng_state(before)


def weights_stay(self: Trainer, found: Any) -> None:
    before = {name: weight.clone() for name, weight in self.pupil.state_dict().items()}
    honest_restore(self, found)
    self.pupil.load_state_dict(before)


honest_restore = Trainer._restore


@pytest.mark.parametrize("fault", [moments_lost, rates_begin_anew, data_begins_anew, chance_begins_anew, weights_stay])
def test_planted_fault(fault: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Trainer, "_restore", fault)
    with must_fail():
        case(tmp_path)


# ---- killed while it saves -------------------------------------------------------------------------------------------

KILLED = """
import os, signal, sys
from pathlib import Path
import torch
from lessons import trainer_of
from outpace.training import checkpoint

torch.set_num_threads(1)
honest, saves = checkpoint.file_sha256, []

def killed(path):
    saves.append(path)
    if len(saves) == 4:
        os.kill(os.getpid(), signal.SIGKILL)
    return honest(path)

checkpoint.file_sha256 = killed
trainer_of(Path(sys.argv[1]), epochs=4, checkpoint_minutes=1e-9).train()
"""


def test_killed_in_the_middle_of_a_save(tmp_path: Path) -> None:
    """The tensors are written and the place is not: the checkpoint before is gone on from, in another process."""
    env = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", KILLED, str(tmp_path / "cut")]
    assert subprocess.run(command, env=env, check=False, timeout=120).returncode == -signal.SIGKILL
    assert [path.name for path in checkpoints(tmp_path / "cut")] == ["step-00000002", "step-00000003"]
    again = trainer_of(tmp_path / "cut", **OPTIONS)
    again.train(resume=True)
    straight = trainer_of(tmp_path / "straight", **OPTIONS)
    straight.train()
    assert same(everything(straight), everything(again))
