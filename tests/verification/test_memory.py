"""What a rule costs beside its inputs, at the size of a large vocabulary: few rows are kept, few are touched."""

import itertools
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from outpace.verification.probabilities import draw
from outpace.verification.rules import CHAIN_ONLY, RULES
from outpace.verification.tree import DraftTree


class Meter(TorchDispatchMode):
    """Watches the operations inside: the most bytes of new storages alive at once, and the values that were written.

    What is written counts however long it lives, and in place too; a view writes nothing.
    """

    def __init__(self) -> None:
        super().__init__()
        self.alive: dict[int, tuple[weakref.ref[Tensor], int]] = {}
        self.peak = self.written = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        given = [part for part in args if isinstance(part, Tensor)]
        known = {part.untyped_storage().data_ptr() for part in given}
        in_place = func.__name__.partition(".")[0].endswith("_")
        for part in made if isinstance(made, tuple | list) else (made,):
            if not isinstance(part, Tensor):
                continue
            new = (key := part.untyped_storage().data_ptr()) not in known
            if new:
                self.alive[key] = (weakref.ref(part), part.untyped_storage().nbytes())
            self.written += part.numel() if new or in_place else 0
        self.alive = {key: held for key, held in self.alive.items() if held[0]() is not None}
        self.peak = max(self.peak, sum(size for _, size in self.alive.values()))
        return made


def rows_of(batch: int, nodes: int, vocab: int, seed: int) -> Tensor:
    """Laws that are alike, so that drafts live long."""
    generator = torch.Generator().manual_seed(seed)
    return (0.1 * torch.randn(batch, 1 + nodes, vocab, generator=generator)).softmax(-1)


def given(batch: int, nodes: int, vocab: int) -> tuple[Tensor, DraftTree, Tensor, Tensor]:
    """Target rows, a chain, draft rows and coins."""
    generator = torch.Generator().manual_seed(3)
    tokens = torch.randint(vocab, (batch, nodes), generator=generator)
    coins = torch.rand(batch, 1 + nodes, generator=generator, dtype=torch.float64)
    return rows_of(batch, nodes, vocab, 1), DraftTree.chain(tokens), rows_of(batch, nodes, vocab, 2), coins


JUDGES = [name for name in RULES if name not in ("greedy", "match")]


@pytest.mark.parametrize("name", JUDGES)
def test_samplers_keep_few_rows(name: str) -> None:
    """Below three rows of the vocabulary a request beside the inputs, however many nodes; a tree's place has two."""
    vocab, batch, nodes = 1 << 15, 4, 7
    target, tree, draft, _ = given(batch, nodes, vocab)
    for seed, law in itertools.product(range(3), (draft, None)):
        coins = torch.rand(batch, 1 + nodes, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        with Meter() as meter:
            RULES[name].judge(target, tree, law, coins)
        assert 0 < meter.peak < 3 * batch * vocab * 4


@pytest.mark.parametrize("name", sorted(CHAIN_ONLY))
def test_at_the_size_of_a_large_vocabulary(name: str) -> None:
    """Batch 8, K 8, 128,000 tokens: the inputs are nine rows a request each, what comes on top below three."""
    vocab, batch, nodes = 128_000, 8, 8
    target, tree, draft, coins = given(batch, nodes, vocab)
    with Meter() as meter:
        verdict = RULES[name].judge(target, tree, draft, coins)
    assert meter.peak < 3 * batch * vocab * 4
    assert 0 < int(verdict.num_accepted.sum()) < batch * nodes, "some rows end early and some drafts are accepted"


@pytest.mark.parametrize("sampled", [True, False])
def test_rejection_goes_over_the_rows_it_needs_once(sampled: bool) -> None:
    """The number of values that are written does not grow with K: one residual a request, from one row of each law.

    A residual is copied, scaled, reduced by the draft's copy and cut at zero: five times a row, and
    two more for requests that take the target's own row; with a one-hot draft three in all. The draw adds sums only.
    """
    vocab, batch, written = 1 << 14, 8, {}
    for nodes in (1, 4, 16):
        target, tree, draft, coins = given(batch, nodes, vocab)
        with Meter() as meter:
            RULES["rejection"].judge(target, tree, draft if sampled else None, coins)
        written[nodes] = meter.written / (batch * vocab)
    assert max(written.values()) < (7.5 if sampled else 4)
    assert abs(written[16] - written[1]) < 1.2


def test_the_meter_sees_what_it_is_there_to_forbid() -> None:
    """Residuals of all rows at once, and a draw from every row."""
    vocab, batch, nodes = 1 << 12, 4, 7
    target, _, draft, coins = given(batch, nodes, vocab)
    with Meter() as meter:
        draw((target - draft).clamp_(min=0), coins)
    assert meter.peak >= (1 + nodes) * batch * vocab * 4
    assert meter.written >= 2 * (1 + nodes) * batch * vocab
