"""What a setting would have drafted at a place of a recorded text, and how far the text says it is right.

Knows nothing of turns or of what they cost.

Where the text settles it, by the argmax, by the target's own draw or by the shared noise, a drafted token is right or
wrong. Where a rule leaves it to chance, the text still says how probably: with q and p the laws of drafter and target
at the tokens y that the text has, a turn accepts y1 … yi with chance

* ``rejection``: the product of min(1, q / p),
* ``block``: the least of all products of q / p from the first token on, up to the i-th, and of 1,
* ``match``: the product of q,

given the text. These are exact: the first by the rule's own definition, the second by the paper's lemma that a prefix
is accepted with chance ``p_i``, the third as draft and draw are independent. So nothing of the draft's own chance is
left in a prediction, only that of the text.

Source: Leviathan et al. (arXiv 2211.17192), Sun et al. (arXiv 2403.10444).
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import accumulate
from math import exp

from outpace.drafters.budget import RANKS, Branching
from outpace.drafters.drafter import Rates
from outpace.drafters.growth import static_shape
from outpace.errors import UsageError
from outpace.evaluation.probe import Followed
from outpace.tuning.nearby import Warmth
from outpace.tuning.recording import Recording, Text
from outpace.tuning.trees import ranked, shaped

BY_RULE = {
    None: "block",
    "block": "block",
    "traversal": "block",
    "rejection": "rejection",
    "tree-rejection": "rejection",
    "match": "match",
}
"""What judges a sampled chain of a model by the rule that is named; None takes the best one."""


@dataclass(frozen=True)
class Draft:
    """A draft, and what the text says of it.

    Args:
        parents: of every node, -1 for the root.
        path: the nodes that are the text's own tokens, from the root on.
        chances: for each of these, how probably a turn accepts up to there.
        depth: the longest path.
        sure: whether the recording holds the whole draft.
        copied: whether lookup drafts where another drafter would have, so that no model takes a step.
    """

    parents: tuple[int, ...] = ()
    path: tuple[int, ...] = ()
    chances: tuple[float, ...] = ()
    depth: int = 0
    sure: bool = True
    copied: bool = False


NOTHING = Draft()
Drafting = Callable[[Text, int, int, int], Draft]
"""``(text, place, depth, nodes) -> draft``: what is drafted where a turn may go so deep, with so many nodes."""


def drafting(
    recording: Recording,
    branching: Branching,
    *,
    rule: str | None = None,
    seeded: bool = False,
    threshold: float = 0.0,
    warmth: Warmth | None = None,
) -> Drafting:
    """How a setting drafts.

    Args:
        recording: texts and drafts.
        branching: how drafts branch.
        rule: a rule by name, None for the best one.
        seeded: whether requests have a seed and no named rule.
        threshold: a chain ends before a token of a row whose likeliest one is less probable; copies have none.
        warmth: a temperature nearby in place of the trace's.

    Raises:
        UsageError: the recording cannot tell of such drafts.
    """
    _check(recording, branching, rule, threshold)
    own = _drafting(recording, branching, rule, seeded, threshold, warmth)
    return _Joined(own, recording.deepest) if recording.unasked else own


def _drafting(
    recording: Recording, branching: Branching, rule: str | None, seeded: bool, threshold: float, warmth: Warmth | None
) -> Drafting:
    """Of a drafter alone."""
    by_chance = branching.is_chain and recording.is_model and not recording.sampling.greedy
    if branching.is_chain:
        drawn = BY_RULE[rule] if by_chance and not (seeded and rule is None) else None
        return _Chains(threshold, drawn, warmth, _usual(recording) if recording.kind == "trace" else ())
    if branching.kind == "static":
        return _Static(_rates(recording, branching))
    return _Ranked(branching, _widest(recording, branching), recording.tree_nodes)


@dataclass(frozen=True)
class _Chains:
    """Chains; ``drawn`` names the rule where a draft is drawn and judged by chance."""

    threshold: float
    drawn: str | None
    warmth: Warmth | None
    usual: tuple[float, ...]

    def __call__(self, text: Text, place: int, depth: int, nodes: int) -> Draft:
        here = text.places[place]
        if depth <= 0:
            return NOTHING
        if here.chain is None:
            depth = min(depth, len(self.usual))
            return _chain(depth, self.usual[:depth], sure=False)
        length = min(depth, len(here.chain))
        if here.accepted is not None:
            return _chain(length, (1.0,) * min(length, here.accepted))
        if self.drawn is None:
            length = _confident(here.certain, length, self.threshold)
            agreed = _agreement(here.chain[:length], text.tokens(place, length))
            return _chain(length, (1.0,) * agreed)
        return self._by_chance(text, place, length)

    def _by_chance(self, text: Text, place: int, length: int) -> Draft:
        followed = text.places[place].followed or ()
        if self.threshold:
            certain = tuple(min(1.0, _top(one)) for one in followed)
            length = _confident(certain, length, self.threshold)
        pairs = []
        for step, theirs in enumerate(followed[:length]):
            ours = text.places[place + step]
            assert ours.said is not None, "a probe says how the target finds each token"
            pairs.append((theirs.law, ours.said.law) if self.warmth is None else self.warmth.pair(theirs, ours))
        return _chain(length, tuple(accepted(pairs, self.drawn or "block")))


def accepted(pairs: list[tuple[float, float]], rule: str) -> list[float]:
    """How probably a turn accepts each token and all before, by the laws (draft's, target's) of the text's tokens.

    Args:
        pairs: one a token; the target's is above 0.
        rule: ``block``, ``rejection`` or ``match``.
    """
    if rule == "match":
        return list(accumulate((draft for draft, _ in pairs), _times))
    ratios = [draft / target if target > 0 else float(draft > 0) for draft, target in pairs]
    if rule == "rejection":
        return list(accumulate((min(1.0, ratio) for ratio in ratios), _times))
    return list(accumulate(accumulate(ratios, _times), min, initial=1.0))[1:]


def _times(left: float, right: float) -> float:
    return left * right


def _chain(length: int, chances: tuple[float, ...], sure: bool = True) -> Draft:
    return Draft(tuple(range(-1, length - 1)), tuple(range(len(chances))), chances, length, sure)


def _agreement(chain: tuple[int, ...], tokens: tuple[int, ...]) -> int:
    pairs = zip(chain, tokens, strict=False)
    return next((step for step, (one, other) in enumerate(pairs) if one != other), min(len(chain), len(tokens)))


def _confident(certain: tuple[float, ...] | None, length: int, threshold: float) -> int:
    """How many nodes come before the first row whose likeliest token is not probable enough."""
    if not threshold or certain is None:
        return length
    return next((step for step, share in enumerate(certain[:length]) if share < threshold), length)


def _top(one: Followed) -> float:
    return exp(one.row.logits[0] - one.row.logsumexp) if one.row.logits else 0.0


@dataclass(frozen=True)
class _Ranked:
    """Trees of the most probable children, cut out of a recorded one: the same with more nodes, or a wider one."""

    branching: Branching
    recorded: Branching
    most: int

    def __call__(self, text: Text, place: int, depth: int, nodes: int) -> Draft:
        tree = text.places[place].trees.get(str(self.recorded))
        if depth <= 0 or not tree:
            return NOTHING
        tokens, full = text.tokens(place, depth), len(tree) >= self.most
        wide = None if self.branching == self.recorded else self.branching
        parents, path, deepest, sure = ranked(tree, wide, depth, nodes, tokens, full)
        return Draft(parents, path, (1.0,) * len(path), deepest, sure)


@dataclass(frozen=True)
class _Static:
    """Trees of one shape, whose places hold the drafter's children by rank."""

    rates: Rates

    def __call__(self, text: Text, place: int, depth: int, nodes: int) -> Draft:
        followed = text.places[place].followed
        if depth <= 0 or followed is None:
            return NOTHING
        shape = static_shape(self.rates, nodes, depth)
        path = shaped(shape, followed)
        return Draft(shape.parents, path, (1.0,) * len(path), max(shape.depths, default=0))


@dataclass(frozen=True)
class _Joined:
    """Copies where lookup drafts, which the text alone judges; a model's drafts elsewhere, as deep as it reaches."""

    model: Drafting
    deepest: int | None

    def __call__(self, text: Text, place: int, depth: int, nodes: int) -> Draft:
        copy = text.places[place].copy
        if copy is None:
            return self.model(text, place, min(depth, self.deepest or depth), nodes)
        if depth <= 0:
            return NOTHING
        length = min(depth, len(copy))
        agreed = _agreement(copy[:length], text.tokens(place, length))
        return replace(_chain(length, (1.0,) * agreed), copied=True)


# ---- what a recording can tell --------------------------------------------------------------------------------------


def _check(recording: Recording, branching: Branching, rule: str | None, threshold: float) -> None:
    if not 0 <= threshold < 1:
        raise UsageError(f"threshold is {threshold:g}; allowed: 0 (none), or less than 1")
    if threshold and not (branching.is_chain and recording.is_model):
        raise UsageError(f"threshold is {threshold:g}; allowed: with chains of a model, which says how sure it is")
    if rule is not None and rule not in BY_RULE and not (rule == "greedy" and recording.sampling.greedy):
        raise UsageError(
            f"rule is {rule!r}; a trace tells of: {', '.join(filter(None, BY_RULE))}",
            hint="under a lossy rule the text itself would be another",
        )
    if branching.is_chain:
        return
    if recording.kind == "trace":
        raise UsageError(
            f"tree is {branching}, and the trace has chains; allowed: chain",
            hint="a probe tells of trees: bench --probe",
        )
    if not recording.trees:
        raise UsageError(f"tree is {branching}, and {recording.drafter!r} drafts chains alone; allowed: chain")
    if branching.kind == "sampled":
        raise UsageError(f"tree is {branching}; a trace tells of: chain, top-k, top-p, dynamic, static")
    if rule not in (None, "greedy", "match", "tree-rejection"):
        raise UsageError(f"rule is {rule!r} and tree {branching}; a trace tells of trees judged by match")


def _widest(recording: Recording, branching: Branching) -> Branching:
    """The recorded tree out of which to cut: itself, else the narrowest one that is wide enough.

    Raises:
        UsageError: there is none.
    """
    if branching in recording.trees:
        return branching
    least = branching.width if branching.kind == "top-k" else RANKS
    wide = [one for one in recording.trees if one.kind == "top-k" and one.width >= least]
    if not wide:
        raise UsageError(f"tree is {branching}; allowed in this trace: {', '.join(map(str, recording.trees))}")
    return min(wide, key=lambda one: one.width)


def _rates(recording: Recording, branching: Branching) -> Rates:
    rates = branching.rates or recording.rates
    if not rates:
        raise UsageError(
            f"tree is static, and the trace knows no acceptance by rank of {recording.drafter!r}; "
            "allowed: rates of your own, such as static:0.6,0.15,0.06"
        )
    return rates


def _usual(recording: Recording) -> tuple[float, ...]:
    """How often the first i drafted tokens are right where turns began: what stands in at all other places."""
    drafts = [
        (len(place.chain), place.accepted if place.accepted is not None else _right(text, at))
        for text in recording.texts
        for at, place in enumerate(text.places)
        if place.chain is not None and at
    ]
    rates = []
    survived = 1.0
    for step in range(recording.depth):
        tried = sum(length > step and right >= step for length, right in drafts)
        passed = sum(length > step and right > step for length, right in drafts)
        if step == 0:
            tried = len(drafts)  # a turn in which nothing was found counts
        survived *= passed / tried if tried else 0.0
        rates.append(survived)
    return tuple(rates)


def _right(text: Text, place: int) -> int:
    chain = text.places[place].chain or ()
    return _agreement(chain, text.tokens(place, len(chain)))
