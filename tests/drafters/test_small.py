"""A smaller model drafts from its own law, with a cache that is exact whatever became of its drafts."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from outpace.decoding.generate import generate
from outpace.drafters.budget import Budget
from outpace.drafters.drafter import Proposal
from outpace.drafters.small import Small, SmallState
from outpace.errors import UsageError
from outpace.models.function import FunctionTarget
from outpace.models.target import Target
from outpace.models.toy import random_table, table_target
from outpace.models.transformer import Transformer
from outpace.verification.coins import Keys
from outpace.verification.probabilities import Sampling, probability_rows
from outpace.verification.tree import DraftTree
from toys import Watched, dense_logits, grid, lively, reference

PROMPTS = [(9,), (5, 6, 7), (1, 2, 3, 4, 5, 6, 7)]


class Checked(Small):
    """Compares every draft step with the model read afresh, and can be made to guess wrong: ``flips[row][turn]``.

    A flip is the place of a draft token that is changed after it was drafted.
    """

    def __init__(self, model: Transformer, target: Target, flips: list[list[int | None]]) -> None:
        super().__init__(model, target)
        self.checked, self.flips, self.turn, self.flipped = 0, flips, 0, 0

    def _advance(self, own: SmallState, drafts: list[list[int]], going: list[bool]) -> Tensor:
        logits = super()._advance(own, drafts, going)
        assert isinstance(self.model, Transformer)
        for row, (known, draft, go) in enumerate(zip(own.known, drafts, going, strict=True)):
            assert len(own.read[row]) == own.cache.lengths[row]
            if go:
                assert own.read[row] == [*known, *draft]
                fresh = dense_logits(self.model, own.read[row])[-1]
                torch.testing.assert_close(logits[row], fresh, rtol=0, atol=1e-4)
                self.checked += 1
        return logits

    def propose(self, state: Any, budget: Budget, sampling: list[Sampling], keys: Keys) -> Proposal:
        proposal = super().propose(state, budget, sampling, keys)
        rows = proposal.tree.to_lists()
        for row, (tokens, _) in enumerate(rows):
            place = self.flips[row % len(self.flips)][self.turn % 7 % len(self.flips[row % len(self.flips)])]
            if place is not None and place < len(tokens):
                tokens[place] = (tokens[place] + 1) % 64
                self.flipped += 1
        self.turn += 1
        return Proposal(DraftTree.from_lists(rows), proposal.draft_probs)

    def commit(self, state: Any, emitted: list[list[int]], features: Any) -> None:
        super().commit(state, emitted, features)
        for known, read, length in zip(state.known, state.read, state.cache.lengths, strict=True):
            assert read == known[:length] and length < len(known)


@settings(max_examples=10)
@given(
    flips=st.lists(st.lists(st.none() | st.integers(0, 5), min_size=1, max_size=4), min_size=1, max_size=3),
    depth=st.sampled_from((1, 2, 3, 5)),
    slots=st.integers(1, 3),
    itself=st.booleans(),
)
def test_the_cache_is_exact_every_turn(
    flips: list[list[int | None]], depth: int, slots: int, itself: bool, tiny: Transformer, tiny_draft: Transformer
) -> None:
    guesser = Checked(tiny if itself else tiny_draft, tiny, flips)
    prompts = [list(prompt) for prompt in PROMPTS]
    results = generate(tiny, guesser, prompts, num_draft_tokens=depth, max_new_tokens=14, batch_size=slots)
    assert [result.token_ids for result in results] == [reference(tiny, prompt, 14) for prompt in PROMPTS]
    assert guesser.checked > 0
    if itself:  # every draft that was left alone and reached is accepted
        lost = sum(round(r.stats.speculation.drafted - r.stats.speculation.matched) for r in results)
        assert lost <= guesser.flipped * depth and (lost == 0) == (guesser.flipped == 0)


@pytest.mark.parametrize("depth", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("options", [{}, {"temperature": 1.0}, {"temperature": 1.0, "rule": "rejection"}], ids=str)
def test_a_self_draft_is_always_accepted(depth: int, options: dict[str, Any], tiny: Transformer) -> None:
    """Alone and in a ragged batch. At a temperature p / q is one up to rounding; a refusal there has chance 1e-5."""
    for prompts in ([list(PROMPTS[1])], [list(prompt) for prompt in PROMPTS]):
        results = generate(tiny, Small(tiny, tiny), prompts, num_draft_tokens=depth, max_new_tokens=13, **options)
        for result in results:
            stats = result.stats.speculation
            assert stats.acceptance == 1.0 and stats.matched == stats.drafted
            assert stats.turns == -(-12 // (depth + 1)) and stats.tau == pytest.approx(12 / stats.turns)


def test_drafts_follow_the_law_that_is_reported() -> None:
    """Coins on a grid: the share of each drafted token is its reported probability, under every warp."""
    count, table = 2000, random_table(6, seed=2, spread=1.5)
    model = table_target(table)
    for sampling in (Sampling(1.0), Sampling(0.5, top_k=3), Sampling(2.0, top_p=0.65), Sampling(1.0, 4, 0.9, 0.1)):
        drawn = drafted(Small(model, model), [3] * count, sampling, grid(count))
        law = probability_rows(table[3], sampling)
        assert drawn.draft_probs is not None
        torch.testing.assert_close(drawn.draft_probs[:, 0], law.expand(count, -1))
        shares = torch.bincount(drawn.tree.tokens[:, 0], minlength=6) / count
        torch.testing.assert_close(shares.double(), law, rtol=0, atol=1.5 / count)
        followed = drawn.draft_probs[:, 1]  # the law of the second token is that after the first
        torch.testing.assert_close(followed, probability_rows(table, sampling)[drawn.tree.tokens[:, 0]])


def drafted(small: Small, last: list[int], sampling: Sampling, keys: Keys, limit: int = 2) -> Proposal:
    """What it drafts behind texts that end so."""
    state = small.open(len(last), 8)
    small.admit(state, [[0]] * len(last), None)
    small.commit(state, [[token] for token in last], None)
    return small.propose(state, Budget.chain([limit] * len(last)), [sampling] * len(last), keys)


def test_greedy_drafts_have_no_law() -> None:
    model = table_target(random_table(6, seed=2))
    keys = Keys((1, 1), (0, 0), (1, 1), (True, False))
    small = Small(model, model)
    state = small.open(2, 8)
    small.admit(state, [[1], [2]], None)
    small.commit(state, [[3], [4]], None)
    assert small.propose(state, Budget.chain([2, 2]), [Sampling(1.0), Sampling(0.0)], keys).draft_probs is None


def test_it_stops_at_its_end_of_text() -> None:
    chain = torch.full((5, 5), -9.0).scatter_(1, torch.tensor([[1], [2], [3], [4], [0]]), 9.0)
    target = table_target(chain, eos_ids=(3,))
    proposal = drafted(
        Small(target, target), [0, 1, 2, 3], Sampling(), Keys((0,) * 4, (0,) * 4, (1,) * 4, (False,) * 4), 4
    )
    assert [tokens for tokens, _ in proposal.tree.to_lists()] == [[1, 2, 3], [2, 3], [3], [4, 0, 1, 2]]


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("options", [{}, {"temperature": 1.0}, {"temperature": 0.5, "top_k": 3, "seed": 1}], ids=str)
def test_a_draft_row_that_is_no_law_is_no_draft(bad: float, options: dict[str, Any]) -> None:
    """From there on nothing is drafted in that turn; the text is what it would be."""
    table = random_table(8, seed=1)
    target = table_target(table)
    hit = reference(target, (1,), 3)[-1]  # greedy text comes by here
    rows = table.clone()
    rows[hit] = bad if bad == float("-inf") else rows[hit].index_fill(0, torch.tensor([2]), bad)
    small = Small(table_target(rows), target)
    result = generate(target, small, [1], num_draft_tokens=4, max_new_tokens=24, **options)
    if not options or "seed" in options:
        assert result.token_ids == generate(target, None, [1], max_new_tokens=24, **options).token_ids
    if not options:
        stats = result.stats.speculation
        assert stats.acceptance == 1.0 and stats.turns > 5  # with drafts of four, five turns would do
    keys = Keys((1,), (0,), (1,), ("seed" in options,))
    sampling = Sampling(options.get("temperature", 0.0), options.get("top_k", 0))
    assert drafted(small, [hit], sampling, keys).tree.tokens.shape == (1, 0)


def test_rows_that_rest_are_caught_up(tiny: Transformer) -> None:
    """Rows without a limit wait; what they missed is read when they draft again, one of them at its very end."""
    prompts, said = [[1, 2, 3], [5, 6]], 12
    texts = [reference(tiny, tuple(prompt), said) for prompt in prompts]
    small = Checked(tiny, tiny, [[None]])
    state = small.open(2, 5 + said)
    small.admit(state, prompts, None)
    keys = Keys((0, 0), (0, 0), (3, 3), (False, False))
    for step in range(said - 4):
        small.propose(state, Budget.chain([1, 0] if step % 3 == 2 else [0, 0]), [Sampling()] * 2, keys)
        small.commit(state, [texts[0][step : step + 1], texts[1][step : step + 1]], None)
    proposal = small.propose(state, Budget.chain([3, 3]), [Sampling()] * 2, keys)
    assert [tokens for tokens, _ in proposal.tree.to_lists()] == [text[said - 4 : -1] for text in texts]


def test_a_row_at_its_end_has_room_beside_one_that_catches_up(tiny: Transformer) -> None:
    """The longest row fills its cache to the last place while another reads many tokens at once."""
    long, short = list(range(1, 25)), [5, 6]
    small = Checked(tiny, tiny, [[None]])
    state = small.open(2, len(long) + 1)
    small.admit(state, [long, short], None)
    missed = reference(tiny, tuple(short), 14)
    small.commit(state, [[int(dense_logits(tiny, long)[-1].argmax())], missed[:12]], None)
    keys = Keys((0, 0), (0, 0), (3, 3), (False, False))
    proposal = small.propose(state, Budget.chain([0, 2]), [Sampling()] * 2, keys)
    assert proposal.tree.to_lists()[1][0] == missed[12:]


def test_models_that_cannot_draft(tiny: Transformer) -> None:
    with pytest.raises(UsageError, match=r"'tiny-llama' has a vocabulary of 48, the target 'tiny-llama' one of 64"):
        Small(lively(seed=5, vocab_size=48), tiny)
    recurrent = FunctionTarget(lambda ids: torch.zeros(*ids.shape, 64), 64, name="recurrent")
    recurrent.can_rewind = False
    with pytest.raises(UsageError, match="the draft model 'recurrent' cannot rewind its cache, so it cannot draft"):
        Small(recurrent, tiny)
    with pytest.raises(TypeError, match="a small drafter was given the state of another drafter: list"):
        Small(tiny, tiny).select([], [])


def test_a_draft_of_k_takes_k_forwards(tiny: Transformer) -> None:
    watched = Watched(tiny)
    generate(tiny, Small(watched, tiny), [1, 2, 3], num_draft_tokens=4, max_new_tokens=11)
    assert watched.prefills == [[3]]
    assert watched.scored == [[0], [0], [0], [0], [1], [0], [0], [0]]  # after a full acceptance two tokens at once
