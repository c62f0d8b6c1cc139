"""What is counted of a draft: the steps that were decided, by depth and rank, and nothing below them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outpace.decoding.acceptance import GUESS, Record, outcomes
from simulated import chains_of, turn_of
from toys import must_fail

#  0        1       nodes of a tree: two children of the root, two of the first of them, one of the second
#  2  3     4
TREE = (-1, -1, 0, 0, 1)


@pytest.mark.parametrize(
    ("path", "steps"),
    [
        ((), [(2, -1)]),
        ((0,), [(2, 0), (2, -1)]),
        ((1,), [(2, 1), (1, -1)]),
        ((0, 3), [(2, 0), (2, 1)]),
        ((1, 4), [(2, 1), (1, 0)]),
    ],
)
def test_steps_of_a_tree(path: tuple[int, ...], steps: list[tuple[int, int]]) -> None:
    """Children offered and the rank accepted, down to where the path ended; a leaf decides nothing more."""
    assert outcomes(turn_of((TREE, ()), (path, ()))) == [steps, []]


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), min_size=1, max_size=3))
def test_steps_of_chains(rows: list[tuple[int, int]]) -> None:
    drafted, accepted = [count for count, _ in rows], [min(pair) for pair in rows]
    for count, right, steps in zip(drafted, accepted, outcomes(chains_of(drafted, accepted)), strict=True):
        assert steps == [(1, 0)] * right + [(1, -1)] * (right < count)


def conditional() -> None:
    """The first token right in half of all drafts, the second always: its rate is 1, however seldom it is reached."""
    record = Record.empty(3, 1)
    for _ in range(400):
        record.learn([[(1, 0), (1, 0), (1, -1)]], 1.0)
        record.learn([[(1, -1)]], 1.0)
    rates = [depth[0] for depth in record.rates(record.usual())]
    assert rates == pytest.approx([0.5, 1.0, 0.0], abs=0.02)


def test_rates_are_conditional() -> None:
    conditional()


def test_rates_are_conditional_planted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fault counts what lies behind a refusal as refused."""
    honest = Record.learn
    monkeypatch.setattr(
        Record,
        "learn",
        lambda self, drafts, memory: honest(self, [[*steps, *[(1, -1)] * 3][:3] for steps in drafts], memory),
    )
    with must_fail():
        conditional()


def test_ranks_are_counted_where_they_were_offered() -> None:
    """The second of two children right in a quarter of all drafts; in other drafts there was no second child."""
    record = Record.empty(1, 3)
    for steps in ([(2, 0)], [(2, 0)], [(2, 1)], [(2, -1)], [(1, 0)], [(1, -1)]) * 100:
        record.learn([steps], 1.0)
    assert record.rates(record.usual())[0][:2] == pytest.approx([0.5, 0.25], abs=0.01)
    assert record.offered[0] == [600.0, 400.0, 0.0]


def test_what_is_supposed_before_anything_was_seen() -> None:
    record = Record.empty(4, 2)
    assert record.rates(record.usual()) == [[GUESS, GUESS / 3]] * 4
    assert record.finds(record) == 1.0


def test_an_unknown_depth_is_like_the_one_above() -> None:
    record = Record.empty(3, 1)
    record.learn([[(1, 0)]] * 1000, 1.0)
    assert [depth[0] for depth in record.usual()] == pytest.approx([1, 1, 1], abs=0.01)


def test_an_empty_draft_teaches_no_acceptance() -> None:
    record = Record.empty(2, 1)
    record.learn([[(1, 0), (1, -1)]], 0.9)
    before = record.rates(record.usual())
    for _ in range(50):
        record.learn([[]], 0.9)
    assert record.rates(record.usual()) == before
    assert record.finds(record) < 0.2


@given(
    st.lists(st.lists(st.sampled_from([[], [(1, 0)], [(2, 1), (2, -1)], [(3, 2), (3, 0)]]), max_size=3), max_size=20)
)
def test_rates_are_chances(turns: list[list[list[tuple[int, int]]]]) -> None:
    pool, row = Record.empty(3, 2), Record.empty(3, 2)
    for drafts in turns:
        pool.learn(drafts, 0.9)
        row.learn(drafts[:1], 0.7)
        row.fade(0.9)
    rates = row.rates(pool.usual())
    assert all(0 <= rate <= 1 for depth in rates for rate in depth) and 0 <= row.finds(pool) <= 1
