"""Acceptance by rank: what one unrolled pass tells is what drafting behind every prefix tells, and what decoding shows.

Greedy texts are fixed, so that nothing here can raise a false alarm.
"""

from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor

from heads import HALF, fitted_head, random_head, shape_of
from outpace.decoding.loop import Request, decode
from outpace.decoding.stats import Speculation
from outpace.decoding.turn import Turn
from outpace.drafters.budget import RANKS
from outpace.drafters.eagle import Eagle
from outpace.drafters.head import Head
from outpace.models.ends import read_ends
from outpace.models.toy import tiny_transformer
from outpace.models.transformer import Transformer
from outpace.training import rounds
from outpace.training import unroll as module
from outpace.training.rounds import Walked, walked
from outpace.training.teacher import Teacher
from outpace.training.unroll import unroll
from toys import lively, must_fail, reference
from unrolled import Recorded, recorded, toy_head, toy_shape
from unrolled import walked as drafted

MASKS = ([0, 0, 0, 1, 1, 1, 1], [0, 1, 1, 0, 0, 1], [1, 1, 1, 1], [1, 0])
PROMPTS = ((9,), (5, 6, 7), (1, 2, 3, 4, 5, 6, 7), (11, 3, 2, 8, 1, 1, 30, 12, 7))
NEW = 20


# ---- of every place --------------------------------------------------------------------------------------------------


def literal(head: Head, made: Recorded, steps: int) -> Tensor:
    """Drafted behind every prefix on its own; how many of the head's tokens are likelier than the target's own."""
    batch, ids = made.batch, head.target_ids.tolist()
    ranks = torch.zeros(*batch.ids.shape, steps, dtype=torch.int64)
    for row, length in enumerate(batch.lengths):
        mask = batch.loss_mask[row, :length].tolist()
        for prefix in range(length - 2):
            depth = min(steps, length - 2 - prefix)
            logits = drafted(head, made.embeddings, batch.ids[row], batch.features[row], prefix, depth)
            for step in range(depth):
                token = int(batch.argmax[row, prefix + 1 + step])
                if mask[prefix + 2 + step] and token in ids:
                    own = logits[step][ids.index(token)]
                    ranks[row, prefix, step] = 1 + int((logits[step] > own).sum())
    return ranks


def told(head: Head, made: Recorded, steps: int) -> Tensor:
    ranks = unroll(head, made.batch, made.teacher(head), steps=steps, ranked=True).ranks
    assert ranks is not None
    return ranks


@pytest.mark.parametrize("steps", [1, 2, 4])
@pytest.mark.parametrize("draft", [5, 9, 13])
def test_ranks_are_those_of_drafting_behind_every_prefix(steps: int, draft: int) -> None:
    for seed in range(4):
        shape = toy_shape(draft_vocab_size=draft, norm_output=bool(seed % 2))
        head, made = toy_head(shape, seed), recorded(shape, MASKS, seed, padding=seed)
        found = told(head, made, steps)
        assert torch.equal(found, literal(head, made, steps))
        assert found.max() > 2 and bool((found == 0).any())


def test_nobody_is_told_who_did_not_ask() -> None:
    shape = toy_shape()
    head, made = toy_head(shape), recorded(shape, MASKS)
    assert unroll(head, made.batch, made.teacher(head)).ranks is None
    silent = recorded(shape, [[0, 0, 0], [1, 1]])
    assert told(head, silent, 3).shape == (2, 3, 3) and not told(head, silent, 3).any()


def test_ties_and_what_is_no_number() -> None:
    """The lower id comes first, as in a greedy choice; a logit that is no number comes behind all others."""
    logits = torch.tensor([[1.0, 3.0, 3.0, 0.0]] * 4 + [[torch.nan] * 4, [5.0, torch.nan, 1.0, 0.0]])
    ids = torch.tensor([2, 5, 7, 9])
    assert module._ranks(logits, ids, torch.tensor([5, 7, 2, 8, 2, 2])).tolist() == [1, 2, 3, 0, 5, 2]


@pytest.mark.parametrize("fault", ["the step before", "the place before", "draft ids"])
def test_ranks_of_something_else_are_noticed(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The faults: a step's ranks are of the last step's logits or of the place before, or ids of the head are taken."""
    honest, before = module._ranks, []

    def wrong(logits: Tensor, ids: Tensor, tokens: Tensor) -> Tensor:
        if fault == "draft ids":
            return honest(logits, torch.arange(len(ids)), tokens)
        if fault == "the place before":
            return honest(logits.roll(1, 0), ids, tokens)
        before.append(logits)
        return honest(before[-2][: len(tokens)] if len(before) > 1 else logits, ids, tokens)

    monkeypatch.setattr(module, "_ranks", wrong)
    shape = toy_shape()
    head, made = toy_head(shape, 1), recorded(shape, [[0, 0, 1, 1, 1, 1, 1, 1]], 1)
    with must_fail():
        assert torch.equal(told(head, made, 2), literal(head, made, 2))


# ---- of decoding -----------------------------------------------------------------------------------------------------


def walk(head: Head, target: Transformer, depth: int, new: int = NEW) -> Walked:
    ends = read_ends(target)
    teacher = Teacher.of(ends.embeddings, ends.head, head.target_ids)
    return walked(head, target, teacher, PROMPTS, depth=depth, max_new_tokens=new)


def decoded(head: Head, target: Transformer, depth: int, new: int = NEW) -> tuple[tuple[float, ...], list[Speculation]]:
    """The shares by rank in the decoder's turns: the draft's logits at each decided position beside what was said."""
    counts: Counter[int] = Counter()

    def look(turn: Turn, rows: list[int]) -> None:
        shown = turn.proposal.shown(target.vocab_size)
        for row, count in enumerate(turn.proposal.tree.num_nodes.tolist()):
            for step in range(min(count, len(turn.paths[row]) + 1)):
                assert shown is not None
                said = turn.emitted[row][step]
                known = bool(shown[row, step, said] > -torch.inf)
                counts[1 + int((shown[row, step] > shown[row, step, said]).sum()) if known else 0] += 1

    requests = [Request(prompt, max_new_tokens=new, eos_ids=target.eos_ids) for prompt in PROMPTS]
    drafter = Eagle(head, target, packed=False)
    emissions = list(decode(target, drafter, requests, num_draft_tokens=depth, observer=look))
    whole = counts.total()
    shares = tuple(counts[rank] / whole for rank in range(1, 1 + RANKS)) if whole else ()
    return shares, [one.speculation for one in emissions if one.speculation is not None]


@pytest.mark.parametrize("depth", [1, 2, 4, 8])
def test_walked_rates_are_the_decoders(depth: int) -> None:
    """And the first is the pooled acceptance of its chains."""
    target, head = lively(), fitted_head(PROMPTS, NEW + 8, HALF)
    found, (shares, figures) = walk(head, target, depth).acceptance_by_rank, decoded(head, target, depth)
    assert found == shares and len(found) == RANKS
    tried, passed = (sum(sum(getattr(one, name)) for one in figures) for name in ("tried", "passed"))
    assert found[0] == passed / tried
    assert 0 < sum(found[1:]) < 1 - found[0] and found[1] > 0, "later ranks have to be seen, and misses"


def test_at_limits_and_ends() -> None:
    head, text = fitted_head(PROMPTS, NEW + 8), reference(lively(), PROMPTS[1], NEW)
    for new in (1, 2, 3, 5, 13):
        assert walk(head, lively(), 4, new).acceptance_by_rank == decoded(head, lively(), 4, new)[0]
    assert walk(head, lively(), 4, 2).acceptance_by_rank == (), "no room for a draft, so that none was decided"
    for place in (1, 5, 8):
        target = tiny_transformer(seed=3, eos_ids=(text[place],))
        for depth in (1, 4):
            assert walk(head, target, depth).acceptance_by_rank == decoded(head, target, depth)[0]


def test_of_a_head_that_is_never_right() -> None:
    target, head = lively(), random_head(shape_of(draft_vocab_size=48), seed=4)
    found = walk(head, target, 4).acceptance_by_rank
    assert found == decoded(head, target, 4)[0] and found[0] == 0 < sum(found)


@pytest.mark.parametrize("fault", ["refusals are left out", "positions behind a refusal count"])
def test_positions_that_nobody_decided_are_noticed(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = rounds._walk

    def wrong(tally: Any, ranks: list[list[int]], *others: Any) -> list[list[int]]:
        decided = honest(tally, ranks, *others)
        if fault == "refusals are left out":
            return [[rank for rank in turn if rank == 1] for turn in decided]
        return ranks

    monkeypatch.setattr(rounds, "_walk", wrong)
    with must_fail():
        test_walked_rates_are_the_decoders(4)
