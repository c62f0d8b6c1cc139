"""Why, in plain words: what acceptance is, where time goes, what limits it, how sure it is, and what would change it.

Knows nothing of how a verdict was reached; figures come in, sentences go out.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from outpace.decoding.plan import ALL
from outpace.drafters.load import LOOKUP
from outpace.evaluation.outcome import ENOUGH
from outpace.tuning.breakdown import BETTER, Breakdown
from outpace.tuning.candidates import PLAIN, Candidate
from outpace.tuning.search import Found
from outpace.tuning.task import Level, Task
from outpace.tuning.trials import Comparison, Figures
from outpace.tuning.verdicts import TIE, Verdict

SELDOM = 0.9
"""A drafter that finds a draft in a smaller share of turns is told so."""


@dataclass(frozen=True)
class Reason:
    """Sentences about one category at one load; the first one is the verdict."""

    level: Level
    category: str
    sentences: tuple[str, ...]


def explain(found: Found, verdict: Verdict, task: Task) -> Reason:
    """Everything about one verdict."""
    sentences = [_verdict(found, verdict, task), *_sureness(found, verdict)]
    subject = verdict.best if verdict.chosen.plain else verdict.chosen
    part = None if subject is None else breakdown(found, subject, verdict.category)
    if subject is not None and part is not None:
        now = _speedup(found, subject, verdict.category) or part.speedup
        sentences += [_acceptance(subject, part, found, verdict), _time(part), _limit(part, now)]
        sentences.append(_to_change(part, now, found.level) if verdict.chosen.plain else _threshold(part, now, subject))
    return Reason(found.level, verdict.category, tuple(filter(None, sentences)))


def breakdown(found: Found, one: Candidate, category: str = ALL) -> Breakdown | None:
    """A candidate's turn taken apart, as it was measured or else predicted."""
    table = found.costs.get(one.drafter)
    known = None if found.trials is None else found.trials.figures(one, category)
    promised = found.promises.get(category, {}).get(one)
    figures = promised if known is None or known.acceptance is None else known
    if figures is None or table is None:
        return None
    return Breakdown.of(one, figures, table, found.level.batch, 0.0 if promised is None else promised.copied)


def loads(levels: Sequence[Found], verdicts: Sequence[Verdict]) -> str | None:
    """At which load drafting stops paying, for all prompts at one temperature.

    Args:
        levels: at one temperature, the smallest batch first.
        verdicts: for all prompts, one a level.
    """
    if not levels:
        return None
    told, stops = [], None
    for found, verdict in zip(levels, verdicts, strict=True):
        batch, best = found.level.batch, verdict.best
        ratio = None if best is None else _speedup(found, best)
        if ratio is not None:
            told.append((batch, f"{ratio:.2f}x at {batch}"))
        known = verdict.why != "unmeasured" or ratio is None or ratio <= 1 + TIE
        if verdict.chosen.plain and known and stops is None:
            stops = batch
        elif not verdict.chosen.plain:
            stops = None
    beyond = [(batch, f"{one:.2f}x at {batch} (predicted)") for batch, one in levels[0].beyond.items() if one]
    figures = ", ".join(text for _, text in sorted(told + beyond))
    later = [batch for batch, one in levels[0].beyond.items() if one <= 1 + TIE]
    lighter = any(batch < levels[0].level.batch and one > 1 + TIE for batch, one in levels[0].beyond.items())
    measured = max(found.level.batch for found in levels)
    if stops is not None:
        end = (
            "drafting pays at none of these loads"
            if stops == levels[0].level.batch and not lighter
            else (f"drafting stops paying at {stops} at a time")
        )
    elif any(batch > measured for batch in later):
        end = f"drafting should stop paying at {min(batch for batch in later if batch > measured)} at a time"
    else:
        end = f"drafting pays at every load that is known, {max([measured, *levels[0].beyond])} at a time at most"
    return f"By load, the best that drafts over plain decoding: {figures}; {end}." if figures else None


def _speedup(found: Found, one: Candidate, category: str = ALL) -> float | None:
    measured = _measured(found, one, category)
    promised = found.promises.get(category, {}).get(one)
    return measured.speedup.ratio.value if measured is not None else None if promised is None else promised.speedup


def _measured(found: Found, one: Candidate, category: str = ALL) -> Figures | None:
    return None if found.trials is None else found.trials.figures(one, category)


def _compared(found: Found, one: Candidate, category: str) -> Comparison | None:
    return None if found.trials is None else found.trials.compare(one, PLAIN, category)


# ---- the verdict -----------------------------------------------------------------------------------------------------


def _verdict(found: Found, verdict: Verdict, task: Task) -> str:
    chosen, best, category = verdict.chosen, verdict.best, verdict.category
    ours, other = _compared(found, chosen, category), None if best is None else _compared(found, best, category)
    if verdict.why == "faster":
        return f"Draft with {chosen.words}: {_of(ours)}."
    if verdict.why == "slower" and best is not None:
        return f"Decode plainly: {best.words}, the best that drafts, is {_of(other)}."
    if verdict.why == "unclear" and best is not None and chosen.plain:
        return (
            f"Decode plainly: it is not sure that drafting helps; {best.words}, the best that drafts, is {_of(other)}."
        )
    if verdict.why == "unclear" and best is not None:
        tail = f"it is {_of(ours)}" if best == chosen else f"{best.words} is {_of(other)}, and this is {_of(ours)}"
        return f"Draft with {chosen.words}, which gives up by itself where it does not help: {tail}."
    if verdict.why == "bound":
        return _bounded(found, verdict, task)
    if verdict.why == "predicted" and best is not None:
        promised = found.promises[category][best].speedup or 0.0
        what = "Decode plainly" if chosen.plain else f"Draft with {chosen.words}"
        who = "" if best == chosen else f"{best.words} is "
        return f"{what}: {who}predicted at {promised:.2f}x with the costs that were given; nothing was timed."
    if best is None:
        return "Decode plainly: nobody was there to draft, or nothing could be said of those who were."
    promised = found.promises[category][best].speedup or 0.0
    what = "Decode plainly" if chosen.plain else f"Draft with {chosen.words}, which gives up by itself"
    whom = "it" if best == chosen else best.words
    return f"{what}: the time held no run, and {promised:.2f}x is only what a trace promises of {whom}."


def _of(found: Comparison | None) -> str:
    if found is None:
        return "not measured"
    prompts = f"{found.prompts} prompt{'s' * (found.prompts != 1)}"
    return f"{found} plain decoding on {prompts}"


def _bounded(found: Found, verdict: Verdict, task: Task) -> str:
    own, bound = _measured(found, verdict.chosen, verdict.category), task.latency_bound_ms or math.inf
    what = "Decode plainly" if verdict.chosen.plain else f"Draft with {verdict.chosen.words}"
    if own is None:
        return f"{what}: nothing was measured within {bound:g} ms a token."
    if own.ms_per_token > bound:
        return (
            f"{what}: nothing keeps to {bound:g} ms a token, and this, with {own.ms_per_token:.1f} ms, comes nearest."
        )
    return (
        f"{what}: it waits {own.ms_per_token:.1f} ms for a token and is the fastest that keeps to {bound:g} ms "
        f"({own.speedup} plain decoding)."
    )


def _sureness(found: Found, verdict: Verdict) -> list[str]:
    """How sure it is, and whether a simpler setting stands in for the best."""
    subject = verdict.best if verdict.chosen.plain else verdict.chosen
    if found.trials is None or subject is None:
        return []
    seen, said = _compared(found, subject, verdict.category), []
    if seen is None:
        return []
    if not seen.enough and verdict.category == ALL:
        many = "1 group of prompts proves" if seen.groups == 1 else f"{seen.groups} groups of prompts prove"
        said.append(f"{many} little, {ENOUGH} are the least: a longer --budget tells more.")
    elif verdict.why == "faster":
        said.append("The whole 95 % interval lies above 1, so that this is no chance.")
    elif verdict.why == "slower":
        said.append("The whole 95 % interval lies below 1, so that this is no chance.")
    elif verdict.why == "unclear":
        said.append("The 95 % interval holds 1: a longer --budget may tell.")
    best = verdict.best
    if best is not None and verdict.why == "faster" and best != verdict.chosen:
        ahead = found.trials.compare(best, verdict.chosen, verdict.category)
        said.append(f"{best.words} is {ahead} of it, as good as no difference, and the simpler one is chosen.")
    return said


# ---- what lies behind it ---------------------------------------------------------------------------------------------


def _acceptance(subject: Candidate, part: Breakdown, found: Found, verdict: Verdict) -> str:
    known = _measured(found, subject, verdict.category) or found.promises.get(verdict.category, {}).get(subject)
    tau = None if known is None else known.tau
    rate = "" if tau is None else f", {tau:.2f} tokens a forward"
    drafted = (
        ""
        if part.found > 0.995
        else (f"; {'it finds a draft' if subject.drafter == LOOKUP else 'it drafts'} in {part.found:.0%} of the turns")
    )
    return (
        f"Acceptance α, the share of drafted tokens accepted where all before them were, is {part.alpha:.2f}{rate}"
        f"{drafted}."
    )


def _time(part: Breakdown) -> str:
    rows = 1 + part.nodes
    total = part.draft_ms + part.verify_ms + (part.other_ms or 0.0)
    shares = [
        f"{part.draft_ms:.1f} ms drafting ({part.draft_ms / total:.0%})",
        f"{part.verify_ms:.1f} ms in the target's forward ({part.verify_ms / total:.0%}; up to {rows} rows a sequence)",
    ]
    if part.other_ms is not None:
        shares.append(f"{part.other_ms:.1f} ms in all else, prompts included ({part.other_ms / total:.0%})")
    return f"A turn takes {total:.1f} ms: {', '.join(shares)}; a plain turn takes {part.plain_ms:.1f} ms."


def _limit(part: Breakdown, now: float) -> str:
    """Changes of like size, told as what they would make of the speed-up; the largest names the limit."""
    scale = now / part.speedup
    gain = part.accepted(part.alpha + BETTER).speedup / part.accepted(part.alpha).speedup
    changes = {
        "acceptance": (gain * now, f"a drafter with α {min(1.0, part.alpha + BETTER):.2f}"),
        "the cost of drafting": (part.cheaper_draft().speedup * scale, "drafting at half its cost"),
        "the cost of verifying rows": (part.cheaper_rows().speedup * scale, "further rows at half their cost"),
    }
    if part.found < SELDOM:
        changes["how seldom there is a draft"] = part.oftener().speedup * scale, "a draft in half of the other turns"
    limit = max(changes, key=lambda name: changes[name][0])
    told = ", ".join(f"{what} {value:.2f}x" for value, what in changes.values())
    return f"What limits it most is {limit}: it is {now:.2f}x now, and would be with {told}."


def _threshold(part: Breakdown, now: float, subject: Candidate) -> str:
    least = part.needed(now / part.speedup, adapts=subject.num_draft_tokens == "auto")
    if least <= 0:
        return "Drafts like these cost nothing here: any acceptance pays."
    return f"It pays as long as α is {least:.2f} or more." if least < part.alpha else ""


def _to_change(part: Breakdown, now: float, level: Level) -> str:
    """What would make drafting pay."""
    scale, ways = now / part.speedup, []
    least, step = part.needed(scale, adapts=True), part.affordable_step(scale)
    if part.alpha < least <= 1:
        ways.append(f"an α of {least:.2f} or more (now {part.alpha:.2f})")
    if 0 < step < part.costs.draft_step:
        ways.append(f"draft steps of {step:.1f} ms or less (now {part.costs.draft_step:.1f})")
    if level.batch > 1:
        ways.append("fewer sequences at a time")
    if level.temperature > 0:
        ways.append("a lower temperature")
    if least > 1:
        ways.append("cheaper drafts or rows: at these costs not even drafts that are always right would pay")
    return f"What would change that: {', or '.join(ways)}." if ways else ""
