"""EAGLE-2's dynamic tree against the best static tree and a chain, each with the same number of nodes.

    OMP_NUM_THREADS=1 python benchmarks/dynamic_static.py --draft FOLDER   # about half an hour on one core
    python benchmarks/dynamic_static.py --quick                            # does it run? one minute

Greedy, bf16, batch 1, end-of-text respected. Nothing is timed, so that other work may run beside it. A dynamic tree
asks the head which of its nodes are worth keeping; a static one is the best shape for acceptance by rank, the same in
every turn. It stands here twice: ``static`` has the rates of the head's card, which were measured on other texts;
``fitted`` those of these very prompts, counted over its chains, which no drafter could know beforehand. tau is tokens
after the first per forward of the target, sums over sums; ratios have 95 % intervals of a paired bootstrap.

Gate: with equal nodes, the dynamic tree has at least the tau of the static one (of the fitted one if the card has no
rates).
"""

import sys
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from common import (
    Estimate,
    Gate,
    Question,
    arguments,
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
from trained import draft_argument, required

from outpace.decoding.control import Fixed
from outpace.decoding.loop import Observer, Request, decode
from outpace.decoding.stats import Speculation
from outpace.decoding.turn import Turn
from outpace.drafters.budget import CHAIN, DYNAMIC, RANKS, Branching
from outpace.drafters.drafter import Drafter, falling, own_rates
from outpace.drafters.load import load_drafter
from outpace.evaluation.metrics import resampled
from outpace.models.load import load_target
from outpace.models.target import Target

SIZES, DEPTH = (8, 16, 24), 8
CHAINS, MOVING, FIXED, FITTED = "chain", "dynamic", "static", "fitted"
PROTOCOL = (
    "specbench-dev, first prompts of every category, first turn; greedy, batch 1, EOS respected; one text a prompt and "
    "tree; tau pooled, sums over sums; 95 % paired bootstrap over prompts"
)


class Ranks:
    """Which rank the target's own token had among the draft's, at every position that a chain decided."""

    def __init__(self) -> None:
        self.counts = Counter[int]()

    def __call__(self, turn: Turn, rows: list[int]) -> None:
        shown = turn.proposal.shown(turn.scores.logits.shape[-1])
        drafted = turn.proposal.tree.num_nodes.tolist()
        if shown is None:
            return
        for row, (path, emitted) in enumerate(zip(turn.paths, turn.emitted, strict=True)):
            for step, token in enumerate(emitted[: min(len(path) + 1, drafted[row])]):
                self.counts[1 + int((shown[row, step] > shown[row, step, token]).sum())] += 1

    @property
    def shares(self) -> tuple[float, ...]:
        """By rank, of all of these positions."""
        return tuple(self.counts[rank] / max(1, self.counts.total()) for rank in range(1, 1 + RANKS))


def spoken(
    target: Target, drafter: Drafter, question: Question, control: Fixed, tokens: int, observer: Observer | None = None
) -> Speculation:
    """How the drafting of one text went."""
    request = Request(question.ids, max_new_tokens=tokens, eos_ids=target.eos_ids)
    emissions = decode(target, drafter, [request], control=control, observer=observer)
    [found] = [one.speculation for one in emissions if one.speculation is not None]
    return found


def tau_ratio(ours: Sequence[Speculation], theirs: Sequence[Speculation]) -> Estimate:
    """The ratio of two pooled taus, both sides of a resample with the same prompts."""
    every, places = np.arange(len(ours)), resampled(len(ours))
    emitted, turns = (
        [np.array([getattr(one, name) for one in side]) for side in (ours, theirs)] for name in ("emitted", "turns")
    )

    def ratio(at: Any) -> Any:
        first, second = (
            tokens[at].sum(-1) / np.maximum(1, count[at].sum(-1)) for tokens, count in zip(emitted, turns, strict=True)
        )
        return first / second

    low, high = np.percentile(ratio(places), (2.5, 97.5))
    return Estimate(float(ratio(every)), float(low), float(high))


def measure(
    target: Target, drafter: Drafter, asked: Sequence[Question], args: Any
) -> tuple[dict[str, tuple[float, ...]], dict[tuple[str, int], list[Speculation]]]:
    """The rates of both static trees, and how every prompt went by tree and nodes."""
    found: dict[tuple[str, int], list[Speculation]] = {}
    seen, console = Ranks(), Console(stderr=True)
    for nodes in args.sizes:
        counting = seen if nodes == args.sizes[0] else None
        found[CHAINS, nodes] = [
            spoken(target, drafter, question, Fixed(CHAIN, nodes, nodes), args.max_new_tokens, counting)
            for question in track(asked, f"chain, {nodes}", console=console)
        ]
    rates = {FIXED: own_rates(drafter), FITTED: falling(seen.shares)}
    trees = {MOVING: DYNAMIC} | {name: Branching("static", rates=own) for name, own in rates.items() if own}
    for (name, tree), nodes in ((each, nodes) for nodes in args.sizes for each in trees.items()):
        control = Fixed(tree, min(args.depth, nodes), nodes)
        found[name, nodes] = [
            spoken(target, drafter, question, control, args.max_new_tokens)
            for question in track(asked, f"{name}, {nodes}", console=console)
        ]
    return rates, found


def cells_of(found: dict[tuple[str, int], list[Speculation]], args: Any) -> list[dict[str, Any]]:
    """tau of every tree, and how much more of it the dynamic one of as many nodes has."""
    return [
        {
            "tree": name,
            "nodes": nodes,
            "depth": nodes if name == CHAINS else min(args.depth, nodes),
            "prompts": len(one),
            "turns": sum(each.turns for each in one),
            "drafted_per_turn": sum(each.drafted for each in one) / max(1, sum(each.turns for each in one)),
            "tau": ratio_of_sums([each.emitted for each in one], [each.turns for each in one]),
            "dynamic_over_this": tau_ratio(found[MOVING, nodes], one),
        }
        for (name, nodes), one in found.items()
    ]


def main(argv: list[str] | None = None) -> int:
    parser = arguments(__doc__)
    draft_argument(parser)
    prompt_arguments(parser, per_category=2, tokens=128, repeats=1)
    parser.add_argument("--dtype", choices=("bf16", "fp32"), default="bf16")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="nodes of a draft")
    parser.add_argument("--depth", type=int, default=DEPTH, help="the longest path of a tree")
    args = parser.parse_args(argv)
    if args.quick:
        args.limit, args.max_new_tokens, args.sizes = 2, 16, args.sizes[:2]
    target = load_target(args.target, dtype=args.dtype)
    drafter = load_drafter(str(required(args.draft, target)), target)
    asked = mixed(questions(target.folder, args))
    rates, found = measure(target, drafter, asked, args)
    cells = cells_of(found, args)
    rows = [(cell["tree"], *(cell[key] for key in ("nodes", "depth", "tau", "dynamic_over_this"))) for cell in cells]
    show(f"{len(asked)} prompts, greedy, {args.dtype}", ("draft", "nodes", "depth", "tau", "dynamic over it"), rows)
    rival = FIXED if rates[FIXED] else FITTED
    gates = [
        Gate(f"dynamic over {rival}, {cell['nodes']} nodes", cell["dynamic_over_this"], 1.0)
        for cell in cells
        if cell["tree"] == rival
    ]
    status = judge(gates, args.quick)
    records = [gate.record() for gate in gates]
    save("dynamic_static", args, document("dynamic_static", args, PROTOCOL, rates=rates, results=cells, gates=records))
    return status


if __name__ == "__main__":
    sys.exit(main())
