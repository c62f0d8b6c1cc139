"""The log of a training tells every step once, however often it was interrupted, and never loses what stood."""

import errno
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outpace.errors import WeightsError
from outpace.training import ledger as module
from outpace.training.ledger import Ledger, read_ledger
from toys import must_fail

SETTINGS = {"loss": "forward-kl", "epochs": 2}
HEADER = {"format_version": 1, "settings": SETTINGS}


def line_of(step: int) -> dict[str, Any]:
    return {"step": step, "loss": [0.5 / step, None], "words": "naïve – ü"}


def written(path: Path, start: int, stop: int) -> Ledger:
    """The log of a run that did these steps."""
    ledger = Ledger(path)
    ledger.begin(start, SETTINGS)
    for step in range(start + 1, stop + 1):
        ledger.write(line_of(step))
        if step % 4 == 0:
            ledger.write({"step": step, "validation": {"tau": 1.5}})
    return ledger


def whole(stop: int) -> list[dict[str, Any]]:
    """What the log of an uninterrupted run holds."""
    lines = [HEADER]
    for step in range(1, stop + 1):
        lines += [line_of(step), *([{"step": step, "validation": {"tau": 1.5}}] if step % 4 == 0 else [])]
    return lines


def test_what_is_written_is_read(tmp_path: Path) -> None:
    """The folder is made; the file is plain JSON lines."""
    path = tmp_path / "deep" / "er" / "log.jsonl"
    assert read_ledger(path) == []
    written(path, 0, 9)
    assert read_ledger(path) == whole(9)
    assert [json.loads(line) for line in path.read_text("utf-8").splitlines()] == whole(9)
    assert [entry.name for entry in path.parent.iterdir()] == ["log.jsonl"]


def test_a_beginning_begins_anew(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    written(path, 0, 5)
    written(path, 0, 2)
    assert read_ledger(path) == whole(2)


# ---- going on --------------------------------------------------------------------------------------------------------


def told_once(path: Path, runs: Sequence[tuple[int, int, bytes]]) -> None:
    """Runs that end behind their last checkpoint, some of them within a line."""
    kept = 0
    for done, lost, torn in runs:
        written(path, kept, kept + done + lost)
        kept += done
        with path.open("ab") as file:
            file.write(torn)
    written(path, kept, kept + 3)
    assert read_ledger(path) == whole(kept + 3)


TORN = [b"", b"{", b'{"step": 3, "lo', b'{"step": 3, "loss": [0.5, nul', b"\x00\x00\x00", b"\n"]
RUNS = st.lists(st.tuples(st.integers(1, 6), st.integers(0, 5), st.sampled_from(TORN)), max_size=4)


@given(runs=RUNS)
@settings(max_examples=40)
def test_every_step_is_told_once(runs: list[tuple[int, int, bytes]], tmp_path_factory: pytest.TempPathFactory) -> None:
    """Whatever was done behind the checkpoint that a run goes on from is told by that run alone."""
    told_once(tmp_path_factory.mktemp("log") / "log.jsonl", runs)


def keeps_all(self: Ledger, step: int, settings: Any) -> None:
    if not step:
        honest_begin(self, step, settings)


def drops_all(self: Ledger, step: int, settings: Any) -> None:
    honest_begin(self, 0, settings)


def drops_the_last(self: Ledger, step: int, settings: Any) -> None:
    honest_begin(self, max(0, step - 1), settings)


honest_begin = Ledger.begin


@pytest.mark.parametrize("fault", [keeps_all, drops_all, drops_the_last])
def test_planted_faults(fault: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Ledger, "begin", fault)
    with must_fail():
        told_once(tmp_path / "log.jsonl", [(4, 2, b""), (3, 0, b"")])


def test_a_line_that_was_torn_ends_the_log(tmp_path: Path) -> None:
    """What stands before it is read; of what stands behind it nobody knows where it belongs."""
    path = tmp_path / "log.jsonl"
    written(path, 0, 3)
    path.write_bytes(path.read_bytes() + b'{"step": 4, "lo\n' + json.dumps(line_of(5)).encode() + b"\n")
    assert read_ledger(path) == whole(3)


# ---- many processes, full disks --------------------------------------------------------------------------------------


def test_of_many_processes_one_writes(tmp_path: Path) -> None:
    silent = Ledger(tmp_path / "none" / "log.jsonl", writes=False)
    silent.begin(0, SETTINGS)
    silent.write(line_of(1))
    assert list(tmp_path.iterdir()) == []


def full(*args: Any, **options: Any) -> Any:
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize(("owner", "name"), [(Path, "write_text"), (os, "replace"), (Path, "mkdir")])
def test_a_full_disk_leaves_the_log_as_it_stood(
    owner: Any, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lines that are to be dropped are only dropped by a file that is whole."""
    path = tmp_path / "log.jsonl"
    written(path, 0, 6)
    stood = path.read_bytes()
    monkeypatch.setattr(owner, name, full)
    with pytest.raises(WeightsError, match=f"cannot write under {tmp_path}: the disk is full"):
        Ledger(path).begin(4, SETTINGS)
    monkeypatch.undo()
    assert path.read_bytes() == stood


def test_a_full_disk_is_told_of_when_a_line_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = written(tmp_path / "log.jsonl", 0, 2)
    monkeypatch.setattr(Path, "open", full)
    with pytest.raises(WeightsError, match="the disk is full"):
        ledger.write(line_of(3))
    monkeypatch.undo()
    assert read_ledger(tmp_path / "log.jsonl") == whole(2)


def test_planted_fault_of_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log is written anew where it stands."""

    def in_place(self: Ledger, step: int, settings: Any) -> None:
        lines = [line for line in read_ledger(self.path) if line.get("step", 0) <= step]
        with module.disk_errors(self.path.parent):
            self.path.write_bytes(b"")
            self.path.write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")

    monkeypatch.setattr(Ledger, "begin", in_place)
    with must_fail():
        test_a_full_disk_leaves_the_log_as_it_stood(Path, "write_text", tmp_path, monkeypatch)
