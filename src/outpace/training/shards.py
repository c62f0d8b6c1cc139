"""What a target showed at every place of some texts, and its files: named by what they hold, checked before use.

Knows nothing of targets. A file's name says twice what is in it: which texts were read, how and by whom, and the
checksum of its bytes. So what was recorded of other texts, or by another target, is never taken for these, and a file
that was cut off or changed is found out.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from safetensors import SafetensorError, safe_open
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from outpace.errors import WeightsError
from outpace.models.staging import disk_errors, file_sha256
from outpace.models.weights import save_tensors
from outpace.training.batch import Batch
from outpace.training.masks import Sample

FORMAT_VERSION = 1
DIGITS = 32
"""Hexadecimal digits of a checksum that stand in a name."""


NAMES = ("ids", "loss_mask", "features", "last_normed", "argmax", "logsumexp", "lengths")


@dataclass(frozen=True)
class Recorded:
    """Some texts, one behind the other, and what the target showed and said at every place.

    Args:
        ids, loss_mask: the texts.
        features: the target's hidden states at the taps, in its own dtype.
        last_normed: what its head reads.
        argmax: the likeliest next token by its logits over the whole vocabulary; -1 where no answer token follows.
        logsumexp: of the same logits; 0 where no answer token follows.
        lengths: of each text.
    """

    ids: Int[Tensor, " places"]
    loss_mask: Bool[Tensor, " places"]
    features: Float[Tensor, "places taps hidden"]
    last_normed: Float[Tensor, "places hidden"]
    argmax: Int[Tensor, " places"]
    logsumexp: Float[Tensor, " places"]
    lengths: list[int]

    def row(self, place: int) -> tuple[Tensor, ...]:
        """One text and all that belongs to it, in the order of a batch's fields."""
        end = self._ends[place]
        cut = slice(end - self.lengths[place], end)
        whole = (self.ids, self.loss_mask, self.features, self.last_normed, self.argmax, self.logsumexp)
        return tuple(each[cut] for each in whole)

    @cached_property
    def _ends(self) -> list[int]:
        return list(accumulate(self.lengths))


def batch_of(rows: Sequence[tuple[Tensor, ...]]) -> Batch:
    """Texts side by side, padded on the right: with ids 0, masks False, features 0, and -1 for a likeliest token."""
    ids, mask, features, last, argmax, logsumexp = zip(*rows, strict=True)
    return Batch(
        ids=pad_sequence(list(ids), batch_first=True).long(),
        loss_mask=pad_sequence(list(mask), batch_first=True),
        features=pad_sequence(list(features), batch_first=True),
        last_normed=pad_sequence(list(last), batch_first=True),
        argmax=pad_sequence(list(argmax), batch_first=True, padding_value=-1).long(),
        logsumexp=pad_sequence(list(logsumexp), batch_first=True),
        lengths=[len(each) for each in ids],
    )


def name_of(settings: Mapping[str, Any], samples: Sequence[Sample]) -> str:
    """What the file of these texts is called, but for its checksum: a sum over settings, tokens and masks."""
    digest = hashlib.sha256(json.dumps({"format": FORMAT_VERSION, **settings}, sort_keys=True).encode())
    for sample in samples:
        digest.update(len(sample).to_bytes(8))
        digest.update(sample.ids.numpy().tobytes())
        digest.update(sample.loss_mask.numpy().tobytes())
    return digest.hexdigest()[:DIGITS]


def save_shard(folder: Path, name: str, recorded: Recorded) -> Path:
    """Write a file, whole or not at all.

    Raises:
        WeightsError: the disk is full, or the folder cannot be written.
    """
    tensors = {
        "ids": recorded.ids,
        "loss_mask": recorded.loss_mask,
        "features": recorded.features,
        "last_normed": recorded.last_normed,
        "argmax": recorded.argmax,
        "logsumexp": recorded.logsumexp,
        "lengths": torch.tensor(recorded.lengths, dtype=torch.int32),
    }
    unnamed = folder / f"{name}.unnamed"
    save_tensors(folder, tensors, file=unnamed.name)
    with disk_errors(folder):
        final = folder / f"{name}-{file_sha256(unnamed)[:DIGITS]}.safetensors"
        unnamed.replace(final)
    return final


def shards_in(folder: Path) -> dict[str, Path]:
    """The files of a folder by their names without checksums."""
    if not folder.is_dir():
        return {}
    return {path.name.partition("-")[0]: path for path in sorted(folder.glob("*-*.safetensors"))}


def is_whole(path: Path) -> bool:
    """Whether a file's bytes are those that its name promises."""
    with disk_errors(path.parent):
        return file_sha256(path)[:DIGITS] == path.stem.partition("-")[2]


def open_shard(path: Path) -> Recorded:
    """A file's content; values lie in the file until they are touched.

    Raises:
        WeightsError: the file cannot be read.
    """
    try:
        with safe_open(path, framework="pt") as opened:
            tensors = {name: opened.get_tensor(name) for name in NAMES}
    except (SafetensorError, OSError) as error:
        raise WeightsError(
            f"the features in {path} cannot be read: {error}", hint="remove the file, and record it again"
        ) from error
    return Recorded(**tensors | {"lengths": tensors["lengths"].tolist()})
