"""The gate of gates: rounds walked over the target's own text are the decoder's, before and after a card."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from first_heads import first_shape, fitted_first, random_first
from heads import HALF, WHOLE, fitted_head, random_head, shape_of
from outpace.decoding.loop import Request, decode
from outpace.decoding.stats import Speculation, Tally
from outpace.drafters.card import read_card, write_card
from outpace.drafters.eagle import Eagle
from outpace.drafters.first_head import AnyHead
from outpace.drafters.head import Head
from outpace.drafters.record import Card
from outpace.models.ends import read_ends
from outpace.models.toy import tiny_transformer
from outpace.models.transformer import Transformer
from outpace.training import rounds
from outpace.training.batch import Batch
from outpace.training.rounds import Walked, walked
from outpace.training.teacher import Teacher
from toys import lively, must_fail, reference

PROMPTS = ((9,), (5, 6, 7), (1, 2, 3, 4, 5, 6, 7), (11, 3, 2, 8, 1, 1, 30, 12, 7))
NEW = 20


def walk(head: AnyHead, target: Transformer, depth: int, new: int = NEW) -> Walked:
    ends = read_ends(target)
    teacher = Teacher.of(ends.embeddings, ends.head, head.target_ids)
    return walked(head, target, teacher, PROMPTS, depth=depth, max_new_tokens=new)


def decoded(head: AnyHead, target: Transformer, depth: int, new: int = NEW) -> Walked:
    """What the decoder counts, pooled."""
    drafter = Eagle(head, target, packed=False)
    requests = [Request(prompt, max_new_tokens=new, eos_ids=target.eos_ids) for prompt in PROMPTS]
    figures: list[Speculation] = []
    for emission in decode(target, drafter, requests, num_draft_tokens=depth):
        figures += [] if emission.speculation is None else [emission.speculation]
    width = max(len(one.tried) for one in figures)
    tried, passed = (
        [sum(counts[place] for counts in rows if place < len(counts)) for place in range(width)]
        for rows in ([one.tried for one in figures], [one.passed for one in figures])
    )
    turns, emitted = sum(one.turns for one in figures), sum(one.emitted for one in figures)
    rates = tuple(p / t for p, t in zip(passed, tried, strict=True))
    return Walked(turns, emitted, emitted / turns if turns else None, rates)


@pytest.mark.parametrize("passes", [HALF, WHOLE])
@pytest.mark.parametrize("depth", [1, 2, 3, 5, 8])
def test_walked_rounds_are_the_decoders(depth: int, passes: int) -> None:
    target, head = lively(), fitted_head(PROMPTS, NEW + 8, passes)
    found = walk(head, target, depth)
    assert found == decoded(head, target, depth)
    assert found.tau is not None and found.tau > 1.3, "a head that is never right would agree with anything"


@pytest.mark.parametrize("new", [1, 2, 3, 4, 7, 13])
def test_at_every_limit(new: int) -> None:
    target, head = lively(), fitted_head(PROMPTS, NEW + 8)
    for depth in (1, 3, 4):
        assert walk(head, target, depth, new) == decoded(head, target, depth, new)


def test_at_an_end_of_text() -> None:
    """An end that is drafted, and one that is not."""
    text = reference(lively(), PROMPTS[1], NEW)
    for place in (1, 3, 5, 8, 12):
        target = tiny_transformer(seed=3, eos_ids=(text[place],))
        for passes in (HALF, WHOLE):
            head = fitted_head(PROMPTS, NEW + 8, passes)
            for depth in (1, 2, 4):
                assert walk(head, target, depth) == decoded(head, target, depth)


def test_at_the_end_of_the_context_and_of_the_head() -> None:
    for positions, own in ((24, 24), (24, 40), (40, 26)):
        target = tiny_transformer(seed=3, max_position_embeddings=positions)
        head = fitted_head(PROMPTS, NEW + 8)
        shorter = Head(shape_of(draft_vocab_size=48, max_positions=own))
        shorter.load_state_dict(head.state_dict())
        for new in (15, 17):
            assert walk(shorter, target, 4, new) == decoded(shorter, target, 4, new)


def test_behind_the_last_position_nothing_is_drafted() -> None:
    """A text goes on where its drafter cannot: those turns say one token each, and have drafted none.

    Six of ten tokens have positions: a turn of four, one of two with one draft, and three plain ones.
    """
    tally = Tally()
    decided = rounds._walk(tally, [[1, 1, 1]] * 10, [7] * 10, 3, (10, 6), ())
    found = tally.speculation("eagle3")
    assert (found.turns, found.emitted, found.drafted, found.accepted) == (5, 9, 4, 4)
    assert found.plain_turns == 3 and decided == [[1, 1, 1], [1], [], [], []]


def test_a_head_that_is_never_right_has_one_token_a_turn() -> None:
    target, head = lively(), random_head(shape_of(draft_vocab_size=48), seed=4)
    found = walk(head, target, 4)
    assert found == decoded(head, target, 4)
    assert found.tau == 1.0 and found.acceptance_by_position == (0.0,)


@pytest.mark.parametrize("passes", [30, 120])
@pytest.mark.parametrize("depth", [1, 2, 4, 7])
def test_of_eagle1_they_are_the_decoders_too(depth: int, passes: int) -> None:
    """The one feature that it reads is the state before the target's head, which no tap records."""
    target, head = lively(), fitted_first(PROMPTS, NEW + 8, passes)
    found = walk(head, target, depth)
    assert found == decoded(head, target, depth)
    assert found.tau is not None and found.tau > 1.3
    for new in (1, 2, 3, 7):
        assert walk(head, target, depth, new) == decoded(head, target, depth, new)
    text = reference(target, PROMPTS[1], NEW)
    for place in (1, 5, 12):
        ending = tiny_transformer(seed=3, eos_ids=(text[place],))
        assert walk(head, ending, depth) == decoded(head, ending, depth)
    never = random_first(first_shape(), seed=4, rows=read_ends(target).head)
    assert walk(never, target, depth) == decoded(never, target, depth)


def test_after_export_and_reload_they_are_the_same(tmp_path: Path) -> None:
    target, head = lively(), fitted_head(PROMPTS, NEW + 8, HALF)
    card = Card.of(head, target, depth_trained=3, steps=1, data={}, recipe={})
    write_card(tmp_path / "card", head, card, dtype=torch.float32)
    again, _ = read_card(tmp_path / "card")
    assert walk(again, target, 4) == walk(head, target, 4) == decoded(again, target, 4)


# ---- planted faults --------------------------------------------------------------------------------------------------


def one_place_late(*args: Any) -> list[list[int]]:
    """What is drafted behind a token is read off the next place."""
    tally, ranks, *others = args
    return honest_walk(tally, [*ranks[1:], [0] * len(ranks[0])], *others)


def the_state_before(batch: Batch) -> Batch:
    """EAGLE-1 is shown the state one place back."""
    return replace(batch, features=batch.last_normed.roll(1, 1)[:, :, None])


def test_planted_fault_of_eagle1(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Batch, "by_last", property(the_state_before))
    with must_fail():
        target, head = lively(), fitted_first(PROMPTS, NEW + 8, 120)
        assert walk(head, target, 4) == decoded(head, target, 4)


def no_bonus(*args: Any) -> list[list[int]]:
    """The next round begins at the rejected token."""
    tally, ranks, new, depth, rooms, _ = args
    done = 1
    while done < len(new):
        room = min(depth, rooms[0] - done - 1)
        matched = [*(rank == 1 for rank in ranks[done - 1][:room]), False].index(False)
        emitted = min(max(matched, 1), len(new) - done)
        tally.add(rule="greedy", lossless=True, drafted=room, depth=room, matched=matched, emitted=emitted)
        done += emitted
    return []


def drafts_over_the_limit(*args: Any) -> list[list[int]]:
    tally, ranks, new, depth, _, eos = args
    return honest_walk(tally, ranks, new, depth, (10**6, 10**6), eos)


def every_match_counts(head: Any, batch: Any, teacher: Any, depth: int) -> list[list[list[int]]]:
    """Matches behind a mismatch count too: accuracy, not acceptance."""
    honest = honest_ranks(head, batch, teacher, depth)
    return [[[1] * steps.count(1) + [0] * (depth - steps.count(1)) for steps in text] for text in honest]


honest_walk, honest_ranks = rounds._walk, rounds._ranks


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("_walk", one_place_late),
        ("_walk", no_bonus),
        ("_walk", drafts_over_the_limit),
        ("_ranks", every_match_counts),
    ],
)
def test_planted_faults(name: str, fault: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, name, fault)
    with must_fail():
        target, head = lively(), fitted_head(PROMPTS, NEW + 8)
        assert walk(head, target, 4) == decoded(head, target, 4)
