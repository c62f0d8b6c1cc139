"""What an EAGLE head costs: its drafting beside the target's forward, and all that is neither of the two.

    python benchmarks/draft_cost.py                  # about 10 minutes on two cores
    python benchmarks/draft_cost.py --draft FOLDER   # another head than the one that comes along
    python benchmarks/draft_cost.py --quick          # does it run? one minute

bf16, batch 1: a chain of 5 and dynamic trees of 24 nodes, 5 and 6 deep, greedy and at temperature 1, where chains are
drawn; and there a tree of 24 drawn nodes. Every text has as many turns, however much is accepted; end-of-text is
ignored. Where no head is at hand, one is made that begins as the target's last layer: what it says is worth little, and
a pass costs as much. The passes that go a depth further are counted as *levels*: a tree ends where no deeper node can
be kept.

*Drafting* is all of ``propose``. The *head's passes* are what it computes with its weights; all that is neither the
target's forward nor such a pass is bookkeeping: choosing children, keeping the best nodes, masks, laws, judging,
keeping a path, the loop, turning ids to text. A turn goes from one look of the observer to the next. The turn behind
the prefill, in which the head reads the prompt, is shown by itself and counts nowhere else.

Gate: drafting 5 deep at most 30 % of the turn's forward; bookkeeping at most 8 % of a turn.
"""

import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
from common import Estimate, Gate, Question, arguments, document, in_turns, judge, median, questions, save, show
from trained import Way, draft_argument, folder_of, read_head

from outpace.decoding.control import Fixed
from outpace.decoding.loop import Request, decode
from outpace.decoding.text import TextStream, text_of
from outpace.decoding.turn import Turn
from outpace.drafters.budget import Branching
from outpace.drafters.eagle import Eagle
from outpace.drafters.head import Head
from outpace.models.load import load_target
from outpace.models.target import Target
from outpace.training.anatomy import new_head, shape_for
from outpace.training.recipe import HeadSettings
from outpace.training.warm import warm_start
from outpace.verification.probabilities import Sampling

DRAFTING, BOOKKEEPING, DEPTH = 0.30, 0.08, 5
WAYS = (
    Way("chain", 5, 5),
    Way("dynamic", 24, 5),
    Way("dynamic", 24, 6),
    Way("chain", 5, 5, 1.0),
    Way("dynamic", 24, 5, 1.0),
    Way("dynamic", 24, 6, 1.0),
    Way("sampled:3", 24, 5, 1.0),
)
PASSES = ("read", "step", "attend", "feed", "logits")
"""What a walker does with the head's weights."""
IDS = 8192
"""Of the vocabulary of a head that is made here."""
PROTOCOL = (
    "specbench-dev, first turn; batch 1, so many turns a text behind the one that reads the prompt, EOS ignored, text "
    "included; interleaved repeats, medians of repeats, then over prompts; 95 % bootstrap over prompts"
)


class HeadClock:
    """Seconds and calls of a head's passes; one that is part of another is not counted twice."""

    def __init__(self, drafter: Eagle) -> None:
        self.seconds, self.calls, self.inside = 0.0, Counter[str](), False
        for name in PASSES:
            setattr(drafter.walker, name, self.timed(name, getattr(drafter.walker, name)))

    def timed(self, name: str, part: Callable[..., Any]) -> Callable[..., Any]:
        def run(*given: Any, **more: Any) -> Any:
            self.calls[name] += 1
            if self.inside:
                return part(*given, **more)
            self.inside, begin = True, time.perf_counter()
            try:
                return part(*given, **more)
            finally:
                self.inside = False
                self.seconds += time.perf_counter() - begin

        return run


def untrained(target: Target) -> Head:
    """A head of the usual shape that begins as the target's last layer."""
    settings = HeadSettings(
        norm_before_residual=False,
        norm_before_fc=False,
        fc_norm=False,
        norm_output=False,
        draft_vocab_size=min(IDS, target.vocab_size),
    )
    shape = shape_for(target, settings)
    ids = torch.arange(shape.draft_vocab_size)
    head = new_head(shape, ids, seed=0)
    warm_start(head, target, ids)
    return head


def spend(
    target: Target, drafter: Eagle, clock: HeadClock, question: Question, way: Way, turns: int
) -> dict[str, float]:
    """What one text took, a turn on average: seconds by part, passes and nodes; ``prompt`` is the first drafting."""
    assert target.folder is not None
    looks: list[dict[str, float]] = []

    def note(turn: Turn, rows: list[int]) -> None:
        nodes = turn.proposal.tree.tokens.shape[1]
        seen = {"turn": time.perf_counter(), "passes": clock.seconds, "levels": clock.calls["logits"], "nodes": nodes}
        looks.append(seen | {"draft": turn.draft_s, "forward": turn.verify_s})

    characters = TextStream(text_of(target.folder))
    limit = (turns + 2) * (way.depth + 1) + way.depth  # no draft is cut for want of room
    request = Request(question.ids, Sampling(way.temperature), limit)
    control = Fixed(Branching.parse(way.tree), way.depth, way.nodes)
    for emission in decode(target, drafter, [request], control=control, rule=way.rule, observer=note):
        characters.push(emission.ids)
        if len(looks) == turns + 2:  # the prefill, the turn in which the head reads the prompt, and those that count
            break
    before, counted = looks[1], looks[2:]
    grown = {part: (counted[-1][part] - before[part]) / turns for part in ("turn", "passes", "levels")}
    means = {part: statistics.fmean(one[part] for one in counted) for part in ("draft", "forward", "nodes")}
    return grown | means | {"prompt": before["draft"]}


def summarise(way: Way, runs: Sequence[Sequence[dict[str, float]]]) -> dict[str, Any]:
    """Medians over prompts of the medians of repeats: both shares, and what a turn is made of, in milliseconds."""

    def over_prompts(figure: Callable[[dict[str, float]], float]) -> Estimate:
        return median([statistics.median(map(figure, repeats)) for repeats in runs])

    def part(name: str) -> float:
        return over_prompts(lambda one: one[name]).value

    return {
        "way": str(way),
        "tree": way.tree,
        "num_draft_tokens": way.nodes,
        "depth": way.depth,
        "temperature": way.temperature,
        "drafting": over_prompts(lambda one: one["draft"] / one["forward"]),
        "bookkeeping": over_prompts(lambda one: 1 - (one["forward"] + one["passes"]) / one["turn"]),
        "levels": part("levels"),
        "nodes": part("nodes"),
        **{f"{name}_ms": 1e3 * part(name) for name in ("turn", "forward", "draft", "passes", "prompt")},
    }


def gates_of(cell: dict[str, Any]) -> list[Gate]:
    """What is asked of one way; a draft that is deeper than the gate has it is only shown."""
    gates = [Gate(f"bookkeeping, {cell['way']}", cell["bookkeeping"], BOOKKEEPING, ceiling=True)]
    if cell["depth"] == DEPTH:
        gates.insert(0, Gate(f"drafting / forward, {cell['way']}", cell["drafting"], DRAFTING, ceiling=True))
    return gates


def main(argv: list[str] | None = None) -> int:
    parser = arguments(__doc__)
    draft_argument(parser)
    parser.add_argument("--prompts-per-category", type=int, default=1)
    parser.add_argument("--categories", nargs="+", help="only these")
    parser.add_argument("--limit", type=int, help="at most this many prompts")
    parser.add_argument("--turns", type=int, default=24, help="turns of a text that count")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--dtype", choices=("bf16", "fp32"), default="bf16")
    args = parser.parse_args(argv)
    if args.quick:
        args.limit, args.turns, args.repeats = 1, 3, 1
    target = load_target(args.target, dtype=args.dtype)
    asked = questions(target.folder, args)
    folder = folder_of(args.draft, target)
    drafter = Eagle(untrained(target) if folder is None else read_head(folder, target), target)
    clock = HeadClock(drafter)
    found = in_turns(
        WAYS, len(asked), args.repeats, lambda way, place: spend(target, drafter, clock, asked[place], way, args.turns)
    )
    cells = [summarise(way, runs) for way, runs in found.items()]
    parts = ("turn_ms", "forward_ms", "draft_ms", "passes_ms", "prompt_ms")
    named = [name.replace("_", " ") for name in parts]
    columns = ("draft", "drafting / forward", "bookkeeping", "levels", "nodes", *named)
    keys = ("way", "drafting", "bookkeeping", "levels", "nodes", *parts)
    show(f"a head's drafting, {args.dtype}, a turn", columns, [[cell[key] for key in keys] for cell in cells])
    gates = [gate for cell in cells for gate in gates_of(cell)]
    status = judge(gates, args.quick)
    head = "untrained" if folder is None else folder.name
    records = [gate.record() for gate in gates]
    save("draft_cost", args, document("draft_cost", args, PROTOCOL, head=head, results=cells, gates=records))
    return status


if __name__ == "__main__":
    sys.exit(main())
