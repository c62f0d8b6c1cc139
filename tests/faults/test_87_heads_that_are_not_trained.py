"""Fault 87: of several heads the first or the last is never trained, since a loop begins or ends one off."""

from typing import Any

import pytest
import torch
from torch import Tensor

from medusas import COUNT, counting, medusa_shape
from outpace.decoding.loop import Request
from outpace.drafters.medusa import Medusa
from outpace.drafters.medusa_heads import MedusaHeads
from outpace.models.ends import read_ends
from outpace.training import parallel
from outpace.training.features import online
from outpace.training.masks import Sample
from outpace.training.medusa import MedusaLesson
from outpace.training.parallel import new_heads
from outpace.training.recipe import MedusaTraining
from outpace.training.teacher import Teacher
from toys import must_fail, run

HEADS = 3
DECAY = 0.8


def lesson_of() -> tuple[MedusaLesson, Any]:
    """Fresh heads, and a text that counts."""
    target = counting()
    ends, ids = read_ends(target), torch.arange(COUNT + 8).remainder(COUNT)
    heads = new_heads(medusa_shape(hidden_size=COUNT, vocab_size=COUNT, heads=HEADS), ends.head)
    settings = MedusaTraining(precision="fp32", decay=DECAY)
    batch = online(target, [Sample("counting", ids.int(), ids.ge(0))], taps=()).fetch([0])
    return MedusaLesson(heads, Teacher(ends.embeddings, ends.head), settings), batch


def case() -> None:
    """The sum over heads is the one written by hand, every head learns, and a chain of all of them is accepted."""
    lesson, batch = lesson_of()
    optimiser = torch.optim.AdamW(lesson.pupil.parameters(), 0.05, weight_decay=0.0)
    for step in range(60):
        objective, counts = lesson(batch)
        if step == 0:
            torch.testing.assert_close(objective.detach(), by_hand(batch.last_normed[0], read_ends(counting()).head))
        objective.backward()
        if step == 0:
            assert all(bool(weight.grad is not None and weight.grad.any()) for weight in lesson.pupil.parameters())
        optimiser.step()
        optimiser.zero_grad()
    assert counts.accuracy == (1.0,) * HEADS
    speaks(lesson.pupil)


def by_hand(last: Tensor, rows: Tensor) -> Tensor:
    """While heads say what the target says of the next token: place by place, head by head."""
    logs = (last @ rows.T).log_softmax(-1)
    total = torch.zeros(())
    for head in range(HEADS):
        values = [-(logs[place + 1 + head].exp() * logs[place]).sum() for place in range(len(last) - 2 - head)]
        total = total + DECAY**head * torch.stack(values).mean()
    return total


def speaks(heads: MedusaHeads) -> None:
    [ended] = run(counting(), Medusa(heads, counting()), [Request((5,), max_new_tokens=25)], num_draft_tokens=HEADS)
    assert ended.ids == [(6 + place) % COUNT for place in range(25)]
    assert ended.stats is not None and ended.stats.acceptance_by_position == (1.0,) * HEADS


def test_every_head_is_trained() -> None:
    case()


@pytest.mark.parametrize("number", [0, HEADS - 1])
def test_planted_fault(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first head is left out, or the last one."""
    honest = parallel.spoken_of

    def one_off(*given: Any) -> Tensor:
        found = honest(*given)
        found[number] = False
        return found

    monkeypatch.setattr(parallel, "spoken_of", one_off)
    with must_fail():
        case()
