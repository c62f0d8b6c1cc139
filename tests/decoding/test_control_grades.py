"""Drafts of different grades are known apart, and what no model drafts costs no steps."""

from outpace.decoding.control import Adaptive
from outpace.drafters.budget import Branching
from simulated import ROOM, TABLES, chains_of, table
from toys import must_fail

MODEL, BAD, GOOD = 1, 2, 4


def taught(control: Adaptive, told: bool = True) -> Adaptive:
    """Drafts of one grade are never right and those of another always; they come by turns."""
    control.admit(1)
    for turn in range(80):
        grade = (BAD, GOOD)[turn % 2]
        depths = control.budget([ROOM], [100], [grade if told else BAD]).depths
        control.learn(chains_of(depths, [depths[0] if grade == GOOD else 0]))
    return control


def grades_are_known_apart(told: bool = True) -> None:
    control = taught(Adaptive(table(TABLES["steep"])), told)
    assert control.budget([ROOM], [100], [GOOD]).depths[0] >= 6
    assert control.budget([ROOM], [100], [BAD]).empty


def test_grades_are_known_apart() -> None:
    grades_are_known_apart()


def test_grades_are_known_apart_planted() -> None:
    with must_fail():
        grades_are_known_apart(told=False)


def test_without_a_draft_there_is_nothing_to_ask_for() -> None:
    """Grade 0 says so beforehand: no probe is spent on it, even where every draft pays."""
    control = Adaptive(table(TABLES["free"]))
    control.admit(2)
    for _ in range(3):
        idle, busy = control.budget([ROOM, ROOM], [100, 100], [0, GOOD]).depths
        assert idle == 0 < busy
        control.learn(chains_of([0, busy], [0, busy]))
    assert control.budget([ROOM, ROOM], [100, 100], [0, 0]).empty


def test_no_grades_are_one_grade() -> None:
    known = [Adaptive(table(TABLES["stairs"])) for _ in range(2)]
    for control in known:
        control.admit(1)
    for turn in range(30):
        budgets = [
            control.budget([ROOM], [100 + turn], grades) for control, grades in zip(known, (None, [1]), strict=True)
        ]
        assert budgets[0] == budgets[1]
        for control in known:
            control.learn(chains_of(budgets[0].depths, [min(2, budgets[0].depths[0])]))


def test_what_no_model_drafts_costs_no_steps() -> None:
    """A step costs half a turn: a model's drafts, right six times in ten, do not pay, and copies as good do."""
    drafted = {}
    for grade in (MODEL, GOOD):
        control = Adaptive(table(TABLES["a step costs half a turn"]), unasked=frozenset({BAD, GOOD}))
        control.admit(1)
        for turn in range(60):
            depth = control.budget([ROOM], [100], [grade]).depths[0]
            control.learn(chains_of([depth], [min(depth, (1, 0, 3)[turn % 3])]))
        drafted[grade] = control.budget([ROOM], [100], [grade]).depths[0]
    assert drafted[MODEL] == 0 < 2 <= drafted[GOOD]


def test_copies_are_chains_beside_trees() -> None:
    control = Adaptive(table(TABLES["stairs"]), Branching("top-k", 3.0), 4, 24, frozenset({GOOD}))
    control.admit(1)
    copied = control.budget([ROOM], [100], [GOOD])
    assert copied.nodes == copied.depths and copied.depths[0] > 0
    control.learn(chains_of(copied.depths, copied.depths))
    modelled = control.budget([ROOM], [100], [MODEL])
    assert modelled.nodes[0] > modelled.depths[0] > 0
