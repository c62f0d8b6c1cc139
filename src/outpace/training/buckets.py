"""Which samples make a batch, and in which order batches come: of like length, and fixed by seed and epoch.

Knows nothing of what is in a sample but its length. The place in an epoch is a number of batches: to go on from there
needs no more than the seed, the epoch and that number.
"""

import random
from collections.abc import Callable, Sequence

from outpace.errors import UsageError

WINDOW = 64
"""So many batches' tokens are sorted by length together: more waste less padding, fewer mix samples better."""


def order(lengths: Sequence[int], seed: int, epoch: int, tokens_per_batch: int) -> list[list[int]]:
    """The samples of every batch of an epoch; each sample once.

    Samples are shuffled, sorted by length a window at a time, cut into batches, and the batches shuffled.

    Args:
        lengths: of every sample, 1 or more.
        seed, epoch: the same two give the same order, on every machine.
        tokens_per_batch: rows times the longest of them, at most.

    Raises:
        UsageError: there is no sample, or one does not fit a batch.
    """
    if not lengths:
        raise UsageError("there are no samples to make batches of; allowed: one or more")
    if max(lengths) > tokens_per_batch:
        raise UsageError(
            f"tokens_per_batch is {tokens_per_batch} and the longest sample has {max(lengths)} tokens; "
            "allowed: as many as that, or more"
        )
    # Only random() is promised to stay the same in every release of Python.
    chance = random.Random(f"outpace/{seed}/{epoch}").random
    shuffled = _shuffled(list(range(len(lengths))), chance)
    batches: list[list[int]] = []
    window: list[int] = []
    tokens = 0
    for place in shuffled:
        window.append(place)
        tokens += lengths[place]
        if tokens >= WINDOW * tokens_per_batch:
            batches += _cut(window, lengths, tokens_per_batch)
            window, tokens = [], 0
    batches += _cut(window, lengths, tokens_per_batch)
    return [batches[place] for place in _shuffled(list(range(len(batches))), chance)]


def _shuffled(places: list[int], chance: Callable[[], float]) -> list[int]:
    keys = {place: chance() for place in places}
    return sorted(places, key=lambda place: (keys[place], place))


def _cut(window: list[int], lengths: Sequence[int], tokens_per_batch: int) -> list[list[int]]:
    """Batches of neighbours by length, the longest first, each as large as its longest row allows."""
    batches: list[list[int]] = []
    for place in sorted(window, key=lambda place: -lengths[place]):
        if batches and lengths[batches[-1][0]] * (len(batches[-1]) + 1) <= tokens_per_batch:
            batches[-1].append(place)
        else:
            batches.append([place])
    return batches
