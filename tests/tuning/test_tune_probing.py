"""Probes of a few prompts within their time, of drafters that can, and what their replay promises."""

import itertools
from typing import Any

import pytest

from medusas import medusa_on
from outpace.decoding.costs import CostTable
from outpace.decoding.plan import ALL
from outpace.drafters.lookup import Lookup
from outpace.drafters.small import Small
from outpace.errors import UsageError
from outpace.models.transformer import Transformer
from outpace.tuning import probing
from outpace.tuning.candidates import Candidate, all_candidates
from outpace.tuning.probing import predict, record
from outpace.tuning.task import Level, Task
from outpace.verification.expectation import TurnCosts
from toys import lively
from worlds import prompts

TASK, SHORT = Task(max_new_tokens=40), Task(max_new_tokens=10)
COSTS = CostTable({(1, 128): TurnCosts({rows: 20 + 0.1 * (rows - 1) for rows in range(1, 34)}, 0.1)})


def recorded(
    target: Transformer, drafters: Any, asked: Any, *, step: float = 0.0, until: float = 1e9, task: Task = SHORT
) -> Any:
    """On a clock that goes on by so much whenever it is looked at."""
    ticks = itertools.count()
    told: list[str] = []
    found = record(target, drafters, asked, task, 0.0, until, clock=lambda: step * next(ticks), told=told.append)
    return *found, told


def test_prompts_of_every_category_are_probed_by_everyone(tiny: Transformer, tiny_draft: Transformer) -> None:
    drafters = {"lookup": Lookup(eos_ids=tiny.eos_ids), "small": Small(tiny_draft, tiny)}
    found, notes, told = recorded(tiny, drafters, prompts({"a": 1, "b": 1}))
    assert notes == [] and told == ["probing prompt 1", "probing prompt 2"]
    assert found.keys() == drafters.keys()
    for one in found.values():
        assert set(one.categories) == {"a", "b"} and len(one.texts) == 2
        assert all(len(text.places) == 10 for text in one.texts)


def test_probes_end_in_time(tiny: Transformer) -> None:
    """A prompt takes 2 seconds, as the clock is looked at; half of the prompts fit, and one does at any rate."""
    asked = prompts({None: 8})
    drafters = {"lookup": Lookup(eos_ids=tiny.eos_ids)}
    found, _, told = recorded(tiny, drafters, asked, step=1.0, until=8.0)
    assert 3 <= len(told) == len(found["lookup"].texts) <= 4
    found, _, told = recorded(tiny, drafters, asked, step=1.0, until=0.0)
    assert len(told) == 1


def test_texts_are_cut_where_there_is_no_time_for_each_category(tiny: Transformer) -> None:
    """The first text is whole; the others are shorter, but not below the least."""
    found, _, told = recorded(
        tiny,
        {"lookup": Lookup(eos_ids=tiny.eos_ids)},
        prompts(dict.fromkeys("abcdef", 1)),
        step=1.0,
        until=5.5,
        task=TASK,
    )
    assert len(told) > 1
    assert [len(text.places) for text in found["lookup"].texts][:2] == [40, probing.FEWEST]


def test_who_cannot_be_probed_is_noted(tiny: Transformer) -> None:
    class Broken(Lookup):
        def open(self, slots: int, positions: int) -> Any:
            raise UsageError("no room; allowed: more of it")

    found, notes, _ = recorded(tiny, {"broken": Broken(), "lookup": Lookup(eos_ids=tiny.eos_ids)}, prompts({None: 2}))
    assert notes == ["broken cannot be probed: no room; allowed: more of it"] and list(found) == ["lookup"]


def test_nothing_deeper_than_the_drafter_reaches_is_tried() -> None:
    """Four heads: chains up to four, and neither controller nor tree goes deeper."""
    everyone = all_candidates([("heads", medusa_on(lively())), ("lookup", Lookup())], lively())
    depths = {one.depth for one in everyone if one.drafter == "heads"}
    assert max(depths) == 4 and len(set(everyone)) == len(everyone)
    chains = {one.num_draft_tokens for one in everyone if one.drafter == "heads" and one.tree == "chain"}
    assert chains == {"auto", 1, 2, 3, 4}
    assert max(one.depth or 0 for one in everyone if one.drafter == "lookup") == 8


def test_promises_are_for_all_and_for_each_category(tiny: Transformer) -> None:
    """The target as its own drafter is always right: the longest chain promises most, near (1 + K) tokens a forward."""
    drafters = {"twin": Small(tiny, tiny)}
    found, _, _ = recorded(tiny, drafters, prompts({"a": 1, "b": 1}))
    everyone = all_candidates(list(drafters.items()), tiny)
    promises = predict(found, everyone, {"twin": COSTS}, TASK, Level(), ["a", "b", "c"])
    assert promises.keys() == {ALL, "a", "b"} and promises[ALL].keys() == {one for one in everyone if not one.plain}
    for category in promises:
        best = max(
            (one for one in promises[category] if one.tree == "chain"),
            key=lambda one: promises[category][one].speedup or 0,
        )
        assert best in (Candidate("twin", 8, depth=8), Candidate("twin", "auto", depth=8))
    assert promises[ALL][Candidate("twin", 4, depth=4)].tau == pytest.approx(5, rel=0.1)
    assert predict(found, everyone, {}, TASK, Level()) == {ALL: {}}


def test_what_a_recording_cannot_tell_is_left_out(tiny: Transformer, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = probing.replay

    def told(recording: Any, setting: Any, costs: Any) -> Any:
        if setting.tree != "chain":
            raise UsageError("the recording cannot tell")
        return honest(recording, setting, costs)

    monkeypatch.setattr(probing, "replay", told)
    drafters = {"twin": Small(tiny, tiny)}
    found, _, _ = recorded(tiny, drafters, prompts({None: 1}))
    promises = predict(found, all_candidates(list(drafters.items()), tiny), {"twin": COSTS}, TASK, Level())
    assert {one.tree for one in promises[ALL]} == {"chain"} and len(promises[ALL]) == 7
