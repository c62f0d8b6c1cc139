"""Who goes on: the candidates that a search begins with by their promises, and after every round the better half.

Knows nothing of clocks or models: promises and trials come in, names go out.
"""

import math
from collections.abc import Mapping, Sequence

from outpace.decoding.plan import ALL
from outpace.tuning.candidates import PLAIN, Candidate
from outpace.tuning.replay import Prediction
from outpace.tuning.trials import Trials
from outpace.tuning.verdicts import TIE

PRIOR = 2.0
"""A promise counts as much as so many groups of prompts."""
FINALISTS, OWN_FINALISTS = 2, 1
"""Who is left in the end: of all prompts, and of a category besides."""
SIZES = (8, 6, 4, 3, 2)
"""How many may begin, as the time allows."""


def own_entrants(count: int) -> int:
    """How many a category may add to ``count`` for all prompts."""
    return max(1, count // 4)


def entrants(
    candidates: Sequence[Candidate],
    promises: Mapping[str, Mapping[Candidate, Prediction]],
    categories: Sequence[str],
    count: int,
) -> dict[str, list[Candidate]]:
    """Who is measured first, by what was promised: for all prompts, and what each category adds to them.

    Among them is always the most promising controller, which a doubtful verdict falls back on, and the most promising
    fixed draft. A candidate without a promise counts as one that is as fast as plain decoding.

    Args:
        candidates: all of them; plain decoding is measured anyway.
        promises: by category and for ``all``.
        categories: who may add.
        count: how many for all prompts, 2 or more.
    """
    drafting = [one for one in candidates if not one.plain]
    ranked = sorted(drafting, key=lambda one: (-_promise(promises, ALL, one), one.effort))
    kinds = [[one for one in ranked if (one.num_draft_tokens == "auto") == auto] for auto in (True, False)]
    first = [kind[0] for kind in kinds if kind]
    found = {ALL: sorted([*first, *[one for one in ranked if one not in first]][:count], key=ranked.index)}
    for category in categories:
        best = sorted(drafting, key=lambda one: (-_promise(promises, category, one), one.effort))
        found[category] = best[: own_entrants(count)]
    return found


def survivors(
    alive: Mapping[str, Sequence[Candidate]], trials: Trials, promises: Mapping[str, Mapping[Candidate, Prediction]]
) -> dict[str, list[Candidate]]:
    """The better half of each field, by what was measured over plain decoding and, a little, by what was promised.

    Scores are told apart in steps of ``TIE``; of equals the simpler ones stay.
    For all prompts the best controller stays in whatever it brings: doubt falls back on it, and ties do.

    Source: sequential halving (Karnin, Koren and Somekh 2013).
    """
    found: dict[str, list[Candidate]] = {}
    for category, field in alive.items():
        least = FINALISTS if category == ALL else OWN_FINALISTS
        scores = {one: score(one, category, trials, promises) for one in field}
        ranked = sorted(field, key=lambda one: (-round(math.log(scores[one], 1 + TIE)), one.effort))
        stay = ranked[: max(least, (len(field) + 1) // 2)]
        controllers = [one for one in ranked if one.num_draft_tokens == "auto"]
        if category == ALL and controllers and controllers[0] not in stay:
            stay[-1] = controllers[0]
        found[category] = stay
    return found


def finished(alive: Mapping[str, Sequence[Candidate]]) -> bool:
    """Whether only finalists are left."""
    return all(len(field) <= (FINALISTS if category == ALL else OWN_FINALISTS) for category, field in alive.items())


def rounds_left(alive: Mapping[str, Sequence[Candidate]]) -> int:
    """Rounds until there are only finalists, that of the finalists included."""
    most, rounds = max((len(field) for field in alive.values()), default=0), 1
    while most > FINALISTS:
        most, rounds = max(FINALISTS, (most + 1) // 2), rounds + 1
    return rounds if rounds > 1 or finished(alive) else 2


def score(
    one: Candidate, category: str, trials: Trials, promises: Mapping[str, Mapping[Candidate, Prediction]]
) -> float:
    """The geometric mean of the measured speed-up, a weight a group, and the promised one."""
    measured = trials.compare(one, PLAIN, category)
    promised = _promise(promises, category, one)
    if measured is None:
        return promised
    groups = measured.groups
    mixed: float = (measured.ratio.value**groups * promised**PRIOR) ** (1 / (groups + PRIOR))
    return mixed


def _promise(promises: Mapping[str, Mapping[Candidate, Prediction]], category: str, one: Candidate) -> float:
    """Of the category, else of all prompts; a controller without any promises what its drafter's best chain does."""
    for name in (category, ALL):
        known = promises.get(name, {})
        if one in known:
            return known[one].speedup or 1.0
        if one.num_draft_tokens == "auto":
            others = [found.speedup or 1.0 for other, found in known.items() if other.drafter == one.drafter]
            if others:
                return max(others)
    return 1.0
