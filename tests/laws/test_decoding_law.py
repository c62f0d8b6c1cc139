"""Four tokens through the real generator follow the target's law: drafts, verdicts, coins, caches and turns together.

Target and draft are tables, so that the law is known exactly and every cell of it can be counted. Five tokens are asked
for and the last four counted: the first is the prompt's own, and a turn drafts at most one less than is still to come.
Each chi-square has a false-alarm probability of 1e-9; runs with a seed are the same every time. The faults planted
below are seen in 8,000 samples of a chain, so that 10,000 are enough to miss none of them.
"""

from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest
import torch
from scipy.stats import chi2
from torch import Tensor

from outpace.decoding.generate import speculative_decode
from outpace.decoding.loop import Request, decode
from outpace.drafters import either, small
from outpace.drafters.budget import Budget
from outpace.drafters.drafter import Drafter, Proposal
from outpace.drafters.either import Either
from outpace.drafters.lookup import Lookup
from outpace.drafters.small import Small
from outpace.models.toy import random_table, table_target, tiny_transformer
from outpace.verification.coins import Keys, stream_key, uniforms
from outpace.verification.probabilities import Sampling, probability_rows
from toys import must_fail, next_logits

ALARM = 1e-9
LENGTH = 4

pytestmark = pytest.mark.usefixtures("unchecked")


def joint(table: Tensor, first: int, sampling: Sampling) -> Tensor:
    """The law of the second to fifth token behind the first, in order of the numbers they spell."""
    rows = probability_rows(table, sampling)
    law = rows[first] @ rows
    for _ in range(LENGTH - 1):
        law = (law[:, None] * rows.repeat(len(law) // len(rows), 1)).flatten()
    return law


def counted(tokens: Tensor, vocab: int) -> Tensor:
    places = vocab ** torch.arange(tokens.shape[1] - 1, -1, -1)
    return torch.bincount((tokens * places).sum(1), minlength=vocab ** tokens.shape[1])


def p_value(counts: Tensor, law: Tensor) -> float:
    """Of the counts, if the law is right; rare cells are pooled, and impossible ones must be empty."""
    assert int(counts[law == 0].sum()) == 0, "a token that the law cannot emit"
    expected = law.double() * counts.sum()
    rare = expected < 5
    observed = torch.cat((counts[~rare].double(), counts[rare].sum()[None].double()))
    wanted = torch.cat((expected[~rare], expected[rare].sum()[None]))
    some = wanted > 0
    statistic = ((observed[some] - wanted[some]) ** 2 / wanted[some]).sum()
    return float(chi2.sf(statistic, int(some.sum()) - 1))


def sample(drafter: Drafter | None, table: Tensor, count: int, **options: Any) -> float:
    """The p-value of so many samples behind token 1."""
    target = table_target(table)
    temperature = options.pop("temperature", 1.0)
    tokens = speculative_decode(
        target,
        drafter or Lookup(),
        options.pop("prompt", [1]),
        options.pop("K", 3),
        temperature,
        max_new_tokens=1 + LENGTH,
        num_samples=count,
        batch_size=options.pop("batch_size", count // 2),
        **options,
    )
    return p_value(counted(tokens[:, 1:], len(table)), joint(table, 1, Sampling(temperature)))


TABLE, DRAFT = random_table(4, seed=1), random_table(4, seed=2)


def small_drafter(table: Tensor = DRAFT) -> Small:
    return Small(table_target(table), table_target(TABLE))


@pytest.mark.parametrize(
    ("rule", "count"),
    [("rejection", 10_000), ("block", 10_000), ("match", 10_000), ("tree-rejection", 6_000), ("traversal", 6_000)],
)
def test_every_rule_keeps_the_law_of_four_tokens(rule: str, count: int) -> None:
    assert sample(small_drafter(), TABLE, count, rule=rule, seed=11) > ALARM


@pytest.mark.parametrize("rule", ["rejection", "block", "traversal"])
def test_every_rule_keeps_it_with_drafts_that_have_no_law(rule: str) -> None:
    assert sample(Lookup(), TABLE, 5_000, prompt=[1, 0, 2, 3, 1], rule=rule, seed=18) > ALARM


def test_the_coupling_keeps_it() -> None:
    assert sample(small_drafter(), TABLE, 10_000, seed=12) > ALARM


def test_unseeded_decoding_keeps_it() -> None:
    """Block for a sampled chain, match for lookup; coins are fresh in every run, false alarm 1e-9."""
    assert sample(small_drafter(), TABLE, 10_000) > ALARM
    assert sample(Lookup(), TABLE, 10_000, prompt=[1, 0, 2, 3, 1]) > ALARM


@pytest.mark.parametrize(("K", "temperature"), [(0, 1.0), (1, 0.6), (2, 1.7), (5, 1.0)])
def test_any_length_and_temperature_keeps_it(K: int, temperature: float) -> None:
    assert sample(small_drafter(), TABLE, 8_000, K=K, temperature=temperature, rule="block", seed=13) > ALARM


def test_one_row_at_a_time_or_refilled_slots_keep_it() -> None:
    assert sample(small_drafter(), TABLE, 5_000, batch_size=500, rule="block", seed=14) > ALARM


def copies_beside_a_model(seed: int) -> float:
    """In one batch some rows copy and others draw; which does which depends on what was drawn before."""
    drafter = Either(Lookup(), small_drafter())
    return sample(drafter, TABLE, 5_000, prompt=[1, 0, 2, 3, 1], rule="block", seed=seed)


def test_copies_beside_a_model_keep_it() -> None:
    assert copies_beside_a_model(15) > ALARM


WARPS = [
    Sampling(temperature, top_k, top_p, min_p)
    for temperature in (0.5, 1.0, 2.0)
    for top_k, top_p, min_p in ((0, 1.0, 0.0), (2, 1.0, 0.0), (0, 0.65, 0.0), (3, 0.8, 0.0), (0, 1.0, 0.3))
]


def warped(drafter: Drafter, seeded: bool, count: int = 1_000) -> Iterator[float]:
    """p-values for requests of every sampling, side by side in one batch, one of them greedy."""
    kinds = [*WARPS, Sampling()]
    requests = [
        Request([1], kind, max_new_tokens=1 + LENGTH, seed=21 if seeded else None, sample=number)
        for number in range(count)
        for kind in kinds
    ]
    rows: list[list[int]] = [[] for _ in requests]
    for emission in decode(table_target(TABLE), drafter, requests, num_draft_tokens=3):
        rows[emission.index] += emission.ids
    for index, kind in enumerate(kinds):
        yield p_value(counted(torch.tensor(rows[index :: len(kinds)])[:, 1:], len(TABLE)), joint(TABLE, 1, kind))


@pytest.mark.parametrize("seeded", [True, False])
def test_every_warp_in_one_batch(seeded: bool) -> None:
    """Temperature, top-k, top-p and min-p in target and drafter alike. 16 p-values: false alarm 1e-9 in all."""
    assert min(warped(small_drafter(), seeded)) > ALARM / 16


@pytest.mark.parametrize("rule", ["block", "match", None])
def test_models_with_caches_keep_it(rule: str | None) -> None:
    """Thousands of rows of a tiny transformer, each accepting what it will: the law by reading every text afresh."""
    target, draft = (tiny_transformer(seed=seed, vocab_size=4, spread=0.5) for seed in (6, 7))
    law = torch.ones(1)
    for length in range(1 + LENGTH):
        texts = [(3, 1, *text) for text in product(range(4), repeat=length)]
        law = (law[:, None] * torch.stack([next_logits(target, text) for text in texts]).div(1.5).softmax(-1)).flatten()
    tokens = speculative_decode(
        target, draft, [3, 1], 3, 1.5, max_new_tokens=1 + LENGTH, num_samples=6_000, batch_size=2_000, rule=rule, seed=5
    )
    assert p_value(counted(tokens[:, 1:], 4), law.view(4, -1).sum(0)) > ALARM


# ---- what must be noticed --------------------------------------------------------------------------------------------


class Liar(Small):
    """Says that it drew from another law than it did."""

    def propose(self, state: Any, budget: Budget, sampling: list[Sampling], keys: Keys) -> Proposal:
        proposal = super().propose(state, budget, sampling, keys)
        assert proposal.draft_probs is not None
        soft = proposal.draft_probs.sqrt()
        return Proposal(proposal.tree, soft / soft.sum(-1, keepdim=True))


def test_a_copy_that_is_said_to_be_drawn_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its row must be one-hot; here it is said to be uniform."""
    monkeypatch.setattr(either, "_sure", lambda tree, like: like.new_full(like.shape, 0.25))
    with must_fail():
        assert copies_beside_a_model(15) > ALARM


@pytest.mark.parametrize("rule", ["rejection", "block"])
def test_a_wrong_draft_law_is_noticed(rule: str) -> None:
    liar = Liar(table_target(DRAFT), table_target(TABLE))
    assert sample(liar, TABLE, 8_000, rule=rule, seed=15) < ALARM


def test_the_rule_that_asks_for_no_draft_law_cannot_be_lied_to() -> None:
    liar = Liar(table_target(DRAFT), table_target(TABLE))
    assert sample(liar, TABLE, 8_000, rule="match", seed=16) > ALARM


def absolute_coins(keys: Keys, purpose: Any, count: int, device: Any = None) -> Tensor:
    """The fault: a coin belongs to the absolute position of its node, wherever the turn began."""
    rows = list(zip(keys.seeds, keys.samples, keys.starts, strict=True))
    named = [stream_key(seed, sample, start + step, purpose) for seed, sample, start in rows for step in range(count)]
    return uniforms(named, torch.zeros(len(named), 1, dtype=torch.int64)).view(len(rows), count)


def test_coins_keyed_by_absolute_position_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Block looks past its own cut; the next turn meets the same coins again, and the law is biased."""
    table, draft = random_table(3, seed=1), random_table(3, seed=2)
    drafter = Small(table_target(draft), table_target(table))
    assert sample(drafter, table, 8_000, rule="block", seed=17) > ALARM
    monkeypatch.setattr(Keys, "coins", absolute_coins)
    assert sample(drafter, table, 8_000, rule="block", seed=17) < ALARM


def test_a_draft_law_without_its_warp_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    original = small.Small.propose

    def unwarped(self: Small, state: Any, budget: Budget, sampling: list[Sampling], keys: Keys) -> Proposal:
        proposal = original(self, state, budget, sampling, keys)
        assert proposal.draft_logits is not None
        return Proposal(proposal.tree, proposal.draft_logits.softmax(-1))

    monkeypatch.setattr(Small, "propose", unwarped)
    assert min(warped(small_drafter(), seeded=False)) < ALARM / 16
