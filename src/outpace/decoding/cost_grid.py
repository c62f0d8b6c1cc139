"""Costs for tuning: every batch, context and draft that may be chosen, measured in a given time.

Knows nothing of what will be chosen.
"""

import statistics
import time
import warnings
from collections.abc import Sequence
from dataclasses import replace

from outpace.decoding.costs import CONTEXTS, Conditions, CostTable, draft_costs, measure
from outpace.decoding.stopwatch import FEWEST, Bench, Filler
from outpace.drafters.budget import CHAIN, Branching
from outpace.drafters.drafter import Drafter
from outpace.drafters.either import computing
from outpace.errors import UsageError
from outpace.models.staging import Progress, silent
from outpace.models.target import Target
from outpace.verification.probabilities import Sampling

BATCHES = (1, 2, 4, 8, 16)
ROWS = 64
SECONDS = 60.0
LAST = 0.3
"""The share of the time that is kept for trees and for reading prompts."""
GREEDY = Sampling()
_TEXT = 256  # tokens of the prompt whose reading is timed


def tuning_costs(
    target: Target,
    drafter: Drafter | None,
    *,
    batches: Sequence[int] = BATCHES,
    contexts: Sequence[int] = CONTEXTS,
    rows: int = ROWS,
    sampling: Sampling = GREEDY,
    seeded: bool = False,
    branchings: Sequence[Branching] = (),
    seconds: float = SECONDS,
    progress: Progress = silent,
) -> CostTable:
    """Measure what turns cost at every batch and context, for chains and for trees, and what reading a prompt costs.

    The shortest context is measured for every batch with three rounds at least, however little time there is; longer
    contexts and more rounds as far as ``seconds`` reach.

    Args:
        target, drafter: the pair; None measures verification alone.
        batches: sequences at once, each 1 or more.
        contexts: tokens that each text has, each 1 or more.
        rows: the most rows a sequence, the root and the draft, 1 to 65.
        sampling, seeded: the law and whether requests have a seed.
        branchings: trees whose drafting is timed besides that of chains; of those that the drafter cannot draft none.
        seconds: above 0.
        progress: told how much is done.

    Raises:
        UsageError: a number outside of these.
    """
    _check(batches, contexts, rows, seconds)
    drafter, begin = computing(drafter), time.perf_counter()
    conditions = Conditions(max(batches), rows, sampling, seeded)
    share = 1.0 if drafter is None else 1 - LAST
    table = measure(
        target,
        drafter,
        conditions,
        batches=[*{1, *batches}],  # a speed-up is over plain decoding, whose batch is measured too
        contexts=contexts,
        seconds=seconds * share,
        progress=progress,
    )
    shapes = [one for one in branchings if drafter is not None and one.kind in drafter.branchings and not one.is_chain]
    trees: dict[str, dict[int, tuple[float, float]]] = {str(one): {} for one in shapes}
    places = [(one, batch) for one in shapes for batch in sorted({1, *batches})]
    context = min(context for _, context in table.cells)
    for done, (one, batch) in enumerate(places):
        progress(done, len(places), "measuring what trees cost here")
        assert drafter is not None
        bench = Bench(target, drafter, batch, context, conditions.size, sampling, seeded, one)
        left = begin + seconds - time.perf_counter()
        until = time.perf_counter() + left / (len(places) - done)
        trees[str(one)][batch] = draft_costs(bench, conditions.size - 1, until)
    return replace(table, trees=trees, read=_reading(target, drafter, sampling))


def _reading(target: Target, drafter: Drafter | None, sampling: Sampling) -> tuple[float, float]:
    """Milliseconds a token of a prompt, without and with a drafter; a head reads it in its first turn."""
    length = max(1, min(_TEXT, target.max_positions - 3))

    def read(guesser: Drafter) -> float:
        begin = time.perf_counter()
        bench = Bench(target, guesser, 1, length, 2, sampling, False, CHAIN)
        opened = time.perf_counter() - begin
        first, *later = (bench.draft_ms(1) for _ in range(1 + FEWEST))
        return (1e3 * opened + max(0.0, first - statistics.median(later))) / length

    def middle(guesser: Drafter) -> float:
        read(guesser)
        return statistics.median(read(guesser) for _ in range(FEWEST))

    plainly = middle(Filler(()))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a drafter's short context is said when it matters
        return plainly, plainly if drafter is None else max(plainly, middle(drafter))


def _check(batches: Sequence[int], contexts: Sequence[int], rows: int, seconds: float) -> None:
    for name, values in (("batches", batches), ("contexts", contexts)):
        if not values or min(values) < 1:
            raise UsageError(f"{name} is {list(values)}; allowed: one number or more, each from 1 on")
    if not 1 <= rows <= 65:
        raise UsageError(f"rows is {rows}; allowed: 1 to 65")
    if not seconds > 0:
        raise UsageError(f"seconds is {seconds:g}; allowed: above 0")
