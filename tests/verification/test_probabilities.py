"""Logits become one law: each filter by its definition, ties by id, fast paths equal to the slow one, draws to the bit.

Random logits have fixed seeds and the statements hold for any, so no test here can raise a false alarm.
"""

import math
from itertools import product

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from outpace.errors import UsageError
from outpace.verification.probabilities import (
    FEW_DRAWS,
    GREEDY_BELOW,
    Sampling,
    argmax,
    batch_probability_rows,
    draw,
    draw_apart,
    probability_rows,
    settle_ties,
    unusable_rows,
)

LAST_COIN = 1 - 2.0**-53


def plainly(logits: Tensor, sampling: Sampling) -> Tensor:
    """The definition, one row at a time, by a full sort: the reference for everything faster."""
    probs = (logits.double() / sampling.temperature).softmax(-1)
    law = torch.zeros_like(probs)
    for row, out in zip(probs.reshape(-1, probs.shape[-1]), law.view(-1, probs.shape[-1]), strict=True):
        order = sorted(range(len(row)), key=lambda token: (-row[token].item(), token))
        if sampling.top_k:
            order = order[: sampling.top_k]
        if sampling.top_p < 1:
            total, before, kept = sum(row[token].item() for token in order), 0.0, []
            for token in order:
                if before >= sampling.top_p * total:
                    break
                kept.append(token)
                before += row[token].item()
            order = kept
        order = [token for token in order if row[token] >= sampling.min_p * row[order[0]]]
        out[order] = row[order] / row[order].sum()
    return law


def logits_of(*shape: int, seed: int = 0, spread: float = 2.0) -> Tensor:
    return spread * torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


SETTINGS = [
    Sampling(temperature, top_k, top_p, min_p)
    for temperature, top_k, top_p, min_p in product((0.5, 1.0, 2.0), (0, 1, 7, 300), (1.0, 0.9, 0.3), (0.0, 0.1))
]


@pytest.mark.parametrize("sampling", SETTINGS, ids=str)
def test_filters_are_their_definition(sampling: Sampling) -> None:
    logits = logits_of(2, 3, 200, seed=1)
    torch.testing.assert_close(probability_rows(logits, sampling), plainly(logits, sampling), rtol=0, atol=1e-14)
    single = probability_rows(logits.float(), sampling)
    assert single.dtype == torch.float32
    torch.testing.assert_close(single.double().sum(-1), torch.ones(2, 3, dtype=torch.float64), rtol=0, atol=1e-6)


@pytest.mark.parametrize("sampling", [s for s in SETTINGS if s.top_k or s.top_p < 1], ids=str)
def test_ties_go_to_the_lowest_ids(sampling: Sampling) -> None:
    """A few distinct values, as bf16 logits have: exactly top-k tokens survive, and of equals the first."""
    logits = logits_of(4, 150, seed=2).round()
    torch.testing.assert_close(probability_rows(logits, sampling), plainly(logits, sampling), rtol=0, atol=1e-14)
    flat = torch.zeros(5, dtype=torch.float64)
    assert probability_rows(flat, Sampling(1.0, top_k=2)).tolist() == [0.5, 0.5, 0, 0, 0]
    assert probability_rows(flat, Sampling(1.0, top_p=0.5)).count_nonzero() == 3


@pytest.mark.parametrize(("spread", "top_p"), [(2.0, 0.5), (2.0, 0.99), (0.5, 0.9), (0.01, 0.95), (5.0, 0.9999)])
def test_flat_rows_climb_to_more_ranks(spread: float, top_p: float) -> None:
    """From a dozen kept tokens to nearly all 9,000: the first ranks that are looked at must not show in the result."""
    peaked, flat = logits_of(1, 9000, seed=3, spread=4.0), logits_of(1, 9000, seed=4, spread=spread)
    logits = torch.cat([peaked, flat])
    law = probability_rows(logits, Sampling(1.0, top_p=top_p))
    probs = logits.softmax(-1)
    for row, kept in zip(probs, law > 0, strict=True):
        mass, least = row[kept].sum(), row[kept].min()
        assert mass >= top_p - 1e-12 and mass - least < top_p + 1e-12
        assert row[~kept].max() <= least
    torch.testing.assert_close(law[1:], probability_rows(logits[1:], Sampling(1.0, top_p=top_p)))


def test_filters_agree_with_transformers() -> None:
    """Where no probabilities tie, the order and the meaning of the filters are those of transformers."""
    process = pytest.importorskip("transformers.generation.logits_process")
    logits = logits_of(6, 400, seed=5).float()
    ids = torch.zeros((6, 1), dtype=torch.int64)
    for sampling in SETTINGS:
        scores = process.TemperatureLogitsWarper(sampling.temperature)(ids, logits)
        if sampling.top_k:
            scores = process.TopKLogitsWarper(sampling.top_k)(ids, scores)
        if sampling.top_p < 1:
            scores = process.TopPLogitsWarper(sampling.top_p)(ids, scores)
        if sampling.min_p:
            scores = process.MinPLogitsWarper(sampling.min_p)(ids, scores)
        torch.testing.assert_close(probability_rows(logits, sampling), scores.softmax(-1), rtol=1e-5, atol=1e-6)


def test_every_row_of_a_block_is_filtered_and_used() -> None:
    """Not only the last row; and what is drawn is not always the argmax: missing token 2 in 300 has odds .85 ** 300."""
    logits = torch.tensor([0.5, 0.3, 0.15, 0.05]).log().expand(2, 3, 4)
    expected = torch.tensor([0.625, 0.375, 0, 0]).expand(2, 3, 4)
    torch.testing.assert_close(probability_rows(logits, Sampling(1.0, top_p=0.75)), expected)
    seeds = torch.arange(300, dtype=torch.float64) / 300
    assert set(draw(logits.softmax(-1)[0, :1].expand(300, 4), seeds).tolist()) == {0, 1, 2, 3}


def test_near_zero_temperatures_are_greedy_by_one_threshold() -> None:
    logits = logits_of(3, 50, seed=6).float()
    one_hot = torch.nn.functional.one_hot(logits.argmax(-1), 50).float()
    for temperature in (0.0, 1e-8, 1e-6, GREEDY_BELOW):
        assert torch.equal(probability_rows(logits, Sampling(temperature, top_k=3, top_p=0.5)), one_hot)
    warm = probability_rows(100 * logits, Sampling(1e-4))
    assert warm.isfinite().all() and not torch.equal(probability_rows(logits, Sampling(0.7)), one_hot)


def test_a_batch_may_mix_samplings() -> None:
    logits = logits_of(4, 2, 30, seed=7).float()
    kinds = [Sampling(), Sampling(0.7, top_p=0.9), Sampling(0.7, top_p=0.9), Sampling(1.0)]
    mixed = batch_probability_rows(logits, kinds)
    for row, kind in enumerate(kinds):
        assert torch.equal(mixed[row], probability_rows(logits[row], kind))
    same = batch_probability_rows(logits.double(), kinds[3:] * 4)
    assert same.dtype == torch.float64 and torch.equal(same, logits.double().softmax(-1))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_low_precision_logits_are_warped_in_fp32(dtype: torch.dtype) -> None:
    logits = logits_of(2, 40, seed=8).to(dtype)
    law = probability_rows(logits, Sampling(0.5, top_k=9))
    assert law.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert torch.equal(law, probability_rows(logits if dtype == torch.float64 else logits.float(), Sampling(0.5, 9)))


def test_forbidden_tokens_have_probability_zero() -> None:
    logits = torch.tensor([[0.0, -math.inf, 1.0, -math.inf], [-math.inf, -math.inf, -math.inf, 3.0]])
    for sampling in (
        Sampling(),
        Sampling(1.0),
        Sampling(1.0, top_k=3),
        Sampling(2.0, top_p=0.999),
        Sampling(1.0, 0, 1.0, 0.1),
    ):
        law = probability_rows(logits, sampling)
        assert law.isfinite().all() and (law[logits.isinf()] == 0).all() and law[1, 3] == 1
    assert not unusable_rows(logits).any()


def test_unusable_rows() -> None:
    rows = torch.zeros(2, 2, 600)
    rows[0, 1, 599], rows[1, 0, 300], rows[1, 1] = math.nan, math.inf, -math.inf
    rows[0, 0, :599] = -math.inf
    assert unusable_rows(rows).tolist() == [[False, True], [True, True]]
    assert (~argmax(rows)[1].isfinite()).tolist() == [[False, True], [True, True]]


@given(st.integers(1, 1100), st.integers(0, 10_000))
def test_argmax_takes_the_lowest_id(vocab: int, seed: int) -> None:
    """On ties within and across the blocks it searches; equal to ``min`` over all places of the maximum."""
    logits = torch.randint(-3, 3, (2, vocab), generator=torch.Generator().manual_seed(seed)).float()
    ids, values = argmax(logits)
    assert torch.equal(values, logits.amax(-1))
    assert ids.tolist() == [row.index(max(row)) for row in logits.tolist()]


@given(st.integers(1, 900), st.integers(0, 10_000), st.floats(0, LAST_COIN), st.sampled_from([0.0, 0.5, 0.99]))
def test_draws_invert_the_cumulative_law(vocab: int, seed: int, coin: float, zeros: float) -> None:
    """The token drawn has mass, and the coin's share of the total lies within its step, rounding aside."""
    generator = torch.Generator().manual_seed(seed)
    probs = torch.rand(vocab, generator=generator) * (torch.rand(vocab, generator=generator) >= zeros)
    probs[int(seed) % vocab] = 0.3
    probs /= probs.sum() * (1 + 1e-7)
    token = int(draw(probs, torch.tensor(coin, dtype=torch.float64)))
    reached = probs.double().cumsum(0)
    assert probs[token] > 0
    point = coin * reached[-1]
    assert reached[token] - probs[token] - 1e-6 <= point <= reached[token] + 1e-6


def test_draws_to_the_bit() -> None:
    """In float64, at every border of a law with zeros at both ends, the border belongs to the next token."""
    probs = torch.tensor([0, 0.25, 0, 0.5, 0.25, 0], dtype=torch.float64)
    coins = torch.tensor([0, 0.25, 0.75], dtype=torch.float64)
    coins = torch.stack(
        [coins, torch.nextafter(torch.tensor([0.25, 0.75, 1], dtype=torch.float64), coins[:1])]
    ).flatten()
    assert draw(probs.expand(6, 6), coins).tolist() == [1, 3, 4, 1, 3, 4]


@pytest.mark.parametrize("total", [1 - 1e-7, 1.0, 1 + 1e-7, 1e-12, 3.0])
@pytest.mark.parametrize("vocab", [1, 2, 255, 256, 257, 5000])
def test_extreme_coins_draw_tokens_with_mass(total: float, vocab: int) -> None:
    """First and last token with mass, however the row's sum is rounded and whatever follows it."""
    probs = torch.zeros(2, vocab)
    first, last = vocab // 3, vocab - 1 - vocab // 4
    probs[:, first], probs[0, last], probs[1, last] = total / 2, total / 2, total * 1e-7
    coins = torch.tensor([0.0, LAST_COIN], dtype=torch.float64)
    for row in probs:
        assert draw(row.expand(2, vocab), coins).tolist() == [first, last]


@given(st.integers(1, 900), st.integers(0, 10_000), st.booleans())
def test_one_by_one_or_all_at_once_the_same_tokens(vocab: int, seed: int, single: bool) -> None:
    """Few rows are drawn on plain numbers, many on tensors; coins on the borders of the law among them."""
    generator = torch.Generator().manual_seed(seed)
    dtype = torch.float32 if single else torch.float64
    probs = torch.rand(12, vocab, generator=generator, dtype=dtype)
    probs = probs * (torch.rand(12, vocab, generator=generator) < 0.7)
    probs[:, seed % vocab] = 0.25
    borders = probs.double().cumsum(-1) / probs.double().sum(-1, keepdim=True)
    coins = torch.rand(12, generator=generator, dtype=torch.float64)
    coins[::2] = borders[::2, seed % vocab].clamp(max=LAST_COIN)
    together = draw(probs, coins)
    assert together.tolist() == [int(draw(row, coin)) for row, coin in zip(probs, coins, strict=True)]
    assert 12 > FEW_DRAWS >= 1


def test_draws_have_the_law_across_blocks() -> None:
    """Evenly spread coins in place of random ones: counts differ from the law by rounding of the grid alone."""
    probs = (logits_of(700, seed=9)).softmax(-1)
    coins = (torch.arange(40_000, dtype=torch.float64) + 0.5) / 40_000
    counts = draw(probs.expand(len(coins), 700), coins).bincount(minlength=700)
    assert (counts / len(coins) - probs).abs().max() <= 1.01 / len(coins)


def test_settled_ties_leave_other_rows_alone() -> None:
    probs = torch.tensor([[0.1, 0.3, 0.3, 0.3], [0.4, 0.3, 0.2, 0.1]])
    values, ids = probs.topk(3)
    settled = settle_ties(probs, values, ids.clone(), torch.tensor([2, 2]))
    assert set(settled[0, :2].tolist()) == {1, 2}
    assert torch.equal(settled[1], ids[1])


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"temperature": -0.1}, "temperature is -0.1; allowed: 0"),
        ({"temperature": math.nan}, "temperature is nan"),
        ({"temperature": math.inf}, "temperature is inf"),
        ({"top_k": -1}, "top_k is -1; allowed: 0"),
        ({"top_p": 0.0}, "top_p is 0.0; allowed: above 0"),
        ({"top_p": 1.1}, "top_p is 1.1"),
        ({"min_p": 1.0}, "min_p is 1.0; allowed: 0"),
    ],
)
def test_values_out_of_range_are_named(wrong: dict[str, float], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        Sampling(**wrong)  # type: ignore[arg-type]  # one keyword of either type


# ---- draws without replacement ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("vocab", [3, 7, 300, 1000])
def test_tokens_drawn_apart_are_those_drawn_one_after_the_other(vocab: int) -> None:
    """Each by its own coin from what the tokens before it have left, until nothing is left."""
    generator = torch.Generator().manual_seed(vocab)
    probs = torch.randn(20, vocab, generator=generator, dtype=torch.float64).mul(2).softmax(-1)
    probs[::2] *= torch.rand(10, vocab, generator=generator) < 2 / vocab
    coins = torch.rand(20, 5, generator=generator, dtype=torch.float64)
    ends = 0
    for row, tokens in enumerate(draw_apart(probs, coins.tolist())):
        left = probs[row].clone()
        for rank, coin in enumerate(coins[row]):
            if not left.sum() > 0:
                assert len(tokens) == rank
                ends += 1
                break
            assert tokens[rank] == int(draw(left, coin))
            left[tokens[rank]] = 0
        else:
            assert len(tokens) == 5
    assert ends
