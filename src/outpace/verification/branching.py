"""Judge a tree of sampled children: rejection from the root down, traversal from the leaves up.

Knows nothing of models, or of a tree's making beyond the laws from which its children were drawn, siblings without
replacement.

At a row with children the two laws change as children fail. What is left of the target is the normalised positive part
of ``weight * target - draft``; what is left of the draft is its law without the token tried, renormalised, which is
the law of the next sibling. A tree without laws is deterministic: each child in turn is one-hot at its token.

A child that what is left of its law cannot draw (a repeated sibling, probability zero, NaN) adds nothing: it and what
hangs below it count as not drafted.

Each walk is written once. It asks ``decide`` whether a node is taken: the law answers with the chance itself, the
sampler with zero or one by the node's coin, and rows that nobody can reach any more cost nothing: not even the target's
law is asked for there.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from outpace.verification.chain import rescue_chance, subtract_draft_
from outpace.verification.probabilities import draw
from outpace.verification.tree import DraftTree
from outpace.verification.verdict import Coins, DraftRows, RowAt, Rule, TargetRow, TargetRows, Verdict

Decide = Callable[[Int[Tensor, " some"], int, Float[Tensor, " some"]], Float[Tensor, " some"]]
"""``(batch rows, node, chances) -> taken``: the chances themselves, or zero and one."""


@dataclass
class _Place:
    """One row of the tree, and what is left of its laws for those batch rows (``who``) that may still stand there.

    Rows of the vocabulary are copied at the first failure, not before: most nodes are judged by single numbers.
    """

    target_row: TargetRow
    draft_probs: DraftRows
    row: int
    who: Int[Tensor, " some"]
    weight: Float[Tensor, " some"]
    target: Float[Tensor, "some vocab"] | None = None
    draft: Float[Tensor, "some vocab"] | None = None

    def only(self, keep: Bool[Tensor, " some"]) -> "_Place":
        """The same place for fewer batch rows."""
        if bool(keep.all()):
            return self
        target, draft = (None if law is None else law[keep] for law in (self.target, self.draft))
        return _Place(self.target_row, self.draft_probs, self.row, self.who[keep], self.weight[keep], target, draft)

    def load(self) -> Float[Tensor, "some vocab"]:
        """What is left of the target: from the first call on, rows of our own."""
        if self.target is None:
            self.target = self.target_row[self.who]
            self.draft = None if self.draft_probs is None else self.draft_probs[self.who, self.row]
        return self.target

    def draft_probability(self, token: Int[Tensor, " some"]) -> Float[Tensor, " some"]:
        """Of a child's token, under what is left of the draft's law; one for a deterministic child."""
        if self.draft_probs is None:
            return torch.ones_like(self.weight)
        if self.draft is None:
            return self.draft_probs[self.who, self.row, token]
        return self.draft.gather(1, token[:, None]).squeeze(1)

    def target_probability(self, token: Int[Tensor, " some"]) -> Float[Tensor, " some"]:
        """Of a child's token, under what is left of the target's law."""
        if self.target is None:
            return self.target_row[self.who, token]
        return self.target.gather(1, token[:, None]).squeeze(1)

    def chance(self, token: Int[Tensor, " some"]) -> Float[Tensor, " some"]:
        """``min(1, weight * target / draft)`` at a child's token: zero where the child cannot have been drawn."""
        draft = self.draft_probability(token)
        target = self.target_probability(token)
        return (self.weight * target / draft).clamp(max=1).where(draft > 0, 0)

    def fail(self, token: Int[Tensor, " some"]) -> None:
        """Take a failed child out of what is left of both laws.

        A residual without mass belongs to a failure that has probability zero, rounding aside, or to a place where the
        path cannot end: the target's own row stands in.
        """
        target = self.load()
        drawn = self.draft_probability(token) > 0
        some = slice(None) if bool(drawn.all()) else drawn
        token, weight = token[some], self.weight[some]
        draft = None if self.draft is None else self.draft[some]
        rest = subtract_draft_(target[some].mul_(weight[:, None]), draft, token)
        mass = rest.sum(1)
        target[some] = rest.div_(mass[:, None])
        if bool((empty := ~(mass > 0)).any()):
            lost = torch.arange(len(drawn), device=drawn.device)[some][empty]
            target[lost] = self.target_row[self.who[lost]]
        self.weight[some] = rescue_chance(mass, weight)
        if self.draft is not None and draft is not None:
            unused = draft.scatter_(1, token[:, None], 0)
            total = unused.sum(1, keepdim=True)
            self.draft[some] = unused.div_(total.where(total > 0, 1))


@dataclass(frozen=True)
class _Group:
    """Batch rows (``who``) whose trees have one shape, so that the walk is one."""

    row_at: RowAt
    draft_probs: DraftRows
    tokens: Int[Tensor, "batch nodes"]
    who: Int[Tensor, " some"]
    parents: list[int]

    def open(self, row: int, who: Int[Tensor, " some"], weight: Float[Tensor, " some"]) -> _Place:
        return _Place(self.row_at(row), self.draft_probs, row, who, weight)

    def token(self, place: _Place, node: int) -> Int[Tensor, " some"]:
        return self.tokens[place.who, node]


Walk = Callable[[_Group, Decide], Iterator[tuple[_Place, Float[Tensor, " some"]]]]
"""Yields the places where paths end, each with whether, or how probably, each of its batch rows ends there."""


def _from_the_root(group: _Group, decide: Decide) -> Iterator[tuple[_Place, Float[Tensor, " some"]]]:
    """Children are tried in order; the first one taken is where the walk goes on.

    ``open_rows`` are those where somebody may still stand: a draw passes by most of a tree, and that costs nothing.
    """
    reached = group.row_at(0).new_zeros(len(group.tokens), 1 + len(group.parents))
    reached[group.who, 0] = 1
    places: dict[int, _Place] = {}
    open_rows = {0}
    for node, parent in enumerate(group.parents):
        if (row := parent + 1) not in open_rows:
            continue
        place = _stand(group, places, reached, row)
        taken = decide(place.who, node, place.chance(group.token(place, node)))
        if bool((taken > 0).any()):
            open_rows.add(node + 1)
        reached[place.who, node + 1] = reached[place.who, row] * taken
        reached[place.who, row] *= 1 - taken
        places[row] = place = place.only(taken < 1)
        if len(place.who):
            place.fail(group.token(place, node))
        else:
            open_rows.remove(row)
    for row in sorted(open_rows):
        if len((place := _stand(group, places, reached, row)).who):
            yield place, reached[place.who, row]


def _stand(group: _Group, places: dict[int, _Place], reached: Float[Tensor, "batch rows"], row: int) -> _Place:
    """A row as those who have reached it find it: as an earlier child has left it, or untouched."""
    if row in places:
        return places[row].only(reached[places[row].who, row] > 0)
    who = group.who[reached[group.who, row] > 0]
    return group.open(row, who, reached.new_ones(len(who)))


def _from_the_leaves(group: _Group, decide: Decide) -> Iterator[tuple[_Place, Float[Tensor, " some"]]]:
    """Children are tried before their parent, each with its weight; one failed leaves its parent less."""
    children: dict[int, list[int]] = defaultdict(list)
    for node, parent in enumerate(group.parents):
        children[parent + 1].append(node)
    going = group.row_at(0).new_ones(len(group.tokens))
    root = group.open(0, group.who, going.new_ones(len(group.who)))
    yield from _visit(root, children, group, going, decide)


def _visit(
    place: _Place, children: dict[int, list[int]], group: _Group, going: Float[Tensor, " batch"], decide: Decide
) -> Iterator[tuple[_Place, Float[Tensor, " some"]]]:
    """Try what hangs below a place, then the place; ``going`` is who has not ended yet, or how probably."""
    for node in children[place.row]:
        weight = place.chance(group.token(place, node))
        can = weight > 0
        if bool(can.any()):
            yield from _visit(group.open(node + 1, place.who[can], weight[can]), children, group, going, decide)
            place = place.only(going[place.who] > 0)
            if len(place.who) == 0:
                return
        place.fail(group.token(place, node))
    # The root is what remains when every node has failed: its weight is one.
    taken = decide(place.who, place.row - 1, place.weight) if place.row else torch.ones_like(place.weight)
    ends = going[place.who] * taken
    going[place.who] *= 1 - taken
    yield place, ends


@dataclass(frozen=True)
class _TreeForm:
    """One tree rule: a walk, read as a law or decided by coins."""

    name: str
    walk: Walk

    def judge(self, target_probs: TargetRows, tree: DraftTree, draft_probs: DraftRows, coins: Coins) -> Verdict:
        return self.judge_reached(lambda row: target_probs[:, row], tree, draft_probs, coins)

    def judge_reached(self, row_at: RowAt, tree: DraftTree, draft_probs: DraftRows, coins: Coins) -> Verdict:
        end = torch.zeros_like(tree.num_nodes)
        next_token = torch.zeros_like(tree.num_nodes)
        for group in _groups(row_at, tree, draft_probs):
            for place, ends in self.walk(group, partial(_toss, coins)):
                if len((here := place.only(ends > 0)).who):
                    end[here.who] = here.row
                    next_token[here.who] = draw(here.load(), coins[here.who, -1])
        path = tree.path_to(end - 1)
        return Verdict(path, (path >= 0).sum(1), next_token, self.name, lossless=True)

    def law(self, target_probs: TargetRows, tree: DraftTree, draft_probs: DraftRows) -> TargetRows:
        law = torch.zeros_like(target_probs)
        for group in _groups(lambda row: target_probs[:, row], tree, draft_probs):
            for place, ends in self.walk(group, _weigh):
                left = place.load()
                law[place.who, place.row] = ends[:, None] * left / left.sum(1, keepdim=True)
        return law

    @property
    def rule(self) -> Rule:
        return Rule(self.name, True, self.judge, self.law, self.judge_reached)


def _toss(coins: Coins, who: Int[Tensor, " some"], node: int, chance: Float[Tensor, " some"]) -> Float[Tensor, " some"]:
    return (coins[who, node] < chance).to(chance.dtype)


def _weigh(who: Int[Tensor, " some"], node: int, chance: Float[Tensor, " some"]) -> Float[Tensor, " some"]:
    return chance


def _groups(row_at: RowAt, tree: DraftTree, draft_probs: DraftRows) -> Iterator[_Group]:
    shapes: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for member, (_, parents) in enumerate(tree.to_lists()):
        shapes[tuple(parents)].append(member)
    for shape, members in shapes.items():
        who = torch.tensor(members, device=tree.tokens.device)
        yield _Group(row_at, draft_probs, tree.tokens, who, list(shape))


TREE_REJECTION = _TreeForm("tree-rejection", _from_the_root).rule
"""Go down from the root; accept each child in turn with ``min(1, p / q)`` of what is left of the two laws.

Coin i tests node i, the last column draws. On a chain this is rejection.

Source: Sequoia (Chen et al., arXiv 2402.12374), algorithm 2; EAGLE for deterministic children.
"""

TRAVERSAL = _TreeForm("traversal", _from_the_leaves).rule
"""Judge whole paths, leaves first; what failed leaves its parent less.

Coin i tests node i when all below it have failed, the last column draws. On a chain this is block verification, and
there it emits the most. On trees it need not: in root-a-{b, c-d} the path a-b takes chances from the longer a-c-d, and
tree-rejection can emit more. Where every sibling's subtree fits into the one of the sibling before it, as in static
trees, no enumeration has found it behind.

Source: Weng et al., arXiv 2505.12398; the update of a parent is our own derivation.
"""
