"""What it costs: speed by temperature, by batch and by the draft's size, and what the controller makes of it.

Timed, so it wants a machine that does nothing else. Contestants meet at one prompt at one time, in turns; the one that
begins rotates; medians of repeats, then the ratio of medians over prompts with a paired bootstrap.
"""

import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from pairs import HEAD, ITSELF, LOOKUP, STUDENT, Setting, Way
from rates import options_of
from rich.console import Console
from rich.progress import track

from outpace.decoding.generate import generate
from outpace.decoding.stats import Speculation
from outpace.evaluation.metrics import Estimate, median_ratio, pooled
from outpace.models.load import load_target
from outpace.models.student import new_student
from outpace.models.student_files import save_student, student_target
from outpace.models.target import Target, padded
from outpace.verification.expectation import TurnCosts, best_k, break_even
from outpace.verification.tree import DraftTree

PLAIN = "plain"
AUTO = tuple(Way(name, "the controller chooses", nodes=None, depth=None) for name in (LOOKUP, HEAD, STUDENT, ITSELF))
ALPHAS = (0.6, 0.7, 0.8, 0.9)
LONGEST = 8
LEAST, MOST = 3, 6
"""Groups of prompts that are decoded at once; where prompts are few, groups share some."""


@dataclass(frozen=True)
class Run:
    """One decoding of one prompt, or of a batch: new tokens, seconds, and how drafting went."""

    tokens: int
    seconds: float
    told: list[Speculation]

    @property
    def rate(self) -> float:
        return self.tokens / self.seconds


def timed(setting: Setting, way: Way | None, prompts: list[list[int]], temperature: float, tokens: int) -> Run:
    """The public ``generate``, prefill included; plain decoding without a way."""
    options = options_of(way or Way(PLAIN, "", nodes=0, depth=None), temperature, tokens)
    if way is None:
        options.pop("rule", None)
        options.pop("num_draft_tokens", None)
        options.pop("depth", None)
    drafter = None if way is None else setting.drafters[way.drafter]
    begin = time.perf_counter()
    results = generate(setting.target, drafter, prompts, **options)
    seconds = time.perf_counter() - begin
    told = [result.stats.speculation for result in results]
    return Run(sum(len(result.token_ids) for result in results), seconds, told)


def in_turns(
    ways: Mapping[str, Way | None], units: int, repeats: int, once: Callable[[Way | None, int], Run], what: str
) -> dict[str, list[list[Run]]]:
    """``[way][unit][repeat]``; each way does the first unit once unmeasured."""
    for way in ways.values():
        once(way, 0)
    found: dict[str, list[list[Run]]] = {name: [[] for _ in range(units)] for name in ways}
    names = list(ways)
    jobs = [(repeat, unit) for repeat in range(repeats) for unit in range(units)]
    for repeat, unit in track(jobs, what, console=Console(stderr=True)):
        first = (repeat + unit) % len(names)
        for name in names[first:] + names[:first]:
            found[name][unit].append(once(ways[name], unit))
    return found


def rates(runs: Sequence[Sequence[Run]]) -> list[float]:
    return [statistics.median(run.rate for run in repeats) for repeats in runs]


def cells(found: Mapping[str, list[list[Run]]], **where: Any) -> list[dict[str, Any]]:
    """A row a way: its speed beside plain decoding, and what its drafts brought."""
    plain = rates(found[PLAIN])
    rows = []
    for name, runs in found.items():
        if name == PLAIN:
            continue
        whole = pooled([one for repeats in runs for run in repeats for one in run.told])
        rows.append(
            {
                **where,
                "way": name,
                "drafter": name.partition(",")[0],
                "speedup": median_ratio(rates(runs), plain),
                "tau": whole.tau,
                "acceptance": whole.acceptance,
                "plain_turn_share": whole.plain_turn_share,
                "tokens_per_second": statistics.median(rates(runs)),
                "plain_tokens_per_second": statistics.median(plain),
            }
        )
    return rows


def speed(setting: Setting, tokens: int, repeats: int, temperatures: Sequence[float]) -> list[dict[str, Any]]:
    """Every way, fixed and by the controller, beside plain decoding."""
    found = []
    for at in temperatures:
        chosen = [way for way in setting.ways if at > 0 or not way.drawn]
        chosen += [way for way in AUTO if way.drafter in setting.drafters]
        ways: dict[str, Way | None] = {PLAIN: None, **{str(way): way for way in chosen}}

        def once(way: Way | None, unit: int, at: float = at) -> Run:
            return timed(setting, way, [setting.asked[unit].ids], at, tokens)

        found += cells(in_turns(ways, len(setting.asked), repeats, once, f"T {at:g}"), temperature=at)
    return found


def load(setting: Setting, tokens: int, repeats: int, batches: Sequence[int]) -> list[dict[str, Any]]:
    """Chains of 5 and the controller beside plain decoding, greedy, by prompts decoded at once."""
    chosen = [way for way in (*setting.ways, *AUTO) if way.drafter in (LOOKUP, HEAD) and way.tree == "chain"]
    ways: dict[str, Way | None] = {PLAIN: None, **{str(way): way for way in chosen if not way.drawn}}
    likeliest = [way for way in setting.ways if way.drafter == HEAD and way.tree == "top-k:1"]
    ways |= {str(way): way for way in likeliest}
    found = []
    for batch in batches:
        units = min(max(LEAST, len(setting.asked) // batch), MOST)

        def once(way: Way | None, unit: int, batch: int = batch) -> Run:
            places = [(unit * batch + place) % len(setting.asked) for place in range(batch)]
            return timed(setting, way, [setting.asked[place].ids for place in places], 0.0, tokens)

        found += cells(in_turns(ways, units, repeats, once, f"batch {batch}"), batch=batch)
    return found


# ---- the draft's size ------------------------------------------------------------------------------------------------


def forward_ms(model: Target, rows: int, context: int, repeats: int) -> float:
    """One forward over so many rows behind a text of made-up ids."""
    ids = torch.randint(model.vocab_size, (1, context), generator=torch.Generator().manual_seed(0))
    state = model.open(1, context + LONGEST + 2)
    model.prefill(state, padded(ids.tolist(), 0), [context])
    tree, last = DraftTree.chain(ids[:, : rows - 1]) if rows > 1 else DraftTree.empty(1), ids[:, -1]
    spent = []
    for _ in range(repeats + 3):
        begin = time.perf_counter()
        model.score(state, last, tree)
        spent.append(time.perf_counter() - begin)
        model.keep(state, torch.empty((1, 0), dtype=torch.int64), [0])
        model.rewind(state, [context])
    return 1e3 * statistics.median(spent[3:])


def sizes(target: Target, shapes: Sequence[Mapping[str, int]], context: int, repeats: int) -> list[dict[str, Any]]:
    """What a draft of each size costs beside its target, and what α it needs: weights are random, time is not.

    ``c`` is a step of the draft by a plain step of the target. Where the target has a folder the drafts are stored and
    opened as a user opens them.
    """
    verify = {rows: forward_ms(target, rows, context, repeats) for rows in range(1, LONGEST + 2)}
    found = []
    for shape in track(shapes, "sizes", console=Console(stderr=True)):
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".* a drafted token costs what one of the target's own costs")
            student = new_student(target, **shape, embeddings="random")
        with tempfile.TemporaryDirectory() as place:
            if target.folder is None:
                model = student_target(student, target)
            else:
                save_student(Path(place) / "draft", student, target)
                model = load_target(str(Path(place) / "draft"))
            step = forward_ms(model, 1, context, repeats)
        costs = TurnCosts(verify, draft_step=step)
        choices = {alpha: best_k(alpha, costs, LONGEST) for alpha in ALPHAS}
        found.append(
            {
                "parameters": student.num_parameters,
                **shape,
                "step_ms": step,
                "c": step / verify[1],
                "break_even_alpha": {str(k): break_even(costs, k) for k in (1, 4)},
                "best": [
                    {"alpha": alpha, "k": one.num_draft_tokens, "speedup": one.speedup}
                    for alpha, one in choices.items()
                ],
            }
        )
    return [{"target_ms": verify, "context": context, "drafts": found}]


# ---- the controller --------------------------------------------------------------------------------------------------


def control(setting: Setting, tokens: int, repeats: int, fixed: Sequence[int]) -> list[dict[str, Any]]:
    """The controller where nothing pays (T 1.5) and where most does (greedy), beside plain decoding and fixed chains.

    The best workload is the category in which some fixed chain of the drafter is fastest against plain decoding; the
    controller is held against that chain, in the same runs.
    """
    found = []
    for at in (1.5, 0.0):
        for name in (one for one in (LOOKUP, HEAD) if one in setting.drafters):
            chains = {str(way): way for way in (Way(name, f"chain of {k}", nodes=k, depth=k) for k in fixed)}
            auto = next(way for way in AUTO if way.drafter == name)
            ways: dict[str, Way | None] = {PLAIN: None, "auto": auto, **chains}

            def once(way: Way | None, unit: int, at: float = at) -> Run:
                return timed(setting, way, [setting.asked[unit].ids], at, tokens)

            runs = in_turns(ways, len(setting.asked), repeats, once, f"controller, {name}, T {at:g}")
            found += [judged(runs, places, chains, category, name, at) for category, places in kinds(setting).items()]
    return found


def kinds(setting: Setting) -> dict[str, list[int]]:
    """Places of the prompts of each category."""
    found: dict[str, list[int]] = {}
    for place, question in enumerate(setting.asked):
        found.setdefault(str(question.category), []).append(place)
    return found


def judged(
    runs: Mapping[str, list[list[Run]]],
    places: Sequence[int],
    chains: Mapping[str, Way],
    category: str,
    drafter: str,
    temperature: float,
) -> dict[str, Any]:
    """One category: the controller against plain decoding and against the best fixed chain."""
    own = {name: rates([found[place] for place in places]) for name, found in runs.items()}
    gains: dict[str, Estimate] = {name: median_ratio(own[name], own[PLAIN]) for name in chains}
    best = max(gains, key=lambda name: gains[name].value)
    told = pooled([one for place in places for run in runs["auto"][place] for one in run.told])
    return {
        "drafter": drafter,
        "temperature": temperature,
        "category": category,
        "auto_against_plain": median_ratio(own["auto"], own[PLAIN]),
        "best_fixed": best,
        "best_fixed_against_plain": gains[best],
        "auto_against_best_fixed": median_ratio(own["auto"], own[best]),
        "plain_turn_share": told.plain_turn_share,
        "tau": told.tau,
    }
