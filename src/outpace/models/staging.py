"""Write whole or not at all: folders filled beside their place, checksums, growing downloads, and what the disk says.

Knows nothing of weights, wheels or hubs.
"""

import errno
import hashlib
import os
import shutil
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout
from safetensors import SafetensorError

from outpace.errors import UsageError, WeightsError

Progress = Callable[[int, int, str], None]
"""Told how much is done, of how much, and of what (bytes or tensors; the total is 0 while it is unknown)."""

_STALE_S = 24 * 3600.0  # a folder under construction that nobody touched for this long has no owner any more


def silent(done: int, total: int, what: str) -> None:
    """The progress that nobody watches."""


def cache_root() -> Path:
    """Where weights are kept: ``OUTPACE_CACHE`` if set, else the user's cache folder."""
    import platformdirs

    return Path(os.environ.get("OUTPACE_CACHE") or platformdirs.user_cache_dir("outpace")).expanduser()


def file_sha256(file: Path) -> str:
    """The checksum of a file, in hexadecimal."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


@contextmanager
def disk_errors(folder: Path) -> Iterator[None]:
    """Turn what the disk says while ``folder`` is written into a WeightsError."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        # safetensors reports the system's errors as text only.
        full = "os error 28" in str(error) or getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT)
        reason = "the disk is full" if full else getattr(error, "strerror", None) or str(error)
        raise WeightsError(
            f"cannot write under {folder}: {reason}; nothing half-written was kept",
            hint="free some space, or name another folder in the environment variable OUTPACE_CACHE",
        ) from error


@contextmanager
def alone(final: Path, progress: Progress) -> Iterator[None]:
    """One process at a time works on ``final``; the others wait, and should look again when it is their turn."""
    with disk_errors(final.parent):
        final.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(final.with_name(f"{final.name}.lock"))
        try:
            lock.acquire(timeout=0)
        except Timeout:
            progress(0, 0, "waiting for another process that does the same")
            lock.acquire()
        try:
            yield
        finally:
            lock.release()


@contextmanager
def sole(folder: Path, doing: str) -> Iterator[None]:
    """One process alone works in a folder; another one is refused at once.

    Raises:
        UsageError: somebody else does already.
        WeightsError: the folder cannot be written.
    """
    with disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / ".lock")
        try:
            lock.acquire(timeout=0)
        except Timeout:
            raise UsageError(
                f"another process is {doing} in {folder}; allowed: one at a time", hint="wait for it, or name another"
            ) from None
    try:
        yield
    finally:
        lock.release()


@contextmanager
def staged(final: Path) -> Iterator[Path]:
    """A folder to fill that takes the place of ``final`` when the block ends well, and vanishes when it does not.

    Raises:
        WeightsError: the disk is full, or the folder cannot be written.
    """
    with disk_errors(final.parent):
        final.parent.mkdir(parents=True, exist_ok=True)
        for left in final.parent.glob(f".{final.name}.*"):
            with suppress(FileNotFoundError):
                if time.time() - left.stat().st_mtime > _STALE_S:
                    shutil.rmtree(left, ignore_errors=True)
        draft = final.with_name(f".{final.name}.{uuid.uuid4().hex[:12]}")
        draft.mkdir()
        try:
            yield draft
            _take_place(draft, final)
        finally:
            shutil.rmtree(draft, ignore_errors=True)


def _take_place(draft: Path, final: Path) -> None:
    try:
        os.replace(draft, final)
    except OSError:
        if not final.is_dir():
            raise
        aside = draft.with_name(draft.name + ".old")  # a filled folder cannot be replaced in one step
        os.replace(final, aside)
        os.replace(draft, final)
        shutil.rmtree(aside, ignore_errors=True)


@contextmanager
def watched(folder: Path, total: int, what: str, progress: Progress) -> Iterator[None]:
    """Report how ``folder`` grows while the block runs: neither pip and uv nor the hub's client tells in numbers."""
    start, stop = _num_bytes(folder), threading.Event()

    def look() -> None:
        while not stop.wait(0.2):
            progress(min(max(_num_bytes(folder) - start, 0), total), total, what)

    watcher = threading.Thread(target=look, daemon=True)
    progress(0, total, what)
    watcher.start()
    try:
        yield
    finally:
        stop.set()
        watcher.join()
    progress(total, total, what)


def _num_bytes(folder: Path) -> int:
    total = 0
    for path, _, names in os.walk(folder):
        for name in names:
            with suppress(FileNotFoundError):  # a temporary file that is gone again
                total += os.lstat(os.path.join(path, name)).st_size
    return total
