"""The board shows every figure of the log once, at its step, however often it is told."""

import sys
import types
from pathlib import Path
from typing import Any

import pytest

from outpace.errors import UsageError
from outpace.training.board import Board
from outpace.training.checkpoint import Place
from outpace.training.counts import StepCounts
from outpace.training.ledger import Ledger
from outpace.training.trainer import Report
from toys import must_fail

STEP = {"epoch": 0, "tokens": 7, "loss": [2.0, None], "conditional": [0.5, 0.25], "tau": 1.5, "gradient_norm": "nan"}
HELD = {"step": 2, "epoch": 1, "validation": {"loss": [3.0, 4.0], "tau": None}}
REPORT = Report(Place(), steps=2, epochs=1, counts=StepCounts.none(2), tokens_per_second=1.0, seconds_left=1.0)
SHOWN = [
    *((name, value, step) for step in (1, 2) for name, value in (
        ("epoch", 0), ("tokens", 7), ("loss/1", 2.0), ("conditional/1", 0.5), ("conditional/2", 0.25), ("tau", 1.5),
    )),
    ("validation-loss/1", 3.0, 2), ("validation-loss/2", 4.0, 2),
]  # fmt: skip


class Written:
    """What tensorboard would write."""

    made: list["Written"] = []  # noqa: RUF012 - one list for all of a test

    def __init__(self, folder: str, purge_step: int) -> None:
        self.folder, self.purge_step, self.closed = folder, purge_step, False
        self.figures: list[tuple[str, float, int]] = []
        self.made.append(self)

    def add_scalar(self, name: str, value: float, step: int) -> None:
        assert not self.closed
        self.figures.append((name, value, step))

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Written]:
    """Every writer, made by a tensorboard that is no more than this."""
    module: Any = types.ModuleType("torch.utils.tensorboard")
    module.SummaryWriter = Written
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)
    monkeypatch.setattr(Written, "made", [])
    return Written.made


def case(folder: Path, made: list[Written], calls: int = 1) -> None:
    """Told in the middle and closed behind the last line, which is a measurement."""
    board, ledger = Board(folder / "board", folder / "log.jsonl"), Ledger(folder / "log.jsonl")
    assert made == [], "nothing is written before there is something to show"
    ledger.begin(0, {"epochs": 1})
    for step in (1, 2):
        ledger.write({"step": step, **STEP})
        for _ in range(calls):
            board(REPORT)
    ledger.write(HELD)
    board.close()
    (writer,) = made
    assert writer.figures == SHOWN and writer.closed
    assert writer.folder == str(folder / "board") and writer.purge_step == 0


@pytest.mark.parametrize("calls", [1, 3])
def test_every_figure_once(calls: int, tmp_path: Path, made: list[Written]) -> None:
    case(tmp_path, made, calls)


def test_planted_fault(tmp_path: Path, made: list[Written], monkeypatch: pytest.MonkeyPatch) -> None:
    """A board that begins at the top each time."""
    honest = Board._show

    def again(self: Board) -> None:
        self.read = 0
        honest(self)

    monkeypatch.setattr(Board, "_show", again)
    with must_fail():
        case(tmp_path, made)


def test_a_log_that_is_gone_on_with_is_shown_from_its_beginning(tmp_path: Path, made: list[Written]) -> None:
    ledger = Ledger(tmp_path / "log.jsonl")
    ledger.begin(0, {})
    ledger.write({"step": 1, **STEP})
    board = Board(tmp_path, tmp_path / "log.jsonl")
    ledger.begin(1, {})
    ledger.write({"step": 2, **STEP})
    board(REPORT)
    board.close()
    assert made[0].figures == SHOWN[:-2]


def test_nothing_was_trained(tmp_path: Path, made: list[Written]) -> None:
    Board(tmp_path, tmp_path / "log.jsonl").close()
    assert made == []


def test_without_tensorboard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(UsageError, match=r"needs tensorboard, which is not installed; allowed: no board") as error:
        Board(tmp_path / "board", tmp_path / "log.jsonl")
    assert error.value.hint == "pip install 'outpace[tensorboard]'" and not (tmp_path / "board").exists()
