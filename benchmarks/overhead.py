"""The share of decoding that is not the target's forward: drafting, judging, keeping, bookkeeping, turning ids to text.

    python benchmarks/overhead.py                # about 10 minutes on two cores
    python benchmarks/overhead.py --quick        # does it run? one minute

bf16, batch 1, K 4, 64 tokens after the first. The clock runs from the first token to the end of the stream, text
included; what the turns spent in the target's ``score`` is taken off; the prefill counts on neither side. Lookup
drafts where the text repeats; ``scripted`` always drafts four tokens, which are never right, so that every turn has
five rows to judge and every token its own turn. End-of-text is ignored: every text has the same length.

Gate: at most 5 % of decoding greedily and at temperature 1 without truncation, at most 15 % with top-p 0.9 or a seed.
"""

import statistics
import sys
import time
from collections.abc import Sequence
from itertools import product
from typing import Any

from common import (
    Gate,
    Question,
    arguments,
    document,
    in_turns,
    judge,
    median,
    prompt_arguments,
    questions,
    save,
    show,
)

from outpace.decoding.control import Fixed
from outpace.decoding.loop import Request, decode
from outpace.decoding.text import TextStream, text_of
from outpace.decoding.turn import Turn
from outpace.drafters.budget import CHAIN, Budget, Kind
from outpace.drafters.drafter import Drafter, DraftState, Features, Proposal, chains
from outpace.drafters.lookup import Lookup
from outpace.models.load import load_target
from outpace.models.target import Tap, Target
from outpace.verification.coins import Keys
from outpace.verification.probabilities import Sampling

KINDS: dict[str, tuple[Sampling, int | None, float]] = {
    "greedy": (Sampling(), None, 0.05),
    "temperature 1": (Sampling(1.0), None, 0.05),
    "temperature 1, top-p 0.9": (Sampling(1.0, top_p=0.9), None, 0.15),
    "temperature 1, seed": (Sampling(1.0), 7, 0.15),
}
"""Sampling, seed and the largest share allowed."""

PARTS = ("draft", "judge", "between", "forward")
PROTOCOL = (
    "specbench-dev, first turn; batch 1, K 4, EOS ignored; from the first token to the end of the stream, text "
    "included; interleaved repeats, medians of repeats, then over prompts; 95 % bootstrap over prompts"
)


class Scripted:
    """Drafts the same ids at every turn, as many as it may: four drafts are really there, and cost next to nothing."""

    name = "scripted"
    taps: tuple[Tap, ...] = ()
    branchings: frozenset[Kind] = frozenset({"chain"})

    def __init__(self, ids: Sequence[int]) -> None:
        self.ids = list(ids)
        self.rows = 0

    def open(self, slots: int, positions: int) -> DraftState:
        self.rows = 0
        return self

    def admit(self, state: DraftState, prompts: list[list[int]], features: list[Features] | None) -> None:
        self.rows += len(prompts)

    def propose(self, state: DraftState, budget: Budget, sampling: list[Sampling], keys: Keys) -> Proposal:
        return Proposal(chains([self.ids[:depth] for depth in budget.depths]))

    def commit(self, state: DraftState, emitted: list[list[int]], features: list[Features] | None) -> None:
        pass

    def select(self, state: DraftState, rows: list[int]) -> None:
        self.rows = len(rows)


def spend(target: Target, drafter: Drafter, request: Request, control: Fixed) -> dict[str, float]:
    """Seconds of one text by part, all turns but the prefill's; ``between`` is the loop, and ids to text."""
    assert target.folder is not None
    parts, turns = dict.fromkeys(PARTS, 0.0), 0

    def note(turn: Turn, rows: list[int]) -> None:
        nonlocal turns
        if turns:
            parts["draft"] += turn.draft_s
            parts["forward"] += turn.verify_s
            parts["judge"] += turn.total_s - turn.draft_s - turn.verify_s
        turns += 1

    characters = TextStream(text_of(target.folder))
    begin = 0.0
    for emission in decode(target, drafter, [request], control=control, observer=note):
        characters.push(emission.ids)
        begin = begin or time.perf_counter()
    characters.finish()
    whole = time.perf_counter() - begin
    parts["between"] = whole - sum(parts.values())
    return parts | {"share": 1 - parts["forward"] / whole, "turns": turns - 1}


def measure(
    target: Target, asked: Sequence[Question], args: Any
) -> dict[tuple[str, str], list[list[dict[str, float]]]]:
    """Every kind of sampling with every drafter, interleaved; ``[kind, drafter][question][repeat]``."""
    script = list(range(target.vocab_size - args.num_draft_tokens - 1, target.vocab_size - 1))
    drafters: dict[str, Drafter] = {drafter.name: drafter for drafter in (Lookup(), Scripted(script))}
    control = Fixed(CHAIN, args.num_draft_tokens)

    def once(pair: tuple[str, str], place: int) -> dict[str, float]:
        (kind, name), ids = pair, asked[place].ids
        sampling, seed, _ = KINDS[kind]
        return spend(target, drafters[name], Request(ids, sampling, args.max_new_tokens, (), seed), control)

    return in_turns(list(product(KINDS, drafters)), len(asked), args.repeats, once)


def summarise(kind: str, drafter: str, runs: Sequence[Sequence[dict[str, float]]]) -> dict[str, Any]:
    """Medians over prompts of the medians of repeats: the share, and milliseconds a turn by part."""

    def per_prompt(part: str) -> list[float]:
        return [statistics.median(run[part] / run["turns"] for run in repeats) for repeats in runs]

    shares = [statistics.median(run["share"] for run in repeats) for repeats in runs]
    cell: dict[str, Any] = {"sampling": kind, "drafter": drafter, "share": median(shares)}
    return cell | {f"{part}_ms": 1e3 * median(per_prompt(part)).value for part in PARTS}


def main(argv: list[str] | None = None) -> int:
    parser = arguments(__doc__)
    prompt_arguments(parser, per_category=1, tokens=65, repeats=3)
    parser.add_argument("--dtype", choices=("bf16", "fp32"), default="bf16")
    parser.add_argument("--num-draft-tokens", type=int, default=4)
    args = parser.parse_args(argv)
    if args.quick:
        args.limit, args.max_new_tokens, args.repeats = 2, 9, 1
    target = load_target(args.target, dtype=args.dtype)
    found = measure(target, questions(target.folder, args), args)
    cells = [summarise(kind, drafter, runs) for (kind, drafter), runs in found.items()]
    columns = ("sampling", "drafter", "not forward", *(f"{part} ms" for part in PARTS))
    rows = [
        (cell["sampling"], cell["drafter"], cell["share"], *(cell[f"{part}_ms"] for part in PARTS)) for cell in cells
    ]
    show(f"share of decoding that is not the target's forward, {args.dtype}, milliseconds a turn", columns, rows)
    gates = [
        Gate(f"{cell['sampling']}, {cell['drafter']}", cell["share"], KINDS[cell["sampling"]][2], ceiling=True)
        for cell in cells
    ]
    status = judge(gates, args.quick)
    records = [gate.record() for gate in gates]
    save("overhead", args, document("overhead", args, PROTOCOL, results=cells, gates=records))
    return status


if __name__ == "__main__":
    sys.exit(main())
