"""Greedy texts drafted by a head, in fp32, beside plain ones: the same tokens for every tree, size and batch.

    python benchmarks/head_equality.py                     # the shipped head, 32 prompts: about 20 minutes on one core
    python benchmarks/head_equality.py --draft my-drafter  # a head of yours
    python benchmarks/head_equality.py --quick             # does it run? one minute

Times nothing, so other work may run. Every shape is decoded alone and in ragged batches of 8; 48 tokens, end-of-text
respected. A first difference is excused only where float64 shows a tie within 1e-4 of the two tokens' logits after the
common prefix; excused ones are counted.

Gate: no difference that is not excused, whatever is drafted.
"""

import sys
from typing import Any

from common import Estimate, Gate, arguments, document, judge, mixed, prompt_arguments, questions, save, show
from reference import Judge, equality
from rich.console import Console
from rich.progress import track
from trained import draft_argument, required

from outpace.decoding.generate import generate
from outpace.drafters.load import load_drafter
from outpace.models.load import load_target

SHAPES = (
    ("chain", 1),
    ("chain", 3),
    ("chain", 5),
    ("dynamic", 8),
    ("dynamic", 24),
    ("top-k:3", 12),
    ("top-p:0.9", 12),
    ("sampled:2", 8),
    ("static:0.5,0.2,0.1", 12),
)
PROTOCOL = (
    "specbench-dev, first turn, fp32, greedy, EOS respected; texts with a head's drafts of fixed size beside plain "
    "texts, alone and in ragged batches; a first difference is excused where float64 shows the two logits within 1e-4"
)
KEYS = ("texts", "texts_identical", "tokens_compared", "near_ties", "not_excused", "lengths_differ", "largest_gap")


def main(argv: list[str] | None = None) -> int:
    parser = arguments(__doc__)
    draft_argument(parser)
    prompt_arguments(parser, per_category=3, tokens=48)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.set_defaults(limit=32)
    args = parser.parse_args(argv)
    if args.quick:
        args.prompts_per_category, args.limit, args.max_new_tokens, args.batch_size = 1, 3, 12, 2
    target = load_target(args.target, dtype="fp32")
    head = load_drafter(str(required(args.draft, target)), target)
    asked = mixed(questions(target.folder, args))
    ids = [question.ids for question in asked]
    referee = Judge(args.target, "fp32")
    plain = [one.token_ids for one in generate(target, None, ids, max_new_tokens=args.max_new_tokens, batch_size=1)]
    found: dict[str, Any] = {}
    jobs = [(shape, size) for shape in SHAPES for size in (1, args.batch_size)]
    for (tree, nodes), size in track(jobs, "decoding", console=Console(stderr=True)):
        results = generate(
            target,
            head,
            ids,
            max_new_tokens=args.max_new_tokens,
            tree=tree,
            num_draft_tokens=nodes,
            batch_size=size,
        )
        texts = [one.token_ids for one in results]
        found[f"{tree}, {nodes} nodes, batch {size}"] = equality(referee, asked, texts, plain)
    columns = ("beside plain", *(key.replace("_", " ") for key in KEYS))
    show("greedy texts, fp32", columns, [[name, *(one[key] for key in KEYS)] for name, one in found.items()])
    wrong = float(sum(one["not_excused"] + one["lengths_differ"] for one in found.values()))
    gates = [Gate("texts that differ, every tree of a head", Estimate(wrong, wrong, wrong), 0, ceiling=True)]
    status = judge(gates, args.quick)
    records = [gate.record() for gate in gates]
    save("head_equality", args, document("head_equality", args, PROTOCOL, results=found, gates=records))
    return status


if __name__ == "__main__":
    sys.exit(main())
