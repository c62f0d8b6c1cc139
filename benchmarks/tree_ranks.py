"""Whether trees are really used: from which rank accepted tokens come, and how many forwards of the target they took.

    python benchmarks/tree_ranks.py           # about 5 minutes on one core; times nothing, so other work may run
    python benchmarks/tree_ranks.py --quick   # does it run? one minute

Greedy, bf16, batch 1, end-of-text respected; a ``top-k:3`` tree of 12 nodes, 4 deep, in every turn. The drafter is
built for the question: the target itself with fixed Gaussian noise on its logits, a row of noise for every last token,
so that its favourite is often the target's second or third. Rank 1 is the child that the drafter holds likeliest.

Gates: at least 20 % of accepted tokens are of rank 2 or 3; one forward of the target a turn; the texts are the plain
ones up to near-ties, with an fp32 gap below 0.25.
"""

import sys
from collections import Counter
from dataclasses import replace
from typing import Any

import torch
from common import (
    Estimate,
    Gate,
    Question,
    arguments,
    document,
    judge,
    prompt_arguments,
    questions,
    save,
    show,
)
from jaxtyping import Int
from reference import Judge, equality
from rich.console import Console
from rich.progress import track
from torch import Tensor

from outpace.decoding.acceptance import outcomes
from outpace.decoding.control import Fixed
from outpace.decoding.loop import Request, decode
from outpace.decoding.turn import Turn
from outpace.drafters.budget import Branching
from outpace.drafters.drafter import Drafter
from outpace.drafters.small import Small
from outpace.evaluation.metrics import ratio_of_sums
from outpace.models.load import load_target
from outpace.models.target import Scores, State, Tap, Target
from outpace.verification.tree import DraftTree

TREE, DEPTH, NODES = "top-k:3", 4, 12
LEAST = 0.2
ROWS = 61
"""So many rows of noise: a token has that of its id modulo this."""
PROTOCOL = (
    "specbench-dev, first turn, greedy, batch 1, EOS respected; a top-k:3 tree of 12 nodes and depth 4 a turn, drafted "
    "by the target with fixed noise on its logits; ranks of accepted tokens pooled, 95 % bootstrap over prompts"
)


class Twin:
    """A target that passes everything on; its forwards are counted, and noise may lie on its logits."""

    def __init__(self, target: Target, spread: float = 0.0) -> None:
        self.target, self.forwards = target, 0
        generator = torch.Generator().manual_seed(0)
        self.noise = spread * torch.randn(ROWS, target.vocab_size, generator=generator) if spread else None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.target, name)

    def prefill(
        self, state: State, ids: Int[Tensor, "new time"], lengths: list[int], taps: tuple[Tap, ...] = ()
    ) -> Scores:
        last = ids[torch.arange(len(ids)), torch.tensor(lengths) - 1]
        return self._noised(self.target.prefill(state, ids, lengths, taps), last[:, None])

    def score(self, state: State, last: Int[Tensor, " batch"], tree: DraftTree, taps: tuple[Tap, ...] = ()) -> Scores:
        self.forwards += 1
        return self._noised(self.target.score(state, last, tree, taps), torch.cat((last[:, None], tree.tokens), 1))

    def _noised(self, scores: Scores, tokens: Int[Tensor, "batch rows"]) -> Scores:
        if self.noise is None:
            return scores
        return replace(scores, logits=scores.logits.float() + self.noise[tokens % ROWS])


def decoded(target: Target, drafter: Drafter | None, question: Question, tokens: int) -> tuple[list[int], list[Turn]]:
    """A text, and its turns behind the prefill."""
    turns: list[Turn] = []
    control = Fixed(Branching.parse(TREE), DEPTH, NODES) if drafter else None
    request = Request(question.ids, max_new_tokens=tokens, eos_ids=target.eos_ids)
    ids: list[int] = []
    for emission in decode(target, drafter, [request], control=control, observer=lambda turn, _: turns.append(turn)):
        ids += emission.ids
    return ids, turns[1:]


def measure(args: Any) -> tuple[dict[str, Any], list[Gate]]:
    """Ranks, forwards and texts of every prompt."""
    target = load_target(args.target, dtype=args.dtype)
    watched = Twin(target)
    drafter = Small(Twin(target, args.spread), target)
    asked = questions(target.folder, args)
    ranks: list[Counter[int]] = []
    ours: list[list[int]] = []
    plain: list[list[int]] = []
    turns = 0
    for question in track(asked, "decoding", console=Console(stderr=True)):
        ids, taken = decoded(watched, drafter, question, args.max_new_tokens)
        ours.append(ids)
        plain.append(decoded(target, None, question, args.max_new_tokens)[0])
        ranks.append(Counter(1 + rank for turn in taken for _, rank in outcomes(turn)[0] if rank >= 0))
        turns += len(taken)
    accepted = [sum(one.values()) for one in ranks]
    later = [count - one[1] for count, one in zip(accepted, ranks, strict=True)]
    share = ratio_of_sums(later, accepted)
    equal = equality(Judge(args.target, args.dtype), asked, ours, plain)
    found = {
        "tree": TREE,
        "nodes": NODES,
        "depth": DEPTH,
        "spread": args.spread,
        "turns": turns,
        "forwards": watched.forwards,
        "accepted_by_rank": {str(rank): sum(one[rank] for one in ranks) for rank in (1, 2, 3)},
        "share_of_later_ranks": share,
        "tau": 1 + sum(accepted) / max(1, turns),
        "equality": equal,
    }
    one = watched.forwards / max(1, turns)
    same = float(equal["equal"])
    gates = [
        Gate("accepted tokens of rank 2 or 3, top-k:3 tree", share, LEAST),
        Gate("forwards of the target a turn, top-k:3 tree", Estimate(one, one, one), 1.0, ceiling=True),
        Gate("same tokens but near-ties, top-k:3 tree", Estimate(same, same, same), 1.0),
    ]
    return found, gates


def main(argv: list[str] | None = None) -> int:
    parser = arguments(__doc__)
    prompt_arguments(parser, per_category=1, tokens=128, repeats=1)
    parser.add_argument("--dtype", choices=("bf16", "fp32"), default="bf16")
    parser.add_argument("--spread", type=float, default=2.0, help="of the noise on the drafter's logits")
    args = parser.parse_args(argv)
    if args.quick:
        args.limit, args.max_new_tokens = 2, 16
    found, gates = measure(args)
    by_rank = found["accepted_by_rank"]
    show(
        f"accepted by rank, {found['turns']} turns, {found['forwards']} forwards, tau {found['tau']:.2f}",
        ("rank", "accepted"),
        [(rank, str(count)) for rank, count in by_rank.items()],
    )
    status = judge(gates, args.quick)
    records = [gate.record() for gate in gates]
    save("tree_ranks", args, document("tree_ranks", args, PROTOCOL, results=[found], gates=records))
    return status


if __name__ == "__main__":
    sys.exit(main())
