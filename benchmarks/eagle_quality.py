"""How much of what a trained head drafts is accepted, by category: trees and chains, greedy and at temperature 1.

    OMP_NUM_THREADS=1 python benchmarks/eagle_quality.py --draft FOLDER   # about 30 minutes on one core
    python benchmarks/eagle_quality.py --quick                            # does it run? one minute

bf16, batch 1, 128 tokens, end-of-text respected. Nothing is timed, so that other work may run beside it. tau is tokens
after the first per forward of the target, acceptance at a position is conditional on those before it; both are pooled
over prompts, sums over sums, with 95 % bootstrap intervals over prompts. At temperature 1 the rules are named that are
in force where no seed is given, block for drawn chains, tree-rejection for drawn trees, match for the others, so that
the seeds make every run the same and couple nothing.

The gate of gates: rounds of chains walked by the trainer over the target's own fp32 greedy texts are those of the
decoder, prompt by prompt, with the head as its folder holds it. Two kernels may part at a near-tie; what differs is
listed.

Gates: greedy, a dynamic tree of 24 nodes, 6 deep: tau at least 2.2 (goal 3.5). Greedy, a chain of 5: acceptance at
position 1 at least 0.50 (goal 0.75). At temperature 1, a drawn tree of 24 nodes, 6 deep: tau at least 1.8 (goal 2.8);
the drawn chain and the dynamic tree stand beside it, and beside the greedy tree the best static one of as many nodes,
where the card has the acceptance by rank that it is made for. Walked and decoded rounds equal on every prompt.
"""

import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from common import (
    ALL,
    Estimate,
    Gate,
    Question,
    arguments,
    by_category,
    document,
    judge,
    mixed,
    prompt_arguments,
    questions,
    ratio_of_sums,
    save,
    show,
)
from rich.console import Console
from rich.progress import track
from trained import Way, draft_argument, figures, read_head, required, spoken

from outpace.drafters.drafter import own_rates
from outpace.drafters.eagle import Eagle
from outpace.drafters.load import load_drafter
from outpace.models.ends import read_ends
from outpace.models.load import load_target
from outpace.training.rounds import Walked, walked
from outpace.training.teacher import Teacher

TREE, CHAIN, DRAWN = Way("dynamic", 24, 6), Way("chain", 5, 5), Way("sampled:3", 24, 6, 1.0, "tree-rejection")
WAYS = (TREE, CHAIN, DRAWN, Way("chain", 5, 5, 1.0, "block"), Way("dynamic", 24, 6, 1.0, "match"))
STATIC = Way("static", 24, 6)
"""Measured too where the head's acceptance by rank is known."""
PROTOCOL = (
    "specbench-dev, first prompts of every category, first turn; bf16, batch 1, EOS respected; one text a prompt and "
    "way; tau and acceptance pooled, sums over sums; 95 % bootstrap over prompts"
)


def gate_of_gates(folder: Path, asked: Sequence[Question], args: Any) -> dict[str, Any]:
    """Walked beside decoded rounds of chains, fp32, prompt by prompt."""
    target = load_target(args.target, dtype="fp32")
    head, ends = read_head(folder, target), read_ends(target)
    drafter, teacher = Eagle(head, target), Teacher.of(ends.embeddings, ends.head, head.target_ids)
    rounds: list[tuple[Walked, Walked]] = []
    for question in track(asked, "walked and decoded", console=Console(stderr=True)):
        walk = walked(head, target, teacher, [question.ids], depth=CHAIN.depth, max_new_tokens=args.max_new_tokens)
        said = spoken(target, drafter, question, CHAIN, args.max_new_tokens)
        rounds.append((walk, Walked(said.turns, said.emitted, said.tau, said.acceptance_by_position)))
    walks, found = zip(*rounds, strict=True)
    return {
        "prompts": len(rounds),
        "equal": sum(walk == one for walk, one in rounds),
        "walked_tau": ratio_of_sums([one.emitted for one in walks], [one.turns for one in walks]),
        "decoded_tau": ratio_of_sums([one.emitted for one in found], [one.turns for one in found]),
        "differences": [
            {"question_id": question.question_id, "walked": asdict(walk), "decoded": asdict(one)}
            for question, (walk, one) in zip(asked, rounds, strict=True)
            if walk != one
        ],
    }


def gates_of(cells: Sequence[dict[str, Any]], rounds: dict[str, Any]) -> list[Gate]:
    """What is asked of all prompts together."""
    whole = {cell["way"]: cell for cell in cells if cell["category"] == ALL}
    tree, chain, drawn = whole[str(TREE)], whole[str(CHAIN)], whole[str(DRAWN)]
    asked = [
        (f"tau, {tree['way']}", tree["tau"], 2.2, 3.5),
        (f"acceptance at position 1, {chain['way']}", chain["acceptance_by_position"][0], 0.5, 0.75),
        (f"tau, {drawn['way']}, {drawn['rule']}", drawn["tau"], 1.8, 2.8),
    ]
    share = rounds["equal"] / rounds["prompts"]
    same = Gate("prompts whose walked rounds are the decoder's, fp32", Estimate(share, share, share), 1.0)
    return [*(Gate(name, figure, bound, goal) for name, figure, bound, goal in asked if figure is not None), same]


def report(cells: Sequence[dict[str, Any]], rounds: dict[str, Any]) -> None:
    for way in dict.fromkeys(cell["way"] for cell in cells):
        own = [cell for cell in cells if cell["way"] == way]
        rows = [
            (
                cell["category"],
                cell["prompts"],
                cell["tau"],
                cell["drafted_per_turn"],
                *("-" if one is None else one for one in cell["acceptance_by_position"]),
            )
            for cell in own
        ]
        positions = [f"position {place}" for place in range(1, 1 + len(own[0]["acceptance_by_position"]))]
        columns = ("category", "prompts", "tau", "drafted a turn", *positions)
        show(f"{way}, rule {own[-1]['rule']}", columns, rows)
    print(
        f"fp32, {CHAIN}: walked tau {rounds['walked_tau']}, decoded tau {rounds['decoded_tau']}; "
        f"equal on {rounds['equal']} of {rounds['prompts']} prompts"
    )
    for one in rounds["differences"]:
        print(f"prompt {one['question_id']}: walked {one['walked']}, decoded {one['decoded']}")


def main(argv: list[str] | None = None) -> int:
    parser = arguments(__doc__)
    draft_argument(parser)
    prompt_arguments(parser, per_category=5, tokens=128)
    parser.add_argument("--exact-prompts", type=int, default=8, help="prompts that are walked and decoded in fp32")
    args = parser.parse_args(argv)
    if args.quick:
        args.limit, args.max_new_tokens, args.exact_prompts = 2, 12, 2
    target = load_target(args.target, dtype="bf16")
    asked, folder = questions(target.folder, args), required(args.draft, target)
    drafter = load_drafter(str(folder), target)
    cells = []
    for way in (*WAYS, STATIC) if own_rates(drafter) else WAYS:
        waiting = track(asked, str(way), console=Console(stderr=True))
        found = [spoken(target, drafter, question, way, args.max_new_tokens) for question in waiting]
        cells += [figures(way, name, [found[place] for place in places]) for name, places in by_category(asked).items()]
    rounds = gate_of_gates(folder, mixed(asked)[: args.exact_prompts], args)
    report(cells, rounds)
    gates = gates_of(cells, rounds)
    status = judge(gates, args.quick)
    records = [gate.record() for gate in gates]
    whole = document("eagle_quality", args, PROTOCOL, head=folder.name, results=cells, walked=rounds, gates=records)
    save("eagle_quality", args, whole)
    return status


if __name__ == "__main__":
    sys.exit(main())
