"""A checkpoint is there whole or not at all: whatever interrupts the writing, one from before can be gone on from."""

import errno
import json
import subprocess
import sys
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import SafetensorError
from torch import Tensor

from outpace.errors import UsageError, WeightsError
from outpace.models import staging, weights
from outpace.training import checkpoint as module
from outpace.training.checkpoint import (
    KEPT,
    STATE,
    TENSORS,
    Place,
    checkpoints,
    newest,
    require_same,
    save_checkpoint,
)
from toys import must_fail

SETTINGS = {"loss": "forward-kl", "betas": [0.9, 0.95], "data": "a" * 64, "held_out": None}


def tensors_of(step: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(step)
    return {
        "head.fc.weight": torch.randn(3, 5, generator=generator),
        "head.d2t": torch.arange(step),
        "optimiser.step.fc.weight": torch.tensor(float(step)),
        "random": generator.get_state(),
    }


def place_of(step: int) -> Place:
    return Place(
        epoch=step // 3, window=step % 3, step=step, tokens=7 * step, seconds=1.5 * step, best_tau=2.0, best_epoch=0
    )


def save(folder: Path, step: int) -> Path:
    return save_checkpoint(folder, place_of(step), SETTINGS, tensors_of(step))


def steps_in(folder: Path) -> list[int]:
    return [int(path.name.removeprefix("step-")) for path in checkpoints(folder)]


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def require(folder: Path, step: int) -> None:
    """The newest whole one is of this step, to the bit."""
    found = newest(folder)
    assert found is not None and found.place == place_of(step) and found.settings == SETTINGS
    expected = tensors_of(step)
    assert found.tensors.keys() == expected.keys()
    for name, tensor in expected.items():
        assert found.tensors[name].dtype == tensor.dtype and torch.equal(found.tensors[name], tensor)


# ---- what stands there -----------------------------------------------------------------------------------------------


def test_what_is_written_is_read(tmp_path: Path) -> None:
    assert newest(tmp_path / "missing") is None and newest(tmp_path) is None
    assert save(tmp_path / "deep" / "er", 4) == tmp_path / "deep" / "er" / "step-00000004"
    require(tmp_path / "deep" / "er", 4)


def test_the_last_two_are_kept(tmp_path: Path) -> None:
    """By their steps, not by their names' lengths or times."""
    for step in (1, 2, 9, 10, 100):
        save(tmp_path, step)
        require(tmp_path, step)
    assert steps_in(tmp_path) == [10, 100] and KEPT == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000010", "step-00000100"]


def test_one_of_the_same_step_is_replaced(tmp_path: Path) -> None:
    save(tmp_path, 3)
    save_checkpoint(tmp_path, place_of(3), SETTINGS, tensors_of(8))
    found = newest(tmp_path)
    assert found is not None and torch.equal(found.tensors["head.fc.weight"], tensors_of(8)["head.fc.weight"])
    assert steps_in(tmp_path) == [3]


def test_one_that_is_not_whole_is_not_counted_among_the_two(tmp_path: Path) -> None:
    """Gone on with from before it, a training has two whole ones again after two more."""
    for step in (2, 4, 9):
        save(tmp_path, step)
    (tmp_path / "step-00000009" / TENSORS).write_bytes(b"")
    for step in (5, 6):
        save(tmp_path, step)
    assert steps_in(tmp_path) == [5, 6]
    require(tmp_path, 6)


# ---- full disks ------------------------------------------------------------------------------------------------------


def full(*args: Any, **options: Any) -> Any:
    raise OSError(errno.ENOSPC, "No space left on device")


def half_written(tensors: Any, path: Path, **options: Any) -> None:
    """As safetensors tells it, in words alone."""
    path.write_bytes(b"half a file")
    raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")


def fails_to_move(old: Path, new: Path) -> None:
    if new.name.startswith("step-"):
        full()
    honest_replace(old, new)


honest_replace = staging.os.replace
FULL: dict[str, tuple[Any, str, Callable[..., Any]]] = {
    "the folder": (Path, "mkdir", full),
    "the tensors": (weights, "save_file", half_written),
    "their checksum": (module, "file_sha256", full),
    "the place": (Path, "write_text", full),
    "the move": (staging.os, "replace", fails_to_move),
}


@pytest.mark.parametrize(
    ("where", "step"), [*[(where, 6) for where in FULL], *[(where, 5) for where in FULL if where != "the move"]]
)
def test_a_full_disk_leaves_what_stood_there(
    where: str, step: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether it is of another step or of the same."""
    for before in (4, 5):
        save(tmp_path, before)
    stood = content(tmp_path)
    monkeypatch.setattr(*FULL[where])
    with pytest.raises(WeightsError, match="the disk is full; nothing half-written was kept") as error:
        save(tmp_path, step)
    monkeypatch.undo()
    assert f"go on with --resume: {tmp_path} stands" in str(error.value.hint)
    assert content(tmp_path) == stood
    require(tmp_path, 5)
    save(tmp_path, step)
    require(tmp_path, step)


def in_place(final: Path) -> Any:
    """Written where it is to stand."""
    final.mkdir(parents=True, exist_ok=True)
    return nullcontext(final)


def cleared_first(final: Path) -> Any:
    """What stood there makes room before the new one is whole."""
    if final.is_dir():
        module.shutil.rmtree(final)
    return staging.staged(final)


@pytest.mark.parametrize("fault", [in_place, cleared_first])
def test_planted_faults_of_writing(fault: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "staged", fault)
    for before in (4, 5):
        save(tmp_path, before)
    stood = content(tmp_path)
    monkeypatch.setattr(module, "file_sha256", full)
    with pytest.raises((WeightsError, OSError)):
        save_checkpoint(tmp_path, place_of(5), SETTINGS, tensors_of(8))
    with must_fail():
        assert content(tmp_path) == stood


KILLED = """
import os, signal, sys
from pathlib import Path
import torch
from outpace.models import staging
from outpace.training import checkpoint

def killed(*args, **options):
    os.kill(os.getpid(), signal.SIGKILL)

folder = Path(sys.argv[1])
for module, name in ((checkpoint, "save_tensors"), (checkpoint, "file_sha256"), (staging, "_take_place")):
    child = os.fork()
    if child == 0:
        setattr(module, name, killed)
        checkpoint.save_checkpoint(folder, checkpoint.Place(step=9), {}, {"a": torch.zeros(1000)})
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
"""


def test_a_process_that_is_killed_while_it_saves(tmp_path: Path) -> None:
    """Nobody cleans up; what is left is taken for no checkpoint, and the one before is read without a word."""
    for step in (4, 5):
        save(tmp_path, step)
    assert subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], check=False, timeout=120).returncode == 0
    assert len(list(tmp_path.glob(".step-00000009.*"))) == 3 and steps_in(tmp_path) == [4, 5]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        require(tmp_path, 5)
    save(tmp_path, 9)
    require(tmp_path, 9)


# ---- damage ----------------------------------------------------------------------------------------------------------


def changed(path: Path) -> None:
    """One bit of one weight."""
    raw = bytearray(path.read_bytes())
    raw[-3] ^= 1
    path.write_bytes(bytes(raw))


def said(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text("utf-8")) | changes), "utf-8")


DAMAGE: dict[str, Callable[[Path], Any]] = {
    "tensors cut off": lambda path: (path / TENSORS).write_bytes((path / TENSORS).read_bytes()[:-7]),
    "tensors emptied": lambda path: (path / TENSORS).write_bytes(b""),
    "tensors gone": lambda path: (path / TENSORS).unlink(),
    "tensors changed": lambda path: changed(path / TENSORS),
    "state cut off": lambda path: (path / STATE).write_bytes((path / STATE).read_bytes()[:-9]),
    "state emptied": lambda path: (path / STATE).write_bytes(b""),
    "state gone": lambda path: (path / STATE).unlink(),
    "state no text": lambda path: (path / STATE).write_bytes(b"\xff\xfe\x00"),
    "state a list": lambda path: (path / STATE).write_text("[]", "utf-8"),
    "state without a place": lambda path: said(path / STATE, place=[]),
    "another version": lambda path: said(path / STATE, format_version=2),
    "all gone": lambda path: [each.unlink() for each in path.iterdir()],
}


def falls_back(folder: Path, damage: Callable[[Path], Any]) -> None:
    for step in (4, 5):
        save(folder, step)
    damage(folder / "step-00000005")
    with pytest.warns(UserWarning, match=r"the checkpoint .*step-00000005 is not whole \(.*\); the one before it"):
        require(folder, 4)


@pytest.mark.parametrize("damage", DAMAGE)
def test_the_newest_is_damaged_and_the_one_before_is_taken(damage: str, tmp_path: Path) -> None:
    falls_back(tmp_path, DAMAGE[damage])


@pytest.mark.parametrize("damage", DAMAGE)
def test_none_is_whole(damage: str, tmp_path: Path) -> None:
    for step in (4, 5):
        DAMAGE[damage](save(tmp_path, step))
    with (
        pytest.warns(UserWarning, match="is not whole"),
        pytest.raises(WeightsError, match=r"none of the checkpoints in .* is whole"),
    ):
        newest(tmp_path)


def test_planted_fault_of_reading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever can be read is believed."""
    monkeypatch.setattr(module, "file_sha256", lambda path: "believed")
    with must_fail():
        falls_back(tmp_path, DAMAGE["tensors changed"])


# ---- other settings --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"loss": "cross-entropy"}, "loss = 'forward-kl'; allowed: to go on with the same, not with 'cross-entropy'"),
        ({"betas": [0.9, 0.99]}, r"betas = \[0.9, 0.95\]; allowed: to go on with the same, not with \[0.9, 0.99\]"),
        ({"held_out": "b"}, "held_out = None; allowed: to go on with the same, not with 'b'"),
        ({"new": 1}, "new = None; allowed: to go on with the same, not with 1"),
        ({"loss": 1, "data": 2}, "data = 'a+'; allowed"),
    ],
)
def test_other_settings_are_refused_by_name(changes: dict[str, Any], named: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=f"{tmp_path} was begun with {named}"):
        require_same(SETTINGS, SETTINGS | changes, tmp_path)
    require_same(SETTINGS, dict(reversed(SETTINGS.items())), tmp_path)


def test_a_setting_that_is_gone_is_refused_by_name(tmp_path: Path) -> None:
    less = {name: value for name, value in SETTINGS.items() if name != "loss"}
    with pytest.raises(UsageError, match="loss = 'forward-kl'; allowed: to go on with the same, not with None"):
        require_same(SETTINGS, less, tmp_path)
