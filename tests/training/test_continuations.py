"""Many texts at once are each their own plain text, whatever the company; the cache stays within its bound."""

from collections import Counter
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from outpace.decoding.loop import Request
from outpace.models.target import Scores
from outpace.models.transformer import Transformer
from outpace.training import continuations as module
from outpace.training.continuations import Continuation, bands, continuations, seed_of
from outpace.verification.probabilities import Sampling
from toys import Watched, lively, must_fail, reference

PROMPTS = [[5], [9, 8, 7, 6, 5], [1, 2, 3, 1, 2, 3], [4] * 30, [11, 12, 13], [21], [30, 31] * 10]
NEW = 9


def said(target: Any, requests: list[Request], batch_size: int) -> list[Continuation]:
    found = list(continuations(target, requests, batch_size))
    assert sorted(one.index for one in found) == list(range(len(requests)))
    return sorted(found, key=lambda one: one.index)


@given(st.lists(st.integers(1, 5000), max_size=60))
def test_bands(lengths: list[int]) -> None:
    """Every text is in one band, in order; within a band no text is twice as long as another."""
    found = bands(lengths)
    assert Counter(place for band in found for place in band) == Counter(range(len(lengths)))
    for band in found:
        own = [lengths[place] for place in band]
        assert band == sorted(band) and max(own) < 2 * min(own)
    assert [lengths[band[0]] for band in found] == sorted(lengths[band[0]] for band in found)


@pytest.mark.parametrize("batch_size", [1, 3, 64])
def test_greedy_texts_are_their_own(tiny: Transformer, batch_size: int) -> None:
    requests = [Request(prompt, max_new_tokens=NEW + place) for place, prompt in enumerate(PROMPTS)]
    for place, one in enumerate(said(tiny, requests, batch_size)):
        assert one.ids == reference(tiny, tuple(PROMPTS[place]), NEW + place) and one.finish == "length"


def drawn(target: Any, batch_size: int) -> list[list[int]]:
    requests = [
        Request(prompt, Sampling(1.0 + place % 2), NEW, seed=seed_of(7, place)) for place, prompt in enumerate(PROMPTS)
    ]
    return [one.ids for one in said(target, requests, batch_size)]


def test_a_seeded_text_is_the_same_in_any_company(tiny: Transformer) -> None:
    """Draws are named by seed and place; two prompts with different seeds differ (chance below 1e-10)."""
    alone = drawn(tiny, 1)
    assert drawn(tiny, 2) == drawn(tiny, 64) == alone
    assert len(set(map(tuple, alone))) == len(alone)


def test_draws_follow_the_law() -> None:
    """First tokens of 2,000 seeds against the target's law. False alarm: chi-square with 63 degrees of freedom above
    150 has a chance below 1e-8."""
    model = lively(vocab_size=64, layers=1)
    count = 2000
    requests = [Request([1, 2, 3], Sampling(1.0), 1, seed=seed_of("law", place)) for place in range(count)]
    found = Counter(one.ids[0] for one in said(model, requests, 500))
    logits = model.prefill(model.open(1, 3), torch.tensor([[1, 2, 3]]), [3]).logits[0, 0].double()
    law = logits.softmax(-1)
    likely = law > 5 / count
    counts = torch.tensor([float(found[token]) for token in range(64)])
    rest = (counts[~likely].sum() - count * law[~likely].sum()) ** 2 / (count * law[~likely].sum()).clamp(min=1)
    assert float(((counts - count * law)[likely] ** 2 / (count * law[likely])).sum() + rest) < 150


def test_ends_and_errors() -> None:
    model = lively()
    text = reference(model, (5,), NEW)
    ended = said(model, [Request([5], max_new_tokens=NEW, eos_ids=[text[3]])], 4)[0]
    assert ended.ids == text[: text.index(text[3]) + 1] and ended.finish == "stop" and ended.reason is None
    broken = lively(seed=3)

    class Broken(Watched):
        def score(self, state: Any, last: Any, tree: Any, taps: Any = ()) -> Any:
            scores = super().score(state, last, tree, taps)
            return Scores(torch.full_like(scores.logits, torch.nan))

    found = said(Broken(broken), [Request([5], max_new_tokens=NEW), Request([6], max_new_tokens=1)], 4)
    assert found[0].finish == "error" and "are no distribution" in str(found[0].reason)
    assert found[1].finish == "length"


def test_the_cache_stays_within_its_bound(tiny: Transformer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Long texts are decoded by fewer at once; one is always decoded."""
    monkeypatch.setattr(module, "CACHE_TOKENS", 60)

    class Opened(Watched):
        sizes: list[tuple[int, int]] = []  # noqa: RUF012

        def open(self, slots: int, positions: int) -> Any:
            self.sizes.append((slots, positions))
            return super().open(slots, positions)

    requests = [Request([1] * size, max_new_tokens=2) for size in (4, 5, 6, 5, 4, 28, 28, 28, 90)]
    said(Opened(tiny), requests, 4)
    assert Opened.sizes == [(4, 8), (2, 30), (1, 92)]


def test_seeds_are_named() -> None:
    assert seed_of(1, "a") == seed_of(1, "a") != seed_of(1, "b") != seed_of(2, "b")
    assert all(0 <= seed_of(place) < 2**63 for place in range(100))


def test_planted_fault(tiny: Transformer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A band that hands its places out as if they were all texts'."""
    honest = module.bands
    monkeypatch.setattr(module, "bands", lambda lengths: [sorted(band, reverse=True) for band in honest(lengths)][::-1])
    test_a_seeded_text_is_the_same_in_any_company(tiny)  # any order of bands is right
    monkeypatch.setattr(module, "bands", lambda lengths: [list(range(len(band))) for band in honest(lengths)])
    with must_fail():
        test_greedy_texts_are_their_own(tiny, 3)
