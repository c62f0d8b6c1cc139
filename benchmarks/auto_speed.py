"""Lookup with ``num_draft_tokens="auto"`` against plain decoding, by category and temperature.

    python benchmarks/auto_speed.py                    # every category, T 0, 1 and 1.5: about an hour on two cores
    python benchmarks/auto_speed.py --unseeded         # the same by the rule without a seed
    python benchmarks/auto_speed.py --quick            # does it run? one minute

bf16, batch 1, end-of-text respected, prefill counted; interleaved repeats, medians, 95 % paired bootstrap over prompts.
Above temperature 0 each repeat has a seed of its own, the same for both sides: by the coupling they say the same text,
so that pairs are pairs (in bf16 up to near-ties). Without seeds both sides draw, by ``match`` and plainly, texts of
their own. Costs are measured before anything is timed. A plain turn is one without a draft: the controller asked for
none, or lookup found none; the share of turns in which the controller asked for none is given beside it.

Gate: at least 0.97 times plain decoding in every category at every temperature.
"""

import sys
import time
from collections.abc import Sequence
from typing import Any

from common import (
    ALL,
    Contestant,
    Gate,
    Question,
    Run,
    arguments,
    by_category,
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

from outpace.decoding.control import Adaptive
from outpace.decoding.costs import Conditions, cost_table
from outpace.decoding.generate import Options, generate
from outpace.decoding.loop import Request, decode
from outpace.drafters.budget import Budget
from outpace.drafters.drafter import Drafter
from outpace.drafters.lookup import Lookup
from outpace.models.load import load_target
from outpace.models.target import Target
from outpace.verification.probabilities import Sampling

FLOOR = 0.97
AUTO, PLAIN = "auto", "plain"
PROTOCOL = (
    "specbench-dev, first prompts of every category, first turn; lookup, batch 1, EOS respected, prefill counted; "
    "interleaved repeats, medians; 95 % paired bootstrap over prompts of the ratio of median tokens per second"
)


class Counting(Adaptive):
    """The controller, and how many of its budgets were for nothing."""

    turns = empty = 0

    def budget(self, rooms: list[int], lengths: list[int], grades: list[int] | None = None) -> Budget:
        budget = super().budget(rooms, lengths, grades)
        self.turns, self.empty = self.turns + 1, self.empty + budget.empty
        return budget


def contestant(target: Target, drafter: Drafter | None, temperature: float, args: Any) -> Contestant:
    """The public ``generate`` on ids, timed from outside; the seed counts up with every text of a question."""
    said: dict[int, int] = {}

    def run(question: Question) -> Run:
        seed = said[question.question_id] = said.get(question.question_id, 0) + 1
        options: Options = {"temperature": temperature, "max_new_tokens": args.max_new_tokens}
        if temperature > 0 and not args.unseeded:
            options["seed"] = seed
        begin = time.perf_counter()
        result = generate(target, drafter, question.ids, num_draft_tokens="auto", **options)
        return Run(time.perf_counter() - begin, result.token_ids, result.stats.speculation)

    return run


def shares(target: Target, asked: Sequence[Question], temperature: float, args: Any) -> dict[str, float]:
    """By category, the share of turns in which the controller asked for no draft: all prompts once more, untimed."""
    drafter, sampling = Lookup(eos_ids=target.eos_ids), Sampling(temperature)
    seed = 1 if temperature > 0 and not args.unseeded else None
    costs = cost_table(target, drafter, Conditions(sampling=sampling, seeded=seed is not None))
    counts: dict[str, list[int]] = {}
    for question in asked:
        control = Counting(costs)
        request = Request(question.ids, sampling, args.max_new_tokens, target.eos_ids, seed)
        for _ in decode(target, drafter, [request], control=control):
            pass
        for name in (question.category, ALL):
            turns, empty = counts.get(name, [0, 0])
            counts[name] = [turns + control.turns, empty + control.empty]
    return {name: empty / max(1, turns) for name, (turns, empty) in counts.items()}


def measure(target: Target, asked: Sequence[Question], temperature: float, args: Any) -> list[dict[str, Any]]:
    """Both sides at one temperature, by category."""
    drafter = Lookup(eos_ids=target.eos_ids)
    sides = {name: contestant(target, one, temperature, args) for name, one in ((AUTO, drafter), (PLAIN, None))}
    runs = interleave(sides, asked, args.repeats)
    rates = {name: median_rates(found) for name, found in runs.items()}
    unasked = shares(target, asked, temperature, args)
    cells = []
    for category, places in by_category(asked).items():
        counted = [one.speculation for place in places for one in runs[AUTO][place] if one.speculation is not None]
        drafting = pooled(counted)
        same = [
            ours.token_ids == theirs.token_ids
            for place in places
            for ours, theirs in zip(runs[AUTO][place], runs[PLAIN][place], strict=True)
        ]
        cells.append(
            {
                "category": category,
                "temperature": temperature,
                "prompts": len(places),
                "tokens_per_second": median(rates[AUTO][places]),
                "baseline_tokens_per_second": median(rates[PLAIN][places]),
                "speedup": median_ratio(rates[AUTO][places], rates[PLAIN][places]),
                "plain_turn_share": drafting["plain_turns"] / max(1, drafting["turns"]),
                "asked_for_nothing_share": unasked[category],
                "same_texts": sum(same) / len(same),
                **drafting,
            }
        )
    return cells


def report(cells: Sequence[dict[str, Any]]) -> None:
    columns = ("category", "T", "tok/s", "plain", "speed-up", "tau", "plain turns", "K = 0", "same texts")
    rows = [
        (
            cell["category"],
            cell["temperature"],
            cell["tokens_per_second"].value,
            cell["baseline_tokens_per_second"].value,
            cell["speedup"],
            "-" if cell["tau"] is None else cell["tau"],
            cell["plain_turn_share"],
            cell["asked_for_nothing_share"],
            cell["same_texts"],
        )
        for cell in cells
    ]
    show("lookup, auto against plain", columns, rows)


def main(argv: list[str] | None = None) -> int:
    parser = arguments(__doc__)
    prompt_arguments(parser, per_category=5, tokens=128, repeats=3)
    parser.add_argument("--dtype", choices=("bf16", "fp32"), default="bf16")
    parser.add_argument("--temperatures", type=float, nargs="+", default=[0.0, 1.0, 1.5])
    parser.add_argument("--unseeded", action="store_true", help="draw freely, by the rule without a seed")
    args = parser.parse_args(argv)
    if args.quick:
        args.prompts_per_category, args.max_new_tokens, args.repeats = 1, 16, 1
        args.limit, args.temperatures = args.limit or 4, args.temperatures[:2]
    target = load_target(args.target, dtype=args.dtype)
    asked = questions(target.folder, args)
    cells = [cell for temperature in args.temperatures for cell in measure(target, asked, temperature, args)]
    report(cells)
    gates = [
        Gate(f"auto, {cell['category']}, T {cell['temperature']:g}", cell["speedup"], FLOOR)
        for cell in cells
        if cell["category"] != ALL
    ]
    status = judge(gates, args.quick)
    records = [gate.record() for gate in gates]
    save("auto_speed", args, document("auto_speed", args, PROTOCOL, results=cells, gates=records))
    return status


if __name__ == "__main__":
    sys.exit(main())
