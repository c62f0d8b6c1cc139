"""The share of decoding that is not the target's forward when every turn drafts a tree of 24 nodes.

    python benchmarks/tree_overhead.py           # about 5 minutes on two cores
    python benchmarks/tree_overhead.py --quick   # does it run? one minute

bf16, batch 1, 64 tokens after the first. A scripted drafter proposes a tree of 24 nodes at every turn, which are never
right, so that every turn has 25 rows to judge and every token its own turn. ``laws`` says whether it claims that the
children were drawn: then tree-rejection judges, and not the target's own draw. The clock runs as in ``overhead.py``:
from the first token to the end of the stream, text included; the target's ``score`` is taken off.

Gate: at most 8 % of decoding, however it is judged.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from common import Gate, Question, arguments, document, in_turns, judge, prompt_arguments, questions, save, show
from overhead import PARTS, spend, summarise
from torch import Tensor

from outpace.decoding.control import Fixed
from outpace.decoding.loop import Request
from outpace.drafters.budget import Branching, Budget, Kind
from outpace.drafters.drafter import DraftState, Features, Proposal
from outpace.drafters.growth import sampled_shape
from outpace.models.load import load_target
from outpace.models.target import Tap, Target
from outpace.verification.coins import Keys
from outpace.verification.probabilities import Sampling
from outpace.verification.tree import DraftTree

NODES, DEPTH, WIDTH, BOUND = 24, 6, 3, 0.08
KINDS: dict[str, tuple[Sampling, int | None, bool]] = {
    "greedy": (Sampling(), None, False),
    "temperature 1": (Sampling(1.0), None, False),
    "temperature 1, laws": (Sampling(1.0), None, True),
    "temperature 1, top-p 0.9": (Sampling(1.0, top_p=0.9), None, False),
    "temperature 1, top-p 0.9, laws": (Sampling(1.0, top_p=0.9), None, True),
    "temperature 1, seed": (Sampling(1.0), 7, False),
}
"""Sampling, seed, and whether the drafter claims laws."""
PROTOCOL = (
    "specbench-dev, first turn; batch 1, a tree of 24 nodes a turn, EOS ignored; from the first token to the end of "
    "the stream, text included; interleaved repeats, medians of repeats, then over prompts; 95 % bootstrap over prompts"
)


@dataclass
class ScriptedTree:
    """Drafts the same tree at every turn, cut to the depth allowed; it costs next to nothing.

    Args:
        vocab: of the target; its last ids are what is drafted.
        laws: the rows that are claimed, one for the root and one a node.
    """

    vocab: int
    laws: Tensor | None = None
    name = "scripted tree"
    taps: tuple[Tap, ...] = ()
    branchings: frozenset[Kind] = frozenset({"top-k"})

    def open(self, slots: int, positions: int) -> DraftState:
        return self

    def admit(self, state: DraftState, prompts: list[list[int]], features: list[Features] | None) -> None:
        pass

    def propose(self, state: DraftState, budget: Budget, sampling: list[Sampling], keys: Keys) -> Proposal:
        shape = sampled_shape(WIDTH, budget.nodes[0], budget.depths[0])
        tokens = [self.vocab - 2 - rank for rank in shape.ranks]
        tree = DraftTree.from_lists([(tokens, shape.parents)])
        return Proposal(tree, None if self.laws is None else self.laws[:, : 1 + len(tokens)])

    def commit(self, state: DraftState, emitted: list[list[int]], features: list[Features] | None) -> None:
        pass

    def select(self, state: DraftState, rows: list[int]) -> None:
        pass


def once(target: Target, question: Question, kind: str, args: Any) -> dict[str, float]:
    """Seconds of one text by part, the turns that draft a whole tree."""
    sampling, seed, claims = KINDS[kind]
    laws = torch.full((1, 1 + NODES, target.vocab_size), 1 / target.vocab_size) if claims else None
    request = Request(question.ids, sampling, args.max_new_tokens, (), seed)
    control = Fixed(Branching.parse(f"top-k:{WIDTH}"), DEPTH, NODES)
    return spend(target, ScriptedTree(target.vocab_size, laws), request, control)


def measure(target: Target, asked: Sequence[Question], args: Any) -> dict[str, list[list[dict[str, float]]]]:
    """Every kind of sampling, interleaved; ``[kind][question][repeat]``."""
    return in_turns(list(KINDS), len(asked), args.repeats, lambda kind, place: once(target, asked[place], kind, args))


def main(argv: list[str] | None = None) -> int:
    parser = arguments(__doc__)
    prompt_arguments(parser, per_category=1, tokens=65, repeats=3)
    parser.add_argument("--dtype", choices=("bf16", "fp32"), default="bf16")
    args = parser.parse_args(argv)
    if args.quick:
        args.limit, args.max_new_tokens, args.repeats = 2, 16, 1
    target = load_target(args.target, dtype=args.dtype)
    found = measure(target, questions(target.folder, args), args)
    cells = [summarise(kind, ScriptedTree.name, runs) for kind, runs in found.items()]
    columns = ("sampling", "not forward", *(f"{part} ms" for part in PARTS))
    rows = [(cell["sampling"], cell["share"], *(cell[f"{part}_ms"] for part in PARTS)) for cell in cells]
    show(
        f"share of decoding that is not the target's forward, 24 nodes, {args.dtype}, milliseconds a turn",
        columns,
        rows,
    )
    gates = [Gate(cell["sampling"], cell["share"], BOUND, ceiling=True) for cell in cells]
    status = judge(gates, args.quick)
    records = [gate.record() for gate in gates]
    save("tree_overhead", args, document("tree_overhead", args, PROTOCOL, results=cells, gates=records))
    return status


if __name__ == "__main__":
    sys.exit(main())
