"""Traces of a few prompts, and what their replay promises of every candidate.

Knows nothing of who is measured afterwards. What a trace cannot tell of a candidate is left out.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from outpace.decoding.costs import CostTable
from outpace.decoding.plan import ALL
from outpace.drafters.drafter import Drafter
from outpace.errors import OutpaceError, UsageError
from outpace.evaluation.benchmark import Clock, grouped
from outpace.evaluation.probe import Probe, read_probe, write_probe
from outpace.evaluation.workloads import Question
from outpace.models.target import Target
from outpace.tuning.candidates import Candidate
from outpace.tuning.recording import Recording
from outpace.tuning.replay import Prediction, Setting, replay
from outpace.tuning.task import Level, Task

FEWEST = 32
"""Tokens of a text, at least, where there is no time for whole ones."""


def record(
    target: Target,
    drafters: Mapping[str, Drafter],
    asked: Sequence[Question],
    task: Task,
    temperature: float,
    until: float,
    *,
    clock: Clock,
    told: Callable[[str], None],
) -> tuple[dict[str, Recording], list[str]]:
    """Probe prompts, one of every category in turn, as many as there is time for, with all drafters.

    The first prompt is probed whatever the time. Texts are cut shorter where there would be no time for one of each
    category otherwise.

    Args:
        target, drafters: who says the texts, and who drafts at their positions.
        asked: the prompts.
        task, temperature: how texts are decoded.
        until: when to stop, by the clock.
        told: is told what is done.

    Returns:
        A recording for every drafter that could be probed, and a note for every other one.
    """
    probes: dict[str, list[Probe]] = {name: [] for name in drafters}
    notes: dict[str, str] = {}
    order = [group.questions[0] for group in grouped(asked, 1)]
    kinds, begin, tokens = len({question.category for question in asked}), clock(), task.max_new_tokens
    with TemporaryDirectory() as folder:
        for place, question in enumerate(order):
            told(f"probing prompt {place + 1}")
            for name, drafter in drafters.items():
                if name in notes:
                    continue
                path = Path(folder) / "probe.jsonl"
                try:
                    write_probe(
                        path,
                        target,
                        drafter,
                        [question],
                        sampling=task.sampling(temperature),
                        max_new_tokens=tokens,
                        seed=task.seed or 0,
                    )
                    probes[name].append(read_probe(path))
                except OutpaceError as error:
                    notes[name] = f"{name} cannot be probed: {error.message}"
            spent = clock() - begin
            if not place and kinds > 1 and spent * kinds > until - begin:
                share = (until - clock()) / (spent * (kinds - 1))
                tokens = min(tokens, max(FEWEST, int(tokens * share)))
                spent *= tokens / task.max_new_tokens
            if clock() + spent / (1 + place) > until:
                break
    return _recordings({name: found for name, found in probes.items() if name not in notes}, notes)


def _recordings(probes: Mapping[str, Sequence[Probe]], notes: dict[str, str]) -> tuple[dict[str, Recording], list[str]]:
    """What was probed, to replay; what cannot be replayed joins the notes."""
    made = {}
    for name, found in probes.items():
        try:
            made[name] = Recording.of(_joined(found))
        except UsageError as error:
            notes[name] = f"{name} cannot be replayed: {error.message}"
    return made, list(notes.values())


def _joined(probes: Sequence[Probe]) -> Probe:
    """Probes of one text each as one of all of them."""
    texts = [text for probe in probes for text in probe.header["probe"]["texts"]]
    header = probes[0].header | {"probe": probes[0].header["probe"] | {"texts": texts}}
    records = [replace(one, request=place) for place, probe in enumerate(probes) for one in probe.records]
    return Probe(header, records)


def predict(
    recordings: Mapping[str, Recording],
    candidates: Sequence[Candidate],
    costs: Mapping[str, CostTable],
    task: Task,
    level: Level,
    categories: Sequence[str] = (),
    *,
    until: float = math.inf,
    clock: Clock = time.perf_counter,
) -> dict[str, dict[Candidate, Prediction]]:
    """What every candidate promises at one load: of all prompts together, and of every category that was probed.

    Args:
        recordings, costs: by drafter; a candidate of another one has no prediction.
        candidates: who is asked about; plain decoding promises nothing.
        task, level: how texts are decoded.
        categories: those that are to have predictions of their own.
        until: when to stop, by the clock; fixed drafts come first, as replaying a controller takes longest.
    """
    found: dict[str, dict[Candidate, Prediction]] = {ALL: {}}
    for one in sorted(candidates, key=lambda one: one.num_draft_tokens == "auto"):
        recording = recordings.get(one.drafter)
        if one.plain or recording is None or one.drafter not in costs:
            continue
        if clock() > until:
            break
        own = [name for name in categories if name in recording.categories]
        for category in (ALL, *own):
            try:
                part = recording if category == ALL else recording.only([category])
                promised = replay(part, _setting(one, task, level), costs[one.drafter])
            except UsageError:  # the recording cannot tell
                continue
            if promised.speedup is not None:
                found.setdefault(category, {})[one] = promised
    return found


def _setting(one: Candidate, task: Task, level: Level) -> Setting:
    return Setting(
        one.num_draft_tokens,
        one.tree,
        one.depth,
        one.rule,
        level.temperature,
        batch=level.batch,
        seeded=task.seeded() and level.temperature > 0,
    )
