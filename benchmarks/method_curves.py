"""What trainings of several methods brought: acceptance against tokens seen, and heads of equal size side by side.

    python benchmarks/method_curves.py small=FOLDER medusa=FOLDER eagle1=FOLDER eagle3=FOLDER   # takes seconds

Each folder holds a drafter that ``outpace train`` wrote: its card, its weights and the log beside them. *alpha* is the
mean probability that a drawn draft is accepted, the sum of min(p, q), of the first token that a pupil speaks of;
*top-1* the share at which its likeliest token is the target's. While it learns, both are means over the steps since the
last point, of about ``--points`` points, and over the ids of each batch where a recipe takes some; on held-out texts
they are of whole validations, over all ids. Texts there are given, so that no draft ever leads astray; *walked* are
chains over held-out prompts, as the card has them, each position on the condition that those before it were accepted.

An EAGLE-1 head reads a state and is taught one step; an EAGLE-3 head reads three and is taught to go on from what it
said itself. Where both are given, their walked acceptance stands side by side: what training-time test brings shows in
how it falls with depth. The comparison is fair where both have as many weights and the same data; whether they have is
said.

Gates, on held-out texts: alpha of a distilled draft at least 0.50 (goal 0.65); top-1 of Medusa's first head at least
0.40 (goal 0.55). They are shares of all held-out places, and have no interval.
"""

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from common import Estimate, Gate, arguments, document, judge, save, show

from outpace.drafters.record import Card, is_card, read_record
from outpace.models.weights import load_tensors
from outpace.training.ledger import LOG, read_ledger

DISTILLED, MEDUSA, FIRST, THIRD = "small", "medusa", "eagle1", "eagle3"
ASKED = {DISTILLED: ("alpha", 0.50, 0.65), MEDUSA: ("top_1", 0.40, 0.55)}
"""By method: which held-out figure, its floor, and its goal."""
ALIKE = 0.02
"""Two heads are of equal size where their weights differ by no more than this share."""
PROTOCOL = "the log and the card of each training, as they were written beside its weights; nothing is computed anew"


@dataclass(frozen=True)
class Trained:
    """A drafter as its folder tells of it."""

    name: str
    card: Card
    weights: int
    lines: list[dict[str, Any]]


def opened(said: str) -> Trained:
    """A drafter by ``NAME=FOLDER``."""
    name, _, where = said.partition("=")
    folder = Path(where)
    if not (name and where and folder.is_dir() and is_card(folder) and (folder / LOG).is_file()):
        sys.exit(f"{said!r} is no drafter of a training; allowed: NAME=FOLDER, with its card and its {LOG}")
    weights = sum(tensor.numel() for tensor in load_tensors(folder).values())
    return Trained(name, read_record(folder), weights, read_ledger(folder / LOG))


# ---- curves ----------------------------------------------------------------------------------------------------------


def learning(lines: Sequence[dict[str, Any]], points: int) -> list[dict[str, Any]]:
    """Means over stretches of steps, weighed by their answer tokens; stretches grow with the tokens seen."""
    steps = [line for line in lines if "loss" in line]
    if not steps:
        return []
    last = steps[-1]["answer_tokens"]
    first = max(1, steps[min(len(steps) - 1, len(steps) // 50)]["answer_tokens"])
    borders = [first * (last / first) ** (place / max(1, points - 1)) for place in range(points)]
    found, before, sums, place = [], 0, [0.0, 0.0, 0.0], 0
    for line in steps:
        weight, before = line["answer_tokens"] - before, line["answer_tokens"]
        shown = line["acceptance"][0], line["accuracy"][0]
        if weight and None not in shown:
            sums = [own + weight * figure for own, figure in zip(sums, (*shown, 1.0), strict=True)]
        if sums[2] and (before >= math.floor(borders[place]) or line is steps[-1]):
            found.append({"answer_tokens": before, "alpha": sums[0] / sums[2], "top_1": sums[1] / sums[2]})
            sums = [0.0, 0.0, 0.0]
            while place < points - 1 and before >= math.floor(borders[place]):
                place += 1
    return found


def held_out(lines: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The validations, each with the answer tokens that were seen before it."""
    seen = {line["step"]: line["answer_tokens"] for line in lines if "answer_tokens" in line}
    return [
        {
            "epoch": line["epoch"],
            "answer_tokens": seen[line["step"]],
            "alpha": shown["acceptance"][0],
            "top_1": shown["accuracy"][0],
            "alpha_by_step": shown["acceptance"],
            "top_1_by_step": shown["accuracy"],
        }
        for line in lines
        if (shown := line.get("validation")) is not None and shown["acceptance"][0] is not None
    ]


def cell_of(one: Trained, points: int) -> dict[str, Any]:
    card = one.card
    return {
        "drafter": one.name,
        "method": card.method,
        "weights": one.weights,
        "steps": card.steps,
        "data": card.data.get("sha256"),
        "answer_tokens": card.data.get("answer_tokens"),
        "while_it_learns": learning(one.lines, points),
        "held_out": held_out(one.lines),
        "walked_tau": card.tau,
        "walked_acceptance": list(card.acceptance_by_position or ()),
    }


# ---- of equal size ---------------------------------------------------------------------------------------------------


def side_by_side(cells: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Every EAGLE-1 head beside every EAGLE-3 head: walked acceptance, and how much of it a depth keeps of the last."""
    found = []
    for first in cells:
        for third in cells:
            if (first["method"], third["method"]) != (FIRST, THIRD):
                continue
            sizes = sorted((first["weights"], third["weights"]))
            found.append(
                {
                    "eagle1": first["drafter"],
                    "eagle3": third["drafter"],
                    "equal_size": sizes[1] - sizes[0] <= ALIKE * sizes[1],
                    "same_data": first["data"] is not None and first["data"] == third["data"],
                    "same_steps": first["steps"] == third["steps"],
                    **{
                        f"{who}_{what}": value
                        for who, cell in ((FIRST, first), (THIRD, third))
                        for what, value in (
                            ("weights", cell["weights"]),
                            ("tau", cell["walked_tau"]),
                            ("acceptance", cell["walked_acceptance"]),
                            ("kept", [new / old if old else None for old, new in pairwise(cell["walked_acceptance"])]),
                        )
                    },
                }
            )
    return found


def report(cells: Sequence[dict[str, Any]], pairs: Sequence[dict[str, Any]]) -> None:
    rows = [
        (cell["drafter"], kind, point["answer_tokens"], point["alpha"], point["top_1"])
        for cell in cells
        for kind in ("while_it_learns", "held_out")
        for point in cell[kind]
    ]
    columns = ("drafter", "texts", "answer tokens seen", "alpha", "top-1")
    show("the first token of each, by answer tokens seen", columns, [(a, b.replace("_", " "), *c) for a, b, *c in rows])
    for pair in pairs:
        fair = [name.replace("_", " ") for name in ("equal_size", "same_data", "same_steps") if not pair[name]]
        deepest = max(len(pair["eagle1_acceptance"]), len(pair["eagle3_acceptance"]))
        lines = []
        for who in (FIRST, THIRD):
            rates = [*pair[f"{who}_acceptance"], *["-"] * (deepest - len(pair[f"{who}_acceptance"]))]
            tau = "-" if pair[f"{who}_tau"] is None else pair[f"{who}_tau"]
            lines.append((pair[who], pair[f"{who}_weights"], tau, *rates))
        names = ("head", "weights", "walked tau", *(f"position {place}" for place in range(1, 1 + deepest)))
        show(f"EAGLE-1 and EAGLE-3{', but not: ' + ', '.join(fair) if fair else ', a fair pair'}", names, lines)


def gates_of(cells: Sequence[dict[str, Any]]) -> list[Gate]:
    """What is asked of the best validation of a method."""
    gates = []
    for cell in cells:
        if cell["method"] in ASKED and cell["held_out"]:
            figure, bound, goal = ASKED[cell["method"]]
            best = max(point[figure] for point in cell["held_out"])
            name = f"{cell['drafter']}: {figure.replace('_', '-')} on held-out texts"
            gates.append(Gate(name, Estimate(best, best, best), bound, goal))
    return gates


def main(argv: list[str] | None = None) -> int:
    parser = arguments(__doc__)
    parser.add_argument("drafters", nargs="+", metavar="NAME=FOLDER", help="what outpace train wrote")
    parser.add_argument("--points", type=int, default=24, help="of a curve while it learns")
    args = parser.parse_args(argv)
    trained = list(map(opened, args.drafters))
    args.drafters = [one.name for one in trained]  # a result names no folder of the machine
    cells = [cell_of(one, args.points) for one in trained]
    pairs = side_by_side(cells)
    report(cells, pairs)
    gates = gates_of(cells)
    status = judge(gates, args.quick)
    records = [gate.record() for gate in gates]
    save("method_curves", args, document("method_curves", args, PROTOCOL, results=cells, pairs=pairs, gates=records))
    return status


if __name__ == "__main__":
    sys.exit(main())
