"""Streams and rounds: which prompts meet which level, who goes first, and when there is time for more."""

import pytest

from outpace.errors import UsageError
from outpace.evaluation.rounds import in_rounds, streams
from outpace.evaluation.workloads import Question


def questions(*categories: str | None) -> list[Question]:
    return [Question(f"q{place}", category, [place + 1]) for place, category in enumerate(categories)]


def keys(found: list[list[Question]]) -> list[list[str]]:
    return [[one.key for one in stream] for stream in found]


def test_two_prompts_a_slot_or_one_of_every_category() -> None:
    asked = questions(*"aaabbbccc")
    assert keys(streams(asked, 1, 1)) == [["q0", "q3", "q6"]]
    assert keys(streams(asked, 2, 1)) == [["q0", "q3", "q6", "q1"]]
    assert keys(streams(questions(None, None, None), 1, 1)) == [["q0", "q1"]]


def test_rounds_go_on_where_the_last_one_ended() -> None:
    found = keys(streams(questions(*"ababab"), 1, 4))
    assert found == [["q0", "q1"], ["q2", "q3"], ["q4", "q5"], ["q0", "q1"]]


@pytest.mark.parametrize("concurrency", [1, 2, 3, 8])
def test_every_prompt_is_asked_as_often_as_any_other_up_to_one(concurrency: int) -> None:
    asked = questions(*"aabbbcc")
    counts = [sum(key == one.key for stream in keys(streams(asked, concurrency, 5)) for key in stream) for one in asked]
    assert max(counts) - min(counts) <= 1


@pytest.mark.parametrize(("given", "words"), [((0, 1), "concurrency is 0"), ((1, 0), "rounds is 0")])
def test_out_of_range(given: tuple[int, int], words: str) -> None:
    with pytest.raises(UsageError, match=f"{words}; allowed: 1 or more"):
        streams(questions("a"), *given)


def test_levels_go_up_and_down_and_everyone_begins_in_turn() -> None:
    met: list[tuple[int, str, int]] = []
    found = in_rounds({4: "ab", 1: "ab"}, 2, 1e9, lambda level, name, place: met.append((level, name, place)))
    up = [(1, "a", 0), (1, "b", 0), (4, "a", 0), (4, "b", 0)]
    down = [(4, "b", 1), (4, "a", 1), (1, "b", 1), (1, "a", 1)]
    assert met == up + down
    assert {level: {name: len(ran) for name, ran in names.items()} for level, names in found.items()} == {
        1: {"a": 2, "b": 2},
        4: {"a": 2, "b": 2},
    }


@pytest.mark.parametrize(("budget", "rounds"), [(0.0, 1), (19.0, 1), (20.0, 2), (39.0, 3), (49.0, 4), (1e9, 5)])
def test_a_round_begins_only_where_the_budget_holds_it(budget: float, rounds: int) -> None:
    """Every round takes ten seconds."""
    now = [0.0]

    def once(level: int, name: str, place: int) -> int:
        now[0] += 10.0
        return place

    found = in_rounds({1: ["a"]}, 5, budget, once, clock=lambda: now[0])
    assert found[1]["a"] == list(range(rounds))
