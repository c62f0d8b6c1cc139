"""No weights: repeats in the prompt and in the text so far.

Knows nothing of the target. The tail of the text is matched against everything before it; what followed the longest
earlier occurrence is proposed. A drafted chain is deterministic, so no draft probabilities are needed.
"""

from bisect import bisect_right
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from outpace.drafters.budget import Budget, Kind
from outpace.drafters.drafter import DraftState, Features, Proposal, chains
from outpace.errors import UsageError
from outpace.models.target import Tap
from outpace.verification.coins import Keys
from outpace.verification.probabilities import Sampling

GRADES = (1, 2, 4, 10)
"""Tokens that agree from which on a draft has grade 1, 2, 3 and 4: the longer the match, the more often what followed
it follows again (``benchmarks/match_length.py``)."""
ROOM = 4096  # tokens that a text has room for at first; a function's context has no end


@dataclass
class History:
    """One row's text, and for every place in it how many tokens up to there agree with the text's tail.

    ``agree[j]`` is the length of the longest common suffix of ``ids[: j + 1]`` and the whole text, the whole text
    itself excluded. One token more is one vector operation: matches that the token continues grow, others fall to 0.
    """

    ids: NDArray[np.int64]
    agree: NDArray[np.int64]
    size: int = 0

    @classmethod
    def with_room(cls, positions: int) -> "History":
        """An empty text with room for ``positions`` tokens to start with."""
        return cls(np.zeros(positions, np.int64), np.zeros(positions, np.int64))

    def append(self, token: int, ends: bool) -> None:
        """Add a token; ``ends`` says that no match may reach across it."""
        if self.size == len(self.ids):
            self.ids = np.concatenate((self.ids, np.zeros_like(self.ids)))
            self.agree = np.concatenate((self.agree, np.zeros_like(self.agree)))
        size = self.size
        agree = self.agree[:size]
        if ends or not size:
            agree[:] = 0
        else:
            agree[1:] = agree[:-1]  # a match that ends at place j continues the one that ended at j - 1
            agree[0] = 0
            agree += 1
            agree *= self.ids[:size] == token
        self.ids[size] = token
        self.agree[size] = 0
        self.size += 1

    def longest(self) -> int:
        """How many tokens of the tail stand somewhere before it as well."""
        return int(self.agree[: self.size - 1].max()) if self.size > 1 else 0


@dataclass
class LookupState:
    """The texts of a batch."""

    positions: int
    rows: list[History] = field(default_factory=list)


class Lookup:
    """Drafts what followed the longest earlier occurrence of the text's tail; of equally long ones, the latest.

    Copying runs on into the draft itself when the match overlaps the tail, so that a repeating text is continued. A
    match never reaches across an end-of-text token, and nothing is copied past one.

    Args:
        min_match: propose only where at least this many tokens agree.
        eos_ids: the ids that end a text.

    Raises:
        UsageError: ``min_match`` is below 1.

    Source: prompt lookup decoding (Saxena 2023); copying with overlap as in Ziv and Lempel 1977.
    """

    name = "lookup"
    taps: tuple[Tap, ...] = ()
    branchings: frozenset[Kind] = frozenset({"chain"})
    unasked: frozenset[int] = frozenset()
    best_grade = len(GRADES)

    def __init__(self, *, min_match: int = 1, eos_ids: tuple[int, ...] = ()) -> None:
        if min_match < 1:
            raise UsageError(f"min_match is {min_match}; allowed: 1 or more tokens")
        self.min_match = min_match
        self.eos_ids = frozenset(eos_ids)

    def open(self, slots: int, positions: int) -> LookupState:
        """An empty batch."""
        return LookupState(positions)

    def admit(self, state: DraftState, prompts: list[list[int]], features: list[Features] | None) -> None:
        """Index new prompts."""
        rows = _own(state).rows
        for prompt in prompts:
            rows.append(History.with_room(max(min(_own(state).positions, ROOM), len(prompt), 1)))
            self._extend(rows[-1], prompt)

    def propose(self, state: DraftState, budget: Budget, sampling: list[Sampling], keys: Keys) -> Proposal:
        """A chain of copied tokens a row, as deep as the budget allows; empty where nothing agrees."""
        rows = zip(_own(state).rows, budget.depths, strict=True)
        return Proposal(chains([self._copy(row, depth) for row, depth in rows]))

    def grades(self, state: DraftState) -> list[int]:
        """How much of each text's tail agrees with what stands before it, by ``GRADES``; 0 where too little does."""
        matches = [row.longest() for row in _own(state).rows]
        return [bisect_right(GRADES, match) if match >= self.min_match else 0 for match in matches]

    def commit(self, state: DraftState, emitted: list[list[int]], features: list[Features] | None) -> None:
        """Index what was emitted."""
        for row, tokens in zip(_own(state).rows, emitted, strict=True):
            self._extend(row, tokens)

    def select(self, state: DraftState, rows: list[int]) -> None:
        """Keep only these rows."""
        own = _own(state)
        own.rows = [own.rows[row] for row in rows]

    def _extend(self, row: History, tokens: list[int]) -> None:
        for token in tokens:
            row.append(token, token in self.eos_ids)

    def _copy(self, row: History, limit: int) -> list[int]:
        if limit <= 0 or row.size < 2:
            return []
        agree = row.agree[: row.size - 1]
        place = row.size - 2 - int(agree[::-1].argmax())  # the latest of the longest
        if agree[place] < self.min_match:
            return []
        source = row.ids[place + 1 : min(row.size, place + 1 + limit)].tolist()
        draft: list[int] = []
        for step in range(limit):
            draft.append(source[step % len(source)])
            if draft[-1] in self.eos_ids:
                break
        return draft


def _own(state: DraftState) -> LookupState:
    if not isinstance(state, LookupState):
        raise TypeError(f"lookup was given the state of another drafter: {type(state).__name__}")
    return state
