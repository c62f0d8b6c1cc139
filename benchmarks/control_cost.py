"""What the controller costs where nothing pays, and what it leaves where everything does.

    python benchmarks/control_cost.py              # every drafter at hand: about 15 minutes a drafter on two cores
    python benchmarks/control_cost.py --quick      # does it run? one minute

bf16, batch 1, end-of-text respected, prefill counted; interleaved repeats, medians, 95 % paired bootstrap over prompts.
The worst workload is sampled at temperature 1.5, where drafts are seldom right: ``auto`` beside plain decoding. The
best one is summaries and answers from documents at temperature 0: ``auto`` beside fixed chains of 2, 4, 6 and 8, the
best of which is taken by the same runs, so that the comparison is hard on ``auto``. Both sides of the worst workload
have the same seed, another one in each repeat: by the coupling they say the same text, in bf16 up to near-ties.

Gates: at least 0.97 of plain decoding on the worst workload, and at least 0.95 of the best fixed chain on the best one.
"""

import sys
import time
from collections.abc import Sequence
from typing import Any

from common import (
    Contestant,
    Gate,
    Question,
    Run,
    arguments,
    document,
    interleave,
    judge,
    median,
    median_rates,
    median_ratio,
    pooled,
    prompt_arguments,
    questions,
    save,
    show,
)

from outpace.decoding.generate import Options, generate
from outpace.drafters.drafter import Drafter
from outpace.drafters.load import at_hand, load_drafter
from outpace.models.load import load_target
from outpace.models.target import Target

WORST, BEST = 0.97, 0.95
HOT = 1.5
CHAINS = (2, 4, 6, 8)
EASY = ("summarization", "rag")
PLAIN, AUTO = "plain", "auto"
PROTOCOL = (
    "specbench-dev, first prompts of every category, first turn; batch 1, EOS respected, prefill counted; interleaved "
    "repeats, medians; 95 % paired bootstrap over prompts of the ratio of median tokens per second"
)


def contestant(target: Target, drafter: Drafter | None, drafts: Any, temperature: float, tokens: int) -> Contestant:
    """The public ``generate`` on ids, timed from outside; the seed counts up with every text of a question."""
    said: dict[int, int] = {}

    def run(question: Question) -> Run:
        seed = said[question.question_id] = said.get(question.question_id, 0) + 1
        options: Options = {"temperature": temperature, "max_new_tokens": tokens}
        if temperature > 0:
            options["seed"] = seed
        begin = time.perf_counter()
        result = generate(target, drafter, question.ids, num_draft_tokens=drafts, **options)
        return Run(time.perf_counter() - begin, result.token_ids, result.stats.speculation)

    return run


def worst(target: Target, name: str, drafter: Drafter, asked: Sequence[Question], args: Any) -> dict[str, Any]:
    """Auto beside plain decoding where drafts are seldom right."""
    sides = {
        AUTO: contestant(target, drafter, AUTO, HOT, args.max_new_tokens),
        PLAIN: contestant(target, None, 0, HOT, args.max_new_tokens),
    }
    runs = interleave(sides, asked, args.repeats)
    return cell("worst", name, PLAIN, runs, asked)


def best(target: Target, name: str, drafter: Drafter, asked: Sequence[Question], args: Any) -> dict[str, Any]:
    """Auto beside fixed chains where drafts are often right."""
    ways: dict[str, Any] = {AUTO: AUTO} | {f"K {length}": length for length in args.chains}
    sides = {way: contestant(target, drafter, drafts, 0.0, args.max_new_tokens) for way, drafts in ways.items()}
    runs = interleave(sides, asked, args.repeats)
    rates = {way: median(median_rates(found)).value for way, found in runs.items() if way != AUTO}
    return cell("best", name, max(rates, key=lambda way: rates[way]), runs, asked) | {"fixed": rates}


def cell(kind: str, name: str, other: str, runs: Any, asked: Sequence[Question]) -> dict[str, Any]:
    """The controller over another way."""
    rates = {way: median_rates(found) for way, found in runs.items()}
    drafting = pooled([one.speculation for repeats in runs[AUTO] for one in repeats if one.speculation is not None])
    return {
        "workload": kind,
        "drafter": name,
        "prompts": len(asked),
        "beside": other,
        "tokens_per_second": median(rates[AUTO]),
        "other_tokens_per_second": median(rates[other]),
        "ratio": median_ratio(rates[AUTO], rates[other]),
        "plain_turn_share": drafting["plain_turns"] / max(1, drafting["turns"]),
        "acceptance": drafting["acceptance"],
    }


def main(argv: list[str] | None = None) -> int:
    parser = arguments(__doc__)
    prompt_arguments(parser, per_category=5, tokens=128, repeats=3)
    parser.add_argument("--dtype", choices=("bf16", "fp32"), default="bf16")
    parser.add_argument("--draft", nargs="+", help="who drafts; all drafters at hand by default")
    parser.add_argument("--chains", type=int, nargs="+", default=list(CHAINS))
    args = parser.parse_args(argv)
    if args.quick:
        args.prompts_per_category, args.max_new_tokens, args.repeats, args.limit = 1, 12, 1, args.limit or 4
        args.chains = args.chains[:2]
    target = load_target(args.target, dtype=args.dtype)
    asked = questions(target.folder, args)
    easy = [question for question in asked if question.category in EASY] or asked
    cells: list[dict[str, Any]] = []
    gates = []
    for name in args.draft or at_hand(target):
        drafter = load_drafter(name, target)
        cells += [worst(target, name, drafter, asked, args), best(target, name, drafter, easy, args)]
        gates.append(Gate(f"{name}, worst workload, auto over plain", cells[-2]["ratio"], WORST))
        gates.append(Gate(f"{name}, best workload, auto over {cells[-1]['beside']}", cells[-1]["ratio"], BEST))
    columns = ("workload", "drafter", "prompts", "auto tok/s", "beside", "tok/s", "ratio", "plain turns")
    keys = ("workload", "drafter", "prompts", "tokens_per_second", "beside", "other_tokens_per_second", "ratio")
    show("the controller", columns, [[*(one[key] for key in keys), one["plain_turn_share"]] for one in cells])
    status = judge(gates, args.quick)
    records = [gate.record() for gate in gates]
    save("control_cost", args, document("control_cost", args, PROTOCOL, results=cells, gates=records))
    return status


if __name__ == "__main__":
    sys.exit(main())
