"""A hub id, against a hub of three pages on this machine and the hub's real client in a process of its own."""

import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save

COMMIT = "a" * 40
PICKLE = b"not read before it is converted"
REPOSITORIES: dict[str, dict[str, bytes]] = {
    "org/whole": {
        "config.json": b"{}",
        "model.safetensors": save({"weight": torch.ones(3)}),
        "tokenizer.json": b"{}",
        "README.md": b"not wanted",
        "pytorch_model.bin": PICKLE,
        "onnx/config.json": b"not wanted",
    },
    "org/heads": {
        "config.json": b"{}",
        "medusa_lm_head.pt": PICKLE,
        "medusa_lm_head.safetensors": save({"a": torch.ones(2)}),
    },
    "org/adapter": {"adapter_model.safetensors": b"", "config.json": b"{}"},
}
REFUSALS = {"org/gated": (403, "GatedRepo"), "org/broken": (503, ""), "org/missing": (404, "RepoNotFound")}
CHILD = """
import json, sys
from outpace.errors import WeightsError
from outpace.models.weights import pull
for name in sys.argv[1:]:
    try:
        found = pull(name)
        print(json.dumps([found.source, found.sha256, sorted(file.name for file in found.path.iterdir())]))
    except WeightsError as error:
        print(json.dumps(str(error)))
"""


class Hub(BaseHTTPRequestHandler):
    """Metadata, the listing and the files of a repository, as far as the client asks."""

    def log_message(self, format: str, *arguments: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = self.path.partition("?")[0].removeprefix("/api/models").strip("/")
        name = "/".join(path.split("/")[:2])
        if name not in REPOSITORIES:
            code, reason = REFUSALS.get(name, (404, "RepoNotFound"))
            return self.send(code, b"{}", {"X-Error-Code": reason} if reason else {})
        files = REPOSITORIES[name]
        if "/resolve/" in path:
            body = files[path.partition(f"/resolve/{COMMIT}/")[2]]
            return self.send(200, body, {"ETag": f'"{hashlib.sha1(body).hexdigest()}"', "X-Repo-Commit": COMMIT})
        if "/tree/" in path:
            entries: Any = [
                {"type": "file", "path": file, "size": len(body), "oid": hashlib.sha1(body).hexdigest()}
                for file, body in files.items()
            ]
        else:
            siblings = [{"rfilename": file, "size": len(body)} for file, body in files.items()]
            entries = {"id": name, "sha": COMMIT, "siblings": siblings}
        self.send(200, json.dumps(entries).encode(), {"Content-Type": "application/json"})

    def send(self, code: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(code)
        for header, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(header, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)


@pytest.fixture(scope="module")
def hub() -> Iterator[str]:
    """The address of the hub while the tests of this file run."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The hub's own cache, which the tests of this file share."""
    return tmp_path_factory.mktemp("hub")


def pulled(names: list[str], hub: str, home: Path, **environment: str) -> list[Any]:
    """What a fresh process says of each name: source, checksum and files, or the error's text."""
    mine = {"HF_ENDPOINT": hub, "HF_HOME": str(home), "OUTPACE_CACHE": str(home / "outpace")}
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "TRANSFORMERS_"))}
    done = subprocess.run(
        [sys.executable, "-c", CHILD, *names],
        env=inherited | mine | environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert done.stderr == "", "the client's own bars and warnings are silenced"
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture(scope="module")
def first(hub: str, home: Path) -> list[Any]:
    """What the first process on this machine is told."""
    return pulled(["org/whole", "org/whole", "org/heads", "org/adapter", *REFUSALS, "org/a--b"], hub, home)


def test_ids_are_fetched_or_refused_by_name(first: list[Any]) -> None:
    whole, again, heads, *refused = first
    assert heads[::2] == ["hub", ["config.json", "medusa_lm_head.safetensors"]]
    tensors = hashlib.sha256(REPOSITORIES["org/whole"]["model.safetensors"]).hexdigest()
    assert whole == ["hub", tensors, ["config.json", "model.safetensors", "tokenizer.json"]]
    assert again == whole
    wanted = [
        r"org/adapter on the Hugging Face hub holds neither model*.safetensors nor pytorch_model*.bin\nhint: repos",
        r"org/gated is gated on the Hugging Face hub\nhint: accept its terms at https://huggingface.co/org/gated",
        r"org/broken is no folder here, and the Hugging Face hub cannot be asked for it (HfHubHTTPError: ",
        r"org/missing is neither a folder here nor a repository on the Hugging Face hub that you may read\nhint: check",
        r"org/a--b is no repository of the Hugging Face hub: ",
    ]
    for text, start in zip(refused, wanted, strict=True):
        assert text.startswith(start.replace("\\n", "\n")), text


@pytest.mark.parametrize(
    ("environment", "start"),
    [
        (
            {"HF_ENDPOINT": "http://127.0.0.1:9"},
            "org/missing is no folder here, and the Hugging Face hub cannot be asked for it (Connect",
        ),
        (
            {"HF_HUB_OFFLINE": "1"},
            "org/missing is not in the hub's cache on this machine, and HF_HUB_OFFLINE forbids asking",
        ),
    ],
)
def test_what_was_fetched_serves_without_a_network(
    hub: str, home: Path, first: list[Any], environment: dict[str, str], start: str
) -> None:
    here, missing = pulled(["org/whole", "org/missing"], hub, home, **environment)
    assert here == ["cache", *first[0][1:]]
    assert missing.startswith(start)
