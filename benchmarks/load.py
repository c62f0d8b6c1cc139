"""Where drafting stops paying: tokens per second at 1 to 16 sequences at once, drafted against plain, and predicted.

    python benchmarks/load.py               # about 60 minutes on two cores
    python benchmarks/load.py --quick       # does it run? two minutes

Greedy, end-of-text respected, prefill counted, 128 tokens, lookup and the head that comes with outpace; chains of 3 in
every turn, and as many drafts as pay. Streams of prompts of all categories go through so many slots, an ended sequence
giving its slot to the next prompt: two prompts a slot, or one of every category. Rounds, everyone at one level one
behind the other; 95 % paired bootstrap over rounds of the ratio of median rates.

Gate: with as many drafts as pay, decoding is at no concurrency slower than 0.97 of plain decoding. The break-even of
chains of 3, and how far the prediction lies from what was measured, are reported and not judged.
"""

import statistics
import sys
from collections.abc import Sequence
from typing import Any

from common import Estimate, Gate, arguments, document, judge, prompt_arguments, questions, save, show
from rich.console import Console
from rich.progress import Progress

from outpace.drafters.load import load_drafter
from outpace.evaluation.benchmark import Protocol, Setting
from outpace.evaluation.load import ROUNDS, Loaded, measure
from outpace.evaluation.load_outcome import LoadRow, as_plain, load_rows, verdicts
from outpace.evaluation.workloads import Question
from outpace.models.load import load_target

PROTOCOL = (
    "specbench-dev, first turn; streams of mixed prompts through so many slots, refilled; greedy, EOS respected, "
    "prefill counted; rounds of plain and drafted streams one behind the other; 95 % paired bootstrap over rounds of "
    "the ratio of median tokens per second; ms a token of one request behind its first token, medians over requests; "
    "predicted from measured costs of turns and the acceptance of all levels together"
)
SETTINGS = [Setting(3), Setting("auto")]
COLUMNS = ("drafts", "at once", "plain tok/s", "drafted tok/s", "speed-up", "predicted")
COLUMNS += ("plain ms a token", "ms a token", "tau", "plain turns")


def run(target: Any, name: str, asked: Sequence[Question], args: Any) -> tuple[Loaded, list[LoadRow]]:
    """All levels of one drafter."""
    drafter = load_drafter(name, target)
    protocol = Protocol(budget_s=1e9, repeats=args.rounds, max_new_tokens=args.max_new_tokens)
    levels = {level: SETTINGS for level in sorted(args.concurrency)}
    with Progress(console=Console(stderr=True)) as bar:
        task = bar.add_task(name, total=None)

        def told(done: int, total: int, what: str) -> None:
            bar.update(task, completed=done, total=total, description=f"{name}: {what}")

        loaded = measure(target, drafter, asked, levels, protocol, told)
    return loaded, load_rows(loaded, drafter.name, None)


def cell(row: LoadRow) -> dict[str, Any]:
    """One row of the result."""
    low, high = row.speedup_ci or (row.speedup, row.speedup)
    return {
        "method": row.method,
        "num_draft_tokens": row.num_draft_tokens,
        "concurrency": row.batch,
        "rounds": row.streams,
        "in_flight": row.in_flight,
        "baseline_tokens_per_second": row.baseline_tokens_per_second,
        "tokens_per_second": row.tokens_per_second,
        "speedup": Estimate(row.speedup, low, high),
        "predicted_speedup": row.predicted_speedup,
        "baseline_ms_per_token": row.baseline_ms_per_token,
        "ms_per_token": row.ms_per_token,
        "baseline_first_token_ms": row.baseline_first_token_ms,
        "first_token_ms": row.first_token_ms,
        "tau": row.tau,
        "acceptance": row.acceptance,
        "plain_turn_share": row.plain_turn_share,
        "near_ties_per_1000": row.near_ties_per_1000,
    }


def error_of(cells: Sequence[dict[str, Any]]) -> float | None:
    """The median distance of the prediction from what was measured, as a share of it."""
    errors = [abs(one["predicted_speedup"] / one["speedup"].value - 1) for one in cells if one["predicted_speedup"]]
    return statistics.median(errors) if errors else None


def main(argv: list[str] | None = None) -> int:
    parser = arguments(__doc__)
    prompt_arguments(parser, per_category=5, tokens=128)
    parser.add_argument("--dtype", choices=("bf16", "fp32"), default="bf16")
    parser.add_argument("--drafters", nargs="+", default=["lookup", "eagle3"], help="as load_drafter takes them")
    parser.add_argument("--concurrency", nargs="+", type=int, default=[1, 2, 4, 8, 16])
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    args = parser.parse_args(argv)
    if args.quick:
        args.concurrency, args.rounds, args.max_new_tokens = [1, 2], 1, 8
        args.prompts_per_category, args.limit = 1, 4
    target = load_target(args.target, dtype=args.dtype)
    asked = [Question(str(one.question_id), one.category, one.ids) for one in questions(target.folder, args)]
    cells: list[dict[str, Any]] = []
    points: list[dict[str, Any]] = []
    for name in args.drafters:
        loaded, rows = run(target, name, asked, args)
        cells += map(cell, rows)
        for setting, (sentence, point) in zip(SETTINGS, verdicts(loaded), strict=True):
            words = {"method": name, "num_draft_tokens": setting.num_draft_tokens, "sentence": sentence}
            points.append(words | {"break_even": as_plain(point)})
    keys = ("num_draft_tokens", "concurrency", "baseline_tokens_per_second", "tokens_per_second", "speedup")
    keys += ("predicted_speedup", "baseline_ms_per_token", "ms_per_token", "tau", "plain_turn_share")
    for method in dict.fromkeys(one["method"] for one in cells):
        show(method, COLUMNS, [[one[key] for key in keys] for one in cells if one["method"] == method])
    for point in points:
        print(f"{point['method']}, {point['num_draft_tokens']} drafts: {point['sentence']}")
    gates = [
        Gate(f"{one['method']}, auto, {one['concurrency']} at once", one["speedup"], 0.97, 1.0)
        for one in cells
        if one["num_draft_tokens"] == "auto"
    ]
    status = judge(gates, args.quick)
    found = {"results": cells, "break_even": points, "prediction_error": error_of(cells)}
    save("load", args, document("load", args, PROTOCOL, **found, gates=[gate.record() for gate in gates]))
    return status


if __name__ == "__main__":
    sys.exit(main())
