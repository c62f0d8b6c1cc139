"""What the streams of a load say: a row for each concurrency and setting, the prediction beside it, and a sentence.

Knows nothing of clocks or of how sequences were decoded.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from outpace.decoding.options import AUTO_DEPTH
from outpace.drafters.budget import Branching
from outpace.evaluation.benchmark import Run, Setting, median_rates
from outpace.evaluation.crossing import Level, break_even, sentence
from outpace.evaluation.forecast import Usual, foreseen
from outpace.evaluation.load import Flow, Loaded
from outpace.evaluation.metrics import Estimate, median, pooled
from outpace.evaluation.outcome import ENOUGH, Row, named, rows
from outpace.evaluation.ties import Judge


@dataclass(frozen=True)
class LoadRow(Row):
    """The figures of one setting at one concurrency: those of ``Row`` with ``batch`` as the concurrency, and these.

    Args:
        streams: how many were measured; the speed-up and its interval are over them.
        in_flight: sequences a turn of plain decoding, on average: slots stand empty where a stream ends.
        first_token_ms, baseline_first_token_ms: from the beginning of a prompt to its first token, drafted and plain,
            medians over requests.
        ms_per_token, baseline_ms_per_token: of one request behind its first token, medians over requests, with their
            intervals ``ms_per_token_ci`` and ``baseline_ms_per_token_ci``; None where no text has two tokens.
        predicted_speedup: what the cost table and the acceptance of all levels together foresee; None where nothing was
            drafted.
    """

    streams: int
    in_flight: float
    first_token_ms: float
    baseline_first_token_ms: float
    ms_per_token: float | None
    ms_per_token_ci: tuple[float, float] | None
    baseline_ms_per_token: float | None
    baseline_ms_per_token_ci: tuple[float, float] | None
    predicted_speedup: float | None

    @property
    def enough(self) -> bool:
        """Whether so many streams were measured that the interval means what it says."""
        return self.speedup_ci is not None and self.streams >= ENOUGH


def load_rows(loaded: Loaded, method: str, judge: Judge | None) -> list[LoadRow]:
    """A row for each setting and level, level by level.

    Args:
        loaded: the runs.
        method: the drafter's name.
        judge: who tells near-ties from other differences; None: every difference is counted as one.
    """
    usual = {setting: _usual(loaded, setting) for one in loaded.levels.values() for setting in one.settings}
    found = []
    for level, measured in loaded.levels.items():
        for place, row in enumerate(rows(measured, method, judge)):
            setting = measured.settings[place]
            plain, ours = _flows(measured.plain[setting.temperature]), _flows(measured.drafted[place])
            in_flight = statistics.fmean(flow.in_flight for flow in plain)
            given: dict[str, Any] = {field.name: getattr(row, field.name) for field in fields(Row)} | {"batch": level}
            pace, pace_ci = _pace(ours)
            baseline, baseline_ci = _pace(plain)
            found.append(
                LoadRow(
                    **given,
                    streams=len(ours),
                    in_flight=in_flight,
                    first_token_ms=_first(ours),
                    baseline_first_token_ms=_first(plain),
                    ms_per_token=pace,
                    ms_per_token_ci=pace_ci,
                    baseline_ms_per_token=baseline,
                    baseline_ms_per_token_ci=baseline_ci,
                    predicted_speedup=_predicted(loaded, level, place, usual[setting], in_flight),
                )
            )
    return found


def verdicts(loaded: Loaded) -> list[tuple[str, Estimate | None]]:
    """For each setting its sentence, and the break-even with its interval, settings in the order measured.

    Those that differ by their rule alone, as a plan may have them at different levels, are one.
    """
    found = []
    kinds = {level: [replace(one, rule=None) for one in each.settings] for level, each in loaded.levels.items()}
    for setting in dict.fromkeys(one for kind in kinds.values() for one in kind):
        levels = []
        for level, measured in loaded.levels.items():
            if setting in kinds[level]:
                ours = median_rates(measured.drafted[kinds[level].index(setting)])
                levels.append(Level(level, ours, median_rates(measured.plain[setting.temperature])))
        found.append((sentence(levels), break_even(levels)))
    return found


def load_findings(found: Sequence[LoadRow]) -> list[str]:
    """What makes the command exit with 1: a sentence each."""
    said = []
    for row in found:
        if row.slower:
            said.append(f"slower than plain decoding at {row.batch} at once: {row.figure} with {named(row)}")
        if row.differences:
            said.append(
                f"{row.differences} texts at {row.batch} at once differ from plain decoding by more than rounding "
                f"explains, with {named(row)}: run outpace check"
            )
    return said


def as_plain(estimate: Estimate | None) -> dict[str, float | None] | None:
    """A break-even as plain data: null where it lies above the last level."""
    if estimate is None:
        return None
    return {name: value if math.isfinite(value) else None for name, value in asdict(estimate).items()}


def _flows(runs: Sequence[Sequence[Run]]) -> list[Flow]:
    return [run for repeats in runs for run in repeats if isinstance(run, Flow)]


def _first(flows: Sequence[Flow]) -> float:
    return 1e3 * statistics.median(seconds for flow in flows for seconds in flow.first_s)


def _pace(flows: Sequence[Flow]) -> tuple[float | None, tuple[float, float] | None]:
    paces = [1e3 * seconds for flow in flows for seconds in flow.pace_s if seconds is not None]
    if not paces:
        return None, None
    one = median(paces)
    return one.value, (one.low, one.high) if len(paces) > 1 else None


def _usual(loaded: Loaded, setting: Setting) -> Usual | None:
    """How the drafts of a setting fare, over all levels; None where nothing was drafted."""
    flows = [
        flow
        for one in loaded.levels.values()
        if setting in one.settings
        for flow in _flows(one.drafted[one.settings.index(setting)])
    ]
    together = pooled([one for flow in flows for one in flow.speculations])
    found = sum(flow.found for flow in flows)
    if together.tau is None or not found:
        return None
    return Usual(
        tau=together.tau,
        tried=together.tried,
        passed=together.passed,
        found=found / sum(flow.asked for flow in flows),
        nodes=together.drafted / found,
        steps=statistics.fmean(flow.steps for flow in flows if flow.found),
    )


def _predicted(loaded: Loaded, level: int, place: int, usual: Usual | None, in_flight: float) -> float | None:
    if usual is None or not in_flight:
        return None
    measured = loaded.levels[level]
    setting, plain = measured.settings[place], _flows(measured.plain[measured.settings[place].temperature])
    chain = Branching.parse(setting.tree).is_chain
    nodes = setting.num_draft_tokens
    depth = setting.depth or AUTO_DEPTH if nodes == "auto" or not chain else nodes
    depth = depth if loaded.deepest is None else min(depth, loaded.deepest)
    nodes = min(nodes, depth) if chain and nodes != "auto" else nodes
    most = (depth if chain else round(usual.nodes)) if nodes == "auto" else nodes
    whole = sum(flow.seconds for flow in plain)
    middles = [
        len(question.ids) + len(text) / 2
        for group, flow in zip(measured.groups, plain, strict=True)
        for question, text in zip(group.questions, flow.texts, strict=True)
    ]
    return foreseen(
        usual,
        loaded.costs[level][place].at(round(in_flight), round(statistics.fmean(middles)), 1 + most),
        nodes,
        chain=chain,
        depth=depth,
        in_flight=in_flight,
        reading=min(1.0, max(0.0, 1 - sum(flow.turning_s for flow in plain) / whole)),
    )
