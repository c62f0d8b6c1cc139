"""What the measuring scripts share: prompts, the machine's record, interleaved runs, paired intervals, results on disk.

Knows nothing of what is measured. Prompts are those of specbench-dev, first turn only, through the chat template of
the target; ``OUTPACE_DATA`` names the folder that holds the file.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any, TypeVar, Unpack

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track
from rich.table import Table

from outpace.decoding.generate import generate
from outpace.decoding.options import Options
from outpace.decoding.stats import Speculation
from outpace.decoding.text import text_of
from outpace.drafters.drafter import Drafter
from outpace.evaluation import metrics
from outpace.evaluation.machine import machine
from outpace.evaluation.metrics import Estimate
from outpace.evaluation.metrics import median as median  # for the scripts, which know this file alone
from outpace.evaluation.metrics import median_ratio as median_ratio
from outpace.evaluation.metrics import ratio_of_sums as ratio_of_sums
from outpace.models.target import Target

REPOSITORY = Path(__file__).parents[1]
RESULTS = Path(__file__).parent / "results"
FORMAT_VERSION = 1
ALL = "all"


# ---- arguments and results -------------------------------------------------------------------------------------------


def arguments(doc: str | None) -> argparse.ArgumentParser:
    """A parser with the flags that every script has; its help is the script's docstring."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="smollm2", help="a folder, a Hugging Face id, or the default")
    parser.add_argument("--out", type=Path, help="where the result goes; benchmarks/results by default")
    parser.add_argument("--quick", action="store_true", help="tiny settings: does it run at all? judges no gate")
    return parser


def prompt_arguments(
    parser: argparse.ArgumentParser, *, per_category: int, tokens: int, repeats: int | None = None
) -> None:
    """The flags of scripts that decode prompts of specbench-dev; without repeats there is no flag for them."""
    parser.add_argument("--prompts-per-category", type=int, default=per_category)
    parser.add_argument("--categories", nargs="+", help="only these")
    parser.add_argument("--limit", type=int, help="at most this many prompts")
    parser.add_argument("--max-new-tokens", type=int, default=tokens)
    if repeats is not None:
        parser.add_argument("--repeats", type=int, default=repeats)


def document(script: str, args: argparse.Namespace, protocol: str, **found: Any) -> dict[str, Any]:
    """One result: what was measured, where, when, with what, and how."""
    settings = {name: value for name, value in vars(args).items() if name not in ("out", "target")}
    if settings.get("draft") is not None:
        settings["draft"] = Path(settings["draft"]).name
    return {
        "format_version": FORMAT_VERSION,
        "script": f"benchmarks/{script}.py",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine(),
        "versions": versions(),
        "target": Path(args.target).name,
        "protocol": protocol,
        "settings": settings,
        **found,
    }


def save(script: str, args: argparse.Namespace, found: Mapping[str, Any]) -> None:
    """Write a result whole or not at all. A quick run leaves the committed results alone."""
    if args.out is None and args.quick:
        return
    path = args.out or RESULTS / f"{script}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    growing = path.with_name(f".{path.name}.{os.getpid()}")
    growing.write_text(json.dumps(rounded(found), indent=1) + "\n", "utf-8")
    os.replace(growing, path)
    print(f"written: {path}", file=sys.stderr)


def rounded(value: Any) -> Any:
    """Plain data for JSON: intervals as dictionaries, floats to six digits."""
    if isinstance(value, Estimate):
        return rounded(asdict(value))
    if isinstance(value, Mapping):
        return {key: rounded(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(part) for part in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value


def versions() -> dict[str, str]:
    """Python, the packages that matter, and the commit."""
    found = {"python": platform.python_version()}
    for name in ("torch", "transformers", "numpy"):
        found[name] = metadata.version(name)
    found["outpace"] = tomllib.loads((REPOSITORY / "pyproject.toml").read_text("utf-8"))["project"]["version"]
    command = ["git", "-C", str(REPOSITORY), "describe", "--always", "--dirty"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return found | ({"commit": done.stdout.strip()} if done.returncode == 0 else {})


def show(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table; numbers to the right, floats with three digits that mean something."""
    table = Table(title=title, title_justify="left")
    for place, column in enumerate(columns):
        table.add_column(column, justify="left" if place == 0 else "right")
    for row in rows:
        table.add_row(*(f"{value:.3g}" if isinstance(value, float) else str(value) for value in row))
    Console(width=max(140, Console().width)).print(table)


# ---- gates -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Gate:
    """A promise: a floor that must hold (or a ceiling), and a goal that is hoped for.

    It fails only where the whole interval lies on the wrong side.
    """

    name: str
    estimate: Estimate
    bound: float
    goal: float | None = None
    ceiling: bool = False

    @property
    def holds(self) -> bool:
        return self.estimate.low <= self.bound if self.ceiling else self.estimate.high >= self.bound

    @property
    def goal_met(self) -> bool | None:
        if self.goal is None:
            return None
        return self.estimate.value <= self.goal if self.ceiling else self.estimate.value >= self.goal

    def record(self) -> dict[str, Any]:
        return asdict(self) | {"holds": self.holds, "goal_met": self.goal_met}


def judge(gates: Sequence[Gate], quick: bool) -> int:
    """Print every gate; the exit status is 1 where one fails, and always 0 for a quick run, which proves nothing."""
    if not gates:
        return 0
    rows = [
        (
            gate.name,
            str(gate.estimate),
            f"{'<=' if gate.ceiling else '>='} {gate.bound:g}",
            "-" if gate.goal is None else f"{gate.goal:g}",
            "not judged" if quick else "holds" if gate.holds else "FAILS",
        )
        for gate in gates
    ]
    show("gates", ("gate", "measured", "bound", "goal", ""), rows)
    return int(not quick and not all(gate.holds for gate in gates))


# ---- prompts ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Question:
    """One prompt as the target reads it."""

    question_id: int
    category: str
    ids: list[int]


def data_folder() -> Path:
    """The folder that ``OUTPACE_DATA`` names."""
    named = os.environ.get("OUTPACE_DATA")
    if not named or not Path(named).is_dir():
        sys.exit(f"OUTPACE_DATA is {named!r}; it must name the folder that holds specbench-dev.jsonl")
    return Path(named)


def questions(folder: Path | None, args: argparse.Namespace) -> list[Question]:
    """The first prompts of every category, first turn only, through the chat template in ``folder``."""
    if folder is None:
        sys.exit("the target has no folder, so no tokenizer")
    text = text_of(folder)
    lines = (data_folder() / "specbench-dev.jsonl").read_text("utf-8").splitlines()
    taken: dict[str, int] = {}
    found = []
    for record in map(json.loads, lines):
        category = record["category"]
        taken[category] = taken.get(category, 0) + 1
        wanted = not args.categories or category in args.categories
        if wanted and taken[category] <= args.prompts_per_category:
            found.append(Question(record["question_id"], category, text.encode(record["turns"][0])))
    return found[: args.limit]


def mixed(asked: Sequence[Question]) -> list[Question]:
    """The same questions, one of every category in turn."""
    kinds: dict[str, list[Question]] = {}
    for question in asked:
        kinds.setdefault(question.category, []).append(question)
    longest = max(map(len, kinds.values()))
    return [kind[place] for place in range(longest) for kind in kinds.values() if place < len(kind)]


def by_category(asked: Sequence[Question]) -> dict[str, list[int]]:
    """The places of every category's questions, and of all of them under ``all``, last."""
    places: dict[str, list[int]] = {}
    for place, question in enumerate(asked):
        places.setdefault(question.category, []).append(place)
    return places | {ALL: list(range(len(asked)))}


# ---- runs and intervals ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Run:
    """One decoded text and the wall time it took, prefill included."""

    seconds: float
    token_ids: list[int]
    speculation: Speculation | None = None

    @property
    def rate(self) -> float:
        """New tokens a second."""
        return len(self.token_ids) / self.seconds


Contestant = Callable[[Question], Run]
Name = TypeVar("Name")
Found = TypeVar("Found")


def ours(target: Target, drafter: Drafter | None, **options: Unpack[Options]) -> Contestant:
    """The public ``generate`` on ids, timed from outside."""

    def run(question: Question) -> Run:
        begin = time.perf_counter()
        result = generate(target, drafter, question.ids, **options)
        return Run(time.perf_counter() - begin, result.token_ids, result.stats.speculation)

    return run


def in_turns(
    names: Sequence[Name], places: int, repeats: int, once: Callable[[Name, int], Found]
) -> dict[Name, list[list[Found]]]:
    """Everyone at every place, A B C A B C ..., several times over; ``[name][place][repeat]``.

    All meet at one place at one time, so that drift of the machine hits them alike; the one that begins rotates. Each
    does the first place once unmeasured.
    """
    found: dict[Name, list[list[Found]]] = {name: [[] for _ in range(places)] for name in names}
    for name in names:
        once(name, 0)
    jobs = [(repeat, place) for repeat in range(repeats) for place in range(places)]
    for repeat, place in track(jobs, "measuring", console=Console(stderr=True)):
        first = (repeat + place) % len(names)
        for name in [*names[first:], *names[:first]]:
            found[name][place].append(once(name, place))
    return found


def interleave(
    contestants: Mapping[str, Contestant], asked: Sequence[Question], repeats: int
) -> dict[str, list[list[Run]]]:
    """Every contestant on every question, in turns; ``[name][question][repeat]``."""
    return in_turns(list(contestants), len(asked), repeats, lambda name, place: contestants[name](asked[place]))


def median_rates(runs: Sequence[Sequence[Run]]) -> NDArray[np.float64]:
    """Tokens a second of every question, the median of its repeats."""
    return np.array([statistics.median(run.rate for run in repeats) for repeats in runs])


def pooled(speculations: Sequence[Speculation]) -> dict[str, Any]:
    """tau and acceptance over several texts, sums over sums."""
    return asdict(metrics.pooled(speculations))


class Notes:
    """What was measured, by what it is of, a JSON line each; a line that was cut off is measured again."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = path.read_text("utf-8").splitlines(keepends=True) if path.is_file() else []
        whole = [line for line in lines if line.endswith("\n")]
        if len(whole) < len(lines):
            path.write_text("".join(whole), "utf-8")
        self.path, self.found = path, dict(map(json.loads, whole))

    def of(self, key: str, make: Callable[[], Any]) -> Any:
        """What was noted, or is made and noted now."""
        if key not in self.found:
            self.found[key] = make()
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps([key, self.found[key]]) + "\n")
        return self.found[key]


def waiting(jobs: Sequence[Found], what: str) -> Iterable[Found]:
    """The same jobs, with a bar that says how many are done."""
    return track(jobs, what, console=Console(stderr=True))
