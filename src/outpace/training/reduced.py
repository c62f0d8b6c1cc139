"""The reduced vocabulary of a draft head: the tokens that answers are made of, as far as it has room.

Knows nothing of heads. Only tokens of answers count: those of prompts are never drafted.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

from outpace.errors import UsageError
from outpace.training.masks import Sample


@dataclass(frozen=True)
class Reduced:
    """A choice of ids.

    Args:
        ids: target ids, rising; a draft id is a place among them.
        coverage: which share of the answers' tokens they are.
    """

    ids: Int[Tensor, " draft"]
    coverage: float


def reduced_vocabulary(samples: Iterable[Sample], size: int, vocab_size: int, eos_ids: Sequence[int]) -> Reduced:
    """The most frequent tokens of all answers, of equals the lower id; the end-of-text ids are always among them.

    Where answers have fewer different tokens than there is room for, the lowest unused ids fill it up: with most
    tokenizers these are the most frequent pieces of text.

    Args:
        samples: what will be trained on.
        size: how many ids, up to the whole vocabulary.
        vocab_size: of the target.
        eos_ids: of the target.

    Raises:
        UsageError: the size is beyond the vocabulary or leaves no room for the end-of-text ids, a token is beyond the
            vocabulary, or no token is an answer's.

    Source: the reduced vocabulary of EAGLE-3's heads, 2503.01840.
    """
    ends = sorted(set(eos_ids))
    if not max(1, len(ends)) <= size <= vocab_size:
        raise UsageError(
            f"a draft vocabulary of {size} is asked for; allowed: from {max(1, len(ends))} (the end-of-text ids) to "
            f"{vocab_size} (the whole vocabulary)"
        )
    counts, total = _counts(samples, vocab_size)
    ranks = counts.clone()
    ranks[torch.tensor(ends, dtype=torch.int64)] = total + 1
    ids = ranks.sort(descending=True, stable=True).indices[:size].sort().values
    return Reduced(ids, int(counts[ids].sum()) / total)


def given_vocabulary(samples: Iterable[Sample], ids: Int[Tensor, " draft"], vocab_size: int) -> Reduced:
    """A vocabulary that a head has already, and how much of the answers it covers.

    Args:
        samples, vocab_size: as for ``reduced_vocabulary``.
        ids: the head's, rising.

    Raises:
        UsageError: a token is beyond the vocabulary, or no token is an answer's.
    """
    counts, total = _counts(samples, vocab_size)
    return Reduced(ids, int(counts[ids].sum()) / total)


def _counts(samples: Iterable[Sample], vocab_size: int) -> tuple[Int[Tensor, " vocab"], int]:
    """How often each token is an answer's, and all together."""
    counts = torch.zeros(vocab_size, dtype=torch.int64)
    for sample in samples:
        tokens = sample.ids[sample.loss_mask].long()
        if len(tokens) and int(tokens.max()) >= vocab_size:
            raise UsageError(f"{sample.key} holds the id {int(tokens.max())}; allowed: 0 to {vocab_size - 1}")
        counts += torch.bincount(tokens, minlength=vocab_size)
    total = int(counts.sum())
    if total == 0:
        raise UsageError("no token of the samples is an answer's; allowed: one or more")
    return counts, total
