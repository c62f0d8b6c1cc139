"""Refined logits: the largest are what fp32 says, the others stay, and ties that only rounding made are gone."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from outpace.models.refine import REFINED, refine


def rows_of(vocab: int, seed: int, lead: tuple[int, ...] = (3,)) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """A bf16 head of width 24, states, and what it gives for them."""
    coins = torch.Generator().manual_seed(seed)
    head = torch.randn(vocab, 24, generator=coins).bfloat16()
    hidden = torch.randn(*lead, 24, generator=coins).bfloat16()
    return (hidden.float() @ head.float().T).bfloat16(), hidden, head


@given(st.sampled_from([1, 5, 8, 255, 256, 257, 263, 264, 1000, 5000]), st.integers(0, 10_000))
def test_the_largest_are_exact_and_no_others_move(vocab: int, seed: int) -> None:
    """Which of equals at the border are refined is left open; everything above it is, and at most ``REFINED`` are."""
    logits, hidden, head = rows_of(vocab, seed)
    refined, exact = refine(logits, hidden, head), hidden.float() @ head.float().T
    assert refined.dtype == torch.float32
    best = logits.float().sort(dim=-1, descending=True).values
    border = best[:, REFINED] if vocab > REFINED else torch.full((3,), -torch.inf)
    above = logits.float() > border[:, None]
    torch.testing.assert_close(refined[above], exact[above], rtol=1e-5, atol=1e-5)
    moved = refined != logits.float()
    assert (moved.sum(-1) <= REFINED).all()
    assert not (moved & (logits.float() < border[:, None])).any()


def test_a_tie_of_rounding_is_broken_by_the_better_token() -> None:
    """36.1 and 35.9 are both 36 in bf16, where the lowest id would win."""
    head = torch.zeros(300, 2).bfloat16()
    head[7], head[290] = torch.tensor([1.0, -0.1015625]).bfloat16(), torch.tensor([1.0, 0.1015625]).bfloat16()
    hidden = torch.tensor([[36.0, 1.0]]).bfloat16()
    rounded = (hidden.float() @ head.float().T).bfloat16()
    assert rounded[0, 7] == rounded[0, 290] and int(rounded.argmax()) == 7
    assert int(refine(rounded, hidden, head).argmax()) == 290


@pytest.mark.parametrize("lead", [(), (2, 3), (0,)])
def test_any_leading_axes(lead: tuple[int, ...]) -> None:
    logits, hidden, head = rows_of(600, 1, lead)
    refined = refine(logits, hidden, head)
    alone = [refine(row, state, head) for row, state in zip(logits.view(-1, 600), hidden.view(-1, 24), strict=True)]
    assert refined.shape == logits.shape
    torch.testing.assert_close(refined.view(-1, 600), torch.stack(alone) if alone else refined.view(-1, 600))


def test_a_broken_row_stays_broken_and_alone() -> None:
    logits, hidden, head = rows_of(600, 2)
    whole = refine(logits, hidden, head)
    hidden[1, 3], logits[1] = torch.nan, torch.nan
    broken = refine(logits, hidden, head)
    assert broken[1].isnan().all()
    assert torch.equal(broken[[0, 2]], whole[[0, 2]])
