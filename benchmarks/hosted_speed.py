"""Plain decoding of a hosted model against transformers' ``generate``: the same weights and the same model code.

    python benchmarks/hosted_speed.py                         # about 30 minutes on two cores
    python benchmarks/hosted_speed.py --quick                 # does it run? one minute

Both sides compute with transformers' model; ours with packed weights, a preallocated cache and no work around a step.
Greedy, bf16, batch 1, end-of-text respected, prefill counted, both sides given the same ids. Interleaved; medians of
the repeats, then over prompts; 95 % intervals by paired bootstrap over prompts.

Gate: at least 1.15 times transformers (goal 1.3). A first difference must have an fp32 logit gap below 0.25.
"""

import sys
from typing import Any

from common import (
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
)
from plain_speed import PROTOCOL, report
from reference import Judge, Reference, equality

from outpace.models.load import load_target

FLOOR, GOAL = 1.15, 1.3
DTYPE = "bf16"


def measure(args: Any) -> tuple[dict[str, Any], list[Gate]]:
    """Both sides on every prompt, and how far their texts agree."""
    target = load_target(args.target, dtype=DTYPE, lane="hosted")
    asked = questions(target.folder, args)
    assert target.folder is not None
    reference = Reference(target.folder, DTYPE, target.eos_ids)
    runs = interleave(
        {
            "outpace, hosted": ours(target, None, max_new_tokens=args.max_new_tokens),
            "transformers": lambda question: reference.run(question, args.max_new_tokens),
        },
        asked,
        args.repeats,
    )
    first, second = (median_rates(found) for found in runs.values())
    cells: list[dict[str, Any]] = [
        {
            "category": category,
            "prompts": len(places),
            "outpace": median(first[places]),
            "transformers": median(second[places]),
            "speedup": median_ratio(first[places], second[places]),
        }
        for category, places in by_category(asked).items()
    ]
    texts = [[repeats[0].token_ids for repeats in found] for found in runs.values()]
    equal = equality(Judge(args.target, DTYPE), asked, *texts)
    report(f"hosted, {DTYPE}", cells, equal)
    same = float(equal["equal"])
    gates = [
        Gate(f"plain, hosted, {DTYPE}, against transformers", cells[-1]["speedup"], FLOOR, GOAL),
        Gate(f"plain, hosted, {DTYPE}, same tokens but near-ties", Estimate(same, same, same), 1.0),
    ]
    return {"dtype": DTYPE, "packed": getattr(target, "packed", False), "cells": cells, "equality": equal}, gates


def main(argv: list[str] | None = None) -> int:
    parser = arguments(__doc__)
    prompt_arguments(parser, per_category=5, tokens=128, repeats=3)
    args = parser.parse_args(argv)
    if args.quick:
        args.prompts_per_category, args.limit, args.max_new_tokens, args.repeats = 1, 2, 16, 1
    found, gates = measure(args)
    status = judge(gates, args.quick)
    records = [gate.record() for gate in gates]
    save("hosted_speed", args, document("hosted_speed", args, PROTOCOL, results=[found], gates=records))
    return status


if __name__ == "__main__":
    sys.exit(main())
