"""The drafters of one target side by side: what is accepted, what drafting costs, and what ``auto`` makes of it.

    python benchmarks/method_comparison.py --drafter lookup=lookup --drafter small=FOLDER --drafter medusa=FOLDER \\
        --drafter eagle1=FOLDER --drafter eagle3=FOLDER
    python benchmarks/method_comparison.py --drafter ... --part counts    # other work may run beside
    python benchmarks/method_comparison.py --drafter lookup=lookup --quick

Counts take about 10 minutes a drafter on two quiet cores, costs and speed about 70 together for five drafters. Every
text is noted in a file as soon as it is done (``--notes``), and no text is done twice: a run that was stopped goes on,
and one with another ``--part`` or more drafters adds what is missing. Speed is taken in turns, so that it is taken anew
with other drafters. A result holds the parts that were asked for.

*Counts*: tau is tokens after the first per forward of the target, acceptance at a position is conditional on those
before it; pooled over prompts, sums over sums, with 95 % bootstrap intervals over prompts. A chain of 5, and trees of
24 nodes, 6 deep, where the drafter can branch and has so many depths: dynamic ones, static ones where its acceptance by
rank was measured, and at temperature 1 drawn ones. Rules are named, so that the seeds couple nothing: block and
tree-rejection for drawn drafts, match for lookup's.

*Costs*: drafting as a share of the target's forward of the same turn, for the greedy ones of these drafts; medians of
repeats, then over prompts. The turn that reads the prompt does not count.

*Speed*: the public ``generate`` with ``num_draft_tokens="auto"`` beside plain decoding, prefill counted, at temperature
0 and, seeded, so that all say the same, at 1; medians of repeats; the ratio of medians over prompts, paired bootstrap.

Gate: no drafter at either temperature in any category below 0.97 times plain decoding.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from common import (
    ALL,
    Gate,
    Notes,
    Question,
    arguments,
    by_category,
    document,
    judge,
    median,
    median_ratio,
    mixed,
    prompt_arguments,
    questions,
    save,
    show,
    waiting,
)
from trained import Way, figures, spoken

from outpace.decoding.control import Fixed
from outpace.decoding.generate import generate
from outpace.decoding.loop import Request, decode
from outpace.decoding.stats import Speculation
from outpace.decoding.turn import Turn
from outpace.drafters.budget import Branching
from outpace.drafters.drafter import Drafter, own_rates
from outpace.drafters.load import load_drafter
from outpace.drafters.lookup import Lookup
from outpace.models.load import load_target
from outpace.models.staging import cache_root, file_sha256
from outpace.models.target import Target

FLOOR, PLAIN = 0.97, "plain"
CHAIN, DYNAMIC, STATIC = Way("chain", 5, 5), Way("dynamic", 24, 6), Way("static", 24, 6)
DRAWN, SPREAD, MATCHED = (
    Way("chain", 5, 5, 1.0, "block"),
    Way("sampled:3", 24, 6, 1.0, "tree-rejection"),
    Way("chain", 5, 5, 1.0, "match"),
)
PARTS = ("counts", "costs", "speed")
PROTOCOL = (
    "specbench-dev, first prompts of every category, first turn; bf16, batch 1, EOS respected; counts pooled, sums "
    "over sums; costs of so many turns behind the one that reads the prompt; speed interleaved, prefill counted; "
    "medians of repeats; 95 % bootstrap over prompts"
)


# ---- who takes part --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Entrant:
    """A drafter under the name that it has in the table.

    Args:
        drafter: opened.
        made: names its weights, so that notes of others are never taken for its own.
    """

    name: str
    drafter: Drafter
    made: str

    @property
    def key(self) -> str:
        return f"{self.name} ({self.made})"

    @property
    def ways(self) -> list[Way]:
        """How it can draft."""
        drawn = MATCHED if isinstance(self.drafter, Lookup) else DRAWN
        static = [STATIC] if own_rates(self.drafter) else []
        return [way for way in (CHAIN, DYNAMIC, *static, drawn, SPREAD) if can(self.drafter, way.tree)]


def can(drafter: Drafter, tree: str) -> bool:
    """Whether its drafts can branch so."""
    return Branching.parse(tree).kind in drafter.branchings


def entrants(said: Sequence[str], target: Target) -> list[Entrant]:
    """The drafters that the flags name, opened."""
    pairs = [one.partition("=") for one in said]
    names = [name for name, _, _ in pairs]
    for one, (name, _, where) in zip(said, pairs, strict=True):
        if not (name and where) or name == PLAIN or names.count(name) > 1:
            sys.exit(f"--drafter is {one!r}; allowed: NAME=FOLDER, each name once and none of them {PLAIN!r}")
    found = []
    for name, _, where in pairs:
        weights = Path(where) / "model.safetensors"
        made = file_sha256(weights)[:12] if weights.is_file() else where
        found.append(Entrant(name, load_drafter(where, target), made))
    return found


# ---- counts ----------------------------------------------------------------------------------------------------------


def counted(target: Target, entrant: Entrant, asked: Sequence[Question], args: Any, notes: Notes) -> list[Any]:
    """tau and acceptance of a drafter, by way and category."""
    cells = []
    for way in entrant.ways:
        said = []
        for question in waiting(asked, f"{entrant.name}, {way}"):
            key = f"{place_of(target, question, args)}, {entrant.key}, {way}, {way.rule}"

            def once(question: Question = question, way: Way = way) -> dict[str, Any]:
                return asdict(spoken(target, entrant.drafter, question, way, args.max_new_tokens))

            noted = notes.of(f"counts: {key}", once)
            said.append(Speculation(**{name: tuple(v) if isinstance(v, list) else v for name, v in noted.items()}))
        for category, places in by_category(asked).items():
            own = figures(way, category, [said[place] for place in places])
            cells.append({"measured": "counts", "drafter": entrant.name, **own})
    return cells


def place_of(target: Target, question: Question, args: Any) -> str:
    """What every note says of its target and prompt."""
    return f"{target.fingerprint}, prompt {question.question_id}, {args.max_new_tokens} tokens"


# ---- costs -----------------------------------------------------------------------------------------------------------


def spent(target: Target, drafter: Drafter, question: Question, way: Way, turns: int) -> list[float]:
    """Seconds of drafting and of the target's forward, means of so many turns behind the one that reads the prompt."""
    looks: list[tuple[float, float]] = []

    def note(turn: Turn, rows: list[int]) -> None:
        looks.append((turn.draft_s, turn.verify_s))

    request = Request(question.ids, max_new_tokens=(turns + 2) * (way.depth + 1) + way.depth)
    control = Fixed(Branching.parse(way.tree), way.depth, way.nodes)
    for _ in decode(target, drafter, [request], control=control, observer=note):
        if len(looks) == turns + 2:  # the prefill, and the turn in which the drafter reads the prompt
            break
    draft, forward = zip(*looks[2:], strict=True)
    return [statistics.fmean(draft), statistics.fmean(forward)]


def costs(target: Target, entered: Sequence[Entrant], asked: Sequence[Question], args: Any, notes: Notes) -> list[Any]:
    """Drafting beside the forward of its turn: every drafter and way at one prompt at one time."""
    sides = [(one, way) for one in entered for way in one.ways if way.temperature == 0]
    whole = ", ".join(f"{one.key} {way}" for one, way in sides)
    few = mixed(asked)[: args.cost_prompts]
    runs: list[list[list[list[float]]]] = [[] for _ in few]
    for repeat, place in waiting(list(product(range(args.repeats), range(len(few)))), "costs"):
        question = few[place]

        def once(question: Question = question) -> list[list[float]]:
            return [spent(target, one.drafter, question, way, args.turns) for one, way in sides]

        key = f"{place_of(target, question, args)}, {args.turns} turns, repeat {repeat}, {whole}"
        runs[place].append(notes.of(f"costs: {key}", once))
    cells = []
    for number, (one, way) in enumerate(sides):
        shares = [statistics.median(each[number][0] / each[number][1] for each in repeats) for repeats in runs]
        times = [[statistics.median(each[number][part] for each in repeats) for repeats in runs] for part in (0, 1)]
        cells.append(
            {
                "measured": "costs",
                "drafter": one.name,
                "way": str(way),
                "prompts": len(few),
                "drafting": median(shares),
                "draft_ms": 1e3 * median(times[0]).value,
                "forward_ms": 1e3 * median(times[1]).value,
            }
        )
    return cells


# ---- speed -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Side:
    """A drafter with ``auto`` in one shape, or nobody: plain decoding."""

    name: str
    drafter: Drafter | None = None
    tree: str = "chain"

    def once(self, target: Target, question: Question, temperature: float, seed: int, new: int) -> list[float]:
        """Tokens a second of one text, and its tau."""
        options: Any = {"temperature": temperature, "max_new_tokens": new}
        options |= {} if temperature == 0 else {"seed": seed}
        options |= {} if self.drafter is None else {"num_draft_tokens": "auto", "tree": self.tree}
        begin = time.perf_counter()
        result = generate(target, self.drafter, question.ids, **options)
        seconds = time.perf_counter() - begin
        return [len(result.token_ids) / seconds, result.stats.speculation.tau or 1.0]


def speeds(target: Target, entered: Sequence[Entrant], asked: Sequence[Question], args: Any, notes: Notes) -> list[Any]:
    """``auto`` beside plain decoding, by temperature, drafter, shape and category."""
    drafting = [Side(one.name, one.drafter, tree) for one in entered for tree in args.tree if can(one.drafter, tree)]
    sides, cells = [Side(PLAIN), *drafting], []
    whole = ", ".join(f"{one.key}" for one in entered)
    for temperature in args.temperatures:
        jobs = list(product(range(args.repeats), range(len(asked))))
        runs: list[list[list[list[float]]]] = [[] for _ in asked]
        warm: list[Any] = []
        for repeat, place in waiting(jobs, f"speed, T {temperature:g}"):
            first, said = (repeat + place) % len(sides), (asked[place], temperature, repeat + 1, args.max_new_tokens)

            def once(first: int = first, said: Any = said, warm: list[Any] = warm) -> list[list[float]]:
                if not warm:  # what is measured and packed once belongs to no text
                    warm += [side.once(target, *said) for side in sides]
                turns = [(first + step) % len(sides) for step in range(len(sides))]
                found = {turn: sides[turn].once(target, *said) for turn in turns}
                return [found[turn] for turn in range(len(sides))]

            key = f"{place_of(target, asked[place], args)}, T {temperature:g}, repeat {repeat}, {args.tree}, {whole}"
            runs[place].append(notes.of(f"speed: {key}", once))
        for number, side in enumerate(drafting, 1):
            cells += [
                {"measured": "speed", "drafter": side.name, "tree": side.tree, "temperature": temperature, **cell}
                for cell in sped_up(runs, number, asked)
            ]
    return cells


def sped_up(runs: Sequence[Sequence[Sequence[Sequence[float]]]], side: int, asked: Sequence[Question]) -> list[Any]:
    """One side beside the first one, plain decoding, by category; runs are by prompt, repeat and side."""
    plain, ours = (
        np.array([statistics.median(one[who][0] for one in repeats) for repeats in runs]) for who in (0, side)
    )
    return [
        {
            "category": category,
            "prompts": len(places),
            "tokens_per_second": median(ours[places]),
            "plain_tokens_per_second": median(plain[places]),
            "over_plain": median_ratio(ours[places], plain[places]),
            "mean_tau": statistics.fmean(one[side][1] for place in places for one in runs[place]),
        }
        for category, places in by_category(asked).items()
    ]


# ---- the table -------------------------------------------------------------------------------------------------------


def report(cells: Sequence[dict[str, Any]]) -> None:
    """All prompts together first, then tau by category."""
    counts, spending, speed = ([cell for cell in cells if cell["measured"] == part] for part in PARTS)
    if counts:
        deepest = max(len(cell["acceptance_by_position"]) for cell in counts)
        rows = []
        for cell in counts:
            rates = ["-" if one is None else one.value for one in cell["acceptance_by_position"]]
            said = (cell["drafter"], cell["way"], cell["rule"], cell["tau"], cell["drafted_per_turn"])
            if cell["category"] == ALL:
                rows.append((*said, *rates, *["-"] * (deepest - len(rates))))
        columns = ("drafter", "draft", "rule", "tau", "drafted a turn", *(f"at {n}" for n in range(1, 1 + deepest)))
        show("accepted, all prompts", columns, rows)
        kinds = list(dict.fromkeys(cell["category"] for cell in counts))
        taus = {(cell["drafter"], cell["way"], cell["category"]): cell["tau"].value for cell in counts}
        pairs = dict.fromkeys((who, way) for who, way, _ in taus)
        lines = [(who, way, *(taus[who, way, kind] for kind in kinds)) for who, way in pairs]
        show("tau by category", ("drafter", "draft", *kinds), lines)
    for title, part, names in (
        ("drafting beside the forward of its turn", spending, ("drafter", "way", "drafting", "draft_ms", "forward_ms")),
        ("auto", speed, ("drafter", "tree", "temperature", "category", "over_plain", "mean_tau")),
    ):
        if part:
            show(title, [name.replace("_", " ") for name in names], [[cell[name] for name in names] for cell in part])


def gates_of(cells: Sequence[dict[str, Any]]) -> list[Gate]:
    """Nobody is slowed down."""
    return [
        Gate(f"{c['drafter']}, auto {c['tree']}, {c['category']}, T {c['temperature']:g}", c["over_plain"], FLOOR)
        for c in cells
        if c["measured"] == "speed" and c["category"] != ALL
    ]


def parsed(argv: list[str] | None) -> argparse.Namespace:
    parser = arguments(__doc__)
    prompt_arguments(parser, per_category=5, tokens=128, repeats=3)
    parser.add_argument("--drafter", action="append", required=True, metavar="NAME=FOLDER", help="once for each")
    parser.add_argument("--part", nargs="+", choices=PARTS, default=list(PARTS), help="what to measure; all by default")
    parser.add_argument("--tree", nargs="+", default=["chain", "dynamic"], help="shapes of auto, where a drafter can")
    parser.add_argument("--temperatures", type=float, nargs="+", default=[0.0, 1.0], help="of the speed")
    parser.add_argument("--cost-prompts", type=int, default=13, help="prompts at which costs are taken")
    parser.add_argument("--turns", type=int, default=24, help="turns of a text that count for costs")
    parser.add_argument("--notes", type=Path, help="where texts are noted; beside the weights in the cache by default")
    args = parser.parse_args(argv)
    for tree in args.tree:
        Branching.parse(tree)
    if args.quick:
        args.prompts_per_category, args.max_new_tokens, args.repeats = 1, 12, 1
        args.limit, args.cost_prompts, args.turns = args.limit or 2, 1, 3
    return args


def main(argv: list[str] | None = None) -> int:
    args = parsed(argv)
    target = load_target(args.target, dtype="bf16")
    asked, entered = questions(target.folder, args), entrants(args.drafter, target)
    notes = Notes(args.notes or cache_root() / "benchmarks" / "method_comparison.jsonl")
    cells: list[dict[str, Any]] = []
    if "counts" in args.part:
        cells += [cell for one in entered for cell in counted(target, one, asked, args, notes)]
    if "costs" in args.part:
        cells += costs(target, entered, asked, args, notes)
    if "speed" in args.part:
        cells += speeds(target, entered, asked, args, notes)
    report(cells)
    gates = gates_of(cells)
    status = judge(gates, args.quick)
    args.drafter = {one.name: one.drafter.name.rpartition("/")[2] for one in entered}  # no folder of the machine
    del args.notes
    records = [gate.record() for gate in gates]
    save("method_comparison", args, document("method_comparison", args, PROTOCOL, results=cells, gates=records))
    return status


if __name__ == "__main__":
    sys.exit(main())
