"""Two processes of ``outpace train eagle3`` make what one makes, and only the first of them writes."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from typer.testing import CliRunner

from outpace.cli import app
from outpace.drafters.card import read_card
from outpace.training.checkpoint import TENSORS, checkpoints
from outpace.training.gather import ANSWERS, INVENTED
from outpace.training.ledger import LOG, read_ledger
from pupils import ASKED, lines_of, model_folder, recipe_file

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # of so few invented prompts, some are too many


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With a model, and a recipe that leaves nothing out: prompts are asked and made up, features recorded, texts held
    out; a step is of two batches, one for each process."""
    if not (torch.distributed.is_available() and torch.distributed.is_gloo_available()):
        pytest.skip("this build of torch has no gloo, by which processes on CPUs talk to each other")
    folder = tmp_path_factory.mktemp("together")
    model_folder(folder / "model")
    prompts = lines_of(folder / "prompts.jsonl", *({"prompt": one} for one in ASKED))
    data = {"prompts": (str(prompts),), "invent": 4, "max_new_tokens": 16, "batch_size": 8, "held_out": 0.3}
    chosen = {"epochs": 2, "tokens_per_batch": 220, "batches_per_step": 2, "learning_rate": 1e-3}
    recipe_file(folder / "recipe.toml", data | {"features": "recorded"}, **chosen)
    lines_of(folder / "short.jsonl", {"prompt": "a"})
    return folder


def words(folder: Path, out: str, *flags: str) -> list[str]:
    places = {"--recipe": folder / "recipe.toml", "--target": folder / "model", "--out": folder / out}
    given = [str(word) for pair in places.items() for word in pair]
    return ["train", "eagle3", *given, "--json", *flags]


def together(folder: Path, out: str, *flags: str) -> list[tuple[int, str, str]]:
    """Two processes as a launcher starts them: how each ended, and what it said."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "ACCELERATE_USE_CPU": "true"}
    shared |= {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-m", "outpace", *words(folder, out, *flags)]
    ranks = [os.environ | shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(2)]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    processes = [subprocess.Popen(command, env=env, **pipes) for env in ranks]
    try:
        said = [process.communicate(timeout=150) for process in processes]
    finally:
        for process in processes:
            process.kill()
    return [(process.returncode, *each) for process, each in zip(processes, said, strict=True)]


def last_weights(folder: Path, out: str) -> dict[str, Tensor]:
    """The head of the last checkpoint, in fp32."""
    tensors = load_file(checkpoints(folder / f"{out}.training")[-1] / TENSORS)
    return {name: tensor for name, tensor in tensors.items() if name.startswith("head.")}


def test_they_make_what_one_makes(folder: Path) -> None:
    """Prompts, answers, features, weights to 1e-6, and the document; the second process says and writes nothing."""
    done = CliRunner().invoke(app, words(folder, "one"))
    assert done.exit_code == 0, done.output
    first, second = together(folder, "two")
    assert first[0] == 0 and second == (0, "", ""), (first, second)
    alone, both = json.loads(done.stdout), json.loads(first[1])
    assert both["steps"] == alone["steps"] >= 4 and both["tau"] == pytest.approx(alone["tau"])
    works = [folder / f"{name}.training" for name in ("one", "two")]
    for name in (INVENTED, ANSWERS):
        ours, theirs = ((work / name).read_text("utf-8").splitlines() for work in works)
        assert ours == theirs and len(ours) > 2
    ours, theirs = (sorted(path.name for path in work.rglob("*.safetensors")) for work in works)
    assert ours == theirs
    assert [len(read_ledger(work / LOG)) for work in works] == [1 + alone["steps"] + 2] * 2
    expected, found = (last_weights(folder, name) for name in ("one", "two"))
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, atol=1e-6, rtol=1e-4, msg=name)
    one, two = (read_card(folder / name)[1] for name in ("one", "two"))
    assert two.data == one.data and two.data["held_out"] > 0


def test_an_error_of_the_first_ends_both(folder: Path) -> None:
    """The second one waits for answers that never come, and has to be told."""
    refused = "outpace: no prompt is left to train on (too short 1); allowed: one or more that can be answered\n"
    for code, stdout, stderr in together(folder, "none", "--data", str(folder / "short.jsonl")):
        assert (code, stdout) == (2, "") and refused in stderr
    assert not (folder / "none").exists()
