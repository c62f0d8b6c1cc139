"""Plain decoding against transformers' ``generate``, on the same weights, tokens equal up to near-ties.

    python benchmarks/plain_speed.py                          # both dtypes, about 45 minutes on two cores
    python benchmarks/plain_speed.py --dtype bf16             # about 25 minutes; what is recorded of fp32 stays
    python benchmarks/plain_speed.py --quick                  # does it run? one minute

Greedy, batch 1, end-of-text respected, prefill counted, both sides given the same ids. Interleaved; medians of the
repeats, then over prompts; 95 % intervals by paired bootstrap over prompts. Our side is the public ``generate``, so
it also pays for turning ids into text, which the other side does not do.

Gate: at least 1.5 times transformers in bf16 (goal 1.8), at least 1.0 times in fp32. In bf16 a first difference must
have an fp32 logit gap below 0.25; in fp32 texts are equal, but for ties within 1e-4 in float64, which are counted.
"""

import json
import sys
from typing import Any

from common import (
    RESULTS,
    Estimate,
    Gate,
    arguments,
    by_category,
    document,
    interleave,
    judge,
    median,
    median_rates,
    median_ratio,
    ours,
    prompt_arguments,
    questions,
    save,
    show,
)
from reference import Judge, Reference, equality

from outpace.models.load import load_target

BOUNDS = {"bf16": (1.5, 1.8), "fp32": (1.0, None)}
PROTOCOL = (
    "specbench-dev, first prompts of every category, first turn; greedy, batch 1, EOS respected, prefill counted; "
    "interleaved repeats, medians; 95 % paired bootstrap over prompts of the ratio of median tokens per second"
)


def measure(name: str, dtype: str, args: Any) -> dict[str, Any]:
    """Everything for one dtype."""
    target = load_target(name, dtype=dtype)
    asked = questions(target.folder, args)
    assert target.folder is not None
    reference = Reference(target.folder, dtype, target.eos_ids)
    runs = interleave(
        {
            "outpace": ours(target, None, max_new_tokens=args.max_new_tokens),
            "transformers": lambda question: reference.run(question, args.max_new_tokens),
        },
        asked,
        args.repeats,
    )
    rates = {side: median_rates(found) for side, found in runs.items()}
    cells: list[dict[str, Any]] = []
    for category, places in by_category(asked).items():
        first, second = rates["outpace"][places], rates["transformers"][places]
        cells.append(
            {
                "category": category,
                "prompts": len(places),
                "outpace": median(first),
                "transformers": median(second),
                "speedup": median_ratio(first, second),
            }
        )
    texts = [[repeats[0].token_ids for repeats in runs[side]] for side in ("outpace", "transformers")]
    equal = equality(Judge(name, dtype), asked, *texts)
    report(dtype, cells, equal)
    return {"dtype": dtype, "packed": target.packed, "cells": cells, "equality": equal}


def gates_of(result: dict[str, Any]) -> list[Gate]:
    """What is asked of a result, fresh or read from a file."""
    dtype, speedup, same = result["dtype"], result["cells"][-1]["speedup"], float(result["equality"]["equal"])
    speedup = speedup if isinstance(speedup, Estimate) else Estimate(**speedup)
    return [
        Gate(f"plain, {dtype}, against transformers", speedup, *BOUNDS[dtype]),
        Gate(f"plain, {dtype}, same tokens but near-ties", Estimate(same, same, same), 1.0),
    ]


def report(dtype: str, cells: list[dict[str, Any]], equal: dict[str, Any]) -> None:
    columns = ("category", "prompts", "outpace tok/s", "transformers tok/s", "speed-up")
    rows = [
        (cell["category"], cell["prompts"], cell["outpace"].value, cell["transformers"].value, cell["speedup"])
        for cell in cells
    ]
    show(f"plain decoding, {dtype}: median tokens per second", columns, rows)
    print(
        f"{equal['texts_identical']} of {equal['texts']} texts identical over {equal['tokens_compared']} tokens; "
        f"{equal['near_ties']} near-ties, {equal['not_excused']} other differences, "
        f"{equal['lengths_differ']} of another length; largest gap {equal['largest_gap']:.3g} "
        f"(below {equal['tolerance']:g} in {equal['judged_in']} is a near-tie)"
    )


def main(argv: list[str] | None = None) -> int:
    parser = arguments(__doc__)
    prompt_arguments(parser, per_category=5, tokens=128, repeats=3)
    parser.add_argument("--dtype", nargs="+", choices=sorted(BOUNDS), default=["bf16", "fp32"])
    args = parser.parse_args(argv)
    if args.quick:
        args.prompts_per_category, args.limit, args.max_new_tokens, args.repeats = 1, 2, 16, 1
    path = args.out or RESULTS / "plain_speed.json"
    recorded = json.loads(path.read_text("utf-8")) if path.exists() and not (args.quick and args.out is None) else {}
    results = {one["dtype"]: one for one in recorded.get("results", [])}
    gates: list[Gate] = []
    for dtype in args.dtype:
        found = measure(args.target, dtype, args)
        whole = document("plain_speed", args, PROTOCOL)
        results[dtype] = {key: whole[key] for key in ("date", "machine", "versions", "settings")} | found
        ordered = [one for _, one in sorted(results.items())]
        gates = [gate for one in ordered for gate in gates_of(one)]
        # What one dtype has cost is kept if the next is interrupted.
        save("plain_speed", args, whole | {"results": ordered, "gates": [gate.record() for gate in gates]})
    return judge(gates, args.quick)


if __name__ == "__main__":
    sys.exit(main())
