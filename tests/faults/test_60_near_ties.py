"""60: a mismatch in bf16 is waved through as rounding, though a fault of positions hides behind it."""

import random

import pytest
import torch
from torch import Tensor

from outpace.decoding.generate import generate
from outpace.models.shape import Shape
from outpace.models.toy import tiny_config, tiny_tensors
from outpace.models.transformer import Transformer
from outpace.verification.tree import DraftTree
from toys import Scripted, dense_logits, must_fail, right_then_wrong

NEW, DEPTH, SEEDS = 40, 5, (3, 4)
BOUND = 1.0
"""Logits of these toys are off by 0.6 at most in bf16; a real model is held to a gap of 0.25."""
RANDOM = random.Random(1)
PROMPTS = [[RANDOM.randrange(64) for _ in range(length)] for length in (1, 3, 7, 12, 20, 5)]


def model(dtype: torch.dtype, seed: int) -> Transformer:
    """The same weights, rounded to bf16, for both dtypes."""
    config = tiny_config()
    tensors = {name: part.bfloat16() for name, part in tiny_tensors(config, seed=seed).items()}
    return Transformer(Shape.from_config(config), tensors, dtype=dtype, packed=False)


def compare(exact: Transformer, prompt: list[int], plain: list[int], drafted: list[int], bound: float) -> None:
    """Two texts are equal, or both tokens at the first difference are within ``bound`` of the best fp32 logit."""
    places = [place for place, pair in enumerate(zip(plain, drafted, strict=True)) if pair[0] != pair[1]]
    if not places:
        return
    place = places[0]
    pair = (plain[place], drafted[place])
    row = dense_logits(exact, [*prompt, *plain[:place]])[-1]
    gap = float(row.max() - row[list(pair)].min())
    assert gap < bound, f"token {place} is {pair[0]} plainly and {pair[1]} with drafts, {gap:.3f} below the best"


def texts(target: Transformer) -> tuple[list[list[int]], list[list[int]]]:
    """Plain texts and drafted ones; the drafts are the plain texts', with wrong ones among them."""
    plain = [result.token_ids for result in generate(target, None, PROMPTS, max_new_tokens=NEW, batch_size=1)]
    said = [[*prompt, *text, *[0] * DEPTH] for prompt, text in zip(PROMPTS, plain, strict=True)]
    guesser = Scripted(right_then_wrong(said, [4, 2, 0, 3]))
    drafted = generate(target, guesser, PROMPTS, max_new_tokens=NEW, num_draft_tokens=DEPTH)
    return plain, [result.token_ids for result in drafted]


def case(dtype: torch.dtype) -> None:
    """In fp32 the texts are equal; in bf16 they may part where two tokens are nearly tied, and nowhere else."""
    for seed in SEEDS:
        exact = model(torch.float32, seed)
        for prompt, plain, drafted in zip(PROMPTS, *texts(model(dtype, seed)), strict=True):
            compare(exact, prompt, plain, drafted, 0.0 if dtype == torch.float32 else BOUND)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_texts_part_at_near_ties_only(dtype: torch.dtype) -> None:
    case(dtype)


def test_what_counts_as_a_near_tie() -> None:
    """The tokens below the best pass up to the bound, whichever text said them; what follows does not count."""
    exact = model(torch.float32, SEEDS[0])
    values, ids = dense_logits(exact, PROMPTS[2])[-1].sort(descending=True)
    for value, token in list(zip(values.tolist(), ids.tolist(), strict=True))[1:]:
        pair = ([int(ids[0]), 1, 2], [token, 3, 4])
        for plain, drafted in (pair, pair[::-1]):
            if values[0] - value < BOUND:
                compare(exact, PROMPTS[2], plain, drafted, BOUND)
            else:
                with must_fail():
                    compare(exact, PROMPTS[2], plain, drafted, BOUND)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_planted_fault(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every draft stands one position too far."""
    honest = DraftTree.positions

    def shifted(self: DraftTree, lengths: Tensor) -> Tensor:
        return honest(self, lengths) + (torch.arange(1 + self.tokens.shape[1]) > 0)

    monkeypatch.setattr(DraftTree, "positions", shifted)
    with must_fail():
        case(dtype)
