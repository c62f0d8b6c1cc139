"""What tokens brought: the held-out acceptance of one or more trainings, and whether more of them would pay.

    python benchmarks/learning_curve.py FOLDER.training ...          # seconds; reads the log of each, trains nothing
    python benchmarks/learning_curve.py log.jsonl --out curve.json

One line a validation: tokens read, epochs, acceptance by step on the texts that were held out, and the tau that chains
as deep would have; these are of texts that a draft never led astray. Where the drafter lies beside the folder of its
log, the tau of its card stands there too, which is of rounds that were walked.

The rule of two doublings: where four times the tokens brought less than 0.05 tau, more of them do not pay. Inside a
training it is asked of its last validation, with straight lines between validations over the logarithm of tokens; the
learning rate falls towards the end, which flatters the end. Over several trainings it is asked of the best validation
of each, by the tokens that it had read: that is the one to go by.
"""

import math
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from common import arguments, document, save, show

from outpace.drafters.record import is_card, read_record
from outpace.training.ledger import read_ledger

LEAST, FACTOR = 0.05, 4
LOG, WORK = "log.jsonl", ".training"
PROTOCOL = (
    "held-out texts of each training, as its log has them: acceptance conditional on the steps before, tau of chains "
    "as deep as there are steps; walked: chains over the target's own texts, as the card has it"
)
Curve = Sequence[tuple[int, float]]
"""tau by tokens read, rising in tokens."""


@dataclass(frozen=True)
class Point:
    """A validation; acceptance by step is None where no place was left to count."""

    training: str
    epoch: int
    step: int
    tokens: int
    answer_tokens: int
    acceptance: list[float | None]
    tau: float


def log_of(path: Path) -> Path:
    """The log that a path names, itself or by its folder."""
    log = path / LOG if path.is_dir() else path
    if not log.is_file():
        sys.exit(f"{path} is no log of a training; allowed: a {LOG}, or the folder that holds one")
    return log.absolute()


def name_of(log: Path) -> str:
    return log.parent.name.removesuffix(WORK)


def points_of(log: Path) -> list[Point]:
    """The validations of a log, in their order."""
    lines = read_ledger(log)
    read = {line["step"]: (line["tokens"], line["answer_tokens"]) for line in lines if "tokens" in line}
    return [
        Point(name_of(log), line["epoch"], line["step"], *read[line["step"]], shown["conditional"], shown["tau"])
        for line in lines
        if (shown := line.get("validation")) is not None and shown["tau"] is not None
    ]


def walked(log: Path) -> float | None:
    """The tau of the card beside a training's folder; None where there is none, or it was not walked."""
    folder = log.parent.with_name(name_of(log))
    beside = folder != log.parent and folder.is_dir() and is_card(folder)
    return read_record(folder).tau if beside else None


def tau_at(curve: Curve, tokens: float) -> float | None:
    """tau after so many tokens, between two points; None outside of them."""
    for (fewer, low), (more, high) in pairwise(curve):
        if fewer <= tokens <= more:
            return low + (high - low) * math.log(tokens / fewer) / math.log(more / fewer)
    return None


def gain(curve: Curve) -> float | None:
    """What the last two doublings of tokens brought; None where the curve is shorter."""
    if not curve:
        return None
    tokens, tau = curve[-1]
    before = tau_at(curve, tokens / FACTOR)
    return None if before is None else tau - before


def best(points: Sequence[Point]) -> Point:
    return max(points, key=lambda one: one.tau)


def over(trainings: Sequence[Sequence[Point]]) -> Curve:
    """The best of each training by the tokens it had read; of equal tokens the better."""
    found: dict[int, float] = {}
    for one in map(best, trainings):
        found[one.tokens] = max(one.tau, found.get(one.tokens, 0.0))
    return sorted(found.items())


def verdict(name: str, brought: float | None) -> str:
    if brought is None:
        return f"{name}: fewer than two doublings of tokens were measured"
    pays = "more tokens pay" if brought >= LEAST else f"less than {LEAST:g}, so more tokens do not pay"
    return f"{name}: two doublings of tokens brought {brought:+.3f} tau; {pays}"


def main(argv: list[str] | None = None) -> int:
    parser = arguments(__doc__)
    parser.add_argument("logs", type=Path, nargs="+", metavar="LOG", help="a log of a training, or its folder")
    args = parser.parse_args(argv)
    logs = list(map(log_of, args.logs))
    args.logs = list(map(name_of, logs))  # a result names no folder of the machine
    trainings = list(map(points_of, logs))
    cells: list[dict[str, Any]] = [
        {
            "training": name_of(log),
            "validations": list(map(asdict, points)),
            "best": asdict(best(points)) if points else None,
            "walked_tau": walked(log),
            "two_doublings": gain([(one.tokens, one.tau) for one in points]),
        }
        for log, points in zip(logs, trainings, strict=True)
    ]
    depth = max((len(one.acceptance) for points in trainings for one in points), default=0)
    columns = ("training", "epoch", "step", "tokens", "of answers", *(f"step {n}" for n in range(1, depth + 1)), "tau")
    rows = [
        (
            one.training,
            one.epoch,
            one.step,
            one.tokens,
            one.answer_tokens,
            *("-" if rate is None else rate for rate in [*one.acceptance, *[None] * (depth - len(one.acceptance))]),
            one.tau,
        )
        for points in trainings
        for one in points
    ]
    show("held-out acceptance by tokens read", columns, rows)
    across = gain(over([points for points in trainings if points]))
    for cell in cells:
        print(verdict(cell["training"], cell["two_doublings"]))
        if cell["walked_tau"] is not None:
            print(f"{cell['training']}: walked tau {cell['walked_tau']:.3f}")
    if len(cells) > 1:
        print(verdict(f"the best of {len(cells)} trainings", across))
    save("learning_curve", args, document("learning_curve", args, PROTOCOL, results=cells, two_doublings=across))
    return 0


if __name__ == "__main__":
    sys.exit(main())
