"""Features to train on, recorded once or computed at each use, in batches of like length and fixed order.

Knows nothing of losses. A recording holds what no step of training can do without, and never whole rows of logits: at
every place the token, the mask, the target's states at the taps and before its head, its likeliest token and its
log-sum-exp.
"""

import shutil
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from outpace.errors import UsageError, WeightsError
from outpace.models.staging import Progress, alone, silent
from outpace.models.target import Target
from outpace.training.batch import Batch
from outpace.training.buckets import order
from outpace.training.masks import Sample
from outpace.training.reader import Reader
from outpace.training.shards import Recorded, batch_of, is_whole, name_of, open_shard, save_shard, shards_in

SHARD_TOKENS = 1 << 14
"""A file is full when it holds so many: small enough that little is lost when a run is stopped."""
OPEN_SHARDS = 256
FIRST = 2
"""The first token that a draft can speak of: drafting begins with the state at place 0 and the token at place 1."""


@dataclass(frozen=True)
class Fitting:
    """Samples that can be trained on, and the names of those that cannot.

    Args:
        samples: these.
        too_long: longer than the limit; nothing is ever cut.
        unanswered: without a token of an answer that a draft could speak of.
    """

    samples: list[Sample]
    too_long: list[str]
    unanswered: list[str]


@dataclass(frozen=True)
class Estimate:
    """What a recording takes.

    Args:
        samples, tokens, answer_tokens: that will be trained on.
        num_bytes: of all its files.
        missing_bytes: of those that are not there yet.
    """

    samples: int
    tokens: int
    answer_tokens: int
    num_bytes: int
    missing_bytes: int


@dataclass(frozen=True)
class Features:
    """Samples and their features.

    Args:
        fitting: the samples, and which others were left out.
        taps: which of the target's states the features are.
        fetch: the features of some samples, by their places.
    """

    fitting: Fitting
    taps: tuple[int, ...]
    fetch: Callable[[Sequence[int]], Batch]

    @property
    def samples(self) -> list[Sample]:
        """What is trained on."""
        return self.fitting.samples

    def order(self, seed: int, epoch: int, tokens_per_batch: int) -> list[list[int]]:
        """The places of the samples in each batch of an epoch; see ``buckets.order``."""
        return order([len(sample) for sample in self.samples], seed, epoch, tokens_per_batch)

    def batches(
        self, seed: int, epoch: int, tokens_per_batch: int, *, start: int = 0, step: int = 1
    ) -> Iterator[Batch]:
        """The batches of an epoch.

        Args:
            seed, epoch, tokens_per_batch: which ones, and in which order.
            start: how many to pass over: the place to go on from.
            step: take every so many-th of them: with ``start`` moved by its number, the share of one process of many.

        Raises:
            UsageError: an argument is out of range.
            WeightsError: a recorded file is gone or cannot be read.
        """
        if start < 0 or step < 1:
            raise UsageError(f"start is {start} and step {step}; allowed: 0 or more, and 1 or more")
        return map(self.fetch, self.order(seed, epoch, tokens_per_batch)[start::step])


def fitting(samples: Sequence[Sample], limit: int) -> Fitting:
    """Sort out what cannot be trained on: samples beyond the limit, and those without an answer.

    Raises:
        UsageError: nothing is left.
    """
    kept: list[Sample] = []
    too_long: list[str] = []
    unanswered: list[str] = []
    for sample in samples:
        if len(sample) > limit:
            too_long.append(sample.key)
        elif not bool(sample.loss_mask[FIRST:].any()):
            unanswered.append(sample.key)
        else:
            kept.append(sample)
    if not kept:
        raise UsageError(
            f"none of {len(samples)} samples can be trained on: {len(too_long)} are longer than {limit} tokens, "
            f"{len(unanswered)} have no answer"
        )
    return Fitting(kept, too_long, unanswered)


def estimate(
    target: Target, samples: Sequence[Sample], folder: Path, *, taps: Sequence[int], limit: int | None = None
) -> Estimate:
    """What ``record`` would take, without recording anything; whole files that are there are not read through.

    Args, Raises: as for ``record``.
    """
    plan = _Plan.of(Reader(target, taps), samples, folder, limit)
    there = shards_in(folder)
    missing = [tokens for name, tokens in zip(plan.names, plan.tokens, strict=True) if name not in there]
    answers = sum(int(sample.loss_mask.sum()) for sample in plan.fitting.samples)
    sizes = plan.reader.num_bytes(sum(plan.tokens)), plan.reader.num_bytes(sum(missing))
    return Estimate(len(plan.fitting.samples), sum(plan.tokens), answers, *sizes)


def record(
    target: Target,
    samples: Sequence[Sample],
    folder: Path,
    *,
    taps: Sequence[int],
    limit: int | None = None,
    progress: Progress = silent,
) -> Features:
    """Read every sample with the target, once, and keep what it shows in files; files that stand are used again.

    A file is one of these only by target, dtype, taps, tokens and masks, all of them in its name: of other data or
    another target none is ever used. One that was cut off or changed is named in a notice, and recorded again.

    Args:
        target: who is read; its fingerprint names the files.
        samples: what is read, in this order; samples that are added behind leave most files as they are.
        folder: of the files; made if missing. One process at a time writes to it.
        taps: which states, as indices of ``hidden_states``: 0 are the embeddings, k is the output of layer k.
        limit: the most tokens of a sample, the context by default; longer ones are left out and counted.
        progress: told how many tokens are recorded, and first how many there are and what they take.

    Raises:
        UsageError: nothing can be trained on, a tap is not the target's, a sample is not of its vocabulary, or the
            target has no fingerprint.
        UnsupportedError: the target's logits are not those of a plain head.
        NumericsError: a state or a logit is not finite.
        WeightsError: the disk has no room, or the folder cannot be written.
    """
    plan = _noticed(_Plan.of(Reader(target, taps), samples, folder, limit))
    with alone(folder, progress):
        paths = _standing(plan, folder, progress)
        wanted = plan.reader.num_bytes(sum(t for t, path in zip(plan.tokens, paths, strict=True) if path is None))
        _require_room(folder, wanted)
        done, total = 0, sum(plan.tokens)
        what = f"recording {total:,} tokens of {len(plan.fitting.samples):,} texts, {wanted / 1e9:.2f} GB to write"
        progress(done, total, what)
        for place, part in enumerate(plan.parts):
            if paths[place] is None:
                paths[place] = save_shard(folder, plan.names[place], _on_cpu(plan.reader.read(part)))
            done += plan.tokens[place]
            progress(done, total, what)
    return Features(plan.fitting, plan.reader.taps, _Shelf([path for path in paths if path], plan.parts).fetch)


def online(target: Target, samples: Sequence[Sample], *, taps: Sequence[int], limit: int | None = None) -> Features:
    """The same without files: the target reads each batch when it is asked for, on the target's device.

    Args, Raises: as for ``record``, which pays where samples are used more than once.
    """
    reader = Reader(target, taps)
    fit = _noticed_fitting(fitting(samples, _limit(target, limit)))

    def fetch(places: Sequence[int]) -> Batch:
        read = reader.read([fit.samples[place] for place in places])
        return batch_of([read.row(place) for place in range(len(places))])

    return Features(fit, reader.taps, fetch)


# ---- what is to be read, and where it stands -------------------------------------------------------------------------


@dataclass(frozen=True)
class _Plan:
    """The samples of every file, their tokens, and the file's name."""

    reader: Reader
    fitting: Fitting
    parts: list[list[Sample]]
    tokens: list[int]
    names: list[str]

    @classmethod
    def of(cls, reader: Reader, samples: Sequence[Sample], folder: Path, limit: int | None) -> "_Plan":
        target = reader.target
        if not target.fingerprint:
            raise UsageError(
                f"the target {target.name!r} has no fingerprint to tell its features from others'; "
                "allowed: features that are computed at each use"
            )
        fit = fitting(samples, _limit(target, limit))
        starts = [0]
        tokens = 0
        for place, sample in enumerate(fit.samples, 1):
            tokens += len(sample)
            if tokens >= SHARD_TOKENS or place == len(fit.samples):
                starts.append(place)
                tokens = 0
        parts = [fit.samples[start:stop] for start, stop in pairwise(starts)]
        settings = {
            "target": target.fingerprint,
            "dtype": str(target.dtype).removeprefix("torch."),
            "taps": list(reader.taps),
        }
        names = [name_of(settings, part) for part in parts]
        return cls(reader, fit, parts, [sum(map(len, part)) for part in parts], names)


def _limit(target: Target, limit: int | None) -> int:
    if limit is not None and limit < 1:
        raise UsageError(f"limit is {limit}; allowed: 1 token or more")
    return min(limit or target.max_positions, target.max_positions)


def _noticed(plan: _Plan) -> _Plan:
    _noticed_fitting(plan.fitting)
    return plan


def _noticed_fitting(fit: Fitting) -> Fitting:
    every = len(fit.samples) + len(fit.too_long) + len(fit.unanswered)
    for names, what in ((fit.too_long, "are too long"), (fit.unanswered, "have no answer to learn from")):
        if names:
            warnings.warn(f"{len(names)} of {every} samples {what} and are left out, {names[0]} first", stacklevel=4)
    return fit


def _standing(plan: _Plan, folder: Path, progress: Progress) -> list[Path | None]:
    """The file of each part; None where there is none, or one that is not whole, which is removed."""
    there = shards_in(folder)
    paths = [there.get(name) for name in plan.names]
    for place, path in enumerate(paths):
        if path is None:
            continue
        progress(place, len(paths), "checking what was recorded before")
        if not is_whole(path):
            warnings.warn(
                f"{path} was cut off or changed: its bytes are not those of its checksum; it is recorded again",
                stacklevel=3,
            )
            path.unlink()
            paths[place] = None
    return paths


def _require_room(folder: Path, wanted: int) -> None:
    there = folder if folder.is_dir() else folder.parent
    free = shutil.disk_usage(there).free
    if wanted > free:
        raise WeightsError(
            f"the features take {wanted / 1e9:.2f} GB and the disk of {folder} has {free / 1e9:.2f} GB free",
            hint="name another folder, record fewer samples, or compute the features at each use",
        )


def _on_cpu(read: Recorded) -> Recorded:
    whole: dict[str, Any] = vars(read)
    return Recorded(**{name: each if name == "lengths" else each.cpu() for name, each in whole.items()})


class _Shelf:
    """Files of features, opened when they are first asked for; the least recently used one is let go."""

    def __init__(self, paths: Sequence[Path], parts: Sequence[Sequence[Sample]]) -> None:
        self.paths = list(paths)
        self.places = [(shard, row) for shard, part in enumerate(parts) for row in range(len(part))]
        self.opened: OrderedDict[int, Recorded] = OrderedDict()

    def fetch(self, places: Sequence[int]) -> Batch:
        """The features of some samples."""
        found = []
        for place in places:
            shard, row = self.places[place]
            found.append(self._open(shard).row(row))
        return batch_of(found)

    def _open(self, shard: int) -> Recorded:
        if shard not in self.opened:
            self.opened[shard] = open_shard(self.paths[shard])
            if len(self.opened) > OPEN_SHARDS:
                self.opened.popitem(last=False)
        self.opened.move_to_end(shard)
        return self.opened[shard]
