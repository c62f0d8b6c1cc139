"""EAGLE-1's one step against its definition, one prefix and one position at a time, in float64: values and slopes."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from first_heads import first_shape, literal_first, random_first
from outpace.drafters.first_head import FirstHead
from outpace.errors import UsageError
from outpace.training import regression as module
from outpace.training.batch import Batch
from outpace.training.regression import regress, weights_of
from outpace.training.teacher import Teacher
from toys import must_fail
from unrolled import VOCAB, Recorded, gradients, recorded

SHAPE = first_shape(
    hidden_size=8, heads=2, head_width=4, kv_heads=1, feed_forward=12, vocab_size=VOCAB, max_positions=64
)
MASKS = ([0, 0, 0, 1, 1, 1, 1], [0, 1, 1, 0, 0, 1], [0, 0, 0], [1, 1, 1, 1], [1])
"""Answers at the end, in the middle, nowhere, everywhere; and a text of one token."""
NEAR = 1e-5
"""Tables of angles are fp32 in the one and float64 in the other; sums are of order 100, any fault is far larger."""


def head_of(seed: int = 1, **changes: Any) -> FirstHead:
    return random_first(replace(SHAPE, **changes), seed, torch.float64)


def teacher_of(made: Recorded) -> Teacher:
    return Teacher(made.embeddings, made.rows)


def noise_of(batch: Batch, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(batch.last_normed.shape, generator=generator, dtype=torch.float64)


def literally(
    head: FirstHead, made: Recorded, features: float = 1.0, tokens: float = 0.1, noise: Tensor | None = None
) -> dict[str, float]:
    """Every sum: each prefix is read anew, and its guess held against the state and the law one place further on."""
    batch, found = made.batch, dict.fromkeys(("losses", "weights", "matches", "accepted"), 0.0)
    shown = batch.last_normed if noise is None else batch.last_normed + noise
    for row, length in enumerate(batch.lengths):
        ids = batch.ids[row].tolist()
        for place in range(length - 2):
            if not bool(batch.loss_mask[row, place + 2]):
                continue
            read, text = shown[row, : place + 1, None], ids[: place + 2]
            [guess] = literal_first(head, made.embeddings, torch.eye(8, dtype=torch.float64), read, text)
            wanted = batch.last_normed[row, place + 1]
            apart = sum(0.5 * d * d if d < 1 else d - 0.5 for d in (guess - wanted).abs().tolist()) / 8
            said, law = (made.rows @ guess).softmax(0), (made.rows @ wanted).softmax(0)
            found["losses"] += features * apart - tokens * float((law * said.log()).sum())
            found["weights"] += 1
            found["matches"] += int(said.argmax()) == int(law.argmax())
            found["accepted"] += float(torch.minimum(said, law).sum())
    return found


def sums(head: FirstHead, made: Recorded, **options: Any) -> dict[str, float]:
    counts = regress(head, made.batch, teacher_of(made), **options).counts
    assert torch.equal(counts.places, counts.weights) and torch.equal(counts.reached, counts.weights)
    assert torch.equal(counts.kept, counts.matches)
    return {name: float(getattr(counts, name)) for name in ("losses", "weights", "matches", "accepted")}


def case(seed: int = 1, masks: Any = MASKS, **changes: Any) -> None:
    """Sums as they are defined, with noise and without; and slopes as those of the definition."""
    head, made = head_of(seed, **changes), recorded(SHAPE, masks, seed, padding=2)  # type: ignore[arg-type]
    assert sums(head, made) == pytest.approx(literally(head, made), abs=NEAR)
    noise, chosen = noise_of(made.batch, seed), {"feature_weight": 0.3, "token_weight": 0.7}
    wanted = literally(head, made, 0.3, 0.7, noise)
    assert sums(head, made, noise=noise, **chosen) == pytest.approx(wanted, abs=NEAR)
    if not wanted["weights"]:
        return
    slopes = gradients(head, regress(head, made.batch, teacher_of(made), noise=noise).loss)
    assert all(bool(slope.any()) for slope in slopes.values())
    ways = {name: noise_like(weight, seed) for name, weight in head.named_parameters()}
    measured = (moved(head, made, ways, noise, 1e-5) - moved(head, made, ways, noise, -1e-5)) / 2e-5
    told = sum(float((slopes[name] * way).sum()) for name, way in ways.items())
    assert told == pytest.approx(measured, rel=1e-4, abs=1e-3)


def noise_like(weight: Tensor, seed: int) -> Tensor:
    return torch.randn(weight.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@torch.no_grad()
def moved(head: FirstHead, made: Recorded, ways: dict[str, Tensor], noise: Tensor, by: float) -> float:
    """The loss of a head a little further on."""
    other = FirstHead(head.shape).double()
    other.load_state_dict({name: weight + by * ways[name] for name, weight in head.named_parameters()})
    return literally(other, made, noise=noise)["losses"]


@pytest.mark.parametrize("fc_bias", [False, True])
def test_it_is_the_definition(fc_bias: bool) -> None:
    case(fc_bias=fc_bias)


@settings(max_examples=10)
@given(
    seed=st.integers(0, 99),
    masks=st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=9), min_size=1, max_size=3),
)
def test_any_masks(seed: int, masks: list[list[int]]) -> None:
    head, made = head_of(seed), recorded(SHAPE, masks, seed, padding=seed % 3)  # type: ignore[arg-type]
    assert sums(head, made) == pytest.approx(literally(head, made), abs=NEAR)
    assert float(weights_of(made.batch)) == literally(head, made)["weights"]


def test_parts_add_up_to_the_whole() -> None:
    """By the weights of all of them; a part that teaches nothing brings 0, with a gradient that is 0 too."""
    head, made = head_of(), recorded(SHAPE, MASKS)  # type: ignore[arg-type]
    teacher, whole = teacher_of(made), regress(head, made.batch, teacher_of(made))
    weights = whole.counts.weights
    parts = [regress(head, row_of(made.batch, row), teacher) for row in range(len(MASKS))]
    total = sum(part.objective(weights) for part in parts)
    torch.testing.assert_close(total, whole.objective())
    nothing = parts[2].objective(weights)
    assert float(nothing.detach()) == 0 and nothing.requires_grad and parts[2].counts.places.item() == 0
    assert not any(slope.any() for slope in gradients(head, nothing).values())


def row_of(batch: Batch, row: int) -> Batch:
    values = (each[row : row + 1] for each in list(vars(batch).values())[:-1])
    return Batch(*values, lengths=[batch.lengths[row]])


def test_few_logits_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sliced to single places it is the same."""
    head, made = head_of(), recorded(SHAPE, MASKS)  # type: ignore[arg-type]
    whole = regress(head, made.batch, teacher_of(made))
    monkeypatch.setattr("outpace.training.distil.LOGITS", VOCAB)
    sliced = regress(head, made.batch, teacher_of(made))
    torch.testing.assert_close(sliced.loss, whole.loss)
    ours, theirs = gradients(head, sliced.loss), gradients(head, whole.loss)
    for name, slope in theirs.items():
        torch.testing.assert_close(ours[name], slope)


def test_what_is_refused() -> None:
    made = recorded(SHAPE, MASKS)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"a text has 7 tokens; allowed: up to the 6 positions of the head"):
        regress(head_of(max_positions=6), made.batch, teacher_of(made))
    with pytest.raises(UsageError, match=r"the recorded states are 8 wide; allowed: 12, as the head is"):
        regress(head_of(hidden_size=12), made.batch, teacher_of(made))
    with pytest.raises(UsageError, match=r"the teacher has 5 rows of width 8; allowed: 13 of width 8, the whole head"):
        regress(head_of(), made.batch, Teacher(made.embeddings, made.rows[:5]))


# ---- planted faults --------------------------------------------------------------------------------------------------


def same_place(grid: Tensor, chosen: Tensor) -> Tensor:
    """State, law and token of the place itself: one too early."""
    return grid[chosen]


def next_token_s_answer(batch: Batch) -> Tensor:
    """Counted where the next token is an answer's: one too late."""
    found = torch.zeros_like(batch.loss_mask)
    found[:, :-2] = batch.answers[:, 1:-1]
    return found


def held_to_noise(head: Any, batch: Batch, teacher: Any, *, noise: Tensor | None = None, **options: Any) -> Any:
    """What is wrong in the input is wrong in the label."""
    seen = batch if noise is None else replace(batch, last_normed=batch.last_normed + noise)
    return honest(head, seen, teacher, **options)


def summed_over_width(*args: Any, **options: Any) -> Tensor:
    return 8 * torch.nn.functional.smooth_l1_loss(*args, **options)


def embedding_second(self: FirstHead, embedded: Tensor, hidden: Tensor) -> Any:
    return honest_enter(self, hidden, embedded)


honest, honest_enter = regress, FirstHead.enter


class _Functional:
    embedding = staticmethod(torch.nn.functional.embedding)
    smooth_l1_loss = staticmethod(summed_over_width)


@pytest.mark.parametrize(
    ("where", "name", "fault"),
    [
        (module, "_next", same_place),
        (module, "_asked", next_token_s_answer),
        (module, "functional", _Functional),
        (FirstHead, "enter", embedding_second),
    ],
)
def test_planted_faults(where: Any, name: str, fault: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(where, name, fault)
    with must_fail():
        case()


def test_planted_fault_of_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "regress", held_to_noise)
    with must_fail():
        case()
