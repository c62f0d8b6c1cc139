"""The target's rows, and the check that a recording fits them."""

import pytest
import torch

from outpace.errors import WeightsError
from outpace.training.teacher import Teacher, agreement
from unrolled import recorded, toy_head, toy_shape

SHAPE = toy_shape()
HEAD = toy_head(SHAPE)


def test_logits_are_the_targets_own_of_the_heads_ids() -> None:
    made = recorded(SHAPE, [[1] * 6])
    logits = made.teacher(HEAD).logits(made.batch.last_normed)
    torch.testing.assert_close(logits, (made.batch.last_normed @ made.rows.T)[..., HEAD.target_ids])


def test_a_recording_agrees_with_its_own_target_alone() -> None:
    """A last norm that is missing, done twice, or another target's: not one of them passes for the right one."""
    made = recorded(SHAPE, [[1] * 20, [1] * 12], padding=3)
    teacher = made.teacher(HEAD)
    assert agreement(made.batch, teacher, HEAD.target_ids) == 1
    scale = torch.linspace(0.1, 4, SHAPE.target_hidden_size, dtype=torch.float64)
    for faulty in (made.batch.last_normed / scale, made.batch.last_normed * scale, made.batch.last_normed.flip(-1)):
        made.batch.last_normed[:] = faulty
        assert agreement(made.batch, teacher, HEAD.target_ids) < 0.9
    for scale in (4, 16):  # logits that the target divides, or caps, before it says them
        made = recorded(SHAPE, [[1] * 20, [1] * 12])
        assert agreement(made.batch, Teacher(made.embeddings, scale * teacher.rows), HEAD.target_ids) < 0.9
    with pytest.raises(WeightsError, match="the target never says an id of the draft vocabulary"):
        agreement(made.batch, Teacher(made.embeddings, made.rows[:0]), HEAD.target_ids[:0])
