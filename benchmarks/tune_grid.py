"""Is what ``tune`` chooses as fast as the best of a grid, as predicted, and plain decoding where that wins?

    python benchmarks/tune_grid.py --state grid.jsonl    # about two hours on two cores; goes on where it stopped
    python benchmarks/tune_grid.py --quick               # does it run? two minutes

Four steps, each kept in the state file as soon as it is done:

1. ``tune`` searches for ``--budget`` minutes on specbench-dev, at temperature 0, one prompt at a time.
2. The grid: plain decoding and every setting of every drafter at hand, 40 at most, on the same prompts, once.
3. By category and for all, the winner of the grid, the choice of tune and plain decoding are timed anew beside each
   other, interleaved, three times: what won the grid by chance is not believed.
4. Two searches where drafting hardly pays: a weak drafter at temperature 1.5, and 16 prompts at a time. What is chosen
   is timed beside plain decoding.

bf16, end-of-text respected, prefill counted; medians, 95 % paired bootstrap over prompts (over groups at batch 16).
Gates: tune's choice at least 0.95 of the grid's winner, for all prompts and in every category; predicted and measured
speed-up of the choices apart by 10 % at most, the median over categories; what is chosen where drafting hardly pays is
at least 0.97 of plain decoding.
"""

import json
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from common import (
    ALL,
    Estimate,
    Gate,
    Question,
    arguments,
    by_category,
    document,
    in_turns,
    judge,
    median_rates,
    median_ratio,
    ours,
    prompt_arguments,
    questions,
    save,
    show,
)
from rich.console import Console
from rich.progress import track

from outpace.decoding.plan import Choice, Plan
from outpace.drafters.drafter import Drafter
from outpace.drafters.load import LOOKUP, at_hand, load_drafter
from outpace.evaluation import workloads
from outpace.evaluation.benchmark import Protocol, Setting, grouped, measure
from outpace.evaluation.benchmark import median_rates as group_rates
from outpace.models.load import load_target
from outpace.models.target import Target
from outpace.tuning.candidates import PLAIN, Candidate, all_candidates
from outpace.tuning.conclusion import conclude
from outpace.tuning.search import search
from outpace.tuning.task import Task

MOST = 40
NEAR, APART, WORST = 0.95, 0.1, 0.97
HOT, MANY = 1.5, 16
PROTOCOL = (
    "specbench-dev, first prompts of every category, first turn; EOS respected, prefill counted; the grid once, its "
    "winners, the choices of tune and plain decoding anew in interleaved repeats, medians; 95 % paired bootstrap over "
    "prompts of the ratio of median tokens per second"
)


class State:
    """What is done already, a JSON line a step: the same arguments go on, others are refused."""

    def __init__(self, path: Path | None, settings: Mapping[str, Any]) -> None:
        self.path, self.done = path, dict[str, Any]()
        lines = path.read_text("utf-8").splitlines() if path is not None and path.is_file() else []
        for line in lines:
            self.done |= json.loads(line)
        if self.step("settings", lambda: dict(settings)) != settings:
            sys.exit(f"{path} was begun with other settings; name another file")

    def step(self, name: str, work: Callable[[], Any]) -> Any:
        """What a step came to, by doing it now or from the file."""
        if name not in self.done:
            self.done[name] = json.loads(json.dumps(work()))
            if self.path is not None:
                with self.path.open("a", encoding="utf-8") as file:
                    file.write(json.dumps({name: self.done[name]}) + "\n")
        return self.done[name]


def asked_of(asked: Sequence[Question]) -> list[workloads.Question]:
    return [workloads.Question(str(one.question_id), one.category, one.ids) for one in asked]


def tuned(target: Target, drafters: Mapping[str, Drafter], asked: Sequence[Question], task: Task) -> dict[str, Any]:
    """What tune says: its plan, and its reasons."""
    found = search(target, drafters, asked_of(asked), task)
    answer = conclude(found, target)
    reasons = [asdict(one) for one in answer.reasons]
    return {"plan": answer.plan.to_toml(), "reasons": reasons, "loads": answer.loads, "seconds": found.seconds}


def way(choice: Choice) -> Candidate:
    """What a plan asks for."""
    if choice.options["num_draft_tokens"] == 0:
        return PLAIN
    return Candidate(choice.drafter, choice.num_draft_tokens, choice.tree, choice.depth, choice.rule)


def timed(target: Target, drafters: Mapping[str, Drafter], one: Candidate, tokens: int) -> Any:
    """A contestant."""
    if one.plain:
        return ours(target, None, max_new_tokens=tokens)
    shape = {"num_draft_tokens": one.num_draft_tokens, "tree": one.tree, "depth": one.depth}
    return ours(target, drafters[one.drafter], max_new_tokens=tokens, **shape)


def grid_rates(
    target: Target, drafters: Mapping[str, Drafter], asked: Sequence[Question], state: State, args: Any
) -> dict[Candidate, list[float]]:
    """Tokens a second of every setting on every prompt, once; a step a prompt."""
    everyone = all_candidates(list(drafters.items()), target)[: 4 if args.quick else None]
    if len(everyone) > MOST:
        sys.exit(f"{len(everyone)} settings; at most {MOST}: name fewer drafters with --draft")
    sides = {one: timed(target, drafters, one, args.max_new_tokens) for one in everyone}
    if "grid 0" not in state.done:
        for side in sides.values():
            side(asked[0])
    found: dict[Candidate, list[float]] = {one: [] for one in everyone}
    for place, question in track(list(enumerate(asked)), "the grid", console=Console(stderr=True)):
        order = [*everyone[place % len(everyone) :], *everyone[: place % len(everyone)]]
        rates = state.step(
            f"grid {place}", lambda q=question, o=order: [[o.index(one), sides[one](q).rate] for one in o]
        )
        for index, rate in rates:
            found[order[index]].append(rate)
    return found


def beside(
    target: Target, drafters: Mapping[str, Drafter], asked: Sequence[Question], ways: Sequence[Candidate], args: Any
) -> dict[int, list[float]]:
    """Several ways anew beside each other: median rates by way and prompt."""
    unique = list(dict.fromkeys(ways))
    sides = [timed(target, drafters, one, args.max_new_tokens) for one in unique]
    runs = in_turns(list(range(len(unique))), len(asked), args.repeats, lambda side, place: sides[side](asked[place]))
    return {place: list(map(float, median_rates(runs[unique.index(one)]))) for place, one in enumerate(ways)}


def compare(
    target: Target,
    drafters: Mapping[str, Drafter],
    asked: Sequence[Question],
    plan: Plan,
    grid: Mapping[Candidate, list[float]],
    state: State,
    args: Any,
) -> list[dict[str, Any]]:
    """By category and for all: the choice, the grid's winner and plain decoding."""
    cells = []
    for category, places in by_category(asked).items():
        winner = max(grid, key=lambda one: statistics.median(grid[one][place] for place in places))
        choice = plan.choice(category)
        ways = [way(choice), winner, PLAIN]
        own = [asked[place] for place in places]
        found = state.step(f"beside {category}", lambda o=own, w=ways: beside(target, drafters, o, w, args))
        choices, winners, plain = (found[str(place)] for place in range(3))
        speedup = median_ratio(choices, plain)
        predicted = None if choice.evidence is None else choice.evidence.predicted
        cells.append(
            {
                "category": category,
                "prompts": len(places),
                "choice": ways[0].words,
                "winner": winner.words,
                "choice_over_winner": median_ratio(choices, winners),
                "speedup": speedup,
                "predicted": 1.0 if ways[0].plain else predicted,
                "apart": None if ways[0].plain or predicted is None else abs(predicted / speedup.value - 1),
            }
        )
    return cells


def hard(
    target: Target,
    drafters: Mapping[str, Drafter],
    asked: Sequence[Question],
    name: str,
    task: Task,
    state: State,
    args: Any,
) -> dict[str, Any]:
    """What is chosen where drafting hardly pays, and what came of it beside plain decoding."""
    said = state.step(f"tune {name}", lambda: tuned(target, drafters, asked, task))
    batch, heat = task.batches[0], task.temperatures[0]
    one = way(Plan.from_toml(said["plan"]).choice(batch=batch, temperature=heat))

    def again() -> list[list[float]]:
        if one.plain:
            return [[1.0], [1.0]]
        setting = Setting(one.num_draft_tokens, one.tree, one.depth, one.rule, heat)
        protocol = Protocol(1e6, args.repeats, batch, args.max_new_tokens)
        measured = measure(target, drafters[one.drafter], grouped(asked_of(asked), batch), [setting], protocol)
        return [group_rates(measured.drafted[0]), group_rates(measured.plain[heat])]

    choices, plain = state.step(f"beside {name}", again)
    sentences = said["reasons"][0]["sentences"]
    return {"where": name, "choice": one.words, "choice_over_plain": median_ratio(choices, plain), "reasons": sentences}


def gates_of(cells: Sequence[dict[str, Any]], where: Sequence[dict[str, Any]]) -> list[Gate]:
    gates = [
        Gate(f"choice over the grid's winner, {one['category']}", one["choice_over_winner"], NEAR) for one in cells
    ]
    apart = [one["apart"] for one in cells if one["apart"] is not None and one["category"] != ALL]
    if apart:
        middle = statistics.median(apart)
        gates.append(Gate("predicted and measured apart", Estimate(middle, middle, middle), APART, ceiling=True))
    return gates + [Gate(f"choice over plain, {one['where']}", one["choice_over_plain"], WORST) for one in where]


def main(argv: list[str] | None = None) -> int:
    parser = arguments(__doc__)
    prompt_arguments(parser, per_category=5, tokens=128, repeats=3)
    parser.add_argument("--dtype", choices=("bf16", "fp32"), default="bf16")
    parser.add_argument("--draft", nargs="+", help="who may draft; all drafters at hand by default")
    parser.add_argument("--budget", type=float, default=20.0, help="minutes of the search")
    parser.add_argument("--hard-budget", type=float, default=5.0, help="minutes of each search where it hardly pays")
    parser.add_argument("--weak", default=LOOKUP, help="the drafter that is weak at temperature 1.5")
    parser.add_argument("--state", type=Path, help="keep what is done here, and go on from it")
    args = parser.parse_args(argv)
    if args.quick:
        args.prompts_per_category, args.max_new_tokens, args.repeats, args.limit = 1, 10, 1, args.limit or 2
        args.budget = args.hard_budget = 0.1
    target = load_target(args.target, dtype=args.dtype)
    asked = questions(target.folder, args)
    drafters = {name: load_drafter(name, target) for name in args.draft or at_hand(target)}
    kept = {name: value for name, value in vars(args).items() if name not in ("state", "out", "target", "quick")}
    state = State(args.state, json.loads(json.dumps({**kept, "fingerprint": target.fingerprint})))
    common = {"max_new_tokens": args.max_new_tokens}
    said = state.step("tune", lambda: tuned(target, drafters, asked, Task(budget_s=60 * args.budget, **common)))
    grid = grid_rates(target, drafters, asked, state, args)
    cells = compare(target, drafters, asked, Plan.from_toml(said["plan"]), grid, state, args)
    seconds, weak = 60 * args.hard_budget, {args.weak: load_drafter(args.weak, target)}
    hot = Task(budget_s=seconds, temperatures=(HOT,), **common)
    many = Task(budget_s=seconds, goal="throughput", batches=(MANY,), **common)
    where = [
        hard(target, weak, asked, f"{args.weak} at temperature {HOT}", hot, state, args),
        hard(target, drafters, asked, f"{MANY} at a time", many, state, args),
    ]
    columns = (
        "category",
        "prompts",
        "choice of tune",
        "winner of the grid",
        "choice / winner",
        "speed-up",
        "predicted",
    )
    keys = ("category", "prompts", "choice", "winner", "choice_over_winner", "speedup", "predicted")
    show("tune beside the grid", columns, [["-" if one[key] is None else one[key] for key in keys] for one in cells])
    show("where drafting hardly pays", ("where", "choice", "over plain"), [list(one.values())[:3] for one in where])
    gates = gates_of(cells, where)
    status = judge(gates, args.quick)
    medians = {one.words: statistics.median(rates) for one, rates in grid.items()}
    records = [gate.record() for gate in gates]
    found = {"results": cells, "hard": where, "grid": medians, "tune": said, "gates": records}
    args.state = None if args.state is None else args.state.name
    save("tune_grid", args, document("tune_grid", args, PROTOCOL, **found))
    return status


if __name__ == "__main__":
    sys.exit(main())
