"""Lookup joined with a model is a candidate like any other: probed by its parts, priced as the model, told in words."""

from dataclasses import replace
from typing import Any

import pytest

from outpace.decoding.costs import CostTable
from outpace.decoding.plan import ALL
from outpace.drafters.drafter import Drafter
from outpace.drafters.either import Either, computing
from outpace.drafters.lookup import Lookup
from outpace.drafters.small import Small
from outpace.errors import UsageError
from outpace.evaluation.workloads import Question
from outpace.models.transformer import Transformer
from outpace.tuning import search as searching
from outpace.tuning.breakdown import Breakdown
from outpace.tuning.candidates import Candidate, all_candidates
from outpace.tuning.joined import with_joined
from outpace.tuning.reasons import breakdown, explain
from outpace.tuning.replay import Prediction
from outpace.tuning.search import Found, Searched, search
from outpace.tuning.task import Level, Task
from outpace.tuning.verdicts import Verdict
from outpace.verification.expectation import TurnCosts
from toys import must_fail
from worlds import prompts

pytestmark = pytest.mark.usefixtures("unchecked")  # many small replays; other tests check axes

COSTS = TurnCosts({rows: 20 + 0.5 * (rows - 1) for rows in range(1, 34)}, 1.0, 0.4)
TABLE = CostTable({(1, 256): COSTS})
TASK = Task(max_new_tokens=24)


@pytest.fixture
def apart(tiny: Transformer, tiny_draft: Transformer) -> dict[str, Drafter]:
    return {"lookup": Lookup(eos_ids=tiny.eos_ids), "some/model": Small(tiny_draft, tiny)}


def going(target: Transformer, drafters: dict[str, Drafter]) -> Any:
    asked, everyone = prompts({None: 1}), all_candidates(list(drafters.items()), target)
    found = Searched(TASK, [None], everyone)
    return searching._Search(target, drafters, asked, found, lambda *_: None, lambda: 0.0, 0.0)


def test_costs_are_measured_once_of_each_model(
    tiny: Transformer, apart: dict[str, Drafter], monkeypatch: pytest.MonkeyPatch
) -> None:
    measured: list[Any] = []

    def priced(target: Any, drafter: Any, **given: Any) -> CostTable:
        measured.append((computing(drafter), given["seconds"]))
        return replace(TABLE, read=(1.0, float(len(measured))))

    monkeypatch.setattr(searching, "tuning_costs", priced)
    drafters = with_joined(apart)
    for named in (drafters, dict(reversed(drafters.items()))):
        measured.clear()
        found = going(tiny, named).costs(0.0)
        assert [id(one) for one, _ in measured] == [id(one) for one in named.values() if not isinstance(one, Either)]
        assert measured[0][1] == searching.COSTS_SHARE * TASK.budget_s / 2
        assert found.keys() == drafters.keys() and found["lookup+some/model"] is found["some/model"]
    measured.clear()
    assert list(going(tiny, {"lookup+some/model": drafters["lookup+some/model"]}).costs(0.0)) == ["lookup+some/model"]
    assert len(measured) == 1


def test_who_cannot_draft_is_noted_once(
    tiny: Transformer, apart: dict[str, Drafter], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(target: Any, drafter: Any, **given: Any) -> CostTable:
        if isinstance(computing(drafter), Small):
            raise UsageError("no; allowed: yes")
        return TABLE

    monkeypatch.setattr(searching, "tuning_costs", refused)
    under_way = going(tiny, with_joined(apart))
    assert list(under_way.costs(0.0)) == ["lookup"]
    assert under_way.found.notes == ["some/model cannot draft here: no; allowed: yes"]


@pytest.mark.parametrize("named", ["all", "alone"])
def test_it_is_promised_what_its_parts_recorded(tiny: Transformer, apart: dict[str, Drafter], named: str) -> None:
    """Named alone it is split to be probed, and its parts are no candidates."""
    drafters = with_joined(apart)
    if named == "alone":
        drafters = {"lookup+some/model": drafters["lookup+some/model"]}
    asked = [Question(name, name, [1, place, 2, 1, place, 2, 1]) for place, name in enumerate("ab", 3)]
    found = search(tiny, drafters, asked, TASK, costs=dict.fromkeys(drafters, TABLE))
    assert not found.notes and {one.drafter for one in found.candidates} == {"none", *drafters}
    promises = found.levels[0].promises
    assert promises.keys() == {ALL, "a", "b"}
    for each in promises.values():
        ours = {one: known for one, known in each.items() if one.drafter == "lookup+some/model"}
        assert {one.tree for one in ours} == {"chain", "dynamic"} and {one.num_draft_tokens for one in ours} >= {
            "auto",
            8,
        }
        assert all(known.copied == 0 for one, known in each.items() if one not in ours)
    assert any(known.copied > 0 for known in promises[ALL].values())


def test_its_words() -> None:
    one = Candidate("lookup+a/b", 4, depth=4)
    assert one.words == "lookup where the text repeats itself and a/b elsewhere, 4 drafts a turn"
    assert one.label == "lookup+a/b, 4 drafts a turn"
    auto = replace(one, num_draft_tokens="auto", tree="dynamic", depth=8)
    assert auto.words.endswith(" and a/b elsewhere, as many drafts as pay, dynamic, 8 deep")
    alone = Candidate("a/b", 4, depth=4)
    assert alone.words == alone.label == "a/b, 4 drafts a turn"
    assert Candidate().label == "plain decoding"
    assert (
        Candidate("lookup", 8, depth=8).effort < alone.effort < replace(alone, num_draft_tokens=8).effort < one.effort
    )


def test_a_turn_of_copies_takes_no_draft_steps() -> None:
    """Of ten turns nine have a draft, six of them copies: the model is asked in four turns, and drafts in three."""
    one = Candidate("lookup+a/b", 4, depth=4)
    promised = Prediction(2.5, 0.6, (0.6, 0.6), 0.1, 10.0, 1.7, (1.6, 1.8), copied=0.6)
    found = Found(Level(), None, {"lookup+a/b": TABLE}, {ALL: {one: promised}})
    part, dearer = breakdown(found, one), Breakdown.of(one, promised, TABLE, 1)
    assert part is not None and dearer is not None
    assert part.draft_ms == pytest.approx(0.4 * 0.4 + 0.3 * 4 * 1.0)
    assert dearer.draft_ms == pytest.approx(0.4 + 0.9 * 4 * 1.0) and part.speedup > dearer.speedup
    step = part.affordable_step()
    assert replace(part, costs=TurnCosts(COSTS.verify, step, 0.4)).speedup == pytest.approx(1)
    with must_fail():
        assert replace(dearer, costs=TurnCosts(COSTS.verify, step, 0.4)).speedup == pytest.approx(1)
    said = explain(found, Verdict(ALL, one, one, "predicted"), Task()).sentences
    assert said[0].startswith(
        "Draft with lookup where the text repeats itself and a/b elsewhere, 4 drafts a turn: predicted at 1.70x"
    )
    assert "1.4 ms drafting" in said[2]
