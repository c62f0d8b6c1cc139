"""A draft that is not much smaller than its target: much is accepted, and yet it loses. How much, and why.

    python benchmarks/own_size_draft.py           # about 12 minutes on two cores
    python benchmarks/own_size_draft.py --quick   # does it run? one minute

The default is drafted for by itself, whose drafts are all right, and by its own first layers, whose drafts cost less
and are worth less: ``--layers`` says how many. bf16, greedy, batch 1, chains of K, the first prompt of every category;
end-of-text is ignored. Interleaved with plain decoding, medians of repeats, then over prompts, 95 % bootstrap.

A turn drafts K times at ``c`` each and verifies once at ``v(K + 1)``, all in plain forwards, for tau tokens. So the
speed-up is ``tau / (K c + v(K + 1))`` and what the loop itself takes. A draft of the target's own size has c near 1:
even where tau is K + 1, which is the most there can be, it is below 1 for every K.

The gates ask for the loss and for the explanation: with itself as its drafter the default is slower than alone at
every K, and what is measured is at least 0.85 of what is predicted, and at most 1.05.
"""

import json
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common import (
    Gate,
    Question,
    arguments,
    document,
    in_turns,
    judge,
    median,
    median_ratio,
    prompt_arguments,
    questions,
    ratio_of_sums,
    save,
    show,
)

from outpace.decoding.control import Fixed
from outpace.decoding.loop import Request, decode
from outpace.decoding.turn import Turn
from outpace.drafters.budget import CHAIN
from outpace.drafters.drafter import Drafter
from outpace.drafters.small import Small
from outpace.models.load import load_target
from outpace.models.target import Target
from outpace.models.weights import load_tensors, read_config, save_tensors

DTYPE, PLAIN = "bf16", ("plain", 0)
SLOWEST, FASTEST = 0.85, 1.05
PROTOCOL = (
    "specbench-dev, first prompt of every category, first turn; greedy chains, batch 1, EOS ignored, prefill left "
    "out; interleaved repeats, medians; 95 % paired bootstrap over prompts of the ratio of tokens per second"
)
Side = tuple[str, int]
"""A drafter's name, and the length of its chains."""


@dataclass(frozen=True)
class Text:
    """What one text took behind its prefill, and the turn in which the drafter reads the prompt left out.

    Args:
        tokens, turns: that were emitted, and the forwards they took.
        seconds: of all of it; ``draft`` and ``verify`` are the parts of drafting and of the target.
    """

    tokens: int
    turns: int
    seconds: float
    draft: float
    verify: float

    @property
    def rate(self) -> float:
        return self.tokens / self.seconds


def first_layers(target: Target, count: int, folder: Path) -> Path:
    """A model of the target's first layers, its last norm and its head; nobody trains it."""
    if target.folder is None:
        sys.exit("the target has no folder, so no layers to take")
    source = Path(target.folder)
    config, tensors = read_config(source), load_tensors(source)
    kept = {
        name: tensor
        for name, tensor in tensors.items()
        if "layers." not in name or int(name.split("layers.")[1].split(".")[0]) < count
    }
    folder.mkdir()
    for path in source.glob("*.json"):
        if not path.name.endswith(".index.json"):
            shutil.copyfile(path, folder / path.name)
    (folder / "config.json").write_text(json.dumps(config | {"num_hidden_layers": count}), "utf-8")
    save_tensors(folder, kept)
    return folder


def decoded(target: Target, drafter: Drafter | None, question: Question, length: int, new: int) -> Text:
    """One text, turn by turn."""
    looks: list[tuple[float, int, float, float]] = []

    def note(turn: Turn, rows: list[int]) -> None:
        looks.append((time.perf_counter(), len(turn.emitted[0]), turn.draft_s, turn.verify_s))

    request = Request(question.ids, max_new_tokens=new)
    for _ in decode(target, drafter, [request], control=Fixed(CHAIN, length), observer=note):
        pass
    first, counted = looks[1], looks[2:]  # the prefill, and the turn in which the drafter reads the prompt
    _, tokens, draft, verify = zip(*counted, strict=True)
    return Text(sum(tokens), len(counted), counted[-1][0] - first[0], sum(draft), sum(verify))


def summarise(side: Side, runs: Sequence[Sequence[Text]], plain: Sequence[Sequence[Text]]) -> dict[str, Any]:
    """tau, both costs in plain forwards, and the speed-up that they predict beside the one that was measured."""
    name, length = side

    def middle(texts: Sequence[Sequence[Text]], figure: Any) -> list[float]:
        return [statistics.median(map(figure, repeats)) for repeats in texts]

    forward = middle(plain, lambda one: one.verify / one.turns)
    draft, verify = (
        [cost / alone for cost, alone in zip(middle(runs, figure), forward, strict=True)]
        for figure in (lambda one: one.draft / one.turns / length, lambda one: one.verify / one.turns)
    )
    taus = middle(runs, lambda one: one.tokens / one.turns)
    predicted = [tau / (length * step + check) for tau, step, check in zip(taus, draft, verify, strict=True)]
    ours, theirs = (middle(each, lambda one: one.rate) for each in (runs, plain))
    measured = [fast / slow for fast, slow in zip(ours, theirs, strict=True)]
    return {
        "drafter": name,
        "num_draft_tokens": length,
        "tau": ratio_of_sums([each[0].tokens for each in runs], [each[0].turns for each in runs]),
        "draft_cost": median(draft),
        "verify_cost": median(verify),
        "predicted": median(predicted),
        "over_plain": median_ratio(ours, theirs),
        "measured_of_predicted": median([got / said for got, said in zip(measured, predicted, strict=True)]),
    }


def gates_of(cells: Sequence[dict[str, Any]], own: str) -> list[Gate]:
    gates = []
    for cell in cells:
        what = f"{cell['drafter']}, K {cell['num_draft_tokens']}"
        if cell["drafter"] == own:
            gates.append(Gate(f"{what}: over plain", cell["over_plain"], 1.0, ceiling=True))
        gates.append(Gate(f"{what}: measured of predicted, at least", cell["measured_of_predicted"], SLOWEST))
        gates.append(
            Gate(f"{what}: measured of predicted, at most", cell["measured_of_predicted"], FASTEST, ceiling=True)
        )
    return gates


def main(argv: list[str] | None = None) -> int:
    parser = arguments(__doc__)
    prompt_arguments(parser, per_category=1, tokens=128, repeats=3)
    parser.add_argument("--lengths", type=int, nargs="+", default=[1, 2, 4], metavar="K", help="tokens of a chain")
    parser.add_argument("--layers", type=int, nargs="+", default=[24], help="cut drafts: so many of the first layers")
    args = parser.parse_args(argv)
    if args.quick:
        args.limit, args.max_new_tokens, args.repeats, args.lengths = args.limit or 2, 24, 1, args.lengths[:2]
    target = load_target(args.target, dtype=DTYPE)
    asked = questions(target.folder, args)
    own = "itself"
    drafters: dict[str, Drafter | None] = {PLAIN[0]: None, own: Small(load_target(args.target, dtype=DTYPE), target)}
    with tempfile.TemporaryDirectory() as place:
        for count in args.layers:
            folder = first_layers(target, count, Path(place) / f"layers-{count}")
            drafters[f"its first {count} layers"] = Small(load_target(str(folder), dtype=DTYPE), target)
        sides = [PLAIN, *((name, length) for name in list(drafters)[1:] for length in args.lengths)]
        runs = in_turns(
            sides,
            len(asked),
            args.repeats,
            lambda side, place: decoded(target, drafters[side[0]], asked[place], side[1], args.max_new_tokens),
        )
    cells = [summarise(side, runs[side], runs[PLAIN]) for side in sides[1:]]
    names = ("drafter", "num_draft_tokens", "tau", "draft_cost", "verify_cost", "predicted", "over_plain")
    columns = ("drafter", "K", "tau", "c", "v(K + 1)", "predicted", "over plain")
    show(
        "drafts of the target's own size, in plain forwards",
        columns,
        [[cell[name] for name in names] for cell in cells],
    )
    gates = gates_of(cells, own)
    status = judge(gates, args.quick)
    records = [gate.record() for gate in gates]
    save("own_size_draft", args, document("own_size_draft", args, PROTOCOL, results=cells, gates=records))
    return status


if __name__ == "__main__":
    sys.exit(main())
