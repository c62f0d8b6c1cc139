"""What the answers of a server say: a row for each concurrency, its drafting, failures counted, and a sentence.

Knows nothing of clocks or connections.
"""

import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

from outpace.evaluation.counters import Counters
from outpace.evaluation.crossing import Level, break_even, sentence
from outpace.evaluation.endpoint_load import Answered, Served
from outpace.evaluation.metrics import Estimate, median, median_ratio
from outpace.evaluation.outcome import ENOUGH

OTHERS = 1.05
"""A server that counts so many times the tokens that were received has answered somebody else besides."""
REASONS = 5
"""So many reasons of failures are told."""

Interval = tuple[float, float] | None


@dataclass(frozen=True)
class EndpointRow:
    """The figures of one concurrency; the fields of a result of ``bench --endpoint``.

    Intervals are of a bootstrap, over requests for what one request sees and over streams for rates and speed-ups; None
    for a single one. Figures of the baseline are None where there is no second server, and speed-ups where tokens were
    not counted: a piece of a server that drafts holds more of them.

    Args:
        concurrency, streams: requests at once, and streams in which every request was answered, by both servers.
        requests, failed, baseline_failed: of all streams.
        first_token_ms, ms_per_token: medians over answers, see ``Answer``; the latter behind the first token.
        tokens_per_second: of all requests together, the median over streams.
        speedup: the ratio of medians to the baseline's.
        same_texts: of the prompts that both answered, the share with the same text.
        counted: whether every server counted its tokens; else pieces of text were, which may hold several.
        drafting: acceptance and the like, see ``drafting_of``; None where nothing is known.
    """

    concurrency: int
    streams: int
    requests: int
    failed: int
    first_token_ms: float | None
    first_token_ms_ci: Interval
    ms_per_token: float | None
    ms_per_token_ci: Interval
    tokens_per_second: float | None
    tokens_per_second_ci: Interval
    counted: bool
    drafting: dict[str, Any] | None
    baseline_failed: int | None = None
    baseline_first_token_ms: float | None = None
    baseline_ms_per_token: float | None = None
    baseline_tokens_per_second: float | None = None
    speedup: float | None = None
    speedup_ci: Interval = None
    same_texts: float | None = None

    @property
    def slower(self) -> bool:
        """Whether the server is slower than the baseline, beyond doubt."""
        return self.speedup_ci is not None and self.streams >= ENOUGH and self.speedup_ci[1] < 1

    @property
    def figure(self) -> str:
        """The speed-up with its interval."""
        if self.speedup is None:
            return "-"
        between = "" if self.speedup_ci is None else f" [{self.speedup_ci[0]:.2f}, {self.speedup_ci[1]:.2f}]"
        return f"{self.speedup:.2f}x{between}"


def endpoint_rows(answered: Answered) -> list[EndpointRow]:
    """A row for each concurrency, in order."""
    return [_row(level, ours, answered.theirs.get(level)) for level, ours in sorted(answered.ours.items())]


def _row(level: int, ours: Sequence[Served], theirs: Sequence[Served] | None) -> EndpointRow:
    pairs = list(zip(ours, ours if theirs is None else theirs, strict=True))
    whole = [(one, other) for one, other in pairs if one.whole and other.whole]
    first, first_ci = _median(_firsts(ours))
    pace, pace_ci = _median(_paces(ours))
    rate, rate_ci = _median([one.rate for one, _ in whole])
    answers = [one for stream in ours for one in stream.answers]
    others = [] if theirs is None else [one for stream in theirs for one in stream.answers]
    counted = all(one.counted for one in (*answers, *others) if one.error is None)
    versus: dict[str, Any] = {}
    if theirs is not None:
        told = whole if counted else []
        ratio = median_ratio([one.rate for one, _ in told], [other.rate for _, other in told]) if told else None
        versus = {
            "baseline_failed": sum(one.error is not None for one in others),
            "baseline_first_token_ms": _median(_firsts(theirs))[0],
            "baseline_ms_per_token": _median(_paces(theirs))[0],
            "baseline_tokens_per_second": _median([other.rate for _, other in whole])[0],
            "speedup": None if ratio is None else ratio.value,
            "speedup_ci": None if ratio is None or len(whole) < 2 else (ratio.low, ratio.high),
            "same_texts": _same(pairs),
        }
    return EndpointRow(
        concurrency=level,
        streams=len(whole),
        requests=len(answers),
        failed=sum(one.error is not None for one in answers),
        first_token_ms=first,
        first_token_ms_ci=first_ci,
        ms_per_token=pace,
        ms_per_token_ci=pace_ci,
        tokens_per_second=rate,
        tokens_per_second_ci=rate_ci,
        counted=counted,
        drafting=drafting_of([one for one in ours if one.whole]),
        **versus,
    )


def drafting_of(streams: Sequence[Served]) -> dict[str, Any] | None:
    """How drafting went in whole streams; None where neither answers nor counters tell, or nothing was drafted.

    Returns:
        ``source``, ``drafted``, ``accepted``, ``accepted_share``, ``acceptance``, ``acceptance_by_position``,
        ``tokens_per_draft`` and ``tau`` by the definitions of ``counters.py``, and ``others``: whether somebody else
        asked the server meanwhile, so that its counters are not of these answers alone.
    """
    answers = [one for stream in streams for one in stream.answers]
    tokens = sum(one.tokens for one in answers)
    told = [stream.counted for stream in streams if stream.counted is not None]
    counted = reduce(Counters.plus, told) if told and len(told) == len(streams) else None
    others = bool(counted is not None and counted.generated and counted.generated > OTHERS * tokens)
    source = None if counted is None else f"counters of {counted.engine}"
    if any(one.drafted for one in answers):  # what answers tell of themselves is of nobody else's
        positions = counted.by_position if counted is not None and not others else ()
        counted = Counters(
            "llama.cpp",
            drafts=counted.drafts if counted is not None and positions else None,
            drafted=float(sum(one.drafted or 0 for one in answers)),
            accepted=float(sum(one.accepted or 0 for one in answers)),
            by_position=positions,
        )
        source, others = "timings of the answers", False
    if counted is None or not counted.drafting:
        return None
    return {
        "source": source,
        "drafted": counted.drafted,
        "accepted": counted.accepted,
        "accepted_share": counted.accepted_share,
        "acceptance": counted.acceptance,
        "acceptance_by_position": list(counted.acceptance_by_position),
        "tokens_per_draft": counted.tokens_per_draft,
        "tau": counted.tau(tokens, len(answers)),
        "others": others,
    }


def endpoint_verdict(answered: Answered, rows: Sequence[EndpointRow]) -> tuple[str, Estimate | None]:
    """One sentence, and where there is a baseline the break-even with its interval."""
    if not answered.theirs:
        told = [row for row in rows if row.tokens_per_second is not None]
        if not told:
            return "no stream was answered as a whole: there is no rate to tell", None
        words = ", ".join(f"{row.tokens_per_second:.1f} tokens per second at {row.concurrency} at once" for row in told)
        return words, None
    if not all(row.counted for row in rows):
        return "not both servers count their tokens: there is no speed-up to tell", None
    levels = []
    for level, ours in sorted(answered.ours.items()):
        pairs = zip(ours, answered.theirs[level], strict=True)
        whole = [(one.rate, other.rate) for one, other in pairs if one.whole and other.whole]
        if whole:
            levels.append(Level(level, [one for one, _ in whole], [other for _, other in whole]))
    if not levels:
        return "no stream was answered as a whole by both servers: there is no speed-up to tell", None
    return sentence(levels), break_even(levels)


def endpoint_findings(answered: Answered, rows: Sequence[EndpointRow]) -> list[str]:
    """What makes the command exit with 1: a sentence each."""
    said = []
    for name, levels in (("endpoint", answered.ours), ("baseline-endpoint", answered.theirs)):
        answers = [one for streams in levels.values() for stream in streams for one in stream.answers]
        reasons = Counter(one.error for one in answers if one.error is not None)
        if failed := sum(reasons.values()):
            said.append(f"{failed} of {len(answers)} requests to --{name} failed")
        said += [f"{count} times --{name}: {reason}" for reason, count in reasons.most_common(REASONS)]
        if any(not stream.answers for streams in levels.values() for stream in streams):
            said.append(f"--{name} answered nothing in a whole stream, and was not asked any more")
    said += [f"slower than the baseline at {row.concurrency} at once: {row.figure}" for row in rows if row.slower]
    return said


def _firsts(streams: Sequence[Served]) -> list[float]:
    return [
        1e3 * one.first_s
        for stream in streams
        for one in stream.answers
        if one.error is None and one.first_s is not None
    ]


def _paces(streams: Sequence[Served]) -> list[float]:
    return [
        1e3 * one.pace_s for stream in streams for one in stream.answers if one.error is None and one.pace_s is not None
    ]


def _median(values: Sequence[float]) -> tuple[float | None, Interval]:
    if not values:
        return None, None
    one = median(values)
    return one.value, (one.low, one.high) if len(values) > 1 else None


def _same(pairs: Sequence[tuple[Served, Served]]) -> float | None:
    """Of the prompts that both answered, the share with the same text."""
    both = [
        one.text == other.text
        for ours, theirs in pairs
        for one, other in zip(ours.answers, theirs.answers, strict=False)
        if one.error is None and other.error is None
    ]
    return statistics.fmean(both) if both else None
