"""The picture shows the figures of the log, every one of them in its place, and is there whole or not at all."""

import errno
import json
import struct
import sys
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure

from outpace.errors import UsageError, WeightsError
from outpace.training.plot import POINTS, plot
from toys import must_fail

DEPTH = 2


def step_of(step: int, **changes: Any) -> dict[str, Any]:
    said = {"step": step, "tokens": 100 * step, "loss": [4 / step, 5 / step], "tau": 1 + step / 10}
    return said | {"conditional": [step / 100, step / 200], "accuracy": [step / 100, 0.0]} | changes


def held(step: int) -> dict[str, Any]:
    figures = {"loss": [9.0, 9.5], "conditional": [0.25, None], "tau": 1.25}
    return {"step": step, "epoch": 1, "validation": figures}


def empty(step: int) -> dict[str, Any]:
    """A step that had nothing to teach."""
    return step_of(step, loss=[None] * DEPTH, conditional=[None] * DEPTH, tau=None)


def log_of(path: Path, *lines: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in [{"settings": {}}, *lines]), "utf-8")
    return path


def drawn(monkeypatch: pytest.MonkeyPatch, log: Path) -> list[list[tuple[list[float], list[float]]]]:
    """What stands in each panel from the top down, as points of each of its lines."""
    seen: list[Figure] = []
    honest = Figure.savefig

    def savefig(self: Figure, *args: Any, **options: Any) -> None:
        seen.append(self)
        honest(self, *args, **options)

    monkeypatch.setattr(Figure, "savefig", savefig)
    plot(log, log.with_name("picture.png"), "a head")
    (figure,) = seen
    return [[(list(line.get_xdata()), list(line.get_ydata())) for line in axis.get_lines()] for axis in figure.axes]


def case(monkeypatch: pytest.MonkeyPatch, log: Path) -> None:
    """A line and dots for each token of a draft, and one of each for tau; what is None stands nowhere."""
    tokens = [100.0, 300.0]
    assert drawn(monkeypatch, log) == [
        [(tokens, [4, 4 / 3]), ([300], [9]), (tokens, [5, 5 / 3]), ([300], [9.5])],
        [(tokens, [0.01, 0.03]), ([300], [0.25]), (tokens, [0.005, 0.015]), ([], [])],
        [(tokens, [1.1, 1.3]), ([300], [1.25])],
    ]


def test_it_shows_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case(monkeypatch, log_of(tmp_path / "log.jsonl", step_of(1), empty(2), step_of(3), held(3)))
    picture = (tmp_path / "picture.png").read_bytes()
    assert picture[:8] == b"\x89PNG\r\n\x1a\n" and struct.unpack(">II", picture[16:24]) == (960, 960)
    assert len(picture) > 20_000
    assert sorted(path.name for path in tmp_path.iterdir()) == ["log.jsonl", "picture.png"]


@pytest.mark.parametrize("fault", [step_of(3, tau=1.4), step_of(3, tokens=299), step_of(3, conditional=[0.015, 0.03])])
def test_planted_fault(fault: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with must_fail():
        case(monkeypatch, log_of(tmp_path / "log.jsonl", step_of(1), empty(2), fault, held(3)))


def test_a_long_log_is_drawn_in_means(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = 2 * POINTS
    panels = drawn(monkeypatch, log_of(tmp_path / "log.jsonl", *(step_of(step) for step in range(1, 1 + steps))))
    tokens, tau = panels[2][0]
    assert len(tau) == POINTS and tokens == [200.0 * place for place in range(1, 1 + POINTS)]
    assert tau == pytest.approx([1 + (2 * place - 0.5) / 10 for place in range(1, 1 + POINTS)])


def test_a_measurement_behind_a_step_that_taught_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    panels = drawn(monkeypatch, log_of(tmp_path / "log.jsonl", step_of(1), empty(2), held(2)))
    assert panels[2] == [([100], [1.1]), ([200], [1.25])]


# ---- what cannot be drawn --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lines", [(), (empty(1), empty(2))])
def test_nothing_to_draw(lines: tuple[dict[str, Any], ...], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"log.jsonl has no step that could be drawn"):
        plot(log_of(tmp_path / "log.jsonl", *lines), tmp_path / "picture.png", "a head")
    assert not (tmp_path / "picture.png").exists()


def test_without_matplotlib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(UsageError, match="a picture of the training needs matplotlib, which is not installed") as error:
        plot(log_of(tmp_path / "log.jsonl", step_of(1)), tmp_path / "picture.png", "a head")
    assert error.value.hint == "pip install 'outpace[plot]'"


def test_a_full_disk_leaves_the_older_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log, picture = log_of(tmp_path / "log.jsonl", step_of(1), step_of(2)), tmp_path / "picture.png"
    plot(log, picture, "a head")
    before = picture.read_bytes()

    def full(self: Figure, path: Path, **_: Any) -> None:
        raise OSError(errno.ENOSPC, "no room")

    monkeypatch.setattr(Figure, "savefig", full)
    with pytest.raises(WeightsError, match="the disk is full"):
        plot(log, picture, "another head")
    assert picture.read_bytes() == before
