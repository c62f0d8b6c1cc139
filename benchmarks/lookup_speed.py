"""Lookup drafts against transformers' prompt lookup and against plain decoding of both, where text repeats the prompt.

    python benchmarks/lookup_speed.py                    # summarization and rag, about 15 minutes on two cores
    python benchmarks/lookup_speed.py --sweep            # our K and min_match, about 35 minutes
    python benchmarks/lookup_speed.py --sweep --categories qa coding extraction math_reasoning
    python benchmarks/lookup_speed.py --quick            # does it run? one minute

bf16, greedy, batch 1, end-of-text respected, prefill counted, both sides given the same ids; interleaved repeats,
medians, 95 % paired bootstrap over prompts. Ours matches the longest suffix of any length and takes the latest of the
longest; transformers tries n-grams from ``max_matching_ngram_size`` (2 by default) down to 1 and takes the earliest.
It stands here three times: with our K and its own n-gram size, with our K and n-grams up to 10, and with the default
of its own generator, 10 tokens by 2-grams. tau is tokens after the first per verification forward.

Gate: at least 1.15 times the best of transformers' lookups with our K over the two categories together (goal 1.3).
"""

import sys
from collections.abc import Sequence
from functools import partial
from itertools import product
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
    ours,
    pooled,
    prompt_arguments,
    questions,
    save,
    show,
)
from reference import Judge, Reference, equality

from outpace.drafters.lookup import Lookup
from outpace.models.load import load_target
from outpace.models.target import Target

DEPTHS, MATCHES = (2, 3, 4, 6, 8, 10), (1, 2, 3)
LONG_NGRAM = 10
OURS, PLAIN, THEIR_PLAIN = "outpace lookup", "outpace plain", "transformers plain"
PROTOCOL = (
    "specbench-dev, first prompts of every category, first turn; greedy, batch 1, EOS respected, prefill counted; "
    "interleaved repeats, medians; 95 % paired bootstrap over prompts of the ratio of median tokens per second"
)


def contestants(target: Target, args: Any) -> dict[str, Contestant]:
    """Both lookups at equal K, transformers' own default, and both plain decoders."""
    assert target.folder is not None
    reference = Reference(target.folder, args.dtype, target.eos_ids)
    depth, new = args.num_draft_tokens, args.max_new_tokens
    drafter = Lookup(min_match=args.min_match, eos_ids=target.eos_ids)
    settings = {
        f"transformers K {depth}, n 2": (depth, 2),
        f"transformers K {depth}, n {LONG_NGRAM}": (depth, LONG_NGRAM),
        "transformers K 10, n 2": (10, 2),
    }

    def their_lookup(question: Question, tokens: int, ngram: int) -> Run:
        return reference.run(question, new, prompt_lookup_num_tokens=tokens, max_matching_ngram_size=ngram)

    theirs = {name: partial(their_lookup, tokens=one, ngram=two) for name, (one, two) in settings.items()}
    return {
        OURS: ours(target, drafter, max_new_tokens=new, num_draft_tokens=depth),
        PLAIN: ours(target, None, max_new_tokens=new),
        THEIR_PLAIN: lambda question: reference.run(question, new),
        **theirs,
    }


def sweep(target: Target, args: Any) -> dict[str, Contestant]:
    """Our lookup over K and min_match, beside plain decoding."""
    new = args.max_new_tokens
    found: dict[str, Contestant] = {PLAIN: ours(target, None, max_new_tokens=new)}
    for depth, match in product(args.depths, args.matches):
        drafter = Lookup(min_match=match, eos_ids=target.eos_ids)
        settings = f"K {depth}, min_match {match}"
        found[settings] = ours(target, drafter, max_new_tokens=new, num_draft_tokens=depth)
    return found


def cells(runs: dict[str, list[list[Run]]], asked: Sequence[Question], baseline: str) -> list[dict[str, Any]]:
    """Figures of every contestant in every category; ``speedup`` is over ``baseline``."""
    rates = {name: median_rates(found) for name, found in runs.items()}
    found = []
    for (category, places), name in product(by_category(asked).items(), runs):
        counted = [runs[name][place][0].speculation for place in places]
        found.append(
            {
                "category": category,
                "method": name,
                "prompts": len(places),
                "tokens_per_second": median(rates[name][places]),
                "speedup": median_ratio(rates[name][places], rates[baseline][places]),
                **pooled([one for one in counted if one is not None]),
            }
        )
    return found


def report(found: Sequence[dict[str, Any]], baseline: str) -> None:
    rows = [
        (
            cell["category"],
            cell["method"],
            cell["tokens_per_second"].value,
            cell["speedup"],
            "-" if cell["tau"] is None else cell["tau"],
            "-" if cell["acceptance"] is None else cell["acceptance"],
        )
        for cell in found
    ]
    show("greedy, batch 1", ("category", "method", "tok/s", f"over {baseline}", "tau", "acceptance"), rows)


def compare(runs: dict[str, list[list[Run]]], asked: Sequence[Question], args: Any) -> dict[str, Any]:
    """Our lookup's tokens beside our plain ones and transformers' plain ones."""
    texts = {name: [repeats[0].token_ids for repeats in found] for name, found in runs.items()}
    referee = Judge(args.target, args.dtype)
    return {other: equality(referee, asked, texts[OURS], texts[other]) for other in (PLAIN, THEIR_PLAIN)}


def gate(runs: dict[str, list[list[Run]]], depth: int) -> Gate:
    """Ours over the fastest of transformers' lookups with the same K."""
    rates = {name: median_rates(found) for name, found in runs.items()}
    rivals = [name for name in rates if name.startswith(f"transformers K {depth},")]
    ratios = {name: median_ratio(rates[OURS], rates[name]) for name in rivals}
    hardest = min(ratios, key=lambda name: ratios[name].value)
    return Gate(f"lookup {depth} against {hardest}", ratios[hardest], 1.15, 1.3)


def main(argv: list[str] | None = None) -> int:
    parser = arguments(__doc__)
    prompt_arguments(parser, per_category=5, tokens=128, repeats=3)
    parser.set_defaults(categories=["summarization", "rag"])
    parser.add_argument("--dtype", choices=("bf16", "fp32"), default="bf16")
    parser.add_argument("--num-draft-tokens", type=int, default=4)
    parser.add_argument("--min-match", type=int, default=1)
    parser.add_argument("--sweep", action="store_true", help="our settings only")
    parser.add_argument("--depths", type=int, nargs="+", default=DEPTHS)
    parser.add_argument("--matches", type=int, nargs="+", default=MATCHES)
    args = parser.parse_args(argv)
    if args.quick:
        args.prompts_per_category, args.max_new_tokens, args.repeats = 1, 16, 1
        args.depths, args.matches = (2, 4), (1, 2)
    if args.categories == [ALL]:
        args.categories = None
    target = load_target(args.target, dtype=args.dtype)
    asked = questions(target.folder, args)
    runs = interleave((sweep if args.sweep else contestants)(target, args), asked, args.repeats)
    found = cells(runs, asked, PLAIN)
    report(found, PLAIN)
    gates, equal = [], {}
    if not args.sweep:
        gates, equal = [gate(runs, args.num_draft_tokens)], compare(runs, asked, args)
        for other, one in equal.items():
            print(
                f"against {other}: {one['texts_identical']} of {one['texts']} texts identical, "
                f"{one['near_ties']} near-ties, {one['not_excused']} other differences"
            )
    status = judge(gates, args.quick)
    name = "lookup_sweep" if args.sweep else "lookup_speed"
    records = [one.record() for one in gates]
    save(name, args, document("lookup_speed", args, PROTOCOL, results=found, equality=equal, gates=records))
    return status


if __name__ == "__main__":
    sys.exit(main())
