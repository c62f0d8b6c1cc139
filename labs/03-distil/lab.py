"""Exercise 3: a 30M draft is distilled from the default target, and its α on held-out text is measured as data grows.

    python labs/03-distil/lab.py --small            # a tiny target and a tiny student: what CI runs, under a minute
    python labs/03-distil/lab.py                    # OUTPACE_DATA/smollm2-answers.jsonl: README.md says how long
    python labs/03-distil/lab.py --answers A B ...  # more of the target's own answers

The answers are shuffled once; an eighth, a quarter, half and all of them each train a draft of its own by the recipe
``recipes/distil-smollm2.toml``, read once, and every draft is asked the same held-out answers. Interrupted, it goes on
where it was: checkpoints, recorded states and whole drafts in ``--work`` are used again.

α is the sum of min(p, q) = 1 - TV at temperature 1, over all places of held-out answers. Beside it: how often the two
favourites agree (α of greedy decoding), and what real decoding of held-out prompts accepts, chains of 4 by token
rejection, whose first position has to agree with α.
"""

import argparse
import os
import random
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

HERE = Path(__file__).parent
RECIPE = HERE.parents[1] / "recipes" / "distil-smollm2.toml"
sys.path[:0] = [str(HERE), str(HERE.parent)]

from common import BLUE, GREEN, ORANGE, arguments, finish, heading, table  # noqa: E402
from matplotlib.figure import Figure  # noqa: E402
from matplotlib.ticker import EngFormatter  # noqa: E402
from small import setting  # noqa: E402

from outpace.decoding.generate import generate  # noqa: E402
from outpace.drafters.record import is_card, read_record  # noqa: E402
from outpace.drafters.small import METHOD, Small  # noqa: E402
from outpace.evaluation.metrics import Estimate, pooled, ratio_of_sums  # noqa: E402
from outpace.models.load import load_target  # noqa: E402
from outpace.models.student import Student, open_student  # noqa: E402
from outpace.models.target import Target  # noqa: E402
from outpace.training.course import Course, prepare, run  # noqa: E402
from outpace.training.distil import distil  # noqa: E402
from outpace.training.ledger import read_ledger  # noqa: E402
from outpace.training.recipe import Recipe  # noqa: E402

PORTIONS = (8, 4, 2, 1)
"""One part in so many of the answers."""
K = 4
TEXTS, SMALL = (16, 64), (4, 16)
"""Held-out prompts that are decoded, and tokens of each."""
LESSON = (0.6, 0.7)
"""What the lesson expects after 100 million tokens, of another target."""
PROTOCOL = (
    "one training a portion of the same shuffled answers, each read so many times as `epochs` says; alpha is the mean "
    "sum of min(p, q) at temperature 1 over all places of held-out answers, agreement that of the two favourites; 95 % "
    "bootstrap over held-out texts; decoding: chains of 4, temperature 1, token rejection, on held-out prompts"
)


# ---- a portion -------------------------------------------------------------------------------------------------------


def portioned(files: Sequence[Path], work: Path) -> list[Path]:
    """The answers of all files in one order, and a file of each portion: every one begins the next."""
    lines = [line for file in files for line in file.read_text("utf-8").splitlines() if '"answer_ids"' in line]
    random.Random(0).shuffle(lines)
    found = []
    for parts in PORTIONS:
        path = work / f"one-in-{parts}.jsonl"
        path.write_text("".join(line + "\n" for line in lines[: len(lines) // parts]), "utf-8")
        found.append(path)
    return found


def taught(recipe: Recipe, target: Target, answers: Path, work: Path) -> tuple[Course, Path]:
    """A draft that was trained on a portion, now or before, and the course that it took."""
    chosen = recipe.with_changes("data", answers=(str(answers),), prompts=(), invent=0)
    out = work / answers.stem
    course = prepare(chosen, target, work / f"{answers.stem}.training", work / "features")
    if not (out.is_dir() and is_card(out)):
        run(course, chosen, out, work / f"{answers.stem}.training", resume=True)
    return course, out


# ---- what it is worth ------------------------------------------------------------------------------------------------


@torch.no_grad()
def on_held_out(course: Course, student: Student) -> dict[str, Estimate]:
    """α and agreement over the held-out answers of a course."""
    held, teacher = course.held_out, course.lesson.teacher
    assert held is not None, "the recipe holds texts out"
    counts = [distil(student.eval(), held.fetch([place]), teacher).counts for place in range(len(held.samples))]
    places = [float(one.places[0]) for one in counts]
    return {
        "alpha": ratio_of_sums([float(one.accepted[0]) for one in counts], places),
        "agreement": ratio_of_sums([float(one.matches[0]) for one in counts], places),
    }


def decoded(course: Course, draft: Path, texts: int, tokens: int) -> dict[str, Any]:
    """What real decoding of held-out prompts accepts."""
    assert course.held_out is not None
    drafter = Small(load_target(str(draft)), course.target)
    asked = [sample.ids[: int(sample.loss_mask.int().argmax())].tolist() for sample in course.held_out.samples[:texts]]
    said = [
        generate(
            course.target, drafter, ids, temperature=1.0, rule="rejection", seed=7, num_draft_tokens=K,
            max_new_tokens=tokens,
        )
        for ids in asked
    ]  # fmt: skip
    found = pooled([text.stats.speculation for text in said])
    return {
        "tau": found.tau,
        "acceptance": found.acceptance,
        "acceptance_by_position": found.acceptance_by_position,
        "turns": found.turns,
    }


def point(course: Course, judge: Course, draft: Path, epochs: int, size: tuple[int, int]) -> dict[str, Any]:
    """One portion's row of the result."""
    log = [line for line in read_ledger(draft / "log.jsonl") if "tokens" in line]
    card = read_record(draft, METHOD)
    return {
        "texts": len(course.features.samples),
        "tokens": sum(map(len, course.features.samples)),
        "epochs": epochs,
        "tokens_read": log[-1]["tokens"],
        "steps": card.steps,
        "training_s": log[-1]["seconds"],
        **on_held_out(judge, open_student(draft)),
        "decoding": decoded(judge, draft, *size),
        "greedy_chains": {"tau": card.tau, "acceptance_by_position": card.acceptance_by_position},
        "log": thinned([(line["tokens"], line["acceptance"][0]) for line in log if line["acceptance"][0] is not None]),
    }


def thinned(curve: Sequence[tuple[int, float]], points: int = 40) -> list[tuple[int, float]]:
    """Means over neighbours, so that no more points are left than these."""
    size = -(-len(curve) // points)
    parts = [curve[start : start + size] for start in range(0, len(curve), size)]
    return [(part[-1][0], sum(value for _, value in part) / len(part)) for part in parts]


# ---- the whole -------------------------------------------------------------------------------------------------------


def picture(found: Sequence[dict[str, Any]]) -> Figure:
    """α against the tokens that were learnt from, and the lesson's own expectation."""
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axis = figure.subplots()
    axis.axhspan(*LESSON, color=GREEN, alpha=0.15, label="the lesson's 0.6 to 0.7, after 100 million tokens")
    for one in found:
        axis.plot(*zip(*one["log"], strict=True), color=BLUE, alpha=0.3, linewidth=1)
    tokens = [one["tokens_read"] for one in found]
    for name, label, colour in (
        ("alpha", "α on held-out answers, temperature 1", BLUE),
        ("agreement", "favourites that agree (greedy)", ORANGE),
    ):
        spans: list[Estimate] = [one[name] for one in found]
        bars = [[one.value - one.low for one in spans], [one.high - one.value for one in spans]]
        axis.errorbar(tokens, [one.value for one in spans], bars, color=colour, marker="o", capsize=3, label=label)
    axis.set(xscale="log", ylim=(0, 1), xlabel="tokens read", ylabel="α")
    axis.xaxis.set_major_formatter(EngFormatter())
    axis.set_title("A draft by the tokens it learnt from; thin: on the batches of each training, as it went")
    axis.legend(fontsize="small")
    return figure


def summary(found: Mapping[str, Any]) -> str:
    """The table of README.md."""
    machine = f"{found['machine']['cores']} cores of {found['machine']['cpu']}"
    lines = [f"{found['date'][:10]}, {machine}; {found['held_out_texts']} held-out texts.", ""]
    lines += [
        "| tokens read | of them distinct | steps | α, T 1 | favourites agree | position 1 | τ, K 4, T 1 | τ, greedy |"
    ]
    lines += ["|---:|---:|---:|---:|---:|---:|---:|---:|"]
    for one in found["results"]:
        spans = ("{value:.3f} [{low:.3f}, {high:.3f}]".format(**one[name]) for name in ("alpha", "agreement"))
        rates = (first(one), one["decoding"]["tau"], one["greedy_chains"]["tau"])
        cells = [*spans, *("-" if rate is None else f"{rate:.2f}" for rate in rates)]
        lines.append(f"| {one['tokens_read']:,} | {one['tokens']:,} | {one['steps']:,} | {' | '.join(cells)} |")
    return "\n".join(lines)


def flags(argv: list[str] | None) -> argparse.Namespace:
    parser = arguments(__doc__, __file__)
    parser.add_argument("--answers", type=Path, nargs="+", help="the target's own answers (JSON lines)")
    parser.add_argument("--target", default="smollm2", help="a folder, a Hugging Face id, or the default")
    parser.add_argument("--recipe", type=Path, default=RECIPE, help="what is trained, and how")
    parser.add_argument("--epochs", type=int, default=1, help="how often every portion is read")
    parser.add_argument("--work", type=Path, default=Path("distil-lab"), help="drafts, checkpoints and recorded states")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    args = flags(argv)
    args.work.mkdir(parents=True, exist_ok=True)
    if args.small:
        recipe, target, files = setting(args.work)
    else:
        recipe = Recipe.read(args.recipe).with_changes("train", epochs=args.epochs, batches_per_step=1)
        target, files = load_target(args.target, dtype=recipe.dtype), args.answers or first_corpus()
    courses = [taught(recipe, target, path, args.work) for path in portioned(files, args.work)]
    judge = courses[-1][0]  # its held-out texts are held out of every portion
    found = [
        point(course, judge, draft, recipe.train.epochs, SMALL if args.small else TEXTS) for course, draft in courses
    ]
    assert judge.held_out is not None
    heading(f"drafts distilled from {Path(target.name).name}; {len(judge.held_out.samples)} held-out texts")
    table(
        ("tokens", "steps", "α, T 1", "favourites agree", "decoding: position 1", "tau, K 4"),
        [
            (one["tokens_read"], one["steps"], one["alpha"], one["agreement"], first(one), one["decoding"]["tau"])
            for one in found
        ],
    )
    # A result names no folder of the machine.
    args.answers, args.recipe = [file.name for file in files], None if args.small else args.recipe.name
    args.target, args.epochs, args.work = Path(target.name).name, recipe.train.epochs, None
    held = {"held_out_texts": len(judge.held_out.samples)}
    whole = {"protocol": PROTOCOL, "recipe": recipe.to_dict() | {"data": None}, **held, "results": found}
    finish(args, whole, {"alpha-by-tokens": lambda: picture(found)}, summary)
    return 0


def first(one: Mapping[str, Any]) -> float | None:
    """What decoding accepted of the first position."""
    rates: Sequence[float] = one["decoding"]["acceptance_by_position"]
    return rates[0] if rates else None


def first_corpus() -> list[Path]:
    """The answers that the project began with."""
    named = os.environ.get("OUTPACE_DATA")
    if not named or not (path := Path(named) / "smollm2-answers.jsonl").is_file():
        sys.exit(
            f"OUTPACE_DATA is {named!r}; it must name the folder that holds smollm2-answers.jsonl, or give --answers"
        )
    return [path]


if __name__ == "__main__":
    sys.exit(main())
