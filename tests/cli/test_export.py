"""``outpace export`` writes a folder and says where; one JSON document on stdout, or a line for people."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cards import USUAL, document, same_weights, written
from heads import random_head, shape_of
from outpace.cli import app
from outpace.drafters.layouts import read_layout
from outpace.export.formats import LAYOUTS


def test_json_is_one_document_on_stdout(tmp_path: Path) -> None:
    card, out = written(tmp_path / "card"), tmp_path / "out"
    result = CliRunner().invoke(app, ["export", str(card), "--to", "sglang", "--out", str(out), "--json"])
    assert result.exit_code == 0 and result.stderr == "", result.output
    said = json.loads(result.stdout)
    files = {name: (out / name).stat().st_size for name in ("config.json", "model.safetensors")}
    assert said == {
        "format_version": 1,
        "card": str(card),
        "to": "sglang",
        "path": str(out),
        "target": "tiny-llama",
        "tensors": 15,
        "files": files,
    }
    assert document(out)["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == [1, 3, 4]
    assert same_weights(read_layout(out, 8).head, random_head(shape_of(taps=USUAL)))


def test_plain_output_is_a_line_for_people(tmp_path: Path) -> None:
    card, out = written(tmp_path / "card"), tmp_path / "out"
    result = CliRunner().invoke(app, ["export", str(card), "--to", "vllm", "--out", str(out)])
    assert result.exit_code == 0
    assert result.stdout == f"{out}: 15 tensors, 0.1 MB, for tiny-llama, in the layout of vllm\n"


@pytest.mark.parametrize(
    ("to", "out", "message"),
    [
        ("gguf", "out", "outpace: the layout is 'gguf'; allowed: safeailab, sglang, speculators, vllm, medusa\n"),
        ("vllm", "card", "card holds config.json; allowed: a folder that is new or empty\n"),
    ],
)
def test_an_error_is_a_sentence_on_stderr(to: str, out: str, message: str, tmp_path: Path) -> None:
    card = written(tmp_path / "card")
    result = CliRunner().invoke(app, ["export", str(card), "--to", to, "--out", str(tmp_path / out)])
    assert result.exit_code == 2 and result.stdout == ""
    assert message in result.stderr


def test_what_cannot_be_carried_has_a_hint(tmp_path: Path) -> None:
    card = written(tmp_path / "card", random_head(shape_of(taps=(1, 4, 5))))
    result = CliRunner().invoke(
        app, ["export", str(card), "--to", "safeailab", "--out", str(tmp_path / "out"), "--json"]
    )
    assert result.exit_code == 2 and result.stdout == "" and not (tmp_path / "out").exists()
    assert result.stderr == (
        "outpace: the layout of SafeAILab cannot carry the taps [1, 4, 5]; allowed: [2, 4, 5], for a target of 8 "
        "layers\nhint: its reader counts the taps from the target's number of layers\n"
    )


@pytest.mark.parametrize("missing", ["--to", "--out"])
def test_layout_and_place_are_asked_for(missing: str, tmp_path: Path) -> None:
    given = {"--to": "vllm", "--out": str(tmp_path / "out")}
    words = [word for name, value in given.items() if name != missing for word in (name, value)]
    result = CliRunner().invoke(app, ["export", "card", *words])
    assert result.exit_code == 2 and missing in result.stderr


def test_the_help_has_an_example() -> None:
    result = CliRunner().invoke(app, ["export", "--help"])
    assert "Example: outpace export my-head --to sglang --out my-head-sglang" in result.stdout
    assert all(name in result.stdout for name in LAYOUTS)
