"""What a search comes to: a plan, every candidate's figures, and the reasons.

Knows nothing of how they were found or of how they are shown.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from outpace.decoding.plan import ALL, Choice, Evidence, Plan
from outpace.models.target import Target
from outpace.tuning.candidates import Candidate
from outpace.tuning.reasons import Reason, explain, loads
from outpace.tuning.search import Found, Searched
from outpace.tuning.task import Level
from outpace.tuning.trials import Figures
from outpace.tuning.verdicts import Verdict, decide, decide_own, decide_predicted, decide_unmeasured


@dataclass(frozen=True)
class Row:
    """One candidate in one category at one load; None where a figure was not taken.

    Args:
        category, batch, temperature: where.
        drafter, num_draft_tokens, tree, depth, rule: the candidate.
        fate: ``chosen``, ``measured``, ``not measured`` or why it was refused.
        predicted: the speed-up that a replay of traces promised.
        prompts: how many it decoded.
        speedup, speedup_ci: over plain decoding, with the 95 % interval; a single group of prompts has none.
        tokens_per_second, ms_per_token, tau, acceptance, acceptance_by_position, plain_turn_share: see ``Figures``.
    """

    category: str
    batch: int
    temperature: float
    drafter: str
    num_draft_tokens: int | Literal["auto"]
    tree: str
    depth: int | None
    rule: str | None
    fate: str
    predicted: float | None = None
    prompts: int = 0
    speedup: float | None = None
    speedup_ci: tuple[float, float] | None = None
    tokens_per_second: float | None = None
    ms_per_token: float | None = None
    tau: float | None = None
    acceptance: float | None = None
    acceptance_by_position: tuple[float, ...] = ()
    plain_turn_share: float | None = None


@dataclass(frozen=True)
class Tuned:
    """The answer.

    Args:
        plan: the choices, each with its reason and its evidence.
        candidates: a row for every candidate at every load, and for every category in which it was measured.
        reasons: for all prompts at every load, then for every category that has a choice of its own.
        loads: at which load drafting stops paying, a sentence a temperature.
        alike: categories that have no choice of their own, by load.
    """

    plan: Plan
    candidates: list[Row]
    reasons: list[Reason]
    loads: list[str]
    alike: dict[Level, list[str]]


def conclude(searched: Searched, target: Target) -> Tuned:
    """The plan that a search asks for, complete for every load that it reached."""
    task, names = searched.task, [name for name in searched.categories if name is not None]
    verdicts = {found.level: _verdicts(found, searched, names) for found in searched.levels}
    own = [name for name in names if any(found[name].why != "same" for found in verdicts.values() if name in found)]
    choices, reasons, told = [], [], []
    for found in searched.levels:
        here = verdicts[found.level]
        for name in [ALL, *own]:
            if here[name].why != "same":
                reasons.append(explain(found, here[name], task))
            choices.append(_choice(found, here[name], searched, reasons))
    for heat in sorted(task.temperatures):
        levels = [found for found in searched.levels if found.level.temperature == heat]
        sentence = loads(levels, [verdicts[found.level][ALL] for found in levels])
        told += [sentence] if sentence is not None else []
    plan = Plan(target.name, target.fingerprint, tuple(choices), task.goal, task.latency_bound_ms)
    alike = {level: [name for name in names if found[name].why == "same"] for level, found in verdicts.items()}
    rows = [row for found in searched.levels for row in _rows(found, searched, verdicts[found.level])]
    return Tuned(plan, rows, reasons, told, alike)


def _verdicts(found: Found, searched: Searched, names: list[str]) -> dict[str, Verdict]:
    bound = searched.task.latency_bound_ms
    if found.trials is None:
        whole = decide_predicted(found.promises[ALL])
    else:
        measured = decide(found.trials, found.finalists(), bound_ms=bound)
        whole = measured or decide_unmeasured(found.promises[ALL])
    here = {ALL: whole}
    for name in names:
        if found.trials is not None:
            here[name] = decide_own(found.trials, whole, found.finalists(name), name, bound_ms=bound)
        elif name in found.promises:
            here[name] = decide_predicted(found.promises[name], name)
        if name not in here or here[name].chosen == whole.chosen:
            here[name] = Verdict(name, whole.chosen, whole.best, "same")
    return here


def _choice(found: Found, verdict: Verdict, searched: Searched, reasons: list[Reason]) -> Choice:
    """The choice of a verdict; the lightest load and the lowest temperature hold below themselves too."""
    level, task = found.level, searched.task
    batch = 1 if level.batch == min(task.batches) else level.batch
    heat = 0.0 if level.temperature == min(task.temperatures) else level.temperature
    told = {(one.level, one.category): one.sentences[0] for one in reasons}
    category = verdict.category if verdict.why != "same" else ALL
    reason = f"{level.words}: {told[level, category]}"
    return verdict.chosen.choice(verdict.category, batch, heat, reason, _evidence(found, verdict))


def _evidence(found: Found, verdict: Verdict) -> Evidence:
    own = None if found.trials is None else found.trials.figures(verdict.chosen, verdict.category)
    promised = found.promises.get(verdict.category, {}).get(verdict.chosen)
    predicted = _short(None if promised is None else promised.speedup)
    if own is None:
        return Evidence(predicted=predicted)
    interval = own.speedup.interval or (None, None)
    return Evidence(
        prompts=own.speedup.prompts,
        speedup=_short(own.speedup.ratio.value),
        low=_short(interval[0]),
        high=_short(interval[1]),
        predicted=predicted,
        tokens_per_second=_short(own.tokens_per_second),
        ms_per_token=_short(own.ms_per_token),
        tau=_short(own.tau),
        acceptance=_short(own.acceptance),
    )


def _short(value: float | None) -> float | None:
    """Four digits: more are noise."""
    return None if value is None else float(f"{value:.4g}")


def _rows(found: Found, searched: Searched, verdicts: dict[str, Verdict]) -> Iterator[Row]:
    for category, verdict in verdicts.items():
        for one in searched.candidates:
            figures = None if found.trials is None else found.trials.figures(one, category)
            if figures is None and category != ALL:
                continue
            yield _row(found, one, verdict, figures)


def _row(found: Found, one: Candidate, verdict: Verdict, figures: Figures | None) -> Row:
    fate = "chosen" if one == verdict.chosen else found.fates.get(one, "measured" if figures else "not measured")
    promised = found.promises.get(verdict.category, {}).get(one)
    row = Row(
        verdict.category,
        found.level.batch,
        found.level.temperature,
        one.drafter,
        one.num_draft_tokens,
        one.tree,
        one.depth,
        one.rule,
        fate,
        None if promised is None else promised.speedup,
    )
    if figures is None:
        return row
    return replace(
        row,
        prompts=figures.speedup.prompts,
        speedup=figures.speedup.ratio.value,
        speedup_ci=figures.speedup.interval,
        tokens_per_second=figures.tokens_per_second,
        ms_per_token=figures.ms_per_token,
        tau=figures.tau,
        acceptance=figures.acceptance,
        acceptance_by_position=figures.acceptance_by_position,
        plain_turn_share=figures.plain_turn_share,
    )
