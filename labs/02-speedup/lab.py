"""Exercise 2: the speed-up formula. Tokens a forward against K and α, the best K against cost, measured staircases.

    python labs/02-speedup/lab.py             # half a minute
    python labs/02-speedup/lab.py --measure   # times this machine first: two minutes in which nothing else runs
    python labs/02-speedup/lab.py --small     # seconds; what CI runs

The derivation stands in README.md. What a forward costs by its rows was timed once and stands in ``staircase.json``.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

from common import HEAD, arguments, finish, heading, table, write  # noqa: E402
from formula import best, gain, searched  # noqa: E402
from pictures import best_lengths, gains, staircases, tokens_a_forward  # noqa: E402
from simulation import simulated  # noqa: E402

from outpace.decoding.costs import Conditions, CostTable, measure  # noqa: E402
from outpace.drafters.load import load_drafter  # noqa: E402
from outpace.models.load import load_target  # noqa: E402
from outpace.verification.expectation import best_k, break_even, chain_tokens, speedup  # noqa: E402

LESSON = 0.8, 4
"""The lesson's α and K; it has 3.36 tokens a forward, and takes the draft for free."""
ALPHAS, LENGTHS = (0.6, 0.8, 0.9), (1, 2, 4, 8)
GRID, COSTS = (0.5, 0.6, 0.7, 0.8, 0.9), (0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.4)
STAIRCASE = HERE / "staircase.json"
BATCHES, CONTEXT, ROWS, SECONDS = (1, 8), 128, 17, 60.0
LONGEST = ROWS - 1


def timed(target_name: str, draft: str) -> dict[str, Any]:
    """What turns cost here: the target's forward by rows, and a head's step, one text at a time and eight."""
    target = load_target(target_name)
    costs = measure(
        target,
        load_drafter(draft, target),
        Conditions(batch=max(BATCHES), rows=ROWS),
        batches=BATCHES,
        contexts=(CONTEXT,),
        seconds=SECONDS,
    )
    return {"target": Path(target.name).name, "draft": Path(draft).name, "costs": costs.to_json()}


def formula_and_simulation(texts: int, tokens: int) -> list[dict[str, Any]]:
    """τ by the formula and by decoding, for every α and K."""
    found: list[dict[str, Any]] = []
    for alpha in ALPHAS:
        for length in LENGTHS:
            decoded = simulated(alpha, length, texts, tokens, seed=len(found))
            found.append({"alpha": alpha, "K": length, "formula": chain_tokens(alpha, length), "decoded": decoded})
    return found


def best_by_cost() -> list[dict[str, Any]]:
    """The best K for every α and cost, by the condition of the README and by trying all."""
    found = []
    for alpha in GRID:
        for cost in COSTS[1:]:
            choice, tried = best(alpha, cost), searched(alpha, cost, 64)
            if choice != tried:
                raise AssertionError(f"alpha {alpha}, cost {cost}: {choice} and {tried}")
            found.append({"alpha": alpha, "cost": cost, "K": choice.num_draft_tokens, "speedup": choice.speedup})
    return found


def lesson_by_cost() -> list[dict[str, Any]]:
    """What the lesson's 3.36 becomes when the draft costs something, and what the best K brings instead."""
    alpha, length = LESSON
    rows = []
    for cost in COSTS:
        choice = best(alpha, cost) if cost else None
        rows.append(
            {
                "cost": cost,
                "speedup": gain(alpha, cost, length),
                "best_K": None if choice is None else choice.num_draft_tokens,
                "best_speedup": 1 / (1 - alpha) if choice is None else choice.speedup,
            }
        )
    return rows


def by_staircase(document: dict[str, Any]) -> list[dict[str, Any]]:
    """The best K by measured costs, and by the formula with the same draft step but forwards that cost all the same."""
    found = []
    costs = CostTable.from_json(document["costs"])
    for (batch, _), cell in sorted(costs.cells.items()):
        cost = (cell.draft_step + cell.draft_turn) / cell.verify_ms(1)
        for alpha in GRID:
            choice, free = best_k(alpha, cell, LONGEST), best(alpha, cost)
            asked = min(free.num_draft_tokens, LONGEST)
            found.append(
                {
                    "batch": batch,
                    "cost": cost,
                    "alpha": alpha,
                    "K": choice.num_draft_tokens,
                    "speedup": choice.speedup,
                    "formula_K": free.num_draft_tokens,
                    "formula_speedup": free.speedup,
                    "speedup_at_formula_K": speedup(chain_tokens(alpha, asked), cell, asked),
                    "break_even": min(break_even(cell, length) for length in range(1, LONGEST + 1)),
                }
            )
    return found


def summary(found: Mapping[str, Any]) -> str:
    """The tables of README.md."""
    lines = ["| α | K | τ by the formula | τ decoded |", "|---:|---:|---:|---:|"]
    for one in found["tokens"]:
        decoded = "{value:.3f} [{low:.3f}, {high:.3f}]".format(**one["decoded"])
        lines.append(f"| {one['alpha']:g} | {one['K']} | {one['formula']:.3f} | {decoded} |")
    lines += ["", "| c | speed-up, α = 0.8, K = 4 | best K | speed-up there |", "|---:|---:|---:|---:|"]
    for one in found["lesson"]:
        best_length = "∞" if one["best_K"] is None else one["best_K"]
        lines.append(f"| {one['cost']:g} | {one['speedup']:.2f} | {best_length} | {one['best_speedup']:.2f} |")
    lines += ["", "| best K (speed-up) | " + " | ".join(f"c = {cost:g}" for cost in COSTS[1:]) + " |"]
    lines += ["|---|" + "---:|" * len(COSTS[1:])]
    for alpha in GRID:
        cells = [f"{one['K']} ({one['speedup']:.2f})" for one in found["best"] if one["alpha"] == alpha]
        lines.append(f"| α = {alpha:g} | " + " | ".join(cells) + " |")
    if found["staircase"]:
        lines += ["", *_staircase_lines(found["staircase"])]
    return "\n".join(lines)


def _staircase_lines(rows: Sequence[dict[str, Any]]) -> list[str]:
    lines = ["| batch | draft step c | α | best K, measured costs | speed-up | the formula's K | speed-up there |"]
    lines += ["|---:|---:|---:|---:|---:|---:|---:|"]
    for one in rows:
        lines.append(
            f"| {one['batch']} | {one['cost']:.3f} | {one['alpha']:g} | {one['K']} | {one['speedup']:.2f} | "
            f"{one['formula_K']} | {one['speedup_at_formula_K']:.2f} |"
        )
    picture = "![What a forward costs by its rows, and the speed-up by these costs](figures/staircase.png)"
    return ["By costs that were timed on this machine (`staircase.json`):", "", *lines, "", picture]


@torch.no_grad()
def main(argv: list[str] | None = None) -> int:
    parser = arguments(__doc__, __file__)
    parser.add_argument("--measure", action="store_true", help="time this machine anew, into staircase.json")
    parser.add_argument("--target", default="smollm2")
    parser.add_argument("--draft", default=str(HEAD) if HEAD.is_dir() else "eagle3")
    args = parser.parse_args(argv)
    pair = args.target, args.draft
    args.target, args.draft = (Path(name).name for name in pair)  # what is written names no folder
    if args.measure:
        write(STAIRCASE, args, timed(*pair))
    document = json.loads(STAIRCASE.read_text("utf-8")) if STAIRCASE.is_file() else None
    found: dict[str, Any] = {
        "protocol": (
            "formula: chains of K with one acceptance; decoded: the library's rejection rule on tables with that very "
            "acceptance at every position, turns with room for K tokens, 95 % normal interval; staircase: medians of "
            "whole turns by rows, context 128, bf16, greedy"
        ),
        "tokens": formula_and_simulation(*((20, 60) if args.small else (400, 200))),
        "lesson": lesson_by_cost(),
        "best": best_by_cost(),
        "staircase": [] if document is None else by_staircase(document),
    }
    heading(f"the lesson's {chain_tokens(*LESSON):.2f} tokens a forward (α = 0.8, K = 4) when a draft step costs c")
    table(list(found["lesson"][0]), [list(one.values()) for one in found["lesson"]])
    heading("by the formula and decoded")
    rows = [[one["alpha"], one["K"], one["formula"], str(one["decoded"])] for one in found["tokens"]]
    table(("α", "K", "formula", "decoded"), rows)
    figures = {
        "tokens-per-forward": partial(tokens_a_forward, found),
        "speedup-by-k": gains,
        "best-k": best_lengths,
    }
    if document is not None:
        figures["staircase"] = partial(staircases, document)
    finish(args, found, figures, summary)
    return 0


if __name__ == "__main__":
    sys.exit(main())
