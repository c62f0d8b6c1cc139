"""A search in worlds whose speeds are known: the best setting is found, plain where plain wins, within the time."""

from collections.abc import Callable
from typing import Any

import pytest

from outpace.decoding.plan import ALL, NONE, Plan
from outpace.errors import NumericsError, UsageError
from outpace.models.transformer import Transformer
from outpace.tuning import search as searching
from outpace.tuning.candidates import Candidate
from outpace.tuning.conclusion import Tuned, conclude
from outpace.tuning.halving import survivors
from outpace.tuning.search import Searched
from outpace.tuning.task import Level, Task
from toys import must_fail
from worlds import HEAD, LOOKUP, World, chain_of, prompts

FEW = {"code": 6, "chat": 6}
Run = Callable[..., Searched]


@pytest.fixture
def run(tiny: Transformer, monkeypatch: pytest.MonkeyPatch) -> Run:
    def go(world: World, task: Task | None = None, categories: Any = None, **drafters: Any) -> Searched:
        given = drafters.pop("costs", None)
        named = drafters or {"lookup": LOOKUP, "head": HEAD}
        return world.search(
            tiny, monkeypatch, task or Task(budget_s=900.0), prompts(categories or FEW), named, costs=given
        )

    return go


def plan_of(searched: Searched, tiny: Transformer) -> Plan:
    return conclude(searched, tiny).plan


def chosen(searched: Searched, tiny: Transformer, category: str = ALL, **level: Any) -> tuple[str, int | str]:
    choice = plan_of(searched, tiny).choice(category, **level)
    return choice.drafter, choice.num_draft_tokens


@pytest.mark.parametrize("best", [1, 2, 3, 6, 8])
@pytest.mark.parametrize("promised", ["the truth", "the contrary", "nothing"])
def test_the_best_of_a_known_landscape_is_found(best: int, promised: str, run: Run, tiny: Transformer) -> None:
    """By promises that are true; by wrong ones or none the choice is within a tenth of the best."""
    peak = chain_of(best, 1.8)

    def speed(category: str, one: Candidate, level: Level) -> float:
        return peak(one) if one.drafter == "head" else 1.1

    world = World(speed, truthful=promised == "the truth")
    if promised == "the contrary":
        world.promise = lambda category, one, level: 2.0 - speed(category, one, level)
    choice = plan_of(run(world), tiny).choice()
    found = Candidate(choice.drafter, choice.num_draft_tokens, choice.tree, choice.depth)
    if promised == "the truth":
        assert (found.drafter, found.num_draft_tokens, found.tree) == ("head", best, "chain")
    elif promised == "nothing":
        assert speed(ALL, found, Level()) >= 1.05


def test_drafting_is_chosen_with_its_figures(run: Run, tiny: Transformer) -> None:
    world = World(lambda category, one, level: chain_of(4, 1.5)(one) if one.drafter == "head" else 1.2)
    tuned = conclude(run(world), tiny)
    choice = tuned.plan.choice()
    assert (choice.drafter, choice.num_draft_tokens, choice.tree, choice.depth) == ("head", 4, "chain", 4)
    assert choice.evidence is not None and choice.evidence.prompts == 12
    assert choice.evidence.speedup == pytest.approx(1.5, rel=0.03) and choice.evidence.predicted == 1.5
    assert choice.evidence.low is not None and 1.4 < choice.evidence.low <= choice.evidence.speedup
    assert choice.reason is not None and choice.reason.startswith("1 at a time, temperature 0: Draft with head, 4 draf")
    assert Plan.from_toml(tuned.plan.to_toml()) == tuned.plan
    assert (tuned.plan.goal, tuned.plan.fingerprint) == ("latency", tiny.fingerprint)


def test_plain_where_plain_wins(run: Run, tiny: Transformer) -> None:
    searched = run(World(lambda category, one, level: 0.8))
    assert chosen(searched, tiny) == (NONE, 0)
    reason = conclude(searched, tiny).reasons[0].sentences
    assert reason[0].startswith("Decode plainly: ") and "the best that drafts, is 0.8" in reason[0]
    assert reason[1] == "The whole 95 % interval lies below 1, so that this is no chance."
    assert any(one.startswith("What would change that: an α of ") for one in reason)


@pytest.mark.parametrize(("auto", "wanted"), [(1.01, ("lookup", "auto")), (0.96, (NONE, 0))])
def test_where_it_is_not_sure_the_controller_or_nobody_drafts(
    auto: float, wanted: tuple[str, Any], run: Run, tiny: Transformer
) -> None:
    """A fixed draft that wins on most prompts and loses on the others is not chosen, though it is the fastest."""

    def speed(category: str, one: Candidate, level: Level) -> float:
        if one.num_draft_tokens == "auto":
            return auto
        return (1.3 if category == "code" else 0.72) if one.num_draft_tokens == 2 else 0.7

    world = World(speed, jitter=0.0)
    searched = run(world, None, {"code": 3, "chat": 2}, lookup=LOOKUP)
    assert chosen(searched, tiny) == wanted
    assert "gives up by itself" in conclude(searched, tiny).reasons[0].sentences[0] or wanted[0] == NONE


def test_ties_go_to_the_simpler_setting(run: Run, tiny: Transformer) -> None:
    """All chains of lookup are as fast as the head's, which costs files and memory."""
    searched = run(World(lambda category, one, level: 1.4, jitter=0.02))
    assert chosen(searched, tiny) == ("lookup", "auto")


def test_a_category_has_its_own_choice_where_its_prompts_ask_for_it(run: Run, tiny: Transformer) -> None:
    """Code likes long drafts, chat none; what is like all others has no choice."""

    def speed(category: str, one: Candidate, level: Level) -> float:
        if category == "chat":
            return 0.7
        return chain_of(8 if category == "code" else 3, 1.6, auto=1.1)(one)

    searched = run(
        World(speed), Task(budget_s=3000.0), {"code": 5, "chat": 5, "maths": 10, "summary": 9}, lookup=LOOKUP
    )
    tuned = conclude(searched, tiny)
    found = {name: tuned.plan.choice(name).num_draft_tokens for name in ("code", "chat", "maths", "summary")}
    assert found == {"code": 8, "chat": 0, "maths": 3, "summary": 3}
    assert {one.category for one in tuned.plan.choices} == {ALL, "code", "chat"}
    assert tuned.alike == {Level(): ["maths", "summary"]}


def test_loads_and_temperatures_have_choices_of_their_own(run: Run, tiny: Transformer) -> None:
    """Drafting pays greedily and for one; at 8 at a time, or hot, it does not. All levels stand for a category too."""

    def speed(category: str, one: Candidate, level: Level) -> float:
        if level.batch > 1 or level.temperature > 1:
            return 0.85 if category == "code" else 0.6
        return 1.5 if category == "code" else 0.7

    task = Task(budget_s=9000.0, batches=(8, 1), temperatures=(1.5, 0.0))
    searched = run(World(speed), task, {"code": 40, "chat": 16}, lookup=LOOKUP)
    assert [found.level for found in searched.levels] == [Level(1, 0.0), Level(8, 0.0), Level(1, 1.5), Level(8, 1.5)]
    names = [
        chosen(searched, tiny, "code", batch=b, temperature=t)[0] for b, t in ((1, 0.0), (8, 0.0), (1, 1.5), (9, 2.0))
    ]
    assert names == ["lookup", NONE, NONE, NONE]
    assert chosen(searched, tiny, "chat") == (NONE, 0) == chosen(searched, tiny, "chat", batch=8)
    tuned = conclude(searched, tiny)
    assert [(one.batch, one.temperature) for one in tuned.plan.choices if one.category == "chat"] == [
        (1, 0.0),
        (8, 0.0),
        (1, 1.5),
        (8, 1.5),
    ]
    assert "drafting stops paying at 8 at a time" in tuned.loads[0] and "at none of these loads" in tuned.loads[1]


def test_goodput_keeps_to_the_bound(run: Run, tiny: Transformer) -> None:
    """Plain decoding waits 20 to 26 ms; only drafts of 4 keep to 16, and 5 ms keeps nobody."""

    def speed(category: str, one: Candidate, level: Level) -> float:
        return 1.7 if one.num_draft_tokens == 4 else 1.1

    tuned = {}
    for bound in (16.0, 5.0, 100.0):
        task = Task(goal="goodput", latency_bound_ms=bound, budget_s=900.0)
        tuned[bound] = conclude(run(World(speed), task, lookup=LOOKUP), tiny)
        assert tuned[bound].plan.choice().num_draft_tokens == 4
    assert "the fastest that keeps to 16 ms" in tuned[16.0].reasons[0].sentences[0]
    assert "nothing keeps to 5 ms a token" in tuned[5.0].reasons[0].sentences[0]
    assert tuned[100.0].reasons[0].sentences[0].startswith("Draft with lookup, 4 drafts a turn: 1.")
    assert tuned[16.0].plan.latency_bound_ms == 16.0


# ---- time ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("budget", [30, 60, 120, 300, 1000])
def test_the_time_is_kept(budget: int, run: Run, tiny: Transformer) -> None:
    """Within a tenth, and what there is of it is used: until every prompt was decoded three times."""
    world = World(lambda category, one, level: 1.3)
    searched = run(world, Task(budget_s=float(budget)), {"a": 9, "b": 9, "c": 9})
    assert searched.seconds <= 1.1 * budget
    assert searched.seconds == pytest.approx(world.now) and searched.seconds > 0.7 * min(budget, 500)
    assert chosen(searched, tiny)[0] == "lookup"


def test_no_time_for_a_single_run(run: Run, tiny: Transformer) -> None:
    """Promises alone: the controller where much is promised, and it is said."""
    searched = run(World(lambda category, one, level: 1.5), Task(budget_s=8.0))
    assert chosen(searched, tiny) == ("lookup", "auto") and searched.seconds < 10
    tuned = conclude(searched, tiny)
    assert "the time held no run, and 1.50x is only what a trace promises" in tuned.reasons[0].sentences[0]
    assert tuned.plan.choice().evidence is not None and tuned.plan.choice().evidence.prompts == 0
    assert chosen(run(World(lambda category, one, level: 1.05), Task(budget_s=8.0)), tiny) == (NONE, 0)


def test_an_interrupt_leaves_what_stands(run: Run, tiny: Transformer) -> None:
    """A plan of what was measured; nothing known: the interrupt goes on."""
    world = World(lambda category, one, level: 1.5)
    whole = run(world)
    half = World(world.speed, interrupt=len(world.ran) // 2)
    searched = run(half)
    assert searched.interrupted and not whole.interrupted
    assert chosen(searched, tiny)[0] == "lookup"
    early = World(world.speed)
    early.record = lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt)  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        run(early)


# ---- who takes part --------------------------------------------------------------------------------------------------


def test_who_refuses_is_told_and_the_others_go_on(run: Run, tiny: Transformer) -> None:
    world = World(
        lambda category, one, level: 2.0 if one.tree != "chain" else 1.4, refused=lambda one: one.tree != "chain"
    )
    searched = run(world)
    assert chosen(searched, tiny)[0] == "lookup"
    fates = {row.fate for row in conclude(searched, tiny).candidates if row.tree == "dynamic" and row.category == ALL}
    assert any(fate.startswith("refused: tree is dynamic; allowed: another") for fate in fates)


def test_a_target_that_fails_ends_the_search(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(lambda category, one, level: 1.4)

    def broken(*_: Any, **__: Any) -> Any:
        raise NumericsError("the target's logits are no distribution")

    world.generate = broken  # type: ignore[method-assign]
    with pytest.raises(NumericsError, match="the target's logits are no distribution"):
        run(world)


def test_nobody_to_draft(tiny: Transformer, monkeypatch: pytest.MonkeyPatch) -> None:
    searched = World(lambda category, one, level: 1.0).search(tiny, monkeypatch, Task(), prompts(FEW), {})
    assert chosen(searched, tiny) == (NONE, 0)
    assert "nobody was there to draft" in conclude(searched, tiny).reasons[0].sentences[0]


def test_a_target_that_cannot_rewind_says_so(run: Run, tiny: Transformer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiny, "can_rewind", False)
    searched = run(World(lambda category, one, level: 1.4))
    assert chosen(searched, tiny) == (NONE, 0)
    [note] = searched.notes
    assert note.endswith("cannot rewind, and decodes plainly alone")


def test_nobody_draws_where_nothing_is_drawn(run: Run) -> None:
    """A tree of drawn children takes part at temperature 1, and not at 0."""
    task = Task(budget_s=9000.0, temperatures=(0.0, 1.0))
    world = World(lambda category, one, level: 1.4 + 0.1 * one.tree.startswith("sampled"))
    run(world, task, None, head=HEAD)
    heats = {level.temperature for _, one, level in world.ran if one.tree.startswith("sampled")}
    assert heats == {1.0}


def test_goodput_by_costs_that_are_given_is_refused(run: Run) -> None:
    world = World(lambda category, one, level: 1.4)
    given = {"lookup": world.costs(None, None, batches=(1,))}
    task = Task(goal="goodput", latency_bound_ms=50.0)
    with pytest.raises(UsageError, match="goal is goodput and costs are given, so that no wait is timed; allowed with"):
        run(world, task, None, lookup=LOOKUP, costs=given)


def test_a_category_called_all_is_refused(run: Run) -> None:
    with pytest.raises(UsageError, match="a prompt's category is 'all', as plans call all prompts; allowed: another"):
        run(World(lambda category, one, level: 1.4), None, {"code": 1, "all": 1})


def test_costs_of_another_machine_time_nothing(run: Run, tiny: Transformer) -> None:
    world = World(lambda category, one, level: chain_of(3, 1.6)(one) if one.drafter == "head" else 0.9)
    given = {name: world.costs(None, None, batches=(1,)) for name in ("lookup", "head")}
    tuned: Tuned = conclude(run(world, None, None, lookup=LOOKUP, head=HEAD, costs=given), tiny)
    assert world.ran == [] and world.probed == 1
    choice = tuned.plan.choice()
    assert (choice.drafter, choice.num_draft_tokens) == ("head", 3)
    assert choice.evidence is not None and (choice.evidence.prompts, choice.evidence.predicted) == (0, 1.6)
    assert "with the costs that were given; nothing was timed" in tuned.reasons[0].sentences[0]


# ---- controls --------------------------------------------------------------------------------------------------------


def test_a_search_that_keeps_the_worse_half_is_found_out(
    run: Run, tiny: Transformer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def worst(alive: Any, trials: Any, promises: Any) -> Any:
        best = survivors(alive, trials, promises)
        return {
            name: [one for one in field if one not in best[name]][: len(best[name])] for name, field in alive.items()
        }

    monkeypatch.setattr(searching, "survivors", worst)
    with must_fail():
        test_drafting_is_chosen_with_its_figures(run, tiny)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"goal": "fame"}, "goal is 'fame'; allowed: latency, throughput, goodput"),
        ({"goal": "goodput"}, "goal is goodput with no latency bound; allowed: goodput with a bound, others without"),
        ({"latency_bound_ms": 3.0}, "goal is latency with a latency bound of 3 ms; allowed: goodput with a bound"),
        ({"goal": "goodput", "latency_bound_ms": 0.0}, "latency_bound is 0 ms; allowed: above 0"),
        ({"batches": ()}, "no concurrency is given; allowed: one or more"),
        ({"batches": (0,)}, "concurrency is 0; allowed: 1 or more"),
        ({"batches": (2, 2)}, "concurrency is 2; allowed: no number twice"),
        ({"temperatures": (-0.5,)}, "temperature is -0.5; allowed: 0 or more"),
        ({"budget_s": 0.0}, "budget is 0 seconds; allowed: more than 0"),
        ({"max_new_tokens": 0}, "max_new_tokens is 0; allowed: 1 or more"),
    ],
)
def test_a_task_out_of_range(given: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        Task(**given)
