"""Coins: one by one or many at once they are the same, and every part of a key counts."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from outpace.verification.coins import FEW, Keys, stream_key, uniforms

WHOLE = st.integers(0, 2**63 - 1)


@given(WHOLE, st.integers(0, 5), st.integers(0, 10_000), st.sampled_from(["verdict", "draft"]))
def test_one_by_one_or_all_at_once(seed: int, sample: int, start: int, purpose: str) -> None:
    keys = Keys((seed, 7), (sample, 1), (start, 3), (False, False))
    many = keys.coins(purpose, FEW)  # type: ignore[arg-type]  # two rows of FEW are mixed as tensors
    few = keys.coins(purpose, 3)  # type: ignore[arg-type]
    assert torch.equal(many[:, :3], few)
    assert [keys.coin(purpose, row, 2) for row in (0, 1)] == few[:, 2].tolist()  # type: ignore[arg-type]
    assert ((many >= 0) & (many < 1)).all()


def test_every_part_of_a_key_counts() -> None:
    """Seed, sample, position, purpose and counter: 5 streams that differ in one part share no coin of 64 each."""
    named = [(1, 0, 0, "verdict"), (2, 0, 0, "verdict"), (1, 1, 0, "verdict"), (1, 0, 1, "verdict"), (1, 0, 0, "draft")]
    coins = uniforms([stream_key(*name) for name in named], torch.arange(64).expand(5, 64))  # type: ignore[arg-type]
    assert len(set(coins.flatten().tolist())) == 5 * 64
