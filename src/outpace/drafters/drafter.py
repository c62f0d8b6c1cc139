"""The Drafter protocol and Proposal.

Knows nothing of verdicts' mathematics: it is told what was kept and guesses again.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate, takewhile
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from outpace.drafters.budget import EXAMPLE, Branching, Budget, Kind
from outpace.errors import UsageError
from outpace.models.target import Tap, padded
from outpace.verification.coins import Keys
from outpace.verification.matching import candidates, race
from outpace.verification.probabilities import Sampling, draw
from outpace.verification.tree import DraftTree

Features = Float[Tensor, "_places taps width"]

Rates = tuple[float, ...] | tuple[tuple[float, ...], ...]
"""How often the child of each rank is the right one: one list for all depths, or one a depth, the first for depth 1."""


@dataclass(frozen=True)
class Proposal:
    """A draft for every batch row, and the laws it was drawn from.

    Args:
        tree: the drafted nodes; a row may be empty.
        draft_probs: row 0 is the law the root's children were drawn from, row 1 + i the law of node i's children, in
            target ids; None when children are deterministic (one-hot), as for lookup and top-k trees.
        draft_logits: what a model drafter's raw logits were at the same rows, for traces; None where there are none. Of
            a tree, rows without children mean nothing.
        draft_ids: the target's id of each of their columns; None where columns are the target's ids.
    """

    tree: DraftTree
    draft_probs: Float[Tensor, "batch rows vocab"] | None = None
    draft_logits: Float[Tensor, "batch rows draft"] | None = None
    draft_ids: Int[Tensor, " draft"] | None = None

    def shown(self, vocab_size: int) -> Float[Tensor, "batch rows vocab"] | None:
        """The raw logits over the target's ids, minus infinity for what the drafter cannot say; spread only here, as
        only traces ask for them."""
        if self.draft_logits is None or self.draft_ids is None:
            return self.draft_logits
        return spread(self.draft_logits, self.draft_ids, vocab_size, -torch.inf)


def spread(
    rows: Float[Tensor, "batch rows draft"], ids: Int[Tensor, " draft"], vocab_size: int, fill: float
) -> Float[Tensor, "batch rows vocab"]:
    """Rows over the target's ids, with ``fill`` for those that the drafter cannot say."""
    whole = rows.new_full((*rows.shape[:2], vocab_size), fill)
    return whole.scatter_(2, ids.expand_as(rows), rows)


@runtime_checkable
class DraftState(Protocol):
    """What a drafter remembers of a batch; opened by ``open``, looked into by its own drafter only."""


@runtime_checkable
class Drafter(Protocol):
    """A guesser. It holds weights only; what belongs to a batch lives in its ``DraftState``.

    Rows join by ``admit`` (at the end of the batch, as the target's do) and leave by ``select``.
    """

    name: str
    taps: tuple[Tap, ...]
    branchings: frozenset[Kind]
    """How its drafts can branch."""

    def open(self, slots: int, positions: int) -> DraftState:
        """An empty batch with room for ``slots`` rows of ``positions`` tokens."""
        ...

    def admit(self, state: DraftState, prompts: list[list[int]], features: list[Features] | None) -> None:
        """New last rows whose prompts the target has just read, with its features at ``taps`` for every position."""
        ...

    def propose(
        self,
        state: DraftState,
        budget: Budget,
        sampling: list[Sampling],
        keys: Keys,
    ) -> Proposal:
        """Guess what follows all tokens that each row was told of, within the budget.

        Whether a token is submitted may depend on earlier tokens and coins, never on that token itself or on later
        ones (non-anticipation). A draft row that is not finite counts as no draft.
        """
        ...

    def commit(self, state: DraftState, emitted: list[list[int]], features: list[Features] | None) -> None:
        """Tokens that every row has emitted since the last call, in order, and the target's features at ``taps``.

        ``features[b]`` has a row for every token that the target read in that turn and kept: the last token of the
        turn before, then the accepted path.
        """
        ...

    def select(self, state: DraftState, rows: list[int]) -> None:
        """Keep only these batch rows, in this order."""
        ...


@runtime_checkable
class Rated(Protocol):
    """A drafter of which it was measured how often its child of each rank is the right one."""

    rates: Rates
    """Above 0 and never rising; none where nobody measured it."""


@runtime_checkable
class Bounded(Protocol):
    """A drafter that cannot draft deeper than so many tokens, whatever a budget allows."""

    max_depth: int
    """1 or more."""


@runtime_checkable
class Graded(Protocol):
    """A drafter that knows before it drafts what its draft will be worth: drafts of one grade are accepted alike.

    A grade depends on the text so far alone. 0 says that there will be no draft; the higher, the better it should be.
    """

    unasked: frozenset[int]
    """Grades whose drafts take no step of a model."""

    def grades(self, state: DraftState) -> list[int]:
        """The grade of every row's next draft."""
        ...


def grades_of(drafter: object, state: DraftState | None) -> list[int] | None:
    """What each row's next draft will be worth; None where the drafter does not know."""
    return drafter.grades(state) if isinstance(drafter, Graded) and state is not None else None


def unasked_of(drafter: object) -> frozenset[int]:
    """The grades of a drafter whose drafts take no step of a model."""
    return drafter.unasked if isinstance(drafter, Graded) else frozenset()


def deepest(drafter: object) -> int | None:
    """The longest path that a drafter can draft; None where it has no limit of its own."""
    return drafter.max_depth if isinstance(drafter, Bounded) else None


def own_rates(drafter: object) -> Rates:
    """The rates that were measured of a drafter, if any were."""
    return drafter.rates if isinstance(drafter, Rated) else ()


def rates_of(branching: Branching, drafter: Drafter) -> Rates:
    """The rates that a static tree is made for: those that it names, else the drafter's own.

    Raises:
        UsageError: there are neither.
    """
    rates = branching.rates or own_rates(drafter)
    if not rates:
        raise UsageError(
            f"tree is {branching}, and no acceptance by rank is known of the drafter {drafter.name!r}; allowed: rates "
            f"of your own, such as {EXAMPLE}",
            hint="the card of a head that outpace trained has them; dynamic needs none",
        )
    return rates


def falling(shares: Iterable[float]) -> tuple[float, ...]:
    """Shares by rank, as they were counted, as rates: never rising, and without those that are 0."""
    return tuple(rate for rate in accumulate(shares, min) if rate > 0)


def falling_by_depth(tables: Iterable[Iterable[float]]) -> tuple[tuple[float, ...], ...]:
    """The same, a list a depth; they end above the first depth at which no rank was ever right."""
    return tuple(takewhile(bool, map(falling, tables)))


def chains(drafts: list[list[int]]) -> DraftTree:
    """One chain a row, ragged."""
    counts = [len(draft) for draft in drafts]
    return DraftTree.chain(padded(drafts, -1), None if len(set(counts)) <= 1 else torch.tensor(counts))


def pick(probs: Float[Tensor, "batch vocab"], keys: Keys, depth: int) -> Int[Tensor, " batch"]:
    """Draw the draft token ``depth`` places behind the start of the turn from each row's law.

    A coupled row races with the very noise that the target will race with at that position, so that the two agree as
    often as their laws allow; any other row inverts its law at a coin of its own.
    """
    drawn = draw(probs, keys.coins("draft", depth + 1, probs.device)[:, depth])
    if not any(keys.coupled):
        return drawn
    ids = candidates(probs.unsqueeze(1))
    noise = keys.noise(torch.full((len(probs), 1), depth), ids)
    raced = race(probs.unsqueeze(1), ids, noise.times, noise.tail_times, noise.tail_coins)[:, 0]
    return raced.where(torch.tensor(keys.coupled, device=probs.device), drawn)
