"""Fills a budget with a draft tree, depth by depth: the most probable children, or children that are drawn.

Knows nothing of the model that is asked: it looks once a depth, and gets logits for the root and every node so far.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import pad

from outpace.drafters.budget import Budget
from outpace.drafters.drafter import Proposal, Rates
from outpace.models.target import padded, take
from outpace.verification.coins import Keys
from outpace.verification.matching import candidates, race
from outpace.verification.probabilities import Sampling, batch_probability_rows, draw, unusable_rows
from outpace.verification.shape import StaticShape, static_tree
from outpace.verification.tree import ABSENT, DraftTree, Growth, grow_top_k, grow_top_p

Look = Callable[[DraftTree], Float[Tensor, "batch rows vocab"]]
"""The draft model's raw logits after the root (row 0) and after every node (row 1 + i), in target ids."""

BEAM = 8
"""So many nodes of a depth get children at most: each further one would cost a row of the vocabulary, for little."""

TAKEN = 0.6
"""Assumed for the shape of a sampled tree: each child in turn is the right one with this chance, if none before was."""


# ---- children by rank ----------------------------------------------------------------------------------------------


def ranked_tree(look: Look, budget: Budget, samplings: Sequence[Sampling], ends: frozenset[int]) -> Proposal:
    """Deterministic children, ``top-k`` or ``top-p``; of all nodes the heaviest that the budget allows.

    A node weighs the product of the draft's probabilities along its path. At each depth the heaviest nodes get
    children, and all but the heaviest nodes of the whole tree are dropped: what is dropped, or would hang below it,
    could not come back. Choosing by tokens is exact, since no token here was drawn. A greedy row ranks by the softmax
    of the raw logits: its warped law is one-hot, and a second child would never be proposed.

    Args:
        look: asked once a depth, first for the root alone.
        budget: at least one row may draft.
        samplings: of every row.
        ends: tokens that get no children.

    Returns:
        A proposal without laws; its logits are right for every row that has children and for those before it.

    Source: the dynamic tree of EAGLE-2 (Li et al., arXiv 2406.16858).
    """
    kinds = [Sampling(1.0) if one.greedy else one for one in samplings]
    logits, broken = _usable(look(DraftTree.empty(len(kinds))))
    depths, most, final = (_ids(part, logits) for part in (budget.depths, budget.nodes, sorted(ends)))
    looked = tree = DraftTree.empty(len(kinds), logits.device)
    frontier = torch.full_like(depths, -1).where((depths > 0) & (most > 0), ABSENT)[:, None]
    weights = torch.empty((len(kinds), 0), dtype=torch.float64, device=logits.device)
    reach = weights.new_ones(frontier.shape)
    for depth in range(1, max(budget.depths) + 1):
        probs, frontier = _laws(logits, broken, frontier, kinds)
        scored, growth = looked.num_nodes, _best_children(tree, frontier, probs, budget)
        weights = _weigh(growth, weights, reach)
        # Products of a path fall, so that no node here outweighs its parent.
        tree, order = _only(growth.tree, growth.tree.heaviest(weights, most))
        weights = weights.gather(1, order)
        levels = tree.depths()
        expand = (levels == depth) & (depths > depth)[:, None] & ~torch.isin(tree.tokens, final)
        reach, frontier = weights.where(expand, 0).topk(min(BEAM, weights.shape[1]), dim=1)
        frontier = frontier.where(reach > 0, ABSENT)
        if not bool((frontier > ABSENT).any()):
            break
        looked = _above(tree, levels, depths)
        logits, broken = _usable(look(looked))
    return Proposal(tree, None, _shown(logits, order, scored))


def _best_children(
    tree: DraftTree, frontier: Int[Tensor, "batch width"], probs: Float[Tensor, "batch width vocab"], budget: Budget
) -> Growth:
    """The next children of every frontier node; more than the tree may have nodes can never stay."""
    width, cap = budget.branching.width, max(budget.nodes)
    if budget.branching.kind == "top-k":
        return grow_top_k(tree, frontier, probs, min(int(width), cap))
    return grow_top_p(tree, frontier, probs, width, cap)


def _weigh(
    growth: Growth, weights: Float[Tensor, "batch old"], reach: Float[Tensor, "batch width"]
) -> Float[Tensor, "batch nodes"]:
    """The weights of all nodes, those of the new ones by what their parents weigh."""
    nodes = growth.tree.tokens.shape[1]
    gained = reach.repeat_interleave(growth.probs.shape[1] // reach.shape[1], 1) * growth.probs
    column = growth.nodes.where(growth.nodes >= 0, nodes)  # one column too many collects what was not taken
    return pad(weights, (0, nodes + 1 - weights.shape[1])).scatter(1, column, gained)[:, :nodes]


# ---- children that are drawn ---------------------------------------------------------------------------------------


def sampled_tree(
    look: Look, budget: Budget, samplings: Sequence[Sampling], keys: Keys, ends: frozenset[int]
) -> Proposal:
    """Children drawn from the draft's law, siblings without replacement, in a shape that no draw can change.

    The shape is the static tree for children of which each in turn is right with chance ``TAKEN``. Left out of it are
    the children of an end-of-text token and of a row that is no law, and siblings for whom the law has nothing left:
    all known before the token is drawn. So a greedy row has one child a node, its argmax.

    A coupled row draws by racing with the very noise of the target at that position, and its siblings are those who
    come in next. Drawn so, they follow the same law; but what judges such a row asks for no law.

    Args:
        look: asked once a depth, first for the root alone.
        budget: at least one row may draft.
        samplings, keys: of every row.
        ends: tokens that get no children.

    Returns:
        A proposal with laws, or without where every row is greedy or coupled, as nobody asks for them there. A node
        without children has a row of zeros.

    Source: Sequoia (Chen et al., arXiv 2402.12374) for the tree; Daliri et al., arXiv 2408.07978, for the race.
    """
    width = int(budget.branching.width)
    shapes = [
        sampled_shape(width, nodes if depth else 0, depth)
        for depth, nodes in zip(budget.depths, budget.nodes, strict=True)
    ]
    logits, broken = _usable(look(DraftTree.empty(len(shapes))))
    slots = _Slots.of(shapes, _ids(budget.depths, logits))
    coins = keys.coins("draft", slots.count, logits.device)
    decided = all(one.greedy or coupled for one, coupled in zip(samplings, keys.coupled, strict=True))
    scored = slots.above(1)
    laws: Tensor | None = None
    for depth in range(1, int(slots.levels.amax()) + 1):
        families = slots.families(shapes, depth, _ids(sorted(ends), logits))
        if not bool((families.parents > ABSENT).any()):
            break
        if depth > 1:
            scored = slots.above(depth)
            logits, broken = _usable(look(scored))
        probs, parents = _laws(logits, broken, families.parents, samplings)
        if not decided:
            laws = probs.new_zeros(len(shapes), 1 + slots.count, probs.shape[2]) if laws is None else laws
            row, place = (parents > ABSENT).nonzero(as_tuple=True)
            laws[row, parents[row, place] + 1] = probs[row, place]
        slots.put(families.children, *_draw(probs, _Families(parents, families.children), coins, keys, depth))
    tree, order = _only(slots.tree, slots.alive)
    if laws is not None and not torch.equal(slots.alive, slots.levels > 0):
        laws = take(laws, pad(order + 1, (1, 0)))
    return Proposal(tree, laws, _shown(logits, order, scored.num_nodes))


@lru_cache(maxsize=256)
def sampled_shape(width: int, nodes: int, depth: int) -> StaticShape:
    """The shape of a sampled tree with at most ``width`` children a node, before anything is left out of it."""
    return static_tree([TAKEN * (1 - TAKEN) ** rank for rank in range(width)], nodes, depth)


@dataclass(frozen=True)
class _Families:
    """Nodes with their children of one depth: ``ABSENT`` for no node, -1 for no child."""

    parents: Int[Tensor, "batch width"]
    children: Int[Tensor, "batch width ranks"]


@dataclass
class _Slots:
    """The places of a static shape a row, and the tokens that have been drawn for them; 0 where there is none.

    Shapes stand depth by depth, so that the nodes above a depth are the first ones of each row.
    """

    limits: Int[Tensor, " batch"]
    parents: Int[Tensor, "batch slots"]
    levels: Int[Tensor, "batch slots"]
    tokens: Int[Tensor, "batch slots"]
    alive: Bool[Tensor, "batch slots"]

    @classmethod
    def of(cls, shapes: Sequence[StaticShape], limits: Int[Tensor, " batch"]) -> "_Slots":
        parents = padded([list(shape.parents) for shape in shapes], -1).to(limits.device)
        levels = padded([list(shape.depths) for shape in shapes], 0).to(limits.device)
        return cls(limits, parents, levels, torch.zeros_like(parents), torch.zeros_like(parents, dtype=torch.bool))

    @property
    def count(self) -> int:
        return self.parents.shape[1]

    @property
    def tree(self) -> DraftTree:
        """All places."""
        return _above(self, self.levels, self.limits + 1)

    def above(self, depth: int) -> DraftTree:
        """The places above a depth, and above the last one that their row may have."""
        return _above(self, self.levels, self.limits.clamp(max=depth))

    def families(self, shapes: Sequence[StaticShape], depth: int, ends: Int[Tensor, " ends"]) -> _Families:
        """The places of a depth by parent and rank; a parent that was not drawn, or ends the text, is absent."""
        rows: list[dict[int, list[int]]] = [{} for _ in shapes]
        for own, shape in zip(rows, shapes, strict=True):
            for node, (parent, level) in enumerate(zip(shape.parents, shape.depths, strict=True)):
                if level == depth:
                    own.setdefault(parent, []).append(node)
        width = max(map(len, rows))
        ranks = max(len(children) for own in rows for children in own.values())
        children = [[one + [-1] * (ranks - len(one)) for one in [*own.values(), *[[]] * width][:width]] for own in rows]
        parents = padded([list(own) for own in rows], ABSENT).to(self.tokens.device)
        at = (parents + 1).clamp(min=0)
        drawn = pad(self.alive, (1, 0), value=True).gather(1, at)
        goes_on = drawn & ~torch.isin(pad(self.tokens, (1, 0), value=-1).gather(1, at), ends)
        return _Families(parents.where(goes_on, ABSENT), _ids(children, self.tokens))

    def put(
        self,
        places: Int[Tensor, "batch width ranks"],
        tokens: Int[Tensor, "batch width ranks"],
        drawn: Bool[Tensor, "batch width ranks"],
    ) -> None:
        """Fill places with the tokens that were drawn for them."""
        column = places.where(drawn, self.count).flatten(1)  # one column too many collects the rest, and is cut off
        self.tokens = pad(self.tokens, (0, 1)).scatter(1, column, tokens.flatten(1))[:, :-1]
        self.alive = pad(self.alive, (0, 1)).scatter(1, column, True)[:, :-1]


def _draw(
    left: Float[Tensor, "batch width vocab"],
    families: _Families,
    coins: Float[Tensor, "batch slots"],
    keys: Keys,
    depth: int,
) -> tuple[Int[Tensor, "batch width ranks"], Bool[Tensor, "batch width ranks"]]:
    """Tokens for the children of every node, rank by rank, and which of them the law had a token for.

    Args:
        left: the laws; what is drawn is taken out of them.
        coins: one for each place.
        depth: of the children.
    """
    clock = None
    if any(keys.coupled):
        ids = candidates(left)
        clock = ids, keys.noise(torch.full(families.parents.shape, depth - 1, device=left.device), ids)
    coupled = torch.tensor(keys.coupled, device=left.device)[:, None]
    tokens, drawn = torch.zeros_like(families.children), torch.zeros_like(families.children, dtype=torch.bool)
    for rank in range(tokens.shape[2]):
        place = families.children[:, :, rank]
        drawn[:, :, rank] = (place >= 0) & (families.parents > ABSENT) & (left.sum(-1) > 0)
        token = draw(left, coins.gather(1, place.clamp(min=0)))  # of a law with nothing left: no matter what
        if clock is not None:
            ids, noise = clock
            token = race(left, ids, noise.times, noise.tail_times, noise.tail_coins).where(coupled, token)
        tokens[:, :, rank] = token
        left.scatter_(2, token[..., None], 0)
    return tokens, drawn


# ---- children by rank in a shape that stands -----------------------------------------------------------------------


def shaped_tree(look: Look, budget: Budget, rates: Rates, ends: frozenset[int]) -> Proposal:
    """Deterministic children in the best static tree for these rates: the place of rank r has the draft's r-th best.

    The shape of a row depends on its budget alone. Left out of it are the children of an end-of-text token and of a row
    that is no law, and ranks that the vocabulary has no token for. Ranks are those of the raw logits: no warp would
    change them, so no law is computed.

    Args:
        look: asked once a depth, first for the root alone.
        budget: at least one row may draft.
        rates: how often the child of each rank is the right one; above 0 and never rising, at least one. No node stands
            deeper than rates by depth reach.
        ends: tokens that get no children.

    Returns:
        A proposal without laws; its logits are right for every row that has children and for those before it.

    Source: Sequoia (Chen et al., arXiv 2402.12374).
    """
    shapes = [
        static_shape(rates, nodes if depth else 0, depth)
        for depth, nodes in zip(budget.depths, budget.nodes, strict=True)
    ]
    logits, broken = _usable(look(DraftTree.empty(len(shapes))))
    slots = _Slots.of(shapes, _ids(budget.depths, logits))
    scored, final = slots.above(1), _ids(sorted(ends), logits)
    for depth in range(1, int(slots.levels.amax()) + 1):
        families = slots.families(shapes, depth, final)
        if not bool((families.parents > ABSENT).any()):
            break
        if depth > 1:
            scored = slots.above(depth)
            logits, broken = _usable(look(scored))
        slots.put(families.children, *_best(logits, broken, families))
    tree, order = _only(slots.tree, slots.alive)
    return Proposal(tree, None, _shown(logits, order, scored.num_nodes))


@lru_cache(maxsize=256)
def static_shape(rates: Rates, nodes: int, depth: int) -> StaticShape:
    """The shape of a static tree before anything is left out of it."""
    by_depth = isinstance(rates[0], tuple)
    return static_tree(rates, nodes, min(depth, len(rates)) if by_depth else depth)


def _best(
    logits: Float[Tensor, "batch rows vocab"], broken: Bool[Tensor, "batch rows"], families: _Families
) -> tuple[Int[Tensor, "batch width ranks"], Bool[Tensor, "batch width ranks"]]:
    """The tokens of the largest logits for the children of every node, and which of them there are."""
    at, ranks = (families.parents + 1).clamp(min=0), families.children.shape[2]
    best = take(logits, at).topk(min(ranks, logits.shape[2]), dim=2)
    spare = (0, ranks - best.indices.shape[2])
    usable = (families.parents > ABSENT) & ~broken.gather(1, at)
    there = usable[..., None] & (families.children >= 0) & (pad(best.values, spare, value=-torch.inf) > -torch.inf)
    return pad(best.indices, spare), there


# ---- all -----------------------------------------------------------------------------------------------------------


def _ids(numbers: Sequence[object], beside: Tensor) -> Int[Tensor, "*shape"]:
    return torch.tensor(numbers, dtype=torch.int64, device=beside.device)


def _usable(
    logits: Float[Tensor, "batch rows vocab"],
) -> tuple[Float[Tensor, "batch rows vocab"], Bool[Tensor, "batch rows"]]:
    """The logits with zeros where a row is no law, and which rows those are."""
    broken = unusable_rows(logits)
    return (logits.masked_fill(broken[..., None], 0.0) if bool(broken.any()) else logits), broken


def _laws(
    logits: Float[Tensor, "batch rows vocab"],
    broken: Bool[Tensor, "batch rows"],
    nodes: Int[Tensor, "batch width"],
    samplings: Sequence[Sampling],
) -> tuple[Float[Tensor, "batch width vocab"], Int[Tensor, "batch width"]]:
    """The law at each of some nodes, and the nodes, ``ABSENT`` where there is none."""
    at = (nodes + 1).clamp(min=0)
    return batch_probability_rows(take(logits, at), samplings), nodes.where(~broken.gather(1, at), ABSENT)


def _above(nodes: "DraftTree | _Slots", levels: Int[Tensor, "batch nodes"], depths: Int[Tensor, " batch"]) -> DraftTree:
    """The nodes that stand above a depth, one depth a row: the first nodes of each, as they stand depth by depth.

    Nodes at the last depth of a row are never looked at: the draft model may have no position for them.
    """
    counts = ((levels > 0) & (levels < depths[:, None])).sum(1)
    width = max(counts.tolist())
    real = torch.arange(width, device=counts.device) < counts[:, None]
    return DraftTree(nodes.tokens[:, :width].where(real, -1), nodes.parents[:, :width].where(real, -1), counts)


def _only(tree: DraftTree, keep: Bool[Tensor, "batch nodes"]) -> tuple[DraftTree, Int[Tensor, "batch kept"]]:
    """The kept nodes as a tree, and the old index of each; behind the real ones these mean nothing."""
    kept = tree.prune(keep)
    return kept, keep.long().argsort(dim=1, descending=True, stable=True)[:, : kept.tokens.shape[1]]


def _shown(
    logits: Float[Tensor, "batch rows vocab"], order: Int[Tensor, "batch nodes"], scored: Int[Tensor, " batch"]
) -> Float[Tensor, "batch nodes_and_root vocab"]:
    """Raw logits row by row of the final tree; the root's stand in for leaves that were never looked at."""
    return take(logits, pad((order + 1).where(order < scored[:, None], 0), (1, 0)))
