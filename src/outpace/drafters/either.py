"""Two drafters as one: a copy where the text repeats itself, which costs nothing, and a model's draft everywhere else.

Knows nothing of how either of them guesses. Which of the two drafts depends on the text so far alone, so that every
rule keeps its law; each is told of all tokens, whoever drafted them.
"""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import pad

from outpace.drafters.budget import Budget, Kind
from outpace.drafters.drafter import Drafter, DraftState, Features, Proposal, deepest, own_rates
from outpace.drafters.lookup import Lookup, LookupState
from outpace.errors import UsageError
from outpace.models.target import Tap
from outpace.verification.coins import Keys
from outpace.verification.probabilities import Sampling
from outpace.verification.tree import DraftTree

LEAST = 2
"""The grade of lookup from which on it drafts: copies behind two tokens that agree or more
(``benchmarks/match_length.py``)."""
MODEL = 1
"""The grade of a model's draft; lookup's own grades stand above it."""


@dataclass
class EitherState:
    """What both remember of a batch."""

    copies: LookupState
    model: DraftState


class Either:
    """Drafts by lookup where the tail of the text stands somewhere before it, and by a model where it does not.

    A copy is a chain, whatever the budget's branching. Where rows of both kinds are drawn together, a copy's law is
    one-hot.

    Args:
        copies: lookup.
        model: any other drafter; its branchings, taps, rates and depth are those of both.

    Raises:
        UsageError: the model is lookup itself.
    """

    unasked: frozenset[int] = frozenset(range(LEAST, Lookup.best_grade + 1))

    def __init__(self, copies: Lookup, model: Drafter) -> None:
        if isinstance(model, Lookup | Either):
            raise UsageError(f"lookup is joined with {model.name!r}; allowed: a head or a smaller model")
        self.copies, self.model = copies, model
        self.name: str = f"{copies.name}+{model.name}"
        self.taps: tuple[Tap, ...] = model.taps
        self.branchings: frozenset[Kind] = model.branchings
        self.rates = own_rates(model)
        if (depth := deepest(model)) is not None:
            self.max_depth = depth

    def open(self, slots: int, positions: int) -> EitherState:
        """An empty batch of both."""
        return EitherState(self.copies.open(slots, positions), self.model.open(slots, positions))

    def admit(self, state: DraftState, prompts: list[list[int]], features: list[Features] | None) -> None:
        """Both are told."""
        own = _own(state)
        self.copies.admit(own.copies, prompts, None)
        self.model.admit(own.model, prompts, features)

    def grades(self, state: DraftState) -> list[int]:
        """Lookup's grade where it drafts, ``MODEL`` elsewhere."""
        return [grade if grade >= LEAST else MODEL for grade in self.copies.grades(_own(state).copies)]

    def propose(self, state: DraftState, budget: Budget, sampling: list[Sampling], keys: Keys) -> Proposal:
        """What each row's drafter guesses; the other one is not asked."""
        own = _own(state)
        copied = [grade >= LEAST for grade in self.grades(state)]
        copies = self.copies.propose(own.copies, _only(budget, copied), sampling, keys)
        others = _only(budget, [not one for one in copied])
        if others.empty:
            return copies
        guessed = self.model.propose(own.model, others, sampling, keys)
        return _joined(copies, guessed, copied) if any(copied) else guessed

    def commit(self, state: DraftState, emitted: list[list[int]], features: list[Features] | None) -> None:
        """Both are told."""
        own = _own(state)
        self.copies.commit(own.copies, emitted, None)
        self.model.commit(own.model, emitted, features)

    def select(self, state: DraftState, rows: list[int]) -> None:
        """Keep only these rows."""
        own = _own(state)
        self.copies.select(own.copies, rows)
        self.model.select(own.model, rows)


def computing(drafter: Drafter | None) -> Drafter | None:
    """The drafter whose steps cost something: of two that are joined, the model."""
    return drafter.model if isinstance(drafter, Either) else drafter


def _only(budget: Budget, rows: list[bool]) -> Budget:
    """The budget of some rows, and nothing for the others."""
    depths, nodes = (
        [number if one else 0 for number, one in zip(numbers, rows, strict=True)]
        for numbers in (budget.depths, budget.nodes)
    )
    return replace(budget, depths=depths, nodes=nodes)


def _joined(copies: Proposal, guessed: Proposal, copied: list[bool]) -> Proposal:
    """Copied rows of the one, the rest of the other. Raw logits of a draft are shown where every row has some."""
    device = guessed.tree.tokens.device
    rows = torch.tensor(copied, device=device)
    width = max(copies.tree.tokens.shape[1], guessed.tree.tokens.shape[1])

    def chosen(copy: Int[Tensor, "batch _"], other: Int[Tensor, "batch _"]) -> Int[Tensor, "batch nodes"]:
        first, second = (pad(part.to(device), (0, width - part.shape[1]), value=-1) for part in (copy, other))
        return torch.where(rows[:, None], first, second)

    tokens, parents = (
        chosen(getattr(copies.tree, part), getattr(guessed.tree, part)) for part in ("tokens", "parents")
    )
    tree = DraftTree(tokens, parents, torch.where(rows, copies.tree.num_nodes.to(device), guessed.tree.num_nodes))
    if guessed.draft_probs is None:
        return Proposal(tree)
    laws = pad(guessed.draft_probs, (0, 0, 0, 1 + width - guessed.draft_probs.shape[1]))
    return Proposal(tree, torch.where(rows[:, None, None], _sure(tree, laws), laws))


def _sure(tree: DraftTree, like: Float[Tensor, "batch rows vocab"]) -> Float[Tensor, "batch rows vocab"]:
    """The laws of chains that could not have been others: all of a row is on the token behind it."""
    tokens = tree.tokens.clamp(min=0)[..., None]
    return torch.zeros_like(like).scatter_(2, tokens, tree.real.to(like.dtype)[..., None])


def _own(state: DraftState) -> EitherState:
    if not isinstance(state, EitherState):
        raise TypeError(f"two drafters were given the state of another one: {type(state).__name__}")
    return state
