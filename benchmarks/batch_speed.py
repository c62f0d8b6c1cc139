"""Eight mixed prompts decoded together against one after the other: tokens per second, and one forward a turn.

    python benchmarks/batch_speed.py               # about 15 minutes on two cores
    python benchmarks/batch_speed.py --quick       # does it run? one minute

bf16, greedy, end-of-text respected, prefill counted, 128 tokens, plain and lookup. A group is eight prompts of eight
categories; its rate is all new tokens over the wall time. Interleaved repeats, medians; 95 % paired bootstrap over
groups of the ratio of median rates. Rows of a group end at different times and nothing refills them, so this is the
least that batching gives.

Gate: plain decoding at least 3 times the tokens per second of batch 1; the target's ``score`` is called once a turn,
with drafts too. Chains of 4 are reported and not judged: they make use of the same idle arithmetic as the other rows of
a batch, so that the two gains do not multiply.
"""

import statistics
import sys
import time
from collections.abc import Sequence
from typing import Any

from common import (
    Estimate,
    Gate,
    Question,
    arguments,
    document,
    judge,
    median_ratio,
    mixed,
    prompt_arguments,
    questions,
    save,
    show,
)
from rich.console import Console
from rich.progress import track

from outpace.decoding.generate import generate
from outpace.drafters.drafter import Drafter
from outpace.drafters.lookup import Lookup
from outpace.models.load import load_target
from outpace.models.transformer import Transformer

PROTOCOL = (
    "specbench-dev, first turn; groups of mixed prompts; greedy, EOS respected, prefill counted; interleaved repeats, "
    "medians of repeats; 95 % paired bootstrap over groups of the ratio of median tokens per second"
)


class Counted:
    """A target that counts its forwards, and is otherwise the one it was made of."""

    def __init__(self, target: Transformer) -> None:
        self.target = target
        self.prefills = self.scores = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.target, name)

    def prefill(self, *given: Any) -> Any:
        self.prefills += 1
        return self.target.prefill(*given)

    def score(self, *given: Any) -> Any:
        self.scores += 1
        return self.target.score(*given)


def groups(asked: Sequence[Question], size: int, count: int) -> list[list[Question]]:
    """Groups of prompts from as many categories as there are, in turn."""
    ordered = mixed(asked)
    return [ordered[start : start + size] for start in range(0, len(ordered) - size + 1, size)][:count]


def run(target: Counted, drafter: Drafter | None, group: Sequence[Question], batch: int, args: Any) -> dict[str, Any]:
    """Decode a group ``batch`` prompts at a time; the turns are those of the longest row of each batch."""
    target.prefills = target.scores = 0
    tokens, turns = 0, 0
    begin = time.perf_counter()
    for start in range(0, len(group), batch):
        ids = [question.ids for question in group[start : start + batch]]
        results = generate(
            target,
            drafter,
            ids,
            max_new_tokens=args.max_new_tokens,
            num_draft_tokens=args.num_draft_tokens,
        )
        tokens += sum(len(result.token_ids) for result in results)
        turns += max(result.stats.speculation.turns for result in results)
    seconds = time.perf_counter() - begin
    return {"rate": tokens / seconds, "tokens": tokens, "turns": turns, "scores": target.scores}


def measure(target: Counted, grouped: Sequence[Sequence[Question]], args: Any) -> dict[tuple[str, int], Any]:
    """Plain and lookup, together and one by one; ``[method, batch][group][repeat]``."""
    drafters: dict[str, Drafter | None] = {"plain": None, "lookup": Lookup(eos_ids=target.eos_ids)}
    pairs = [(method, batch) for method in drafters for batch in (args.batch_size, 1)]
    found: dict[tuple[str, int], Any] = {pair: [[] for _ in grouped] for pair in pairs}
    jobs = [(repeat, place) for repeat in range(args.repeats) for place in range(len(grouped))]
    for method in drafters:
        run(target, drafters[method], grouped[0], args.batch_size, args)
    for repeat, place in track(jobs, "measuring", console=Console(stderr=True)):
        first = (repeat + place) % len(pairs)
        for method, batch in pairs[first:] + pairs[:first]:
            found[method, batch][place].append(run(target, drafters[method], grouped[place], batch, args))
    return found


def main(argv: list[str] | None = None) -> int:
    parser = arguments(__doc__)
    prompt_arguments(parser, per_category=5, tokens=128, repeats=3)
    parser.add_argument("--dtype", choices=("bf16", "fp32"), default="bf16")
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--groups", type=int, default=5)
    parser.add_argument("--num-draft-tokens", type=int, default=4)
    args = parser.parse_args(argv)
    if args.quick:
        args.batch_size, args.groups, args.max_new_tokens, args.repeats = 4, 1, 9, 1
        args.prompts_per_category = 1
    target = Counted(load_target(args.target, dtype=args.dtype))
    grouped = groups(questions(target.folder, args), args.batch_size, args.groups)
    found = measure(target, grouped, args)
    rates = {
        pair: [statistics.median(one["rate"] for one in repeats) for repeats in runs] for pair, runs in found.items()
    }
    calls = {
        method: sum(one["scores"] for repeats in found[method, args.batch_size] for one in repeats)
        / sum(one["turns"] for repeats in found[method, args.batch_size] for one in repeats)
        for method in ("plain", "lookup")
    }
    cells: list[dict[str, Any]] = []
    for method in ("plain", "lookup"):
        together, alone = rates[method, args.batch_size], rates[method, 1]
        cells.append(
            {
                "method": method,
                "batch": args.batch_size,
                "groups": len(grouped),
                "tokens_per_second": statistics.median(together),
                "batch_1_tokens_per_second": statistics.median(alone),
                "ratio": median_ratio(together, alone),
                "forwards_per_turn": calls[method],
            }
        )
    columns = ("method", "groups", f"batch {args.batch_size} tok/s", "batch 1 tok/s", "ratio", "forwards a turn")
    keys = ("method", "groups", "tokens_per_second", "batch_1_tokens_per_second", "ratio", "forwards_per_turn")
    show(f"mixed prompts, {args.dtype}", columns, [[cell[key] for key in keys] for cell in cells])
    gates = [Gate(f"batch {args.batch_size}, plain", cells[0]["ratio"], 3.0)]
    for method, ratio in calls.items():
        gates.append(Gate(f"forwards a turn, {method}", Estimate(ratio, ratio, ratio), 1.0, ceiling=True))
    status = judge(gates, args.quick)
    records = [gate.record() for gate in gates]
    save("batch_speed", args, document("batch_speed", args, PROTOCOL, results=cells, gates=records))
    return status


if __name__ == "__main__":
    sys.exit(main())
