"""The words of a verdict say what the figures say: what acceptance is, where time goes, what limits it."""

import re
from typing import Any

import pytest

from outpace.decoding.costs import CostTable
from outpace.decoding.plan import ALL
from outpace.decoding.stats import Tally, timing
from outpace.evaluation.benchmark import Group, Measured, Run
from outpace.tuning.breakdown import Breakdown
from outpace.tuning.candidates import PLAIN, Candidate
from outpace.tuning.reasons import breakdown, explain, loads
from outpace.tuning.replay import Prediction
from outpace.tuning.search import Found
from outpace.tuning.task import Level, Task
from outpace.tuning.trials import Place, Trials
from outpace.tuning.verdicts import Verdict, decide
from outpace.verification.expectation import TurnCosts, chain_tokens
from worlds import prompts

HEAD4 = Candidate("head", 4, depth=4)
AUTO = Candidate("head", "auto", depth=8)
COSTS = TurnCosts({rows: 20 + 0.5 * (rows - 1) for rows in range(1, 34)}, 1.0, 0.4)


def a_run(seconds: float, matched: int, drafts: int = 4, turns: int = 10) -> Run:
    """A text of 100 tokens whose turns all accept so many drafts."""
    tally = Tally()
    for turn in range(turns):
        count = drafts if turn else 0  # one turn has no draft
        tally.add(rule="greedy", lossless=True, drafted=count, depth=count, matched=min(matched, count), emitted=1)
    return Run(seconds, [[7] * 100], [tally.speculation("head")], None, [timing(0.0, seconds, 100)])


def found_of(ours: list[float], *, matched: int = 3, category: str = "code", one: Candidate = HEAD4) -> Found:
    """One candidate beside plain decoding that takes 2 seconds a prompt."""
    trials = Trials(each=True)
    for place, seconds in enumerate(ours):
        groups = [Group(category, prompts({category: 1}))]
        setting = one.setting(0.0)
        measured = Measured(groups, 1, [setting], {0.0: [[a_run(2.0, 0, 0)]]}, [[[a_run(seconds, matched)]]], 1, 1.0)
        trials.add(Place(category, place), measured, [one])
    table = CostTable({(1, 256): COSTS, (8, 256): TurnCosts({n: 60.0 + 30 * (n - 1) for n in range(1, 34)}, 2.0)})
    return Found(Level(), trials, {"head": table}, {ALL: {}}, {ALL: [one]})


def sentences(found: Found, task: Task | None = None) -> tuple[str, ...]:
    verdict = decide(found.trials, found.finalists()) if found.trials is not None else None
    assert verdict is not None
    return explain(found, verdict, task or Task()).sentences


def test_a_speed_up_is_explained_from_end_to_end() -> None:
    """Turns of 25 ms: 9 of 10 with 4 drafts, each costing 1 ms and half a ms of the forward; 7.8 ms are elsewhere."""
    said = sentences(found_of([1.0, 1.01, 1.02, 1.0, 0.99, 1.0]))
    assert said[0] == "Draft with head, 4 drafts a turn: 2.00x [1.97, 2.01] plain decoding on 6 prompts."
    assert said[1] == "The whole 95 % interval lies above 1, so that this is no chance."
    assert said[2] == (
        "Acceptance α, the share of drafted tokens accepted where all before them were, is 0.75, 1.00 tokens a "
        "forward; it drafts in 90% of the turns."
    )
    shares = re.findall(r"([\d.]+) ms", said[3])
    assert [float(one) for one in shares] == pytest.approx([100.3, 4.0, 21.8, 74.5, 20.0], abs=0.06)
    assert said[4].startswith(
        "What limits it most is acceptance: it is 2.00x now, and would be with a drafter with α 0.85"
    )
    assert "drafting at half its cost 2.17x, further rows at half their cost 2.07x." in said[4]
    assert re.fullmatch(r"It pays as long as α is 0\.\d\d or more\.", said[5])


def test_slower_than_plain_says_what_would_change_it() -> None:
    said = sentences(found_of([2.5] * 6, matched=1))
    assert said[0] == (
        "Decode plainly: head, 4 drafts a turn, the best that drafts, is 0.80x [0.80, 0.80] plain decoding on 6 "
        "prompts."
    )
    assert said[1] == "The whole 95 % interval lies below 1, so that this is no chance."
    found = found_of([2.5] * 6, matched=1)
    part = breakdown(found, HEAD4)
    assert part is not None and part.alpha == 0.5
    least = float(re.search(r"an α of ([\d.]+) or more \(now 0.50\)", said[-1])[1])
    assert part.accepted(least).speedup * 0.8 >= part.speedup > part.accepted(least - 0.011).speedup * 0.8


def test_few_prompts_prove_little() -> None:
    said = sentences(found_of([1.0]))
    assert "2.00x plain decoding on 1 prompt" in said[0] and "not sure" in said[0]
    assert said[1] == "1 group of prompts proves little, 5 are the least: a longer --budget tells more."
    assert "2 groups of prompts prove little" in sentences(found_of([1.0, 1.0]))[1]


def test_a_simpler_setting_has_to_be_faster_beyond_doubt_too() -> None:
    """Two settings 1 % apart: the simpler one is slower than plain decoding on two of six prompts."""
    trials, simple = Trials(each=True), Candidate("head", 1, depth=1)
    for place, seconds in enumerate([1.94, 1.94, 1.94, 1.94, 2.2, 2.2]):
        groups, ways = [Group("code", prompts({"code": 1}))], [simple, HEAD4]
        runs = [[[a_run(seconds, 1)]], [[a_run(1.93, 1)]]]
        measured = Measured(groups, 1, [one.setting(0.0) for one in ways], {0.0: [[a_run(2.0, 0, 0)]]}, runs, 1, 1.0)
        trials.add(Place("code", place), measured, ways)
    verdict = decide(trials, [simple, HEAD4])
    assert verdict is not None and (verdict.why, verdict.chosen) == ("faster", HEAD4)


def test_doubt_falls_back_on_the_controller() -> None:
    """Sometimes faster, sometimes not: the controller was measured and is not slower."""
    said = sentences(found_of([1.5, 2.6, 1.6, 2.4, 1.5, 2.5, 1.8], one=AUTO))
    assert said[0].startswith(
        "Draft with head, as many drafts as pay, at most 8, which gives up by itself where it does"
    )
    assert said[1] == "The 95 % interval holds 1: a longer --budget may tell."


def test_predictions_are_said_to_be_predictions() -> None:
    promised = Prediction(2.5, 0.6, (0.6, 0.6), 0.1, 10.0, 1.7, (1.6, 1.8))
    found = Found(Level(), None, {"head": CostTable({(1, 256): COSTS})}, {ALL: {HEAD4: promised}})
    said = explain(found, Verdict(ALL, HEAD4, HEAD4, "predicted"), Task()).sentences
    assert said[0] == (
        "Draft with head, 4 drafts a turn: predicted at 1.70x with the costs that were given; nothing was timed."
    )
    assert "is 0.60, 2.50 tokens a forward" in said[1] and "in all else" not in said[2]


def level(batch: int, ratio: float, chosen: Candidate, beyond: dict[int, float] | None = None) -> tuple[Found, Verdict]:
    found = found_of([2 / ratio] * 6)
    return Found(Level(batch), found.trials, {}, {ALL: {}}, beyond=beyond or {}), Verdict(ALL, chosen, HEAD4, "faster")


@pytest.mark.parametrize(
    ("told", "words"),
    [
        (
            [level(1, 1.5, HEAD4), level(4, 1.1, HEAD4), level(8, 0.9, PLAIN)],
            "1.50x at 1, 1.10x at 4, 0.90x at 8; drafting stops paying at 8 at a time.",
        ),
        (
            [level(1, 1.5, HEAD4, {4: 1.2, 16: 0.8})],
            "1.50x at 1, 1.20x at 4 (predicted), 0.80x at 16 (predicted); drafting should stop paying at 16 at a time.",
        ),
        ([level(1, 0.9, PLAIN)], "0.90x at 1; drafting pays at none of these loads."),
        (
            [level(8, 0.9, PLAIN, {1: 1.4})],
            "1.40x at 1 (predicted), 0.90x at 8; drafting stops paying at 8 at a time.",
        ),
        (
            [level(1, 1.5, HEAD4), level(4, 1.4, HEAD4)],
            "1.50x at 1, 1.40x at 4; drafting pays at every load that is known, 4 at a time at most.",
        ),
    ],
    ids=["measured", "predicted", "nowhere", "lighter", "everywhere"],
)
def test_where_drafting_stops_paying(told: Any, words: str) -> None:
    said = loads([found for found, _ in told], [verdict for _, verdict in told])
    assert said == f"By load, the best that drafts over plain decoding: {words}"


# ---- a turn taken apart ----------------------------------------------------------------------------------------------

PART = Breakdown(0.6, 0.5, 4, 4, COSTS)


def test_the_formula_is_that_of_expectation() -> None:
    """Half of the turns have a draft of 4."""
    tau = 1 + 0.5 * (chain_tokens(0.6, 4) - 1)
    turn = 0.4 + 0.5 * 4 * 1.0 + 0.5 * 22 + 0.5 * 20
    assert PART.speedup == pytest.approx(tau * 20 / turn)
    assert (PART.draft_ms, PART.verify_ms) == (pytest.approx(2.4), 21.0)


def test_a_tree_has_the_draft_costs_of_a_tree() -> None:
    table = CostTable({(1, 256): COSTS}, trees={"top-k:8": {1: (3.0, 5.0)}})
    promised = Prediction(2.5, 0.6, (0.6, 0.6), 0.0)
    for tree, costs in (("chain", (0.4, 1.0)), ("dynamic", (3.0, 5.0)), ("top-p:0.9", (0.4, 1.0))):
        part = Breakdown.of(Candidate("head", 4, tree, 4), promised, table, 1)
        assert part is not None and (part.costs.draft_turn, part.costs.draft_step) == costs


def test_break_evens_are_where_they_are_said_to_be() -> None:
    """An acceptance, and a draft step, at which the formula gives 1."""
    least = PART.needed()
    fixed = Breakdown(least, 0.5, 4, 4, COSTS), Breakdown(least - 0.01, 0.5, 4, 4, COSTS)
    assert fixed[0].speedup >= 1 > fixed[1].speedup
    step = PART.affordable_step()
    assert Breakdown(0.6, 0.5, 4, 4, TurnCosts(COSTS.verify, step, 0.4)).speedup == pytest.approx(1)
    hopeless = Breakdown(0.6, 1.0, 4, 4, TurnCosts({n: 20.0 * n for n in range(1, 34)}, 30.0))
    assert hopeless.needed() == float("inf") and hopeless.affordable_step() < 0


def test_changes_help() -> None:
    for changed in (PART.accepted(0.7), PART.cheaper_draft(), PART.cheaper_rows(), PART.oftener()):
        assert changed.speedup > PART.speedup
    assert PART.accepted(0.05).nodes == 1 and PART.accepted(0.95).nodes == 8
