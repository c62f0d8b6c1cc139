"""Fills a budget with a draft tree, depth by depth: the most probable children, or children that are drawn.

Knows nothing of the model that is asked: it looks once a depth, at the nodes that get children there. While a tree
grows it is plain numbers: a depth is one operation or two on all its logits, and then a few choices.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import count

import torch
from jaxtyping import Float, Int
from torch import Tensor

from outpace.drafters.budget import Budget
from outpace.drafters.drafter import Proposal, Rates
from outpace.models.target import padded, take
from outpace.verification.coins import Keys
from outpace.verification.matching import candidates, race
from outpace.verification.probabilities import Sampling, batch_probability_rows, draw_apart, unusable_rows
from outpace.verification.shape import StaticShape, static_tree
from outpace.verification.tree import DraftTree

BEAM = 8
"""So many nodes of a depth get children at most: each further one would cost a row of the vocabulary, for little."""

TAKEN = 0.6
"""Assumed for the shape of a sampled tree: each child in turn is the right one with this chance, if none before was."""

Branches = tuple[list[int], list[int]]
"""A row while it grows: tokens and parents. A node keeps its number, whatever becomes of the others."""

Families = dict[int, list[int]]
"""Nodes of one depth with their children, elder ones first."""

Chosen = list[list[list[int]]]
"""Tokens for the children of every family of a row, each row in turn: fewer where the law has none left."""

Choose = Callable[[int, Tensor, Sequence[Families]], Chosen]
"""Of the depth of some nodes, the logits after them, and their families."""


Look = Callable[[int, Sequence[Branches], Sequence[Sequence[int]]], Float[Tensor, "batch width vocab"]]
"""A draft model, asked once a depth: of that depth, the rows, and nodes of each, -1 for the root, it gives the raw
logits after these nodes, in the order given; behind them may stand anything.

Some row has a node. The parents were asked for one depth before.
"""


def some(grown: Sequence[Branches], nodes: Sequence[Sequence[int]], device: torch.device | None = None) -> DraftTree:
    """Some nodes of every row as a tree, in the order given: parents among them, and before their children."""
    tokens, parents = [], []
    for (own_tokens, own_parents), own in zip(grown, nodes, strict=True):
        index = {-1: -1} | {node: place for place, node in enumerate(own)}
        tokens.append([own_tokens[node] for node in own])
        parents.append([index[own_parents[node]] for node in own])
    counts = torch.tensor([len(own) for own in nodes], dtype=torch.int64, device=device)
    return DraftTree(padded(tokens, -1).to(device), padded(parents, -1).to(device), counts)


def ancestry(row: Branches, nodes: Sequence[int]) -> list[int]:
    """Some nodes and all above them, in the order of their numbers."""
    found = set(nodes)
    for node in nodes:
        while (node := row[1][node]) >= 0 and node not in found:
            found.add(node)
    return sorted(found)


class _Growth:
    """The rows of a batch, and the logits after every node that was looked at."""

    def __init__(self, look: Look, grown: list[Branches]) -> None:
        self.ask, self.grown = look, grown
        self.logits: list[Tensor] = []
        self.places: list[dict[int, int]] = [{} for _ in grown]

    def look(self, nodes: list[list[int]]) -> Float[Tensor, "batch width vocab"]:
        """The logits after nodes one depth further down."""
        before = sum(part.shape[1] for part in self.logits)
        self.logits.append(self.ask(len(self.logits), self.grown, nodes))
        for places, own in zip(self.places, nodes, strict=True):
            places.update(zip(own, count(before), strict=False))
        return self.logits[-1]

    def proposal(self, kept: list[list[int]], laws: Sequence[Tensor] = ()) -> Proposal:
        """The nodes that stay, in the order of their numbers; ``laws`` are those of each look, if anybody asks."""
        if not self.logits:
            return Proposal(DraftTree.empty(len(kept)))
        logits = torch.cat(self.logits, 1)
        logits = _silenced(logits, logits)
        tree, drawn = some(self.grown, kept, logits.device), None
        if laws:
            nothing = laws[0].new_zeros(len(kept), 1, laws[0].shape[2])
            drawn = take(torch.cat((*laws, nothing), 1), self._places(kept, logits.shape[1]))
        return Proposal(tree, drawn, take(logits, self._places(kept, 0)))

    def _places(self, kept: list[list[int]], filler: int) -> Int[Tensor, "batch nodes_and_root"]:
        """Where the rows of the root and of some nodes stand; for those that were not looked at, the filler."""
        rows = zip(self.places, kept, strict=True)
        return padded([[own.get(node, filler) for node in (-1, *nodes)] for own, nodes in rows], filler)


# ---- children by rank ----------------------------------------------------------------------------------------------


def ranked_tree(look: Look, budget: Budget, samplings: Sequence[Sampling], ends: frozenset[int]) -> Proposal:
    """Deterministic children, ``top-k`` or ``top-p``; of all nodes the heaviest that the budget allows.

    A node weighs the product of the draft's probabilities along its path. At each depth the heaviest nodes get
    children, and all but the heaviest nodes of the whole tree are dropped, of equals the later ones: what is dropped,
    or would hang below it, could not come back. Choosing by tokens is exact, since no token here was drawn. A greedy
    row ranks by the softmax of the raw logits: its warped law is one-hot, and a second child would never be proposed.

    Args:
        look: asked once a depth, first for the root alone.
        budget: at least one row may draft.
        samplings: of every row.
        ends: tokens that get no children.

    Returns:
        A proposal without laws; its logits are right for every row that has children.

    Source: the dynamic tree of EAGLE-2 (Li et al., arXiv 2406.16858).
    """
    kinds = [Sampling(1.0) if one.greedy else one for one in samplings]
    growth = _Growth(look, [([], []) for _ in kinds])
    weights: list[list[float]] = [[] for _ in kinds]
    kept: list[list[int]] = [[] for _ in kinds]
    width, most = budget.branching.width, max(budget.nodes)
    # More children than the tree may have nodes can never stay.
    ranks, mass = (min(int(width), most), math.inf) if budget.branching.kind == "top-k" else (most, width)
    frontier = [[-1] if depth and nodes else [] for depth, nodes in zip(budget.depths, budget.nodes, strict=True)]
    for depth in range(1, max(budget.depths) + 1):
        if not any(frontier):
            break
        probs = batch_probability_rows(growth.look(frontier), kinds)
        values, ids = (part.tolist() for part in probs.topk(min(ranks, probs.shape[2]), dim=2))
        for row, (tokens, parents) in enumerate(growth.grown):
            own, old = weights[row], len(tokens)
            for node, shares, children in zip(frontier[row], values[row], ids[row], strict=False):
                for token, prob in _reaching(mass, shares, children):
                    tokens.append(token)
                    parents.append(node)
                    own.append(prob * (own[node] if node >= 0 else 1.0))
            # Products of a path fall, so that no node here outweighs its parent.
            ranked = sorted([*kept[row], *range(old, len(tokens))], key=lambda node: -own[node])[: budget.nodes[row]]
            going = depth < budget.depths[row]
            frontier[row] = [node for node in ranked if going and node >= old and tokens[node] not in ends][:BEAM]
            kept[row] = sorted(ranked)
    return growth.proposal(kept)


def _reaching(mass: float, probs: list[float], tokens: list[int]) -> Iterator[tuple[int, float]]:
    """The most probable tokens until their mass is reached; none of a row that is no law, whose best is a NaN."""
    reached = 0.0
    for token, prob in zip(tokens, probs, strict=True):
        if not prob > 0 or reached >= mass:
            return
        reached += prob
        yield token, prob


# ---- children in a shape that stands -------------------------------------------------------------------------------


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
    coins = keys.coins("draft", max(len(shape.parents) for shape in shapes)).tolist()
    decided = all(one.greedy or coupled for one, coupled in zip(samplings, keys.coupled, strict=True))
    laws: list[Tensor] = []

    def drawn(depth: int, logits: Float[Tensor, "batch width vocab"], families: Sequence[Families]) -> Chosen:
        probs = _silenced(batch_probability_rows(logits, samplings), logits)
        if not decided:
            laws.append(probs)
        raced = _race(probs, families, keys, depth) if any(keys.coupled) else []
        return [
            raced[row]
            if coupled
            else draw_apart(probs[row], [[coins[row][one] for one in own] for own in parts.values()])
            for row, (coupled, parts) in enumerate(zip(keys.coupled, families, strict=True))
        ]

    return _fill(look, shapes, drawn, ends, laws)


@lru_cache(maxsize=256)
def sampled_shape(width: int, nodes: int, depth: int) -> StaticShape:
    """The shape of a sampled tree with at most ``width`` children a node, before anything is left out of it."""
    return static_tree([TAKEN * (1 - TAKEN) ** rank for rank in range(width)], nodes, depth)


def _race(probs: Float[Tensor, "batch width vocab"], families: Sequence[Families], keys: Keys, depth: int) -> "Chosen":
    """Who comes in first, second, and so on behind every node, as long as the law has a token left."""
    left, ids = probs.clone(), candidates(probs)
    noise = keys.noise(torch.full(left.shape[:2], depth, device=left.device), ids)
    found: list[list[list[int]]] = [[[] for _ in own] for own in families]
    for _ in range(max(len(children) for own in families for children in own.values())):
        there = (left.sum(-1) > 0).tolist()
        winner = race(left, ids, noise.times, noise.tail_times, noise.tail_coins)
        left.scatter_(2, winner[..., None], 0)
        for own, tokens, fine in zip(found, winner.tolist(), there, strict=True):
            for node, token, here in zip(own, tokens, fine, strict=False):
                node += [token] * here
    return found


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
        A proposal without laws; its logits are right for every row that has children.

    Source: Sequoia (Chen et al., arXiv 2402.12374).
    """
    shapes = [
        static_shape(rates, nodes if depth else 0, depth)
        for depth, nodes in zip(budget.depths, budget.nodes, strict=True)
    ]
    return _fill(look, shapes, _best, ends)


@lru_cache(maxsize=256)
def static_shape(rates: Rates, nodes: int, depth: int) -> StaticShape:
    """The shape of a static tree before anything is left out of it."""
    by_depth = isinstance(rates[0], tuple)
    return static_tree(rates, nodes, min(depth, len(rates)) if by_depth else depth)


def _best(depth: int, logits: Float[Tensor, "batch width vocab"], families: Sequence[Families]) -> Chosen:
    """The tokens of the largest logits that there are."""
    ranks = max(len(children) for own in families for children in own.values())
    rows = zip(*(part.tolist() for part in logits.topk(min(ranks, logits.shape[2]), dim=2)), strict=True)
    return [
        [
            [token for value, token in zip(*one, strict=True) if one[0][0] < math.inf and value > -math.inf]
            for one in zip(*row, strict=True)
        ]
        for row in rows
    ]


def _fill(
    look: Look, shapes: Sequence[StaticShape], choose: Choose, ends: frozenset[int], laws: Sequence[Tensor] = ()
) -> Proposal:
    """Tokens for the places of static shapes; left out is what hangs below a token that ends or was left out."""
    growth = _Growth(look, [([0] * len(shape.parents), list(shape.parents)) for shape in shapes])
    kept: list[list[int]] = [[] for _ in shapes]
    alive = [{-1} for _ in shapes]
    levels = [_families(shape) for shape in shapes]
    for depth in range(max(map(len, levels))):
        families = [
            {node: own[depth][node] for node in own[depth] if node in there} if depth < len(own) else {}
            for own, there in zip(levels, alive, strict=True)
        ]
        if not any(families):
            break
        chosen = choose(depth, growth.look([list(own) for own in families]), families)
        for row, (own, found) in enumerate(zip(families, chosen, strict=True)):
            for children, tokens in zip(own.values(), found, strict=False):
                for child, token in zip(children, tokens, strict=False):
                    growth.grown[row][0][child] = token
                    kept[row].append(child)
            alive[row] = {child for child in kept[row] if growth.grown[row][0][child] not in ends}
    return growth.proposal([sorted(own) for own in kept], laws)


@lru_cache(maxsize=256)
def _families(shape: StaticShape) -> list[Families]:
    """The families of a shape, depth by depth."""
    levels: list[Families] = [{} for _ in range(max(shape.depths, default=0))]
    for node, (parent, depth) in enumerate(zip(shape.parents, shape.depths, strict=True)):
        levels[depth - 1].setdefault(parent, []).append(node)
    return levels


def _silenced(
    rows: Float[Tensor, "batch width vocab"], logits: Float[Tensor, "batch width vocab"]
) -> Float[Tensor, "batch width vocab"]:
    """Rows with zeros where the logits are no law."""
    broken = unusable_rows(logits)
    return rows.masked_fill(broken[..., None], 0.0) if bool(broken.any()) else rows
