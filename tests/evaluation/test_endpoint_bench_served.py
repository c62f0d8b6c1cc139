"""A real server: ``transformers serve`` with a tiny model, in a process of its own, measured from outside.

It needs what ``transformers[serving]`` brings; fastapi, uvicorn and openai stand in the extra ``test``.
"""

import importlib.util
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import save_file
from typer.testing import CliRunner

from outpace.errors import UsageError
from outpace.evaluation.endpoint import Endpoint
from outpace.evaluation.sse import Failed
from outpace.models.toy import tiny_config, tiny_tensors
from toys import CHAT, LETTERS, character_tokenizer

NEEDED = ("fastapi", "uvicorn", "openai", "pydantic")
PATIENCE_S = 150.0
"""Importing torch and transformers takes ten seconds, and on a busy machine several times as long."""

missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
pytestmark = pytest.mark.skipif(bool(missing), reason=f"transformers serve needs {', '.join(missing)}")


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model that says letters, a token each, and never an end: as many pieces as tokens were asked for."""
    found = character_tokenizer(tmp_path_factory.mktemp("served"), CHAT)
    size = len(dict.fromkeys(LETTERS)) + 2
    config = tiny_config(vocab_size=size, max_position_embeddings=512)
    (found / "config.json").write_text(json.dumps(config | {"architectures": ["LlamaForCausalLM"]}), "utf-8")
    tensors = tiny_tensors(config, seed=3)
    tensors["lm_head.weight"][-2:] = 0  # some letter's logit is above 0, so that it is never <eos> or <unk>
    save_file(tensors, found / "model.safetensors", metadata={"format": "pt"})
    return found


@pytest.fixture(scope="module")
def url(folder: Path) -> Iterator[str]:
    port = free_port()
    begin = "import sys; from transformers.cli.transformers import main; sys.exit(main())"
    command = [sys.executable, "-c", begin, "serve", str(folder), "--host", "127.0.0.1", "--port", str(port)]
    quiet = os.environ | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
    with (folder / "serve.log").open("w", encoding="utf-8") as log:
        server = subprocess.Popen(
            [*command, "--device", "cpu", "--dtype", "float32"], env=quiet, stdout=log, stderr=subprocess.STDOUT
        )
    try:
        address = f"http://127.0.0.1:{port}/v1"
        wait_for(address, server, folder / "serve.log")
        yield address
    finally:
        server.kill()
        server.wait(10)


def wait_for(address: str, server: "subprocess.Popen[bytes]", log: Path) -> None:
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        if server.poll() is not None:
            pytest.fail(f"the server ended by itself:\n{log.read_text('utf-8')[-2000:]}")
        try:
            Endpoint(address, timeout_s=2.0).models()
            return
        except (UsageError, Failed):
            time.sleep(0.2)
    pytest.fail(f"no server after {PATIENCE_S:g} s:\n{log.read_text('utf-8')[-2000:]}")


def body(folder: Path, **changes: Any) -> dict[str, Any]:
    words = [{"role": "user", "content": "say a"}]
    return {"model": str(folder), "messages": words, "max_tokens": 6, "temperature": 0.0} | changes


def test_it_serves_the_model_by_name(url: str, folder: Path) -> None:
    assert Endpoint(url).model(None) == str(folder)
    with pytest.raises(UsageError, match="model is 'another'; allowed at http"):
        Endpoint(url).model("another")


def test_its_answers_are_heard_whole(url: str, folder: Path) -> None:
    """Greedy twice is the same text; its tokens are counted by the server, one a piece."""
    first, second = (Endpoint(url).ask("/chat/completions", body(folder)) for _ in range(2))
    assert first.error is None and first.text == second.text and first.counted
    assert first.tokens == first.pieces == len(first.text) == 6
    assert first.first_s is not None and first.last_s is not None and 0 < first.first_s <= first.last_s


def test_completions_too(url: str, folder: Path) -> None:
    asked = {"model": str(folder), "prompt": "abc", "max_tokens": 5, "temperature": 0.0}
    found = Endpoint(url).ask("/completions", asked)
    assert found.error is None and found.tokens == len(found.text) == 5


def test_its_refusals_are_told_in_its_own_words(url: str, folder: Path) -> None:
    error = Endpoint(url).ask("/chat/completions", body(folder, model="nix")).error
    assert error == f"400 Bad Request: Server is pinned to '{folder}'; requested 'nix'."
    error = Endpoint(url).ask("/chat/completions", body(folder, min_p=0.5)).error
    assert error is not None and error.startswith("422 ") and "Unexpected fields in the request: {'min_p'}" in error


def test_the_verb_measures_it(url: str, folder: Path, tmp_path: Path) -> None:
    """Compared with itself: no failure, the same texts, and a speed-up that is positive and finite."""
    from outpace.cli import app

    path = tmp_path / "mine.jsonl"
    path.write_text('{"prompt": "say a"}\n{"prompt": "say b"}\n', "utf-8")
    options = ["--endpoint", url, "--baseline-endpoint", url, "--concurrency", "1,2", "--prompts", str(path)]
    result = CliRunner().invoke(app, ["bench", *options, "--max-new-tokens", "5", "--repeats", "2", "--json"])
    assert result.exit_code == 0, result.output  # two rounds prove nothing, so that neither is slower
    found = json.loads(result.stdout)
    assert found["findings"] == [] and "too few rounds for a verdict" in found["verdict"]
    for row in found["results"]:
        assert row["failed"] == row["baseline_failed"] == 0 and row["streams"] == 2 and row["same_texts"] == 1.0
        assert row["speedup"] > 0 and row["ms_per_token"] > 0 and row["drafting"] is None
