"""``outpace report``: the example opens at once, and what is given is checked before anything is written."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from outpace.cli import app
from outpace.report.page import EXAMPLES


def run(*words: object) -> Result:
    return CliRunner().invoke(app, ["report", *map(str, words)])


def test_the_example_needs_nothing(tmp_path: Path) -> None:
    done = run("--example", "--out", tmp_path / "figure.html")
    assert done.exit_code == 0 and "3 traces, 0 plans, 0 measurements" in done.stdout
    assert (tmp_path / "figure.html").read_text("utf-8").startswith("<!doctype html>")


def test_the_document_says_what_was_written(tmp_path: Path) -> None:
    out, pictures = tmp_path / "page.html", tmp_path / "pictures"
    done = run("--trace", EXAMPLES[0], "--out", out, "--plots", pictures, "--language", "zh", "--json")
    assert done.exit_code == 0
    document: dict[str, Any] = json.loads(done.stdout)
    assert document["format_version"] == 1 and document["page"] == str(out.absolute())
    assert document["bytes"] == out.stat().st_size
    [trace] = document["traces"]
    assert trace["name"] == "A chain of four" and trace["turns"] == len(EXAMPLES[0].read_text().splitlines()) - 2
    assert {*document["plots"]} == {path.name for path in pictures.iterdir()}
    assert document["lacking"]["by_category.png"] == "needs a measurement"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "nothing was given to show; allowed: --trace, --plan, --bench or --example"),
        (("--trace", "none.jsonl"), "the trace none.jsonl cannot be read: No such file"),
        (("--example", "--language", "fr"), "language is 'fr'; allowed: en, zh"),
    ],
)
def test_bad_input_is_an_error_before_anything_is_written(words: tuple[str, ...], message: str, tmp_path: Path) -> None:
    done = run(*words, "--out", tmp_path / "page.html")
    assert done.exit_code == 2 and message in done.stderr and not any(tmp_path.iterdir())


def test_a_page_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    done = run("--example", "--out", tmp_path / "none" / "page.html")
    assert done.exit_code == 2 and "the page cannot be written to" in done.stderr
