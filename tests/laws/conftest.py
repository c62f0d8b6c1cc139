"""Random language models as tables, for proofs by enumeration."""

from collections.abc import Callable

import pytest
import torch

from outpace.verification.oracle import Table, count_prefixes

Pair = tuple[Table, Table]


def _dense(vocab: int, length: int, seed: int) -> Pair:
    generator = torch.Generator().manual_seed(seed)
    shape = (2, count_prefixes(vocab, length), vocab)
    target, draft = (1.5 * torch.randn(shape, generator=generator, dtype=torch.float64)).softmax(-1)
    return Table(target), Table(draft)


def _edges(vocab: int, length: int, seed: int) -> Pair:
    """After every prefix one of: dense rows, zeros in either, equal rows, one-hot rows equal or not, disjoint rows."""
    target, draft = (table.rows.clone() for table in _dense(vocab, length, seed))
    generator = torch.Generator().manual_seed(~seed & 0xFFFF)
    count = len(target)
    kind = torch.randint(7, (count, 1), generator=generator)
    some, other = torch.randint(vocab, (2, count), generator=generator)
    one_hot = torch.eye(vocab, dtype=torch.float64)
    left = torch.arange(vocab) < 1 + torch.randint(vocab - 1, (count, 1), generator=generator)
    spared = (1 - one_hot)[some]
    target = target.where(kind != 1, target * spared).where(kind != 4, one_hot[some]).where(kind != 6, target * left)
    draft = draft.where(kind != 2, draft * spared).where(kind != 3, target)
    draft = draft.where(kind != 4, one_hot[other]).where(kind != 5, one_hot[some]).where(kind != 6, draft * ~left)
    return Table(target / target.sum(1, keepdim=True)), Table(draft / draft.sum(1, keepdim=True))


@pytest.fixture(scope="session")
def dense() -> Callable[[int, int, int], Pair]:
    """Target and draft for (vocab, longest prefix, seed), positive everywhere and moderately alike."""
    return _dense


@pytest.fixture(scope="session")
def edges() -> Callable[[int, int, int], Pair]:
    """The same with zeros, equal rows, one-hot rows and disjoint supports after random prefixes."""
    return _edges
