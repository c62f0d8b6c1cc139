"""Who wins: one candidate for all prompts of a load, and another one for a category only where its prompts ask for it.

Knows nothing of how runs were taken or of how a verdict is worded.

* Drafting wins only beyond doubt: the whole interval over plain decoding lies above 1, from five groups of prompts on.
* Where that is not so, the controller of the best drafter is chosen if it was measured and was not slower, as it gives
  up by itself; else plain decoding.
* Of settings that are faster beyond doubt and give up no more than ``TIE`` the simplest is chosen.
* A category has a verdict of its own where its best setting beats the one for all beyond doubt, from three groups on.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from outpace.decoding.plan import ALL
from outpace.tuning.candidates import PLAIN, Candidate
from outpace.tuning.replay import Prediction
from outpace.tuning.trials import Trials

TIE = 0.02
"""A simpler setting may be slower by this share: so near to each other the one ahead is ahead by chance."""
OWN = 3
"""Groups of a category that may prove that it needs a choice of its own: what is at stake is a detour, not a loss."""
HOPE = 1.1
"""A speed-up that is only predicted has to be as large for the controller to be tried unmeasured."""

Why = Literal["faster", "slower", "unclear", "same", "bound", "predicted", "unmeasured"]
"""Why a candidate was chosen: it is faster than plain decoding beyond doubt; everything is slower; neither is sure; the
category is like all others; of those that keep to the latency bound it is the fastest; by predictions alone; nothing is
known."""


@dataclass(frozen=True)
class Verdict:
    """What was chosen for one category, or for ``all``.

    Args:
        category: its name.
        chosen: the winner.
        best: the fastest of those that draft, whatever was chosen; None where none was measured or predicted.
        why: see ``Why``.
    """

    category: str
    chosen: Candidate
    best: Candidate | None
    why: Why


def decide(
    trials: Trials, finalists: Sequence[Candidate], category: str = ALL, *, bound_ms: float | None = None
) -> Verdict | None:
    """The winner of a category by its own runs; None where no finalist was measured.

    Args:
        trials: what was measured.
        finalists: who was measured to the end, plain decoding aside.
        category: where to look.
        bound_ms: what a token may take; candidates beyond it are out, unless all are.
    """
    field = [one for one in finalists if trials.places(one, category)]
    if not field:
        return None
    best = _fastest(trials, field, PLAIN, category)
    if bound_ms is not None:
        allowed = _within(trials, (PLAIN, *field), category, bound_ms)
        field = [one for one in allowed if not one.plain]
        if not field:
            return Verdict(category, PLAIN, best, "bound")
        best = _fastest(trials, field, PLAIN, category)
        if PLAIN not in allowed:
            return Verdict(category, _simplest(trials, best, field, category), best, "bound")
    faster = [one for one in field if _surely(trials, one, category)[0] > 1]
    if best in faster:
        return Verdict(category, _simplest(trials, best, faster, category), best, "faster")
    if _surely(trials, best, category)[1] < 1:
        return Verdict(category, PLAIN, best, "slower")
    return Verdict(category, _cautious(trials, best, category, bound_ms), best, "unclear")


def decide_own(
    trials: Trials,
    whole: Verdict,
    finalists: Sequence[Candidate],
    category: str,
    *,
    bound_ms: float | None = None,
) -> Verdict:
    """The winner of one category: the one for all, unless another beats it here beyond doubt.

    Args: as for ``decide``; ``whole`` is the verdict for all prompts.
    """
    base, field = whole.chosen, [one for one in (PLAIN, *finalists) if trials.places(one, category)]
    same = Verdict(category, base, whole.best, "same")
    if base not in field:
        return same
    if bound_ms is not None:
        allowed = _within(trials, field, category, bound_ms)
        if base not in allowed:
            return decide(trials, finalists, category, bound_ms=bound_ms) or same
        field = allowed
    best = _fastest(trials, field, base, category)
    if not _beats(trials, best, base, category):
        return same
    drafting = [one for one in field if not one.plain]
    ahead = _fastest(trials, drafting, PLAIN, category) if drafting else None
    if best.plain:
        return Verdict(category, PLAIN, ahead, "slower")
    if not _beats(trials, best, PLAIN, category):  # another way to be no better than plain decoding
        return Verdict(category, _cautious(trials, best, category, bound_ms), ahead, "unclear")
    faster = [one for one in drafting if _beats(trials, one, PLAIN, category)]
    return Verdict(category, _simplest(trials, best, faster, category), best, "faster")


def decide_unmeasured(predictions: Mapping[Candidate, Prediction], category: str = ALL) -> Verdict:
    """What to do where nothing was measured: the controller where much is promised, else plain decoding."""
    known = {one: _promise(found) for one, found in predictions.items()}
    if not known:
        return Verdict(category, PLAIN, None, "unmeasured")
    autos = [one for one in known if one.num_draft_tokens == "auto"]
    best = max(known, key=lambda one: known[one])
    auto = max(autos, key=lambda one: known[one], default=PLAIN)
    return Verdict(category, auto if known.get(auto, 0.0) >= HOPE else PLAIN, best, "unmeasured")


def decide_predicted(predictions: Mapping[Candidate, Prediction], category: str = ALL) -> Verdict:
    """The winner by predictions alone, for costs of a machine that is not at hand, by their intervals."""
    known = {one: _promise(found) for one, found in predictions.items()}
    if not known:
        return Verdict(category, PLAIN, None, "unmeasured")
    best = max(known, key=lambda one: known[one])
    interval = predictions[best].speedup_ci
    if known[best] <= 1 or (interval is not None and interval[1] < 1):
        return Verdict(category, PLAIN, best, "predicted")
    if interval is None or interval[0] <= 1:
        autos = [one for one in known if one.num_draft_tokens == "auto" and one.drafter == best.drafter]
        auto = max(autos, key=lambda one: known[one], default=PLAIN)
        return Verdict(category, auto if known.get(auto, 0.0) >= 1 else PLAIN, best, "predicted")
    close = [one for one in known if known[one] >= (1 - TIE) * known[best]]
    return Verdict(category, min(close, key=lambda one: one.effort), best, "predicted")


def _promise(found: Prediction) -> float:
    return 0.0 if found.speedup is None else found.speedup


def _ratio(trials: Trials, ours: Candidate, theirs: Candidate, category: str) -> float:
    found = trials.compare(ours, theirs, category)
    return 0.0 if found is None else found.ratio.value


def _fastest(trials: Trials, field: Sequence[Candidate], base: Candidate, category: str) -> Candidate:
    return max(field, key=lambda one: _ratio(trials, one, base, category))


def _wait(trials: Trials, one: Candidate, category: str) -> float:
    found = trials.figures(one, category)
    return math.inf if found is None else found.ms_per_token


def _within(trials: Trials, field: Sequence[Candidate], category: str, bound_ms: float) -> list[Candidate]:
    """Those that keep to the bound, or the one that misses it by least."""
    waits = {one: _wait(trials, one, category) for one in field}
    return [one for one in field if waits[one] <= bound_ms] or [min(field, key=lambda one: waits[one])]


def _surely(trials: Trials, one: Candidate, category: str) -> tuple[float, float]:
    """Between what the speed-up over plain decoding surely lies; anything, where too few groups were measured."""
    found = trials.compare(one, PLAIN, category)
    return (found and found.enough and found.interval) or (0.0, math.inf)


def _beats(trials: Trials, ours: Candidate, theirs: Candidate, category: str) -> bool:
    """Whether one is faster than the other in this category, by more than a tie and beyond doubt."""
    found = trials.compare(ours, theirs, category)
    if found is None or found.groups < OWN:
        return False
    return found.ratio.low > 1 and found.ratio.value > 1 + TIE


def _simplest(trials: Trials, best: Candidate, field: Sequence[Candidate], category: str) -> Candidate:
    """The simplest of those that are hardly slower than the best."""
    close = [one for one in field if _ratio(trials, one, best, category) >= 1 - TIE]
    return min(close, key=lambda one: one.effort, default=best)


def _cautious(trials: Trials, best: Candidate, category: str, bound_ms: float | None) -> Candidate:
    """The controller of the best drafter where it was not slower than plain decoding, else plain decoding."""
    autos = [
        one
        for one in trials.runs
        if one.num_draft_tokens == "auto"
        and one.drafter == best.drafter
        and trials.places(one, category)
        and (bound_ms is None or _wait(trials, one, category) <= bound_ms)
    ]
    if _ratio(trials, best, PLAIN, category) <= 1 or not autos:
        return PLAIN
    auto = _fastest(trials, autos, PLAIN, category)
    return auto if _ratio(trials, auto, PLAIN, category) >= 1 else PLAIN
