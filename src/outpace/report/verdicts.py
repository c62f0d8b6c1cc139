"""How a verdict came about: the chance and the coin of every node that was tested, and what the next token is of.

Knows nothing of pages. It follows the rules of ``verification`` on the laws that a trace tells, in plain numbers; what
was accepted is what the trace says, never what is computed here.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from outpace.report.laws import Law

CHOICES = frozenset({"greedy", "match", "coupling"})
"""Rules by which the target chooses a token of its own at each row; the draft only has to have guessed it."""
EXACT = 1e-4
"""A figure that may be off by no more than this share is shown as exact."""


@dataclass(frozen=True)
class Draft:
    """One turn of one text as a trace tells it.

    Args:
        rule: that judged it.
        parents, tokens: of the nodes; -1 is the root.
        draft_probs: of each node under the law that it was drawn from; 1 for a deterministic child.
        target: the laws by which the rule judged; row 0 is the root's, row 1 + i that of node i.
        draft: the laws from which the children of these rows were drawn; None for deterministic ones.
        path, next_token: the verdict.
        coins: coin i is node i's and the last one draws, but for ``match``, where coin 0 is the root's.
    """

    rule: str
    parents: Sequence[int]
    tokens: Sequence[int]
    draft_probs: Sequence[float]
    target: Sequence[Law]
    draft: Sequence[Law] | None
    path: Sequence[int]
    next_token: int
    coins: Sequence[float]

    def children(self, row: int) -> list[int]:
        """The nodes that hang below a row, in the order in which they were drawn."""
        return [node for node, parent in enumerate(self.parents) if parent == row - 1]

    @property
    def end(self) -> int:
        """The row at which the path ends."""
        return self.path[-1] + 1 if self.path else 0


@dataclass(frozen=True)
class Test:
    """One node tested.

    Args:
        node: which.
        target, draft: what the target and the drafter give its token, of what earlier siblings left of their laws.
        weight: what the target's law counts here; below 1 where tokens above were less probable than drafted.
        chance: to be accepted; None where the target's own choice decides.
        coin: below the chance, it accepts; None where none is used.
        accepted: what the trace says.
        about: whether the chance is only known about.
    """

    node: int
    target: float
    draft: float
    weight: float
    chance: float | None
    coin: float | None
    accepted: bool
    about: bool = False

    @property
    def explained(self) -> bool:
        """Whether the coin says what the trace says; a chance that is known about explains anything near it."""
        if self.chance is None or self.coin is None:
            return True
        near = self.about and abs(self.coin - self.chance) < 0.25
        return near or (self.coin < self.chance) == self.accepted


@dataclass(frozen=True)
class Explanation:
    """How a turn was decided.

    Args:
        tests: the nodes tested, in that order.
        left: the law from which the next token was drawn, normalised.
        residual: whether that is what a refused draft leaves, and no longer the target's own row.
        mass: of that residual before it was normalised: how probable a refusal was; 1 where there was none.
        coin: that drew; None where none is used.
        explained: whether these laws lead to this verdict.
    """

    tests: list[Test]
    left: Law
    residual: bool = False
    mass: float = 1.0
    coin: float | None = None
    explained: bool = True


def explain(draft: Draft) -> Explanation:
    """Follow the rule in force.

    Args:
        draft: a turn.

    Returns:
        An explanation; ``explained`` is False where these laws do not lead to this verdict, as when a processor changed
        the target's law, which a trace does not tell.
    """
    if not draft.tokens:
        coin = None if draft.rule in ("greedy", "coupling") else draft.coins[-1]
        return _checked(Explanation([], draft.target[0], coin=coin), draft)
    if draft.rule in CHOICES:
        return _checked(_chosen(draft), draft)
    if draft.rule == "typical":
        return _checked(_typical(draft), draft)
    return _checked(_RULES.get(draft.rule, _from_the_root)(draft), draft)


def _checked(found: Explanation, draft: Draft) -> Explanation:
    next_token = draft.next_token
    possible = next_token not in found.left.probs or found.left.probs[next_token] > 0
    known = found.left.rest > 0 or next_token in found.left.probs
    tests = all(test.explained for test in found.tests)
    followed = found.explained and tests and ((known and possible) or found.left.slack > EXACT)
    return replace(found, explained=followed)


def _law_of(draft: Draft, row: int, node: int) -> Law:
    """What the children of a row were drawn from; for a deterministic one, all mass on its token."""
    return Law.one_hot(draft.tokens[node]) if draft.draft is None else draft.draft[row]


def _chosen(draft: Draft) -> Explanation:
    """At each row of the path the target chooses; children with another token are refused."""
    tests = []
    for depth, row in enumerate([0, *(node + 1 for node in draft.path)]):
        last = depth == len(draft.path)
        coin = draft.coins[row] if draft.rule == "match" else None
        for node in draft.children(row):
            accepted = not last and node == draft.path[depth]
            prob = draft.target[row].prob(draft.tokens[node])
            tests.append(Test(node, prob, draft.draft_probs[node], 1.0, None, coin, accepted))
            if accepted:
                break
    final = draft.coins[draft.end] if draft.rule == "match" else None
    return Explanation(tests, draft.target[draft.end], coin=final)


def _typical(draft: Draft) -> Explanation:
    """Every node has the target's own probability against a threshold of the row; no coin."""
    tests = [
        Test(node, draft.target[parent + 1].prob(token), draft.draft_probs[node], 1.0, None, None, node in draft.path)
        for node, (parent, token) in enumerate(zip(draft.parents, draft.tokens, strict=True))
    ]
    return Explanation(tests, draft.target[draft.end], coin=draft.coins[-1])


# ---- chains ----------------------------------------------------------------------------------------------------------


def _ratio(target: float, draft: float, weight: float = 1.0) -> float:
    return min(1.0, weight * target / draft) if draft > 0 else 0.0


def _rejection(draft: Draft) -> Explanation:
    """``min(1, p / q)``, node by node, to the first that fails."""
    tests = []
    for node in range(min(len(draft.path) + 1, len(draft.tokens))):
        row, drawn = draft.target[node], draft.draft_probs[node]
        prob = row.prob(draft.tokens[node])
        chance, accepted = _ratio(prob, drawn), node < len(draft.path)
        tests.append(Test(node, prob, drawn, 1.0, chance, draft.coins[node], accepted, row.slack > EXACT))
    return _chain_end(draft, tests, [1.0] * len(draft.target))


def _block(draft: Draft) -> Explanation:
    """The capped product of ratios; from the last node up, the first that passes is where the path ends."""
    weights = [1.0]
    for node, token in enumerate(draft.tokens):
        drawn = draft.draft_probs[node]
        weights.append(_ratio(draft.target[node].prob(token), drawn, weights[-1]))
    tests = []
    for node in reversed(range(len(draft.path) - 1 if draft.path else 0, len(draft.tokens))):
        weight, row = weights[node + 1], node + 1
        chance, about = weight, any(law.slack > EXACT for law in draft.target[:row])
        if row < len(draft.tokens):
            rest = draft.target[row].scaled(weight).minus(_law_of(draft, row, row))
            total = rest.mass + 1 - weight
            chance, about = (rest.mass / total if total > 0 else 1.0), about or rest.slack > EXACT
        prob, accepted = draft.target[node].prob(draft.tokens[node]), node < len(draft.path)
        tests.append(
            Test(node, prob, draft.draft_probs[node], weights[node], chance, draft.coins[node], accepted, about)
        )
    return _chain_end(draft, tests, weights)


def _chain_end(draft: Draft, tests: list[Test], weights: Sequence[float]) -> Explanation:
    end, coin = draft.end, draft.coins[-1]
    if end == len(draft.tokens):
        return Explanation(tests, draft.target[end], coin=coin)
    rest = draft.target[end].scaled(weights[end]).minus(_law_of(draft, end, end))
    if not rest.mass > 0:
        return Explanation(tests, draft.target[end], coin=coin)
    return Explanation(tests, rest.scaled(1 / rest.mass), True, rest.mass, coin)


# ---- trees -----------------------------------------------------------------------------------------------------------


class _Place:
    """One row, and what failed children have left of its two laws."""

    def __init__(self, draft: Draft, row: int, weight: float, about: bool = False) -> None:
        self.row, self.weight, self.own, self.inherited = row, weight, draft.target[row], about
        self.target, self.mass, self.failed = draft.target[row], 1.0, False
        self.law = None if draft.draft is None or row >= len(draft.draft) else draft.draft[row]
        self.fixed = draft.draft is None

    @property
    def about(self) -> bool:
        """Whether a chance here is only known about."""
        drafted = self.failed and self.law is not None and self.law.rest > EXACT
        return self.inherited or drafted or self.target.slack > EXACT

    def drawn(self, token: int, first: float) -> float:
        """A child's probability under what is left of the draft's law; the first child's stands in the trace."""
        if self.fixed:
            return 1.0
        return first if self.law is None or not self.failed else self.law.prob(token)

    def fail(self, token: int, first: float) -> None:
        """Take a failed child out of both laws; one that could not have been drawn leaves them as they are."""
        if not self.drawn(token, first) > 0:
            return
        law = Law.one_hot(token) if self.fixed or self.law is None else self.law
        rest = self.target.scaled(self.weight).minus(law)
        mass = rest.mass
        self.target = rest.scaled(1 / mass) if mass > 0 else self.own
        total = mass + 1 - self.weight
        self.weight = mass / total if total > 0 else 1.0
        self.mass *= mass
        self.failed = True
        if self.law is not None:
            self.law = self.law.without(token)


def _tested(draft: Draft, place: _Place, node: int, accepted: bool) -> Test:
    token = draft.tokens[node]
    prob, drawn = place.target.prob(token), place.drawn(token, draft.draft_probs[node])
    chance = _ratio(prob, drawn, place.weight)
    return Test(node, prob, drawn, place.weight, chance, draft.coins[node], accepted, place.about)


def _from_the_root(draft: Draft) -> Explanation:
    """Children in turn, each against what the ones before it have left; down the first that is accepted."""
    tests, path = [], list(draft.path)
    place = _Place(draft, 0, 1.0)
    for row in [0, *(node + 1 for node in path)]:
        place = _Place(draft, row, 1.0)
        for node in draft.children(row):
            accepted = node in path
            tests.append(_tested(draft, place, node, accepted))
            if accepted:
                break
            place.fail(draft.tokens[node], draft.draft_probs[node])
    return Explanation(tests, place.target, place.failed, place.mass, draft.coins[-1])


def _from_the_leaves(draft: Draft) -> Explanation:
    """A place is tested when all below it have failed; what failed leaves its parent less."""
    tests: list[Test] = []
    end: list[_Place] = []
    for place in _visit(draft, 0, 1.0):
        if place.row:
            node = place.row - 1
            prob = draft.target[draft.parents[node] + 1].prob(draft.tokens[node])
            chance, coin, accepted = place.weight, draft.coins[node], place.row == draft.end
            tests.append(Test(node, prob, draft.draft_probs[node], 1.0, chance, coin, accepted, place.about))
        if place.row == draft.end:
            end.append(place)
            break
    if not end:  # the laws at hand lead past the end that the trace tells
        return Explanation(tests, draft.target[draft.end], coin=draft.coins[-1], explained=False)
    return Explanation(tests, end[0].target, end[0].failed, end[0].mass, draft.coins[-1])


def _visit(draft: Draft, row: int, weight: float, about: bool = False) -> Iterator[_Place]:
    place = _Place(draft, row, weight, about)
    for node in draft.children(row):
        token = draft.tokens[node]
        chance = _ratio(place.target.prob(token), place.drawn(token, draft.draft_probs[node]), place.weight)
        if chance > 0 or node in draft.path:
            yield from _visit(draft, node + 1, chance, place.about)
        place.fail(token, draft.draft_probs[node])
    yield place


_RULES: dict[str, Callable[[Draft], Explanation]] = {
    "rejection": _rejection,
    "block": _block,
    "tree-rejection": _from_the_root,
    "traversal": _from_the_leaves,
}
