"""90: several processes train without syncing, wait for each other for ever, or write over each other.

Two real processes train; as a script this file is one of them:

    python tests/faults/test_90_several_processes.py FOLDER
"""

import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from lessons import everything, samples_of, trainer_of
from outpace.models.weights import save_tensors
from outpace.training.checkpoint import checkpoints
from outpace.training.ledger import read_ledger
from outpace.training.trainer import Trainer
from together import in_two
from toys import must_fail

LONGEST = max(map(len, samples_of(6)))
EVERY: dict[str, Any] = {"samples": samples_of(6), "epochs": 1, "tokens_per_batch": LONGEST, "batches_per_step": 2}
"""Six texts, each a batch of its own: three steps of two, one for each process."""
STEPS = 3


def second_of(window: int) -> int:
    """The text that the second process reads in a step."""
    return trainer_of(Path(), **EVERY).epochs[0][2 * window + 1][0]


def options_of(name: str) -> dict[str, Any]:
    """What the trainings are, by name; faults change the trainer of the first."""
    if name == "masked":
        return EVERY | {"mute": [second_of(0), second_of(2)]}
    if name == "odd":
        return EVERY | {"samples": samples_of(5)}
    return EVERY


# ---- in each process -------------------------------------------------------------------------------------------------


def past_the_wrapper(trainer: Trainer) -> None:
    """The loss is computed by what is wrapped, so that the wrapper sees no forward."""
    trainer.lesson = trainer.accelerator.unwrap_model(trainer.lesson)


def never_armed(trainer: Trainer) -> None:
    """Gradients are never summed over processes."""
    trainer.lesson.require_backward_grad_sync = False


def each_by_its_own(trainer: Trainer) -> None:
    """Every process takes the mean over its own tokens."""
    trainer._summed = lambda tensor: tensor  # type: ignore[method-assign]


def all_write(trainer: Trainer) -> None:
    trainer.ledger.writes = True


FAULTS: dict[str, Callable[[Trainer], None]] = {
    one.__name__: one for one in (past_the_wrapper, never_armed, each_by_its_own, all_write)
}
TRAININGS = ("plain", "masked", "odd", *FAULTS)


def main() -> None:
    torch.set_num_threads(1)
    root, rank = Path(sys.argv[1]), int(os.environ["RANK"])
    for name in TRAININGS:
        trainer = trainer_of(root / name / f"folder {rank}", **options_of(name))
        assert trainer.accelerator.num_processes == 2 and trainer.accelerator.process_index == rank
        before = [each.clone() for each in vars(trainer.accelerator.unwrap_model(trainer.lesson).teacher).values()]
        FAULTS.get(name, lambda trainer: None)(trainer)
        trainer.train()
        after = vars(trainer.accelerator.unwrap_model(trainer.lesson).teacher).values()
        told = {
            "frozen": all(torch.equal(old, new) for old, new in zip(before, after, strict=True)),
            "trained": len(trainer.optimiser.weights),
            "counted": [trainer.place.step, trainer.place.answer_tokens, trainer.place.bad],
        }
        save_tensors(root / name, everything(trainer), file=f"{rank}.safetensors")
        (root / name / f"{rank}.json").write_text(json.dumps(told), "utf-8")


# ---- and of both -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Both:
    """What two processes left, by training and process."""

    root: Path

    def weights(self, name: str, rank: int) -> dict[str, Tensor]:
        return load_file(self.root / name / f"{rank}.safetensors")

    def told(self, name: str, rank: int) -> dict[str, Any]:
        return dict(json.loads((self.root / name / f"{rank}.json").read_text("utf-8")))

    def folder(self, name: str, rank: int) -> Path:
        """Where this process was told to write; in earnest it is the same for all."""
        return self.root / name / f"folder {rank}"


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Both:
    root = tmp_path_factory.mktemp("both")
    in_two(__file__, root)
    return Both(root)


def case(both: Both, name: str, options: dict[str, Any], folder: Path) -> None:
    """Both processes end with the weights and moments of one process that read all batches; nothing else is trained,
    no step is lost, and the second process writes nothing."""
    one = trainer_of(folder, **options)
    one.train()
    expected = everything(one)
    assert one.place.step == STEPS and checkpoints(folder)
    for rank in range(2):
        found = both.weights(name, rank)
        assert found.keys() == expected.keys()
        for part, tensor in expected.items():
            torch.testing.assert_close(found[part], tensor, atol=1e-6, rtol=1e-4)
            assert bool(tensor.isfinite().all())
        assert both.told(name, rank) == {
            "frozen": True,
            "trained": len(list(one.pupil.parameters())),
            "counted": [STEPS, one.place.answer_tokens, 0],
        }
    assert not both.folder(name, 1).exists()
    lines = [line["step"] for line in read_ledger(both.folder(name, 0) / "log.jsonl")[1:]]
    assert lines == list(range(1, STEPS + 1)) and checkpoints(both.folder(name, 0))


@pytest.mark.parametrize("name", ["plain", "masked", "odd"])
def test_case(name: str, both: Both, tmp_path: Path) -> None:
    """One batch each; a process whose batch has nothing to teach, twice; and one that has no batch at the end."""
    case(both, name, options_of(name), tmp_path)


@pytest.mark.parametrize("name", FAULTS)
def test_planted_fault(name: str, both: Both, tmp_path: Path) -> None:
    with must_fail():
        case(both, name, options_of(name), tmp_path)


if __name__ == "__main__":
    main()
