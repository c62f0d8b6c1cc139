"""Typical acceptance, by hand and by enumeration; it is lossy, and the oracle says so."""

import math
from collections.abc import Callable
from itertools import product

import pytest
import torch
from torch import Tensor

from outpace.verification import typical
from outpace.verification.oracle import (
    Drafting,
    Table,
    expected_tokens,
    map_sampler,
    outcomes,
    output_law,
    ranked,
    sampled,
    total_variation,
)
from outpace.verification.probabilities import Sampling, probability_rows
from outpace.verification.rules import LOSSLESS, RULES
from outpace.verification.tree import DraftTree
from outpace.verification.typical import DELTA, EPSILON, TYPICAL
from toys import must_fail

CHAIN, BUSH = (-1, 0, 1), (-1, -1, 0, 0, 1)
SHARP = [0.90, 0.06, 0.03, 0.01]
"""Its entropy is 0.415: the threshold is 0.09, as 0.3 * exp(-0.415) = 0.198 is more."""
FLAT = [0.30, 0.28, 0.26, 0.16]
"""Its entropy is 1.361: the threshold is 0.3 * exp(-1.361) = 0.0769."""


def judged(rows: list[list[float]], tokens: list[int], parents: list[int], coin: float = 0.0) -> tuple[list[int], int]:
    """The accepted path and the next token for one draft."""
    target = torch.tensor([rows], dtype=torch.float64)
    tree = DraftTree.from_lists([(tokens, parents)])
    coins = torch.full((1, len(rows)), coin, dtype=torch.float64)
    verdict = TYPICAL.judge(target, tree, None, coins)
    assert (verdict.rule, verdict.lossless) == ("typical", False)
    assert int(verdict.num_accepted) == int((verdict.path >= 0).sum())
    return [node for node in verdict.path[0].tolist() if node >= 0], int(verdict.next_token)


def test_thresholds_by_hand() -> None:
    rows = torch.tensor([[SHARP, FLAT, [1.0, 0.0, 0.0, 0.0], [0.25] * 4]], dtype=torch.float64)
    found = typical._thresholds(rows, DraftTree.chain(torch.tensor([[0, 0, 0]])))
    assert found[0, 0] == pytest.approx(0.09)
    assert found[0, 1] == pytest.approx(0.0769, abs=1e-4)
    assert found[0, 2] == pytest.approx(0.09)
    assert math.isinf(found[0, 3])  # the last row has no children
    flat = typical._thresholds(torch.full((1, 2, 100), 0.01, dtype=torch.float64), DraftTree.chain(torch.tensor([[0]])))
    assert flat[0, 0] == pytest.approx(0.003) and pytest.approx(math.sqrt(EPSILON)) == DELTA


@pytest.mark.parametrize(
    ("token", "row", "accepted"), [(0, SHARP, True), (1, SHARP, False), (3, FLAT, True), (2, FLAT, True)]
)
def test_one_token_by_hand(token: int, row: list[float], accepted: bool) -> None:
    """What is refused is not taken out of what is drawn next: coin 0 draws token 0 again."""
    path, following = judged([row, SHARP], [token], [-1])
    assert path == ([0] if accepted else []) and following == 0


def test_a_chain_ends_at_the_first_token_that_is_not_typical() -> None:
    path, following = judged([FLAT, SHARP, FLAT, SHARP], [1, 3, 0], [-1, 0, 1], coin=0.95)
    assert path == [0] and following == 1  # drawn from SHARP, behind the refused token 3
    assert judged([FLAT, SHARP, FLAT, SHARP], [1, 0, 3], [-1, 0, 1])[0] == [0, 1, 2]


def test_the_longest_path_wins_then_the_most_probable_then_the_first() -> None:
    rows = [FLAT] * 6
    assert judged(rows, [0, 1, 2, 3, 0], [-1, -1, 1, 1, 2])[0] == [1, 2, 4]  # longer
    assert judged(rows[:5], [1, 0, 0, 2], [-1, -1, 0, 1])[0] == [0, 2]  # 0.28 * 0.30 before 0.30 * 0.26
    assert judged(rows[:3], [2, 2], [-1, -1])[0] == [0]  # equal
    sharp = [FLAT, SHARP, FLAT, FLAT]
    assert judged(sharp, [0, 1, 2], [-1, -1, 0])[0] == [0]  # the longer path's end is not typical; 0.30 before 0.28


def test_a_draft_of_nothing() -> None:
    assert judged([SHARP], [], [], coin=0.95) == ([], 1)


def _tables(vocab: int, length: int, seed: int, spread: float = 1.5) -> tuple[Table, Table]:
    generator = torch.Generator().manual_seed(seed)
    count = sum(vocab**size for size in range(length + 1))
    target, draft = (spread * torch.randn(2, count, vocab, generator=generator, dtype=torch.float64)).softmax(-1)
    return Table(target), Table(draft)


DRAFTINGS: list[tuple[Callable[..., Drafting], tuple[int, ...]]] = [*product((ranked, sampled), (CHAIN, BUSH))]


@pytest.mark.parametrize(("drafting", "shape"), DRAFTINGS, ids=lambda part: getattr(part, "__name__", str(part)))
def test_the_oracle_convicts_it(drafting: Callable[..., Drafting], shape: tuple[int, ...]) -> None:
    """Far from the target's law, on chains and trees, drawn or not; a lossless rule is at zero on the same tables."""
    for seed in range(3):
        target, draft = _tables(4, 4, seed, spread=0.8)
        law = output_law(TYPICAL, target, drafting(draft, shape), 4)
        assert float(law.sum()) == pytest.approx(1, abs=1e-12)
        assert total_variation(law, target.joint(4)) > 0.2
        exact = output_law(RULES["match"], target, drafting(draft, shape), 4)
        assert total_variation(exact, target.joint(4)) < 1e-12
    assert "typical" not in LOSSLESS and set(RULES) - set(LOSSLESS) == {"typical"}


def test_the_first_token_by_hand() -> None:
    """Root SHARP, draft always token 1: refused, exact. Root FLAT: token 3 always, where the target says so in 16 %."""
    for row, token, wanted in ((SHARP, 1, SHARP), (FLAT, 3, [0.0, 0.0, 0.0, 1.0])):
        target = Table(torch.tensor([row] * 5, dtype=torch.float64))
        first = output_law(TYPICAL, target, ranked(_always(token), (-1,)), 2).view(4, 4).sum(1)
        assert first.tolist() == pytest.approx(wanted, abs=1e-12)
    flat = Table(torch.tensor([FLAT] * 5, dtype=torch.float64))
    moved = output_law(TYPICAL, flat, ranked(_always(3), (-1,)), 2)
    assert total_variation(moved, flat.joint(2)) == pytest.approx(0.84, abs=1e-12)


def _always(token: int) -> Table:
    return Table(torch.nn.functional.one_hot(torch.full((5,), token), 4).double())


def test_it_accepts_more_than_a_lossless_rule_could() -> None:
    """Why anyone would want it: of one drafted token it takes more than rejection, the best of the lossless."""
    target, draft = Table(torch.tensor([FLAT] * 5).double()), Table(torch.tensor([FLAT[::-1]] * 5).double())
    lossy, exact = (expected_tokens(RULES[name], target, sampled(draft, (-1,))) for name in ("typical", "rejection"))
    assert exact == pytest.approx(1 + 0.16 + 0.26 + 0.26 + 0.16, abs=1e-6) and lossy == pytest.approx(2, abs=1e-6)


@pytest.mark.parametrize("shape", [(-1, 0), (-1, -1, 0)], ids=str)
def test_the_sampler_is_the_law(shape: tuple[int, ...]) -> None:
    """Volumes of coins by bisection: the end of the path is certain, and one coin draws the next token."""
    for seed, drafting in product(range(3), (ranked, sampled)):
        target, draft = _tables(3, len(shape), seed)
        drafts = drafting(draft, shape)(torch.zeros(1, dtype=torch.int64))
        one = slice(0, 1)
        tree = DraftTree(drafts.tree.tokens[one], drafts.tree.parents[one], drafts.tree.num_nodes[one])
        given = target.rows[drafts.places[one]], tree, None if drafts.draft_probs is None else drafts.draft_probs[one]
        mapped = map_sampler(TYPICAL, *given)
        torch.testing.assert_close(mapped.law, TYPICAL.law(*given)[0], rtol=0, atol=1e-12)
        assert [len(axis) for axis in mapped.breakpoints[:-1]] == [2] * len(shape), "no other coin decides anything"
        assert len(mapped.breakpoints[-1]) == 4
        ends = outcomes(TYPICAL, *given, torch.rand(50, 1 + len(shape), dtype=torch.float64)) // 3
        assert len(ends.unique()) == 1


def test_one_hot_rows_make_it_greedy() -> None:
    target, draft = _tables(4, 3, 5)
    certain = Table(probability_rows(target.rows, Sampling()))
    for drafting, shape in product((ranked, sampled), ((-1, 0), (-1, -1, 0, 1))):
        law = output_law(TYPICAL, certain, drafting(draft, shape), 3)
        assert total_variation(law, certain.joint(3)) < 1e-12


def test_rows_are_judged_as_if_alone() -> None:
    """Mixed shapes, and filler that holds no numbers: nobody reads it."""
    shapes = [([0, 1, 2, 0, 3], [-1, -1, 0, 0, 1]), ([3, 0], [-1, 0]), ([], []), ([2], [-1])]
    tree = DraftTree.from_lists(shapes * 4)
    generator = torch.Generator().manual_seed(2)
    target = torch.randn(16, 6, 4, generator=generator, dtype=torch.float64).softmax(-1)
    coins = torch.rand(16, 6, generator=generator, dtype=torch.float64)
    for row, (tokens, _) in enumerate(shapes * 4):
        target[row, 1 + len(tokens) :] = math.nan
    together = TYPICAL.judge(target, tree, None, coins)
    for row, (tokens, parents) in enumerate(shapes * 4):
        rows = target[row : row + 1, : 1 + len(tokens)]
        own = torch.cat([coins[row, : len(tokens)], coins[row, -1:]])[None]
        alone = TYPICAL.judge(rows, DraftTree.from_lists([(tokens, parents)]), None, own)
        assert alone.next_token[0] == together.next_token[row]
        assert alone.num_accepted[0] == together.num_accepted[row]
        assert [n for n in alone.path[0].tolist() if n >= 0] == [n for n in together.path[row].tolist() if n >= 0]


def test_a_threshold_without_entropy_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def hard(target_probs: Tensor, tree: DraftTree) -> Tensor:
        return torch.full(target_probs.shape[:2], EPSILON, dtype=target_probs.dtype)

    wide = [[0.08] * 12 + [0.04]] * 2
    assert judged(wide, [3], [-1])[0] == [0]
    monkeypatch.setattr(typical, "_thresholds", hard)
    with must_fail():
        assert judged(wide, [3], [-1])[0] == [0]
