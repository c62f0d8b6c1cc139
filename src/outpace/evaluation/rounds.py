"""Levels of load, measured in rounds: what is asked at each level, in which order, and when there is time for more.

Knows nothing of who answers. A stream is a row of prompts that are asked so many at a time, the next one as soon as one
is done. A round has one stream a level, and at each stream everyone who is compared, one behind the other: what drifts
hits all alike, and the same prompts stand on both sides of every ratio.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeVar, runtime_checkable

from outpace.errors import UsageError

PER_SLOT = 2
"""Prompts that a stream has for every one that is asked at once, so that ends meet beginnings."""


@runtime_checkable
class Sorted(Protocol):
    """Anything with a category."""

    @property
    def category(self) -> str | None: ...


Prompt = TypeVar("Prompt", bound=Sorted)
Name = TypeVar("Name")
Found = TypeVar("Found")


def streams(asked: Sequence[Prompt], concurrency: int, rounds: int) -> list[list[Prompt]]:
    """What is asked in every round at one level: two prompts for each that is asked at once, or one of every category.

    Categories take turns. Rounds go on where the last one ended, and begin again where prompts run out, so that a
    prompt may return in other company.

    Args:
        asked: the prompts, at least one.
        concurrency: how many are asked at once, 1 or more.
        rounds: how many streams, 1 or more.

    Raises:
        UsageError: concurrency or rounds below 1.
    """
    for name, value in (("concurrency", concurrency), ("rounds", rounds)):
        if value < 1:
            raise UsageError(f"{name} is {value}; allowed: 1 or more")
    kinds: dict[str | None, list[Prompt]] = {}
    for prompt in asked:
        kinds.setdefault(prompt.category, []).append(prompt)
    longest = max(map(len, kinds.values()))
    mixed = [kind[place] for place in range(longest) for kind in kinds.values() if place < len(kind)]
    size = max(PER_SLOT * concurrency, len(kinds))
    return [
        [mixed[place % len(mixed)] for place in range(start, start + size)] for start in range(0, rounds * size, size)
    ]


def in_rounds(
    levels: Mapping[int, Sequence[Name]],
    rounds: int,
    budget_s: float,
    once: Callable[[int, Name, int], Found],
    *,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[int, dict[Name, list[Found]]]:
    """Everyone at every level, A B and in the next round B A, the levels up and in the next round down.

    The first round is whole in any case; a further one begins only where the budget has room for one as long as those
    before.

    Args:
        levels: who is compared at each of them.
        rounds: the most there are, 1 or more.
        budget_s: seconds for all of them.
        once: runs the stream of a round at a level: (level, who, round).
        clock: seconds, rising.

    Returns:
        ``[level][who][round]``.
    """
    found: dict[int, dict[Name, list[Found]]] = {level: {name: [] for name in names} for level, names in levels.items()}
    begin = clock()
    for place in range(rounds):
        if place and (clock() - begin) * (place + 1) / place > budget_s:
            break
        backwards = place % 2
        for level in sorted(levels, reverse=bool(backwards)):
            for name in levels[level][:: -1 if backwards else 1]:
                found[level][name].append(once(level, name, place))
    return found
