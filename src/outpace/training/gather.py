"""The samples of a recipe: corpora as they stand, prompts that the target answers, prompts that it makes up.

Knows nothing of features. What is invented and answered is written down line by line, and gone on with.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from outpace.decoding.prompts import Entry
from outpace.decoding.text import Text
from outpace.errors import UsageError
from outpace.models.staging import Progress, file_sha256, silent
from outpace.models.target import Target
from outpace.training.answers import Report, answer
from outpace.training.corpus import Answer, read_answers, samples_of
from outpace.training.inventions import invent_prompts
from outpace.training.masks import Sample
from outpace.training.prompts import read_prompts, select
from outpace.training.recipe import Data

ANSWERS, INVENTED = "answers.jsonl", "invented.jsonl"


@dataclass(frozen=True)
class Gathered:
    """What there is to train on.

    Args:
        samples: of all sources, in order.
        sources: of each file its name, checksum and number of samples, for the card.
        rejected: prompts that were passed over, by why.
    """

    samples: list[Sample]
    sources: list[dict[str, object]]
    rejected: dict[str, int] = field(default_factory=dict)


def is_answered(path: Path) -> bool:
    """Whether a file of JSON lines holds answers, rather than prompts to be answered.

    Raises:
        UsageError: the file cannot be read.
    """
    try:
        with path.open("rb") as file:
            for line in filter(bytes.strip, file):
                try:
                    record = json.loads(line)
                except ValueError:
                    return False  # perhaps packed; who reads it as prompts will tell
                if isinstance(record, dict) and "settings" not in record:
                    return "answer_ids" in record
    except OSError as error:
        raise UsageError(f"the data cannot be read from {path}: {error.strerror}") from error
    return False


def require_source(data: Data) -> None:
    """Refuse a recipe that has no data.

    Raises:
        UsageError: there is no source at all.
    """
    if not (data.answers or data.prompts or data.invent):
        raise UsageError(
            "the recipe has no data; allowed: answers, prompts, or invent above 0",
            hint="name a file with --data, or let the target invent prompts",
        )


def gather(data: Data, target: Target, text: Text, work: Path, progress: Progress = silent) -> Gathered:
    """All samples of a recipe.

    Args:
        data: the recipe's part on data.
        target: who invents and answers.
        text: its tokenizer and chat template.
        work: the folder where what is invented and answered is written.
        progress: told what is being done.

    Raises:
        UsageError: there is no source at all, or nothing is left of its prompts; or as for reading, inventing and
            answering.
        WeightsError: the disk is full.
    """
    require_source(data)
    samples: list[Sample] = []
    sources: list[dict[str, object]] = []
    for name in data.answers:
        found = samples_of(text, read_answers(Path(name)), target.eos_ids)
        samples += [replace(one, key=f"{Path(name).name}: {one.key}") for one in found]
        sources.append({"answers": Path(name).name, "sha256": file_sha256(Path(name)), "samples": len(found)})
    entries, rejected = _entries(data, target, text, work, sources, progress)
    if entries:
        work.mkdir(parents=True, exist_ok=True)
        report = answer(
            target,
            text,
            entries,
            work / ANSWERS,
            temperatures=data.temperatures,
            max_new_tokens=data.max_new_tokens,
            limit=min(data.limit, target.max_positions),
            batch_size=data.batch_size,
            seed=data.seed,
            progress=progress,
        )
        rejected |= _unanswered(report)
        if report.answered or report.kept:
            samples += samples_of(text, _of_these(entries, read_answers(work / ANSWERS)), target.eos_ids)
    if not samples:
        counts = ", ".join(f"{reason} {count}" for reason, count in rejected.items())
        raise UsageError(
            f"no prompt is left to train on ({counts}); allowed: one or more that can be answered",
            hint="name other prompts, or raise limit where answers have no room",
        )
    return Gathered(samples, sources, rejected)


def _entries(
    data: Data, target: Target, text: Text, work: Path, sources: list[dict[str, object]], progress: Progress
) -> tuple[list[Entry], dict[str, int]]:
    """The prompts that the target is to answer."""
    avoid = [entry for name in data.avoid for entry in read_prompts(Path(name))]
    given: list[Entry] = []
    for name in data.prompts:
        found = read_prompts(Path(name))
        found = found[: data.most_prompts] if data.most_prompts else found
        given += found
        sources.append({"prompts": Path(name).name, "sha256": file_sha256(Path(name)), "samples": len(found)})
    selection = select(given, text, avoid=avoid)
    entries, rejected = list(selection.entries), dict(selection.rejected)
    if data.invent:
        work.mkdir(parents=True, exist_ok=True)
        invented = invent_prompts(
            target,
            text,
            data.invent,
            work / INVENTED,
            seed=data.seed,
            avoid=[*avoid, *entries],
            batch_size=data.batch_size,
            progress=progress,
        )
        entries += invented.entries
        sources.append({"invented": len(invented.entries), "seed": data.seed})
        for reason, count in invented.rejected.items():
            rejected[reason] = rejected.get(reason, 0) + count
    return entries, rejected


def _of_these(entries: Sequence[Entry], answers: Sequence[Answer]) -> list[Answer]:
    """The answers to some prompts: a file that was gone on with may hold others, of a recipe that was changed."""
    asked = {entry.key for entry in entries}

    def within(key: str) -> bool:
        first, _, turn = key.rpartition(" turn ")
        return key in asked or (first in asked and turn.isdecimal())

    return [one for one in answers if within(one.key)]


def _unanswered(report: Report) -> dict[str, int]:
    counts = {"no room for an answer": len(report.too_long), "the answer failed": len(report.failed)}
    return {reason: count for reason, count in counts.items() if count}


def split(samples: Sequence[Sample], share: float, seed: int) -> tuple[list[Sample], list[Sample]]:
    """Samples to train on, and those held out: by their prompts, so that one prompt is never on both sides.

    Args:
        samples: all.
        share: of prompts that are held out, 0 up to below 1.
        seed: names the choice.
    """
    kept: list[Sample] = []
    held: list[Sample] = []
    for sample in samples:
        prompt = sample.ids[: int(sample.loss_mask.int().argmax())]
        digest = hashlib.sha256(f"held out/{seed}/".encode() + prompt.numpy().tobytes()).digest()
        (held if int.from_bytes(digest[:8]) < share * 2.0**64 else kept).append(sample)
    return kept, held
