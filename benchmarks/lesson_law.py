"""The lesson's test, done rightly: samples of ``speculative_decode`` beside the exact law, and beside the noise floor.

    python benchmarks/lesson_law.py                       # 10,000 and 1,000,000 samples, half an hour on one core
    python benchmarks/lesson_law.py --samples 10000       # half a minute
    python benchmarks/lesson_law.py --vocab 16            # 4,096 cells instead of 512
    python benchmarks/lesson_law.py --quick               # does it run? seconds

Target and draft are tables: the law of any tokens is known exactly. Counted are the second to fourth new tokens
jointly, the ones that a turn drafts, rejects and draws again: ``vocab ** 3`` cells. The first one is the prefill's.

"KL below 0.01" is a question of the sample size before it is one of the rule: a correct sampler has an expected KL of
about (cells - 1) / 2n, and an expected total variation (TV) that De Moivre's formula gives exactly. Both stand beside
what was measured. A correct sampler stays below each threshold with probability 1 - 1e-6 (TV: McDiarmid's inequality,
so more than that; KL: 2n KL as a chi-square, scaled to its exact mean). A drafter that lies about its law is a control:
it must be caught.

Gate: TV and KL below their thresholds for every rule and size, against the exact law and against plain sampling; the
control above them at the largest size.
"""

import math
import sys
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from common import Estimate, Gate, arguments, document, judge, save, show
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track
from scipy import stats

from outpace.decoding.generate import speculative_decode
from outpace.drafters.budget import Budget
from outpace.drafters.drafter import DraftState, Proposal
from outpace.drafters.small import Small
from outpace.models.target import Target
from outpace.models.toy import random_table, table_target
from outpace.verification.coins import Keys
from outpace.verification.probabilities import Sampling

WINDOW, PROMPT = 3, 0
FALSE_ALARM = 1e-6
PLAIN, CONTROL = "plain (K 0)", "control: rejection, wrong draft law"
RULES: dict[str, str | None] = {"rejection": "rejection", "block": "block", "coupling (seeded)": None}
PROTOCOL = (
    "table target and table draft, temperature 1, real coin generator; joint law of the second to fourth new tokens; "
    f"thresholds with false-alarm probability {FALSE_ALARM:g}"
)


class Liar(Small):
    """Draws from one law and reports another, flatter one: the fault that a wrong temperature makes."""

    def propose(self, state: DraftState, budget: Budget, sampling: list[Sampling], keys: Keys) -> Proposal:
        honest = super().propose(state, budget, sampling, keys)
        if honest.draft_probs is None:
            return honest
        flat = honest.draft_probs.sqrt()
        return Proposal(honest.tree, flat / flat.sum(-1, keepdim=True))


def exact_law(table: NDArray[np.float64]) -> NDArray[np.float64]:
    """The joint law of the second to fourth token behind the prompt, flat."""
    rows = np.exp(table - table.max(1, keepdims=True))
    rows /= rows.sum(1, keepdims=True)
    second = rows[PROMPT] @ rows
    joint: NDArray[np.float64] = second[:, None, None] * rows[:, :, None] * rows[None]
    return joint.ravel()


def histogram(
    target: Target, draft: Any, samples: int, depth: int, rule: str | None, first_seed: int, args: Any
) -> NDArray[np.int64]:
    """Counts of every cell, drawn in chunks; a seed each."""
    counts = np.zeros(args.vocab**WINDOW, np.int64)
    for start in range(0, samples, args.batch_size):
        rows = speculative_decode(
            target,
            draft,
            [PROMPT],
            depth,
            1.0,
            max_new_tokens=1 + WINDOW + 1,
            seed=first_seed + start,
            num_samples=min(args.batch_size, samples - start),
            rule=rule,
            batch_size=args.batch_size,
        ).numpy()
        cells = np.ravel_multi_index(tuple(rows[:, 1 : 1 + WINDOW].T), (args.vocab,) * WINDOW)
        counts += np.bincount(cells, minlength=len(counts))
    return counts


def expected_tv(law: NDArray[np.float64], samples: int) -> float:
    """E[TV] of an empirical law beside the law itself: De Moivre's mean absolute deviation of the binomial, summed."""
    above = np.floor(samples * law) + 1
    deviation = 2 * above * (1 - law) * stats.binom.pmf(above, samples, law)
    return float(deviation.sum() / (2 * samples))


def expected_kl(law: NDArray[np.float64], samples: int) -> float:
    """E[KL] of an empirical law beside the law itself, over each cell's binomial; nearly (cells - 1) / 2n."""
    total = 0.0
    for chance in law:
        centre, width = samples * chance, 12 * math.sqrt(samples * chance) + 40
        counts = np.arange(max(1, math.floor(centre - width)), min(samples, math.ceil(centre + width)) + 1)
        weights = stats.binom.pmf(counts, samples, chance)
        total += float((weights * counts / samples * np.log(counts / centre)).sum())
    return total


def divergence(first: NDArray[np.float64], second: NDArray[np.float64]) -> float:
    """KL in nats; cells that the first never shows add nothing."""
    seen = first > 0
    return float((first[seen] * np.log(first[seen] / second[seen])).sum())


def beside_law(counts: NDArray[np.int64], law: NDArray[np.float64]) -> dict[str, float]:
    """TV and KL of a histogram beside the exact law, each with its expectation and its threshold."""
    samples = int(counts.sum())
    shares, freedom = counts / samples, len(law) - 1
    floor, mean = expected_tv(law, samples), expected_kl(law, samples)
    return {
        "tv": 0.5 * float(np.abs(shares - law).sum()),
        "tv_expected": floor,
        "tv_threshold": floor + math.sqrt(math.log(1 / FALSE_ALARM) / (2 * samples)),
        "kl": divergence(shares, law),
        "kl_expected": mean,
        "kl_threshold": mean * float(stats.chi2.isf(FALSE_ALARM, freedom)) / freedom,
    }


def beside_sample(counts: NDArray[np.int64], other: NDArray[np.int64], law: NDArray[np.float64]) -> dict[str, float]:
    """The same of two histograms of one size; half a count is added to each cell, so that KL is finite."""
    samples, freedom = int(counts.sum()), len(law) - 1
    floor = float(np.sqrt(law * (1 - law) / (math.pi * samples)).sum())
    smooth = [(one.astype(np.float64) + 0.5) / (samples + 0.5 * len(law)) for one in (counts, other)]
    return {
        "tv": 0.5 * float(np.abs(counts - other).sum()) / samples,
        "tv_expected": floor,
        "tv_threshold": floor + math.sqrt(math.log(1 / FALSE_ALARM) / samples),
        "kl": divergence(smooth[0], smooth[1]),
        "kl_expected": freedom / samples,
        "kl_threshold": float(stats.chi2.isf(FALSE_ALARM, freedom)) / samples,
    }


def measure(samples: int, args: Any) -> list[dict[str, Any]]:
    """Every rule and the control at one sample size."""
    tables = [random_table(args.vocab, seed=args.seed + side) for side in range(2)]
    target, draft = table_target(tables[0]), table_target(tables[1], name="draft")
    law = exact_law(tables[0].numpy())
    jobs: list[tuple[str, Any, int, str | None]] = [(PLAIN, draft, 0, "match")]
    jobs += [(name, draft, WINDOW, rule) for name, rule in RULES.items()]
    jobs.append((CONTROL, Liar(draft, target), WINDOW, "rejection"))
    found, plain = [], np.zeros(0, np.int64)
    for place, (name, guesser, depth, rule) in enumerate(track(jobs, f"{samples:,}", console=Console(stderr=True))):
        begin = time.perf_counter()
        # Seeds of two jobs never meet: plain and drafted samples must be independent.
        counts = histogram(target, guesser, samples, depth, rule, (place + 1) << 40, args)
        seconds = time.perf_counter() - begin
        plain = counts if name == PLAIN else plain
        cell: dict[str, Any] = {"rule": name, "samples": samples, "seconds": seconds, "law": beside_law(counts, law)}
        if name != PLAIN:
            cell["plain"] = beside_sample(counts, plain, law)
        found.append(cell)
    return found


def report(cells: Sequence[dict[str, Any]]) -> None:
    figures = ("tv", "tv_expected", "tv_threshold", "kl", "kl_expected", "kl_threshold")
    columns = ("rule", "samples", "beside", *(figure.replace("_", " ") for figure in figures), "µs a sample")
    rows: list[list[object]] = []
    for cell in cells:
        for beside, one in (("exact law", cell["law"]), ("plain samples", cell.get("plain"))):
            if one is not None:
                pace = 1e6 * cell["seconds"] / cell["samples"]
                rows.append([cell["rule"], f"{cell['samples']:,}", beside, *(one[key] for key in figures), pace])
    show("joint law of three tokens", columns, rows)


def gates_of(cells: Sequence[dict[str, Any]]) -> list[Gate]:
    """One gate a cell and comparison: the larger of TV and KL, each in units of its threshold."""
    gates = []
    largest = max(cell["samples"] for cell in cells)
    for cell in cells:
        for beside in ("law", "plain"):
            one = cell.get(beside)
            caught = cell["rule"] == CONTROL
            if one is None or (caught and (cell["samples"] < largest or beside == "plain")):
                continue
            worst = max(one["tv"] / one["tv_threshold"], one["kl"] / one["kl_threshold"])
            name = f"{cell['rule']}, {cell['samples']:,}, beside {beside}: of threshold"
            gates.append(Gate(name, Estimate(worst, worst, worst), 1.0, ceiling=not caught))
    return gates


def main(argv: list[str] | None = None) -> int:
    parser = arguments(__doc__)
    parser.add_argument("--samples", type=int, nargs="+", default=[10_000, 1_000_000])
    parser.add_argument("--vocab", type=int, default=8)
    parser.add_argument("--batch-size", type=int, default=32768, help="samples decoded at once")
    parser.add_argument("--seed", type=int, default=1, help="of the two tables")
    args = parser.parse_args(argv)
    if args.quick:
        args.samples = [1000, 4000]
    cells = [cell for samples in args.samples for cell in measure(samples, args)]
    report(cells)
    gates = gates_of(cells)
    status = judge(gates, args.quick)
    records = [gate.record() for gate in gates]
    args.target = "table"
    save("lesson_law", args, document("lesson_law", args, PROTOCOL, results=cells, gates=records))
    return status


if __name__ == "__main__":
    sys.exit(main())
