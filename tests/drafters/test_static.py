"""A static tree: the best shape for its rates, whatever is drafted, and the draft's r-th best in every place of rank r.

The draft models are tables, so that all that can happen is enumerated. No test here can raise a false alarm.
"""

import itertools
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import outpace
from cards import card_for, model_folder
from heads import Played, fitted_head, random_head, shape_of
from looking import Looking
from outpace.decoding.control import Adaptive, Fixed
from outpace.decoding.loop import Request
from outpace.decoding.turn import Turn
from outpace.drafters import growth
from outpace.drafters.budget import DYNAMIC, Branching, Budget
from outpace.drafters.card import write_card
from outpace.drafters.drafter import Drafter, falling, own_rates, rates_of
from outpace.drafters.eagle import Eagle
from outpace.drafters.growth import shaped_tree
from outpace.drafters.load import load_drafter
from outpace.drafters.lookup import Lookup
from outpace.drafters.small import Small
from outpace.errors import UsageError
from outpace.evaluation.faults import Liar
from outpace.models.load import load_target
from outpace.models.toy import random_table, table_target
from outpace.models.transformer import Transformer
from outpace.verification.expectation import tree_tokens
from outpace.verification.shape import StaticShape, static_tree
from simulated import TABLES, table
from toys import Watched, must_fail, reference, run

RATES = (0.5, 0.2, 0.1)


# ---- how it is written -----------------------------------------------------------------------------------------------


@st.composite
def rates(draw: st.DrawFn) -> tuple[float, ...]:
    """Falling, together at most 1."""
    weights = sorted(draw(st.lists(st.floats(1e-3, 1), min_size=1, max_size=6)), reverse=True)
    share = draw(st.floats(1e-6, 1))
    return tuple(share * weight / sum(weights) for weight in weights)


PARTS = st.one_of(
    st.just(("chain", 1.0, ())),
    st.tuples(st.sampled_from(["top-k", "sampled"]), st.integers(1, 10**9).map(float), st.just(())),
    st.tuples(st.just("top-p"), st.floats(0, 1, exclude_min=True), st.just(())),
    st.tuples(st.just("static"), st.just(1.0), rates() | st.just(())),
)


@given(parts=PARTS)
def test_what_is_written_is_read(parts: Any) -> None:
    one = Branching(*parts)
    assert Branching.parse(str(one)) == one


def test_how_it_is_written() -> None:
    assert str(Branching.parse("static:0.6,.15, 6e-2")) == "static:0.6,0.15,0.06"
    assert str(Branching.parse("static")) == "static" and not Branching.parse("static").is_chain
    assert str(DYNAMIC) == "top-k:8" == str(Branching("top-k", 8.0))


WRONG = [
    ("static:", "tree is 'static:'; allowed: numbers behind the colon, such as static:0.6,0.15,0.06"),
    ("static:0.5,", "tree is 'static:0.5,'; allowed: numbers behind the colon"),
    ("static:0.5;0.2", "tree is 'static:0.5;0.2'; allowed: numbers behind the colon"),
    ("static:0.2,0.5", "tree is static:0.2,0.5; allowed: rates above 0, never rising, together at most 1, such as"),
    ("static:0.5,0", "tree is static:0.5,0; allowed: rates above 0"),
    ("static:0.5,-0.1", "tree is static:0.5,-0.1; allowed: rates above 0"),
    ("static:0.7,0.4", "tree is static:0.7,0.4; allowed: rates above 0, never rising, together at most 1"),
    ("static:nan", "tree is static:nan; allowed: rates above 0"),
    ("static:inf", "tree is static:inf; allowed: rates above 0"),
    ("chain:2", "tree is 'chain:2'; allowed: chain, top-k:K, top-p:P, sampled:K, dynamic, static, static:RATES"),
    ("dynamic:3", "tree is 'dynamic:3'; allowed: chain"),
    ("top-k", "tree is 'top-k'; allowed: chain"),
    ("top-k:inf", "tree is top-k:inf; allowed: a whole number of children from 1 on"),
    ("top-k:nan", "tree is top-k:nan; allowed: a whole number of children from 1 on"),
    ("top-k:1,2", "tree is 'top-k:1,2'; allowed: a number behind the colon, such as top-k:1"),
]


@pytest.mark.parametrize(("text", "message"), WRONG)
def test_what_is_no_tree(text: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        Branching.parse(text)
    assert caught.value.message.startswith(message)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"kind": "static", "width": 2.0}, "tree is static, 2 wide; allowed: static, without a width"),
        ({"kind": "chain", "width": 3.0}, "tree is chain, 3 wide; allowed: chain, without a width"),
        (
            {"kind": "top-k", "width": 2.0, "rates": (0.5,)},
            "tree is top-k:2 with rates; allowed: rates for static a",
        ),
    ],
)
def test_parts_that_do_not_go_together(given: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Branching(**given)


# ---- the tree --------------------------------------------------------------------------------------------------------


def budget(depths: Sequence[int], nodes: Sequence[int]) -> Budget:
    return Budget(list(depths), list(nodes), Branching("static", rates=RATES))


def filled(shape: StaticShape, rows: Tensor, last: int, ends: frozenset[int]) -> tuple[list[int], list[int]]:
    """A shape filled place by place, and what has no token left out."""
    tokens: list[int | None] = []
    for parent, rank in zip(shape.parents, shape.ranks, strict=True):
        before = last if parent < 0 else tokens[parent]
        ended = before is None or (parent >= 0 and before in ends)
        order = [] if ended else rows[before].argsort(descending=True).tolist()
        there = rank < len(order) and rows[before, order[rank]] > -torch.inf
        tokens.append(order[rank] if there else None)
    place = {-1: -1}
    for node, token in enumerate(tokens):
        if token is not None:
            place[node] = len(place) - 1
    kept = [node for node, token in enumerate(tokens) if token is not None]
    return [tokens[node] or 0 for node in kept], [place[shape.parents[node]] for node in kept]


@settings(max_examples=60)
@given(
    limits=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 12)), min_size=1, max_size=4),
    own=rates(),
    vocab=st.integers(2, 6),
    seed=st.integers(0, 10_000),
    ends=st.sets(st.integers(0, 1)),
    forbidden=st.booleans(),
)
def test_the_shape_is_filled_by_rank(
    limits: list[tuple[int, int]], own: tuple[float, ...], vocab: int, seed: int, ends: set[int], forbidden: bool
) -> None:
    """Ragged rows, rows that rest, ends of text, ids that may not be said, more ranks than there are tokens."""
    if any(depth and count for depth, count in limits):
        check_filled(limits, own, vocab, seed, frozenset(ends), forbidden)


def check_filled(
    limits: list[tuple[int, int]],
    own: tuple[float, ...],
    vocab: int,
    seed: int,
    ends: frozenset[int],
    forbidden: bool = False,
) -> None:
    rows = random_table(vocab, seed=seed)
    if forbidden:
        rows[:, vocab - 1] = -torch.inf
    depths, nodes = ([part[side] for part in limits] for side in (0, 1))
    last = [row % vocab for row in range(len(limits))]
    look = Looking(rows, last)
    proposal = shaped_tree(look, budget(depths, nodes), own, ends)
    proposal.tree.validate()
    assert proposal.draft_probs is None and proposal.draft_logits is not None
    for row, (depth, count) in enumerate(limits):
        shape = static_tree(own, count if depth else 0, depth)
        tokens, parents = filled(shape, rows, last[row], ends)
        assert proposal.tree.to_lists()[row] == (tokens, parents)
        for node in set(parents):
            torch.testing.assert_close(
                proposal.draft_logits[row, node + 1], rows[tokens[node] if node >= 0 else last[row]]
            )


def test_no_token_changes_the_shape() -> None:
    """Other rows, other tokens, the same parents."""
    trees = [
        shaped_tree(Looking(random_table(9, seed=seed), [0]), budget([4], [13]), RATES, frozenset()).tree.to_lists()[0]
        for seed in range(12)
    ]
    assert len({tuple(tokens) for tokens, _ in trees}) == 12
    assert {tuple(parents) for _, parents in trees} == {static_tree(RATES, 13, 4).parents}


def test_one_look_a_depth() -> None:
    look = Looking(random_table(8, seed=6), [0, 1, 2])
    shaped_tree(look, budget([3, 1, 0], [14, 2, 0]), (0.5, 0.5), frozenset())
    assert look.counts == [[1, 1, 0], [2, 0, 0], [4, 0, 0]]


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_a_row_that_is_no_law_has_no_children(bad: float) -> None:
    """At the root and further down; what is shown of such rows is finite, as traces are."""
    rows = random_table(5, seed=7)
    rows[1] = bad if bad == float("-inf") else rows[1].index_fill(0, torch.tensor([3]), bad)
    proposal = shaped_tree(Looking(rows, [1, 0]), budget([2, 2], [30, 30]), (0.2,) * 5, frozenset())
    empty, (tokens, parents) = proposal.tree.to_lists()
    assert empty == ([], [])
    assert 1 in tokens and max(parents) >= 0
    assert all(parent < 0 or tokens[parent] != 1 for parent in parents)
    assert proposal.draft_logits is not None and bool(proposal.draft_logits.isfinite().all())


# ---- what it brings --------------------------------------------------------------------------------------------------

DEPTH, BEHIND = 3, 3
CASES = list(itertools.product([0, 0, 0, 1, 1, BEHIND], repeat=DEPTH))
"""Of the right token, the ranks at three places, each case as often as it happens: 3 in 6, 2 in 6, else not drafted."""
SHARES = (3 / 6, 2 / 6)
LENGTH = 2 + DEPTH


@cache
def tables() -> tuple[Tensor, Tensor]:
    """A target that says a text of its own for every case, and a draft model that ranks it as the case has it."""
    count = len(CASES) * LENGTH
    target, draft = (torch.zeros(count + BEHIND, count + BEHIND) for _ in range(2))
    for case, ranks in enumerate(CASES):
        for step in range(LENGTH - 1):
            at = case * LENGTH + step
            order = list(range(count, count + BEHIND))
            order.insert(ranks[step - 1] if step else 0, at + 1)
            target[at, at + 1] = 9.0
            draft[at, order] = torch.tensor([9.0, 8.0, 7.0, 6.0])
    return target, draft


def brought(nodes: int) -> tuple[float, float]:
    """Tokens of a turn as expected by the rates, and of the first drafting turn of every case as decoded."""
    rows, guesses = tables()
    target = table_target(rows)
    paths: list[int] = []

    def look(turn: Turn, indices: list[int]) -> None:
        if turn.proposal.tree.tokens.shape[1] and not paths:
            paths.extend(map(len, turn.paths))

    depth = min(DEPTH, nodes)
    control = Fixed(Branching("static", rates=SHARES), depth, nodes)
    requests = [Request((case * LENGTH,), max_new_tokens=LENGTH) for case in range(len(CASES))]
    run(target, Small(table_target(guesses), target), requests, control=control, observer=look)
    assert len(paths) == len(CASES)
    return tree_tokens(static_tree(SHARES, nodes, depth), [SHARES] * depth), 1 + sum(paths) / len(paths)


@pytest.mark.parametrize("nodes", [1, 3, 5, 8, 14])
def test_it_brings_what_its_rates_promise(nodes: int) -> None:
    """Exactly, where what happens at one place says nothing of the next: every case enumerated."""
    expected, found = brought(nodes)
    assert found == pytest.approx(expected, rel=1e-12) and expected > 1.4


def test_ranks_that_change_places_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fault: the first place of a family holds the second best."""
    honest = growth._best

    def swapped(*given: Any) -> growth.Chosen:
        return [[tokens[::-1] for tokens in own] for own in honest(*given)]

    monkeypatch.setattr(growth, "_best", swapped)
    with must_fail():
        test_it_brings_what_its_rates_promise(5)
    with must_fail():
        check_filled([(3, 9)], RATES, 5, 1, frozenset())


# ---- whole texts -----------------------------------------------------------------------------------------------------

PROMPTS = ((9,), (5, 6, 7), (1, 2, 3, 4, 5, 6, 7), (11, 3, 2, 8, 1, 1, 30, 12, 7))
NEW = 20


@pytest.mark.parametrize("kind", ["small", "eagle"])
@pytest.mark.parametrize("slots", [1, 3])
def test_texts_are_the_plain_texts_with_one_forward_a_turn(
    kind: str, slots: int, tiny: Transformer, tiny_draft: Transformer
) -> None:
    head = fitted_head(PROMPTS, NEW + 8)
    guesser: Drafter = Small(tiny_draft, tiny) if kind == "small" else Eagle(head, tiny, packed=False, rates=RATES)
    control = Fixed(Branching("static", rates=RATES if kind == "small" else ()), 4, 12)
    watched, turns = Watched(tiny), []

    def look(turn: Turn, rows: list[int]) -> None:
        turns.append(turn.proposal.tree.num_nodes.tolist())

    requests = [Request(prompt, max_new_tokens=NEW) for prompt in PROMPTS]
    rows = run(watched, guesser, requests, control=control, observer=look, slots=slots)
    assert [row.ids for row in rows] == [reference(tiny, prompt, NEW) for prompt in PROMPTS]
    drafted = [one for one in turns if any(one)]
    assert [one for one in watched.scored if any(one)] == drafted and max(map(max, drafted)) == 12
    if kind == "eagle":
        assert sum(row.stats.accepted for row in rows) > 10


# ---- whose rates -----------------------------------------------------------------------------------------------------


def test_the_rates_of_a_head(tiny: Transformer) -> None:
    """Those that were measured, made to fall; those that are named come first."""
    assert falling((0.5, 0.1, 0.2, 0.0, 0.3)) == (0.5, 0.1, 0.1) and falling((0.0, 0.5)) == ()
    head = random_head(seed=2)
    played = Played(Eagle(head, tiny, packed=False, rates=(0.5, 0.1, 0.2, 0.0)))
    played.admit(4)
    named = played.propose("static:0.5,0.1,0.1", [3], [9]).tree.to_lists()
    assert played.propose("static", [3], [9]).tree.to_lists() == named
    assert named[0][1] == list(static_tree((0.5, 0.1, 0.1), 9, 3).parents)
    assert played.propose("static:0.3,0.3,0.3", [3], [9]).tree.to_lists() != named


def test_a_card_knows_them(tmp_path: Path) -> None:
    target = load_target(model_folder(tmp_path / "target"), dtype="fp32")
    head = random_head(shape_of(taps=(2, 4, 5)))
    for shares, known in (((0.4, 0.2, 0.3), (0.4, 0.2, 0.2)), ((0.0, 0.0), ()), ((), ()), (None, ())):
        write_card(tmp_path / "head", head, replace(card_for(head, target), acceptance_by_rank=shares))
        drafter = load_drafter(str(tmp_path / "head"), target)
        assert own_rates(drafter) == known
        if known:
            found = outpace.generate(target, drafter, [1, 2, 3], tree="static", num_draft_tokens=6, max_new_tokens=9)
            assert found.token_ids == outpace.generate(target, None, [1, 2, 3], max_new_tokens=9).token_ids
            assert found.stats.speculation.drafted > 6
        else:
            with pytest.raises(UsageError, match="tree is static, and no acceptance by rank is known of the drafter"):
                outpace.generate(target, drafter, [1, 2, 3], tree="static")


def test_where_there_are_none_it_is_refused(tiny: Transformer, tiny_draft: Transformer) -> None:
    small, head = Small(tiny_draft, tiny), Eagle(random_head(), tiny, packed=False)
    for drafter, name in ((small, "small:tiny-llama"), (head, "eagle3")):
        with pytest.raises(UsageError) as caught:
            outpace.generate(tiny, drafter, [1, 2], tree="static", max_new_tokens=2)
        assert str(caught.value) == (
            f"tree is static, and no acceptance by rank is known of the drafter {name!r}; allowed: rates of your own, "
            "such as static:0.6,0.15,0.06\nhint: the card of a head that outpace trained has them; dynamic needs none"
        )
        outpace.generate(tiny, drafter, [1, 2], tree="static:0.6,0.15", num_draft_tokens=4, max_new_tokens=2)
    with pytest.raises(
        UsageError, match=r"tree is static:0\.5, and the drafter 'lookup' cannot draft that; allowed: c"
    ):
        outpace.generate(tiny, Lookup(), [1, 2], tree="static:0.5")


def test_who_stands_for_a_drafter_knows_its_rates(tiny: Transformer) -> None:
    """``outpace check`` puts one in its place that lies about laws."""
    head = Eagle(random_head(), tiny, packed=False, rates=RATES)
    assert rates_of(Branching.parse("static"), Liar(head, 64)) == RATES
    assert own_rates(Lookup()) == ()


def test_auto_chooses_its_size(tiny: Transformer) -> None:
    """By the ranks that it has; free rows get a tree, and the text is the plain one."""
    for tree, ranks in (("static:0.5,0.2", 2), ("static", 8)):
        control = Adaptive(table(TABLES["free"]), Branching.parse(tree), 4, 12)
        control.admit(1)
        assert len(control._record().offered[0]) == ranks
        asked = control.budget([9], [5])
        assert asked.branching == Branching.parse(tree) and asked.nodes[0] > asked.depths[0] > 1
    drafter = Eagle(fitted_head(PROMPTS, NEW + 8), tiny, packed=False, rates=RATES)
    control = Adaptive(table(TABLES["free"]), Branching("static"), 4, 12)
    [row] = run(tiny, drafter, [Request(PROMPTS[1], max_new_tokens=NEW)], control=control)
    assert row.ids == reference(tiny, PROMPTS[1], NEW) and row.stats.accepted > 0
