"""``outpace check`` on the default: is drafting lossless here, and how long does it take to say so?

    python benchmarks/losslessness.py                      # lookup chains, the default's own trees: about 7 minutes
    python benchmarks/losslessness.py --draft my-drafter   # and a drafter of yours, in dynamic trees
    python benchmarks/losslessness.py --pairs 2 3 --out benchmarks/results/losslessness_own.json   # some of them
    python benchmarks/losslessness.py --quick              # does it run? one minute

Each pair is checked as the verb checks it: greedy, seeded and stopped texts, sampled laws at temperatures 0.5, 1 and
1.5 with and without top-k and top-p (PIT of every emitted token, chi-square of first tokens), caches, masks, and ten
planted faults. The false-alarm probability of a whole check stands in its result. The time is that of the first pair,
from an open model to the verdict.

Gates: every check passes, ten of ten faults are found, and the first pair takes three minutes at most.
"""

import sys
import time
from dataclasses import asdict
from typing import Any

from common import Estimate, Gate, arguments, document, judge, save, show

from outpace.drafters.budget import Branching
from outpace.drafters.load import load_drafter
from outpace.evaluation.exactness import check_pair
from outpace.evaluation.pair import Report
from outpace.models.load import load_target
from outpace.models.target import Target

MINUTES = 3.0
OWN = "the default itself"
PAIRS = (("lookup", "chain", 4), (OWN, "chain", 4), (OWN, "sampled:2", 5))
PROTOCOL = "outpace check in full, seed 0, batch and prompts of its own; wall time from an open model to the verdict"


def checked(target: Target, name: str, tree: str, nodes: int, args: Any) -> tuple[Report, float]:
    """One pair, and the minutes it took."""
    drafter = load_drafter(args.target if name == OWN else name, target, dtype=args.dtype)
    begin = time.perf_counter()
    report = check_pair(target, drafter, branching=Branching.parse(tree), num_draft_tokens=nodes, quick=args.quick)
    return report, (time.perf_counter() - begin) / 60


def main(argv: list[str] | None = None) -> int:
    parser = arguments(__doc__)
    parser.add_argument("--dtype", choices=("bf16", "fp32"), default="bf16")
    parser.add_argument("--draft", help="a drafter beside them, in dynamic trees of 24 nodes")
    parser.add_argument(
        "--pairs", type=int, nargs="+", metavar="N", help="only these, counted from 1; the first is timed"
    )
    args = parser.parse_args(argv)
    target = load_target(args.target, dtype=args.dtype)
    pairs = [*PAIRS, *([(args.draft, "dynamic", 24)] if args.draft else [])]
    if wrong := sorted(set(args.pairs or ()) - set(range(1, 1 + len(pairs)))):
        parser.error(f"--pairs is {wrong[0]}; allowed: 1 to {len(pairs)}")
    cells: list[dict[str, Any]] = []
    gates: list[Gate] = []
    for place, (name, tree, nodes) in enumerate(pairs, 1):
        if args.pairs and place not in args.pairs:
            continue
        report, minutes = checked(target, name, tree, nodes, args)
        title = f"check, {report.drafter.rpartition('/')[2]}, {tree}"
        failed = [one.name for one in report.checks if not one.passed]
        found = sum(one.passed for one in report.checks if one.kind == "control")
        gates.append(_exact(f"{title}: checks that fail", len(failed), 0, ceiling=True))
        gates.append(_exact(f"{title}: planted faults found", found, 10))
        if place == 1:
            gates.append(_exact(f"{title}: minutes", minutes, MINUTES, ceiling=True))
        cells.append(
            {
                "drafter": report.drafter.rpartition("/")[2],
                "tree": tree,
                "num_draft_tokens": nodes,
                "rule": report.rule,
                "lossless": report.lossless,
                "false_alarm": report.false_alarm,
                "minutes": minutes,
                "checks": [asdict(one) for one in report.checks],
            }
        )
    columns = ("drafter", "tree", "rule", "checks", "failed", "minutes")
    rows = [
        (
            cell["drafter"],
            cell["tree"],
            cell["rule"],
            len(cell["checks"]),
            sum(not one["passed"] for one in cell["checks"]),
            cell["minutes"],
        )
        for cell in cells
    ]
    show("outpace check", columns, rows)
    status = judge(gates, args.quick)
    records = [gate.record() for gate in gates]
    save("losslessness", args, document("losslessness", args, PROTOCOL, results=cells, gates=records))
    return status


def _exact(name: str, value: float, bound: float, *, ceiling: bool = False) -> Gate:
    return Gate(name, Estimate(float(value), float(value), float(value)), bound, ceiling=ceiling)


if __name__ == "__main__":
    sys.exit(main())
