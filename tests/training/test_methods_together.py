"""Every method in two processes, under AdamW and Muon, ends as in one; a process with nothing to teach holds nobody up.

As a script this file is one of the two:

    python tests/training/test_methods_together.py FOLDER
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from lessons import everything
from outpace.models.weights import save_tensors
from outpace.training.checkpoint import checkpoints
from outpace.training.trainer import Trainer
from together import in_two, training
from toys import must_fail

STEPS = 3
"""Six texts, each a batch of its own: three steps of two, one for each process."""
MUON = {"optimiser": "muon", "learning_rate": 1e-3}
TRAININGS: dict[str, dict[str, Any]] = {
    "eagle3-muon": {"method": "eagle3", "depth": 2, **MUON},
    "eagle1": {"method": "eagle1"},
    "eagle1-muon": {"method": "eagle1", "vocabulary": 24, **MUON},
    "medusa": {"method": "medusa", "places": 0.7, "vocabulary": 24},
    "medusa-muon": {"method": "medusa", "own_head": True, **MUON},
    "distil": {"method": "distil", "vocabulary": 24},
    "distil-muon": {"method": "distil", **MUON},
}


def second_of(name: str, window: int) -> int:
    """The text that the second process reads in a step."""
    return training(Path(), **TRAININGS[name]).epochs[0][2 * window + 1][0]


def options_of(name: str, masked: bool) -> dict[str, Any]:
    """Masked: the second process has nothing to teach in the first step and the last."""
    return TRAININGS[name] | ({"mute": [second_of(name, 0), second_of(name, 2)]} if masked else {})


def alone(trainer: Trainer) -> None:
    """The planted fault: gradients are never summed over processes."""
    trainer.lesson.require_backward_grad_sync = False


FAULTY = ("eagle3-muon", "eagle1", "medusa-muon", "distil")
CASES = [(name, masked) for name in TRAININGS for masked in (False, True)]


def main() -> None:
    torch.set_num_threads(1)
    root, rank = Path(sys.argv[1]), int(os.environ["RANK"])
    for name, masked in CASES:
        trainings(root / f"{name} {masked}", rank, name, masked)
    for name in FAULTY:
        trainings(root / f"{name} alone", rank, name, False, fault=True)


def trainings(folder: Path, rank: int, name: str, masked: bool, fault: bool = False) -> None:
    trainer = training(folder / f"folder {rank}", **options_of(name, masked))
    assert trainer.accelerator.num_processes == 2
    if fault:
        alone(trainer)
    trainer.train()
    save_tensors(folder, everything(trainer), file=f"{rank}.safetensors")
    counted = [trainer.place.step, trainer.place.answer_tokens, trainer.place.bad]
    (folder / f"{rank}.json").write_text(json.dumps(counted), "utf-8")


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What two processes left."""
    root = tmp_path_factory.mktemp("both")
    in_two(__file__, root)
    return root


def case(left: Path, options: dict[str, Any], folder: Path) -> None:
    """The weights and moments of one process that read all batches, in both; the second one writes nothing."""
    one = training(folder, **options)
    one.train()
    expected = everything(one)
    assert one.place.step == STEPS and checkpoints(folder)
    for rank in range(2):
        found = load_file(left / f"{rank}.safetensors")
        assert found.keys() == expected.keys()
        for part, tensor in expected.items():
            torch.testing.assert_close(found[part], tensor, atol=2e-6, rtol=1e-4)
            assert bool(tensor.isfinite().all())
        assert json.loads((left / f"{rank}.json").read_text("utf-8")) == [STEPS, one.place.answer_tokens, 0]
    assert checkpoints(left / "folder 0") and not (left / "folder 1").exists()


@pytest.mark.parametrize(("name", "masked"), CASES)
def test_two_processes_are_one(name: str, masked: bool, both: Path, tmp_path: Path) -> None:
    case(both / f"{name} {masked}", options_of(name, masked), tmp_path)


@pytest.mark.parametrize("name", FAULTY)
def test_gradients_that_are_not_summed_are_seen(name: str, both: Path, tmp_path: Path) -> None:
    with must_fail():
        case(both / f"{name} alone", options_of(name, False), tmp_path)


if __name__ == "__main__":
    main()
