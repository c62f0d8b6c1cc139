"""Lookup drafts what followed the longest earlier occurrence of the tail, and nothing else."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outpace.drafters.budget import Budget
from outpace.drafters.lookup import Lookup
from outpace.errors import UsageError
from outpace.verification.coins import Keys
from outpace.verification.probabilities import Sampling

EOS = 0


def propose(lookup: Lookup, state: object, limits: list[int]) -> list[list[int]]:
    rows = len(limits)
    keys = Keys((0,) * rows, (0,) * rows, (1,) * rows, (False,) * rows)
    proposal = lookup.propose(state, Budget.chain(limits), [Sampling()] * rows, keys)
    assert proposal.draft_probs is None and proposal.tree.is_chain
    proposal.tree.validate()
    return [tokens for tokens, _ in proposal.tree.to_lists()]


def draft(text: list[int], limit: int = 4, **options: int) -> list[int]:
    lookup = Lookup(eos_ids=(EOS,), **options)
    state = lookup.open(1, len(text) + 8)
    lookup.admit(state, [text], None)
    [tokens] = propose(lookup, state, [limit])
    return tokens


def searched(text: list[int], limit: int, min_match: int) -> list[int]:
    """The definition, by search: for every earlier place, how far back it agrees with the tail."""
    best, place = 0, -1
    for end in range(len(text) - 1):
        size = 0
        while size <= end and text[end - size] == text[len(text) - 1 - size] != EOS:
            size += 1
        if size >= max(best, 1):
            best, place = size, end
    if best < min_match:
        return []
    copied: list[int] = []
    for step in range(limit):
        source = [*text, *copied]
        copied.append(source[place + 1 + step])
        if copied[-1] == EOS:
            break
    return copied


@given(
    text=st.lists(st.integers(0, 3), min_size=1, max_size=24),
    limit=st.integers(0, 9),
    min_match=st.integers(1, 4),
)
def test_it_is_its_definition(text: list[int], limit: int, min_match: int) -> None:
    assert draft(text, limit, min_match=min_match) == searched(text, limit, min_match)


@given(
    texts=st.lists(st.lists(st.integers(0, 3), min_size=2, max_size=16), min_size=1, max_size=4),
    cuts=st.lists(st.integers(1, 15), min_size=4, max_size=4),
    room=st.integers(1, 30),
)
def test_growing_by_pieces_is_reading_at_once(texts: list[list[int]], cuts: list[int], room: int) -> None:
    """Rows join late, leave and change places; memory grows as it must; nothing of one row shows in another."""
    lookup = Lookup(eos_ids=(EOS,))
    state = lookup.open(4, room)
    for place, text in enumerate(texts):
        lookup.admit(state, [text[: min(cuts[place], len(text) - 1)]], None)
        rest = text[min(cuts[place], len(text) - 1) :]
        lookup.commit(state, [*[[]] * place, rest[: len(rest) // 2]], None)
        lookup.commit(state, [*[[]] * place, rest[len(rest) // 2 :]], None)
    order = list(range(len(texts)))[::-2]
    wanted = [searched(texts[row], 5, 1) for row in range(len(texts))]
    assert propose(lookup, state, [5] * len(texts)) == wanted
    lookup.select(state, order)
    assert propose(lookup, state, [5] * len(order)) == [wanted[row] for row in order]


@pytest.mark.parametrize(
    ("text", "drafted"),
    [
        ([5], []),
        ([5, 6, 7, 8], []),
        ([5, 5], [5, 5, 5, 5]),
        ([5, 5, 5, 5], [5, 5, 5, 5]),
        ([7, 8, 7, 8, 7], [8, 7, 8, 7]),  # copying runs on into the draft itself
        ([1, 2, 3, 9, 2, 3, 8, 1, 2, 3], [9, 2, 3, 8]),  # the longest, though an earlier one
        ([2, 3, 9, 2, 3, 8, 2, 3], [8, 2, 3, 8]),  # of equally long ones, the latest
        ([51, EOS, 7, 8, 51], [EOS]),
        ([51, 7, EOS, 8, 51], [7, EOS]),
        ([7, EOS, 7, 8, EOS], []),  # a text never continues past its end
        ([3, 4, EOS, 4, 9, EOS, 4], [9, EOS]),
    ],
    ids=str,
)
def test_by_hand(text: list[int], drafted: list[int]) -> None:
    assert draft(text) == drafted


def test_limits_are_kept_row_by_row() -> None:
    lookup = Lookup()
    state = lookup.open(3, 8)
    lookup.admit(state, [[7, 8, 7, 8]] * 3, None)
    assert propose(lookup, state, [0, 1, 3]) == [[], [7], [7, 8, 7]]


def test_it_needs_at_least_one_token_to_match() -> None:
    with pytest.raises(UsageError, match="min_match is 0; allowed: 1 or more tokens"):
        Lookup(min_match=0)


def test_a_foreign_state_is_refused() -> None:
    with pytest.raises(TypeError, match="lookup was given the state of another drafter: ndarray"):
        Lookup().admit(np.zeros(3), [[1]], None)
