"""The exact law of any shipped rule by enumeration: of its output, and of its sampler.

Knows nothing of models that compute: target and drafter are tables with one row for every prefix. No rule is written a
second time here: the law under proof is the one that the rule itself exposes.

Prefixes are numbered as in a heap: the empty one is 0, and ``prefix + (token,)`` is ``1 + vocab * number + token``, so
that all prefixes of one length stand together and walking down a tree is arithmetic.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import pad

from outpace.verification.tree import DraftTree
from outpace.verification.verdict import DraftRows, Rule, TargetRows


def count_prefixes(vocab: int, length: int) -> int:
    """How many prefixes there are of at most this length: where prefixes of length + 1 begin."""
    return sum(vocab**size for size in range(length + 1))


def tree_shapes(nodes: int, max_children: int) -> list[tuple[int, ...]]:
    """The parents of every ordered tree of that many nodes, numbered breadth first."""
    shapes: list[tuple[int, ...]] = [()]
    for node in range(nodes):
        shapes = [
            (*shape, parent)
            for shape in shapes
            for parent in range(shape[-1] if shape else -1, node)
            if shape.count(parent) < max_children
        ]
    return shapes


@dataclass(frozen=True)
class Table:
    """A language model as a table: the law of the next token after every prefix up to some length."""

    rows: Float[Tensor, "prefixes vocab"]

    @classmethod
    def of(cls, model: Callable[[tuple[int, ...]], Float[Tensor, " vocab"]], vocab: int, length: int) -> "Table":
        """Ask a model once for every prefix of at most ``length`` tokens."""
        prefixes: list[tuple[int, ...]] = [()]
        for number in range(count_prefixes(vocab, length) - 1):
            parent, token = divmod(number, vocab)
            prefixes.append((*prefixes[parent], token))
        return cls(torch.stack([model(prefix) for prefix in prefixes]))

    @property
    def vocab(self) -> int:
        return self.rows.shape[1]

    def after(self, prefixes: Int[Tensor, "..."], tokens: Int[Tensor, "..."]) -> Int[Tensor, "..."]:
        """The numbers of prefixes that are one token longer."""
        return 1 + self.vocab * prefixes + tokens

    def joint(self, length: int) -> Float[Tensor, " sequences"]:
        """The law of the first ``length`` tokens, sequences in order of their numbers."""
        start = self.rows.new_zeros(count_prefixes(self.vocab, length))
        start[0] = 1
        return self.complete(start, length)

    def complete(self, mass: Float[Tensor, " prefixes"], length: int) -> Float[Tensor, " sequences"]:
        """Let this model continue what stands at shorter prefixes, up to ``length`` tokens."""
        mass, begin = mass.clone(), 0
        for size in range(length):
            end = begin + self.vocab**size
            longer = slice(end, end + self.vocab ** (size + 1))
            mass[longer] += (mass[begin:end, None] * self.rows[begin:end]).flatten()
            begin = end
        return mass[begin:]


@dataclass(frozen=True)
class Drafts:
    """Every draft that can happen after some prefixes.

    Args:
        tree: one draft a row.
        draft_probs: what the drafter says it drew from, as in a proposal.
        chances: how probably this row's draft happens, given where it starts.
        places: the prefix at the root (column 0) and at every node (column 1 + i).
        origins: which of the starting prefixes the row belongs to.
    """

    tree: DraftTree
    draft_probs: DraftRows
    chances: Float[Tensor, " batch"]
    places: Int[Tensor, "batch rows"]
    origins: Int[Tensor, " batch"]


Drafting = Callable[[Int[Tensor, " starts"]], Drafts]
"""All drafts after each of some prefixes, given by their numbers."""


def sampled(draft: Table, parents: Sequence[int]) -> Drafting:
    """Children drawn from the draft's law, siblings without replacement; a chain is ``(-1, 0, 1, ...)``.

    Where siblings have used up what the law can draw, token 0 fills the place: rules must count it as not drafted.
    """
    return partial(_sample, draft, parents)


def ranked(draft: Table, parents: Sequence[int]) -> Drafting:
    """Deterministic children: sibling number r is the token of rank r of the draft's law."""
    ranks = [sum(other == parent for other in parents[:node]) for node, parent in enumerate(parents)]
    order = draft.rows.argsort(dim=1, descending=True, stable=True)
    return partial(_choose, draft, parents, lambda node, places: order[places, ranks[node]])


def fixed(target: Table, parents: Sequence[int], tokens: Sequence[int]) -> Drafting:
    """The same tokens after any prefix; siblings may repeat each other."""
    return partial(_choose, target, parents, lambda node, places: torch.full_like(places, tokens[node]))


def _sample(draft: Table, parents: Sequence[int], starts: Int[Tensor, " starts"]) -> Drafts:
    tokens, places = starts.new_empty((len(starts), 0)), starts[:, None]
    chances, origins = draft.rows.new_ones(len(starts)), torch.arange(len(starts))
    for node, parent in enumerate(parents):
        law = draft.rows[places[:, parent + 1]]
        for sibling in (other for other in range(node) if parents[other] == parent):
            law = law.scatter(1, tokens[:, sibling, None], 0)
        law[law.sum(1) == 0, 0] = 1
        law = law / law.sum(1, keepdim=True)
        row, token = law.nonzero(as_tuple=True)  # one row becomes one for every token that can be next
        chances, origins, tokens, places = chances[row] * law[row, token], origins[row], tokens[row], places[row]
        tokens = torch.cat([tokens, token[:, None]], 1)
        places = torch.cat([places, draft.after(places[:, parent + 1], token)[:, None]], 1)
    return Drafts(_tree(tokens, parents), draft.rows[places], chances, places, origins)


def _choose(
    table: Table,
    parents: Sequence[int],
    choice: Callable[[int, Tensor], Tensor],
    starts: Int[Tensor, " starts"],
) -> Drafts:
    tokens, places = starts.new_empty((len(starts), 0)), starts[:, None]
    for node, parent in enumerate(parents):
        token = choice(node, places[:, parent + 1])
        tokens = torch.cat([tokens, token[:, None]], 1)
        places = torch.cat([places, table.after(places[:, parent + 1], token)[:, None]], 1)
    return Drafts(_tree(tokens, parents), None, table.rows.new_ones(len(starts)), places, torch.arange(len(starts)))


def _tree(tokens: Int[Tensor, "batch nodes"], parents: Sequence[int]) -> DraftTree:
    shape = torch.tensor(parents, dtype=torch.int64).expand_as(tokens)
    return DraftTree(tokens, shape, torch.full((len(tokens),), len(parents)))


def one_turn(
    rule: Rule, target: Table, drafting: Drafting, mass: Float[Tensor, " prefixes"]
) -> Float[Tensor, " prefixes"]:
    """Where a turn leads: the mass at every prefix after it, given the mass before it."""
    starts = mass.nonzero()[:, 0]
    drafts = drafting(starts)
    law = rule.law(target.rows[drafts.places], drafts.tree, drafts.draft_probs)
    emitted = target.after(drafts.places[..., None], torch.arange(target.vocab))
    law = law * (drafts.chances * mass[starts][drafts.origins])[:, None, None]
    return torch.zeros_like(mass).index_add(0, emitted.flatten(), law.flatten())


def output_law(
    rule: Rule, target: Table, drafting: Drafting, length: int, turns: int = 1
) -> Float[Tensor, " sequences"]:
    """The exact law of the first ``length`` tokens when ``turns`` turns are judged by a rule and the target goes on.

    Lossless means that this equals ``target.joint(length)``.

    Args:
        length: at least as many tokens as these turns can emit, and no more than the tables reach.
    """
    mass = target.rows.new_zeros(count_prefixes(target.vocab, length))
    mass[0] = 1
    for _ in range(turns):
        mass = one_turn(rule, target, drafting, mass)
    return target.complete(mass, length)


def total_variation(left: Float[Tensor, " outcomes"], right: Float[Tensor, " outcomes"]) -> float:
    """Half the sum of absolute differences: the largest difference in the probability of any event."""
    return (left - right).abs().sum().item() / 2


def expected_tokens(rule: Rule, target: Table, drafting: Drafting) -> float:
    """How many tokens the first turn emits on average: the accepted ones and the one that follows."""
    drafts = drafting(torch.zeros(1, dtype=torch.int64))
    ends = rule.law(target.rows[drafts.places], drafts.tree, drafts.draft_probs).sum(-1)
    emitted = 1 + pad(drafts.tree.depths(), (1, 0))
    return (drafts.chances[:, None] * ends * emitted).sum().item()


LAST_COIN = 1 - 2.0**-53
"""The largest coin there is."""


@dataclass(frozen=True)
class SamplerMap:
    """What a rule's sampler does with every possible set of coins, for one row of given probabilities.

    Args:
        law: the volume of the coins that lead to each outcome, as the rule's own law is laid out.
        breakpoints: for every coin the values at which some outcome changes, rising, with 0 first and 1 last.
    """

    law: Float[Tensor, "rows vocab"]
    breakpoints: tuple[Float[Tensor, " _"], ...]


def outcomes(
    rule: Rule,
    target_probs: TargetRows,
    tree: DraftTree,
    draft_probs: DraftRows,
    coins: Float[Tensor, "trials rows"],
) -> Int[Tensor, " trials"]:
    """``end row * vocab + next token`` for every row of coins, of one draft (batch 1)."""
    trials, (_, rows, vocab) = len(coins), target_probs.shape
    many = DraftTree(*(part.expand(trials, *part.shape[1:]) for part in (tree.tokens, tree.parents, tree.num_nodes)))
    law = None if draft_probs is None else draft_probs.expand(trials, rows, vocab)
    verdict = rule.judge(target_probs.expand(trials, rows, vocab), many, law, coins)
    ends = pad(verdict.path + 1, (1, 0)).amax(1)  # nodes rise along a path, and the root is row 0
    return ends * vocab + verdict.next_token


def map_sampler(rule: Rule, target_probs: TargetRows, tree: DraftTree, draft_probs: DraftRows) -> SamplerMap:
    """Measure the sampler itself: find every breakpoint of every coin, then ask once in each cell between them.

    The sampler is a black box that must be piecewise constant on boxes and, along one coin, must not return to an
    outcome that it has left: so holds for every threshold and every inversion of a cumulative law. Breakpoints are
    found by bisection along lines through the middles of the cells known so far, until no line shows a new one.

    Args:
        target_probs: of one draft (batch 1), with at most about three nodes: the number of cells is a product.
    """
    rows, vocab = target_probs.shape[1:]

    def ask(coins: Float[Tensor, "trials coins"]) -> Int[Tensor, " trials"]:
        return outcomes(rule, target_probs, tree, draft_probs, coins)

    breaks = [torch.tensor([0.0, 1.0], dtype=torch.float64) for _ in range(rows)]
    found = True
    while found:
        middles = [(axis[1:] + axis[:-1]) / 2 for axis in breaks]
        changes = [_bisect(ask, *_segments(breaks, middles, axis), axis) for axis in range(rows)]
        breaks = [_merge(old, new) for old, new in zip(breaks, changes, strict=True)]
        found = any(len(new) for new in changes)
    widths = torch.cartesian_prod(*(axis.diff() for axis in breaks)).reshape(-1, rows).prod(1)
    cells = torch.cartesian_prod(*middles).reshape(-1, rows)
    law = torch.zeros(rows * vocab, dtype=torch.float64).index_add(0, ask(cells), widths)
    return SamplerMap(law.reshape(rows, vocab), tuple(breaks))


NEAR = 1e-12
"""Breakpoints nearer than this count as one."""


def _segments(
    breaks: list[Float[Tensor, " _"]], middles: list[Float[Tensor, " _"]], axis: int
) -> tuple[Float[Tensor, "segments coins"], Float[Tensor, "segments coins"]]:
    """Both ends of every line along an axis through a known cell, just inside the cell."""
    low, high = breaks[axis][:-1] + NEAR, breaks[axis][1:] - NEAR
    low[0], high[-1] = 0, LAST_COIN
    ends = ((*middles[:axis], side, *middles[axis + 1 :]) for side in (low, high))
    first, last = (torch.cartesian_prod(*end).reshape(-1, len(middles)) for end in ends)
    return first, last


def _bisect(
    ask: Callable[[Tensor], Int[Tensor, " trials"]],
    low: Float[Tensor, "segments coins"],
    high: Float[Tensor, "segments coins"],
    axis: int,
) -> Float[Tensor, " found"]:
    """Every coin along an axis at which the outcome changes in some segment, to the last bit."""
    below, above = ask(low), ask(high)
    for _ in range(53):
        split = below != above
        low, high, below, above = (part[split] for part in (low, high, below, above))
        if len(low) == 0:
            break
        middle = (low + high) / 2
        between = ask(middle)
        low, high = torch.cat([low, middle]), torch.cat([middle, high])
        below, above = torch.cat([below, between]), torch.cat([between, above])
    return high[below != above, axis]


def _merge(old: Float[Tensor, " old"], new: Float[Tensor, " new"]) -> Float[Tensor, " merged"]:
    """Both in rising order; what differs by rounding is one."""
    merged = torch.cat([old, new]).sort().values
    apart = merged.diff() > NEAR
    return merged[torch.cat([torch.ones(1, dtype=torch.bool), apart])]
