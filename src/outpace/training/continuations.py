"""Many texts continued by the target at once, in bands of like length, so that short ones wait for no long cache.

Knows nothing of words: ids come in, and each text's new ids come out when it has ended.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from outpace.decoding.loop import FinishReason, Request, decode
from outpace.models.target import Target

CACHE_TOKENS = 1 << 16
"""The most positions of a cache, over all its rows: fewer rows are decoded at once where texts are long."""


@dataclass(frozen=True)
class Continuation:
    """What became of one text.

    Args:
        index: which of the requests.
        ids: its new tokens, the one that ended it included where one did.
        finish: ``stop``, ``length``, or ``error`` where the target's logits were no distribution.
        reason: what was wrong then.
    """

    index: int
    ids: list[int]
    finish: FinishReason
    reason: str | None = None


def continuations(target: Target, requests: Sequence[Request], batch_size: int) -> Iterator[Continuation]:
    """Continue every request, plainly; one result a request, in order of their ends.

    A request with a seed gives the same text in any company, as far as rounding allows: its draws are named by seed
    and place. They are cheaper than the races of the coupling, whose texts have the same law.

    Args:
        requests: with a limit of new tokens each, and room for them in the context.
        batch_size: the most texts at once, 1 or more.
    """
    for band in bands([len(request.ids) + (request.max_new_tokens or 0) for request in requests]):
        longest = max(len(requests[index].ids) + (requests[index].max_new_tokens or 0) for index in band)
        slots = max(1, min(batch_size, CACHE_TOKENS // longest))
        new: list[list[int]] = [[] for _ in band]
        for emission in decode(target, None, [requests[index] for index in band], slots=slots, rule="match"):
            new[emission.index] += emission.ids
            if emission.finish is not None:
                reason = None if emission.error is None else emission.error.message
                yield Continuation(band[emission.index], new[emission.index], emission.finish, reason)


def bands(lengths: Sequence[int]) -> list[list[int]]:
    """The places of texts by the power of two that holds them, shorter ones first, in their order within a band."""
    found: dict[int, list[int]] = {}
    for place, length in enumerate(lengths):
        found.setdefault((length - 1).bit_length(), []).append(place)
    return [found[size] for size in sorted(found)]


def seed_of(*parts: object) -> int:
    """A seed named by words: the same for the same words, and unrelated to that of others."""
    return int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:8]) >> 1
