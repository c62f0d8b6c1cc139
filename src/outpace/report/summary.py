"""What the turns of traces add up to: tau, acceptance by position, time by part, and what shorter drafts would give.

Knows nothing of pages. The definitions are those of ``decoding/stats.py``, and it is asked; but a trace does not tell
where a stop cut the last turn of a text, so that here all its tokens count.
"""

import statistics
from collections.abc import Sequence
from typing import Any

from outpace.decoding.stats import Speculation, Tally
from outpace.evaluation.metrics import pooled, ratio_of_sums
from outpace.evaluation.outcome import ENOUGH
from outpace.report.reading import Record, Trace, by_request
from outpace.report.story import short

PARTS = ("draft", "verify", "other")


def speculations(trace: Trace) -> list[Speculation]:
    """Every text's figures; the first record of a text is the reading of its prompt, which is no turn."""
    found = []
    for records in by_request(trace.records).values():
        tally = Tally()
        for record in turns_of(records):
            matched = len(record.path)
            tally.add(
                rule=record.rule,
                lossless=record.lossless,
                drafted=len(record.tokens),
                depth=record.depth,
                matched=matched,
                emitted=matched + 1,
            )
        found.append(tally.speculation(trace.drafter or "plain"))
    return found


def turns_of(records: Sequence[Record]) -> Sequence[Record]:
    """The turns of one text: all records but the first, with which the prompt was read."""
    return records[1:] if records and not records[0].tokens else records


def steps_of(trace: Trace) -> list[list[Record]]:
    """Turns as they were taken: rows of one batch have their seconds in common, and count once."""
    resting = {id(record) for records in by_request(trace.records).values() for record in turns_of(records)}
    steps: list[list[Record]] = []
    for record in trace.records:
        if id(record) not in resting:
            continue
        last = steps[-1] if steps else []
        same = last and last[0].seconds == record.seconds and record.request not in {one.request for one in last}
        if same:
            last.append(record)
        else:
            steps.append([record])
    return steps


def summary(trace: Trace) -> dict[str, Any]:
    """What the page says of a whole trace; None where nothing can be said."""
    texts = speculations(trace)
    whole = pooled(texts)
    steps = steps_of(trace)
    drafted = [record for step in steps for record in step if record.tokens]
    time = {part: sum(step[0].seconds[part] for step in steps) for part in PARTS}
    tau, positions = None, []
    if len(texts) >= ENOUGH and whole.turns:
        tau = _interval([one.emitted for one in texts], [one.turns for one in texts])
    for place, rate in enumerate(whole.acceptance_by_position):
        passed = [one.passed[place] if place < len(one.passed) else 0 for one in texts]
        tried = [one.tried[place] if place < len(one.tried) else 0 for one in texts]
        interval = _interval(passed, tried) if sum(count > 0 for count in tried) >= ENOUGH else None
        positions.append({"rate": short(rate), "tried": sum(tried), "passed": sum(passed), "interval": interval})
    return {
        "texts": len(texts),
        "turns": whole.turns,
        "plain_turns": whole.plain_turns,
        "plain_turn_share": short(whole.plain_turn_share),
        "drafted": whole.drafted,
        "accepted": whole.accepted,
        "emitted": sum(one.emitted for one in texts),
        "tau": short(whole.tau),
        "tau_interval": tau,
        "acceptance": short(whole.acceptance),
        "positions": positions,
        "rules": sorted({rule for one in texts for rule in one.rule.split("+") if rule != "none"}),
        "lossless": all(one.lossless for one in texts),
        "seconds": {part: short(value) for part, value in time.items()},
        "costs": costs(steps),
        "usual_depth": usual_depth(drafted),
        "chain": all(record.depth == len(record.tokens) for record in drafted),
        "cut": cut(drafted),
    }


def _interval(above: Sequence[int], below: Sequence[int]) -> list[float | None]:
    found = ratio_of_sums(above, below)
    return [short(found.low), short(found.high)]


def costs(steps: Sequence[Sequence[Record]]) -> dict[str, Any]:
    """Median milliseconds of a forward by its rows, and of a draft step, where texts were decoded one at a time."""
    single = [step[0] for step in steps if len(step) == 1]
    verify: dict[int, list[float]] = {}
    for record in single:
        verify.setdefault(1 + len(record.tokens), []).append(1e3 * record.seconds["verify"])
    drafting = [1e3 * record.seconds["draft"] / record.depth for record in single if record.depth]
    return {
        "verify": {rows: short(statistics.median(values)) for rows, values in sorted(verify.items())},
        "draft_step": short(statistics.median(drafting)) if drafting else None,
    }


def usual_depth(drafted: Sequence[Record]) -> int:
    """The median depth of drafts, of which the last one of a text is often shorter; 0 without any."""
    return statistics.median_high([record.depth for record in drafted]) if drafted else 0


def cut(drafted: Sequence[Record]) -> list[float]:
    """Mean tokens of a turn, had its draft been cut to a depth of 0, 1, … up to the usual one.

    What a turn accepted to a depth it would have accepted of a draft cut there, by every rule that judges a path from
    its root; for the others there is no figure. Shorter turns would have begun elsewhere in the text: that these
    figures do not tell.
    """
    if any(record.rule in ("block", "traversal", "typical") for record in drafted):
        return []
    usual = usual_depth(drafted)
    whole = [len(record.path) for record in drafted if record.depth >= usual]
    if not whole:
        return []
    means = [1 + statistics.fmean(min(length, depth) for length in whole) for depth in range(usual + 1)]
    return [float(f"{mean:.4g}") for mean in means]
