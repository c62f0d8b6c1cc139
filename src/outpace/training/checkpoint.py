"""A training on disk: weights, moments and the place in the data, whole or not at all, and the one before as well.

Knows nothing of how a step is made. A checkpoint that was cut off or changed is named, and the one before it is taken.
"""

import json
import shutil
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from outpace.errors import UsageError, WeightsError
from outpace.models.staging import file_sha256, staged
from outpace.models.weights import save_tensors

FORMAT_VERSION = 1
TENSORS, STATE = "state.safetensors", "state.json"
KEPT = 2


@dataclass
class Place:
    """Where a training stands.

    Args:
        epoch, window: the next step's: the epoch, and how many steps of it are done.
        step: how many steps are done.
        tokens, answer_tokens: that these read.
        bad: steps skipped because a loss or gradient was no number; ``bad_in_row`` of them just now.
        empty: steps skipped because no place of theirs counted.
        seconds: of training, of ``busy`` inside forward and backward.
        best_tau, best_epoch: of the validation so far.
    """

    epoch: int = 0
    window: int = 0
    step: int = 0
    tokens: int = 0
    answer_tokens: int = 0
    bad: int = 0
    bad_in_row: int = 0
    empty: int = 0
    seconds: float = 0.0
    busy: float = 0.0
    best_tau: float | None = None
    best_epoch: int | None = None


@dataclass(frozen=True)
class Checkpoint:
    """What a folder holds."""

    folder: Path
    place: Place
    settings: dict[str, Any] = field(repr=False)
    tensors: dict[str, Tensor] = field(repr=False)


def save_checkpoint(folder: Path, place: Place, settings: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Path:
    """Write a checkpoint beside the ones before, then remove all but the last two up to its step.

    One of a later step goes too: it was not whole, or is of a training that was begun anew.

    Args:
        folder: of all checkpoints of a training.
        place: where it stands.
        settings: what must be the same for it to be gone on with.
        tensors: by name.

    Raises:
        WeightsError: the disk is full, or the folder cannot be written; what stood there stands.
    """
    final = folder / f"step-{place.step:08d}"
    with saving(folder):
        with staged(final) as draft:
            save_tensors(draft, tensors, file=TENSORS)
            state = {
                "format_version": FORMAT_VERSION,
                "place": asdict(place),
                "settings": dict(settings),
                "sha256": file_sha256(draft / TENSORS),
            }
            (draft / STATE).write_text(json.dumps(state, indent=2) + "\n", "utf-8")
        standing = checkpoints(folder)
        last = standing.index(final)
        for old in (*standing[: max(0, last + 1 - KEPT)], *standing[last + 1 :]):
            shutil.rmtree(old, ignore_errors=True)
    return final


@contextmanager
def saving(folder: Path) -> Iterator[None]:
    """Say of what a full disk interrupts."""
    try:
        yield
    except WeightsError as error:
        raise WeightsError(
            error.message, hint=f"make room or name another folder, then go on with --resume: {folder} stands"
        ) from error


def checkpoints(folder: Path) -> list[Path]:
    """The folders of checkpoints, the oldest first."""
    return sorted(path for path in folder.glob("step-*") if path.is_dir())


def newest(folder: Path) -> Checkpoint | None:
    """The last checkpoint that is whole; None where there is none at all.

    Raises:
        WeightsError: there are some, and none is whole.
    """
    found = checkpoints(folder)
    for path in reversed(found):
        try:
            return _read(path)
        except (OSError, ValueError, KeyError, TypeError, AttributeError, SafetensorError) as error:
            warnings.warn(f"the checkpoint {path} is not whole ({error}); the one before it is taken", stacklevel=2)
    if found:
        raise WeightsError(f"none of the checkpoints in {folder} is whole", hint="remove the folder, and begin anew")
    return None


def _read(path: Path) -> Checkpoint:
    state = json.loads((path / STATE).read_text("utf-8"))
    if state["format_version"] != FORMAT_VERSION:
        raise ValueError(f"its format_version is {state['format_version']!r}; allowed: {FORMAT_VERSION}")
    if file_sha256(path / TENSORS) != state["sha256"]:
        raise ValueError("its tensors are not those of its checksum")
    names = {one.name for one in fields(Place)}
    place = Place(**{name: value for name, value in state["place"].items() if name in names})
    return Checkpoint(path, place, state["settings"], load_file(path / TENSORS))


def require_same(found: Mapping[str, Any], wanted: Mapping[str, Any], folder: Path) -> None:
    """Refuse to go on with other settings than a training was begun with.

    Raises:
        UsageError: a setting differs; it is named, with both values.
    """
    for name in sorted(found.keys() | wanted.keys()):
        if found.get(name) != wanted.get(name):
            raise UsageError(
                f"{folder} was begun with {name} = {found.get(name)!r}; allowed: to go on with the same, not with "
                f"{wanted.get(name)!r}",
                hint="name another folder to begin anew",
            )
