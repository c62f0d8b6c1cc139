"""Choose depth and width of the next turn from past verdicts only; falls back to plain.

Knows nothing of models, tokens or clocks: verdicts and grades come in, budgets go out, and equal ones give equal
budgets.

``Adaptive`` asks, turn by turn, which draft gives most tokens a millisecond for the whole batch:

* What a draft brings is read off decayed counts of acceptance by depth (and by rank among siblings), one record a row
  and grade, each leaning on the pool of all rows while it knows little.
* What a turn costs is a measured table; all rows share one forward as wide as the widest draft.
* Where nothing pays it rests, and probes with one or two tokens, less and less often while probes fail.
* It keeps a purse, in turns of plain decoding: every turn pays what it cost beyond a plain one and earns the tokens it
  gained. It spends only what is in the purse, so that n turns never lose more than ``START + WAGE * n``.
"""

import itertools
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from outpace.decoding.acceptance import Record, Step, outcomes
from outpace.decoding.costs import CostTable
from outpace.decoding.turn import Turn
from outpace.drafters.budget import CHAIN, RANKS, Branching, Budget
from outpace.errors import UsageError
from outpace.verification.expectation import TurnCosts, best_tree

START, WAGE, MOST = 1.0, 0.01, 8.0
"""The purse at first, what a turn adds to it, and the most it holds; all in turns of plain decoding."""
ENTER, LEAVE = 1.02, 1.005
"""Drafting begins again above the one predicted speed-up and rests below the other: noise lies between."""
CHANGE = 0.99
"""The size of the last turn is kept while it promises this share of the best."""
PROBE = 2
"""Tokens of a probe, or 1 where the purse or the room allows no more."""
FIRST_WAIT, LONGEST_WAIT, SHARE = 8, 64, 0.005
"""Turns between probes: at first, and the most. In between the wait doubles with every failure, until probes cost no
more than this share of all time."""
MEMORY, POOL_MEMORY = 0.5 ** (1 / 48), 0.5 ** (1 / 128)
"""What a turn leaves of older counts: a row follows its text, the pool is what is usual."""
LEAST = 0.005
"""What a row of the forward costs at least, as a share of a plain turn: noise of the measurement can hide a cost."""
UNGRADED = 1
"""The grade of all drafts of a drafter that has no grades."""
_TOP_P_RANKS = 4  # siblings that are told apart where their number is not given
_REVIEW = 16  # turns that a tree is kept: the search for one takes a millisecond or more
_SHORTEST = 64  # costs are looked up by context in steps that double from here


@runtime_checkable
class Control(Protocol):
    """Asked before every turn what to draft, told after every turn what became of it.

    ``max_depth`` and ``max_nodes`` are the most it ever asks for.
    """

    max_depth: int
    max_nodes: int
    branching: Branching

    def admit(self, count: int) -> None:
        """So many new last rows."""
        ...

    def budget(self, rooms: list[int], lengths: list[int], grades: list[int] | None = None) -> Budget:
        """What the next turn may draft.

        Args:
            rooms: for each row, the most tokens that it can still use as drafts, 0 or more.
            lengths: for each row, the tokens that the target has read.
            grades: for each row, what its draft would be worth, see ``Graded``; None where the drafter does not say.
        """
        ...

    def learn(self, turn: Turn) -> None:
        """What became of the turn, its rows as in the last budget."""
        ...

    def select(self, rows: list[int]) -> None:
        """Keep only these rows, in this order."""
        ...


def _bounds(branching: Branching, depth: int, nodes: int | None) -> tuple[int, int]:
    """Depth and nodes that do not contradict each other."""
    nodes = depth if nodes is None else nodes
    if depth < 0:
        raise UsageError(f"depth is {depth}; allowed: 0 (plain decoding) or more")
    if nodes < depth or (branching.is_chain and nodes != depth):
        words = "equal numbers for a chain" if branching.is_chain else "as many nodes as depths, or more"
        raise UsageError(f"num_draft_tokens is {nodes} and depth {depth}; allowed: {words}")
    return depth, nodes


def _spread(branching: Branching, rooms: list[int], depth: int, nodes: int) -> Budget:
    """The same depth and nodes for every row that has room."""
    depths = [max(0, min(room, depth)) for room in rooms]
    return Budget(depths, depths if branching.is_chain else [nodes if own else 0 for own in depths], branching)


class Fixed:
    """The same draft in every turn, cut where a row has less room.

    Args:
        branching: how drafts branch.
        depth: longest path; 0 decodes plainly.
        nodes: tokens a draft; for a chain the depth, which is the default.

    Raises:
        UsageError: depth and nodes contradict each other.
    """

    def __init__(self, branching: Branching, depth: int, nodes: int | None = None) -> None:
        self.branching = branching
        self.max_depth, self.max_nodes = _bounds(branching, depth, nodes)

    def admit(self, count: int) -> None:
        """Nothing is remembered of any row."""

    def budget(self, rooms: list[int], lengths: list[int], grades: list[int] | None = None) -> Budget:
        """As much as there is room for."""
        return _spread(self.branching, rooms, self.max_depth, self.max_nodes)

    def learn(self, turn: Turn) -> None:
        """Nothing is learnt."""

    def select(self, rows: list[int]) -> None:
        """Nothing is remembered of any row."""


@dataclass(frozen=True)
class _Size:
    """A draft of this depth and this many nodes, and the speed-up over plain decoding that it promises."""

    depth: int = 0
    nodes: int = 0
    speedup: float = 1.0


PLAIN = _Size()


@dataclass(frozen=True)
class _View:
    """Costs at one batch size and context: ``ratios[n]`` is a turn with n nodes, as deep as allowed, in plain turns;
    ``unasked`` where no model drafts."""

    costs: TurnCosts
    ratios: tuple[float, ...]
    unasked: bool

    def spent(self, nodes: int, depth: int) -> float:
        """A turn that was asked for a draft of ``depth`` and got ``nodes``, in plain turns."""
        plain = self.costs.verify_ms(1)
        searched = self.costs.draft_turn if depth and not nodes else 0.0
        return (searched + self.costs.turn_ms(nodes, depth)) / plain


@dataclass
class _Rest:
    """While nothing pays: turns since the last probe, turns to wait for the next, whether the last one succeeded."""

    resting: bool = False
    waited: int = 0
    wait: int = FIRST_WAIT
    hopeful: bool = False


@dataclass
class _Known:
    """What is known of drafts of one grade: how all rows fared, whether they pay, and the size of the last one.

    ``kept`` counts the turns that a tree has been kept.
    """

    pool: Record
    rest: _Rest = field(default_factory=_Rest)
    size: _Size = PLAIN
    kept: int = 0


class Adaptive:
    """Chooses what to draft by costs and by what was accepted so far, 0 included.

    Whether and how far a turn drafts depends on earlier verdicts and on the drafter's grades alone, never on coins or
    times. A turn in which the drafter found nothing for a row teaches nothing about that row's acceptance. Drafts of
    each grade are known apart; a turn rests or probes by the best grade among its rows.

    Args:
        costs: what turns cost, or a function that tells; it is called when the first row is admitted, so that nothing
            is measured for a request that is refused.
        branching: how drafts branch.
        max_depth: longest path, 0 or more.
        max_nodes: tokens a draft; for a chain the depth, which is the default.
        unasked: grades whose drafts take no step of a model; they are chains, whatever the branching.

    Raises:
        UsageError: depth and nodes contradict each other.

    Source: goodput as the measure as in SmartSpec (Liu et al., arXiv 2406.14066); the purse is our own.
    """

    def __init__(
        self,
        costs: CostTable | Callable[[], CostTable],
        branching: Branching = CHAIN,
        max_depth: int = 8,
        max_nodes: int | None = None,
        unasked: frozenset[int] = frozenset(),
    ) -> None:
        self.branching, self._unasked = branching, unasked
        self.max_depth, self.max_nodes = _bounds(branching, max_depth, max_nodes)
        self._costs = costs
        static = len(branching.rates) or RANKS
        self._ranks = {"chain": 1, "top-p": _TOP_P_RANKS, "static": static}.get(branching.kind, int(branching.width))
        self._known: defaultdict[int, _Known] = defaultdict(lambda: _Known(self._record()))
        self._rows: list[defaultdict[int, Record]] = []
        self._views: dict[tuple[int, int, bool], _View] = {}
        self._purse = START
        self._asked: tuple[Budget, _View, list[int]] | None = None

    def _record(self) -> Record:
        return Record.empty(self.max_depth, self._ranks)

    def admit(self, count: int) -> None:
        """New rows are new texts: a probe is due."""
        if not isinstance(self._costs, CostTable):
            self._costs = self._costs()
        self._rows += [defaultdict(self._record) for _ in range(count)]
        for known in self._known.values():
            known.rest.waited = LONGEST_WAIT

    def select(self, rows: list[int]) -> None:
        """Keep only these rows' records."""
        self._rows = [self._rows[row] for row in rows]

    def budget(self, rooms: list[int], lengths: list[int], grades: list[int] | None = None) -> Budget:
        """The draft with most tokens a millisecond, a probe, or nothing."""
        grades = [UNGRADED] * len(rooms) if grades is None else grades
        rooms = [room if grade else 0 for room, grade in zip(rooms, grades, strict=True)]
        drafting = {grade for room, grade in zip(rooms, grades, strict=True) if room > 0}
        room = min(max(rooms, default=0), self.max_depth)
        view = self._view(len(rooms), max(lengths, default=0), drafting <= self._unasked)
        size = self._choose(self._known[max(drafting)], rooms, room, view, grades) if room > 0 else PLAIN
        budget = _spread(self.branching, rooms, size.depth, size.nodes)
        self._asked = budget, view, grades
        return budget

    def learn(self, turn: Turn) -> None:
        """Count what was accepted, pay for the turn, and judge a probe."""
        if self._asked is None:
            return
        (budget, view, grades), self._asked = self._asked, None
        found = outcomes(turn)
        asked: defaultdict[int, list[list[Step]]] = defaultdict(list)
        for row, steps, depth, grade in zip(self._rows, found, budget.depths, grades, strict=True):
            if depth:
                row[grade].learn([steps], MEMORY)
                asked[grade].append(steps)
            else:
                row[grade].fade(MEMORY)  # the text went on unwatched: what is known of it grows old
        for grade, drafts in asked.items():
            self._known[grade].pool.learn(drafts, POOL_MEMORY)
        nodes = turn.proposal.tree.tokens.shape[1]
        depth = min(max(budget.depths, default=0), nodes) if nodes else max(budget.depths, default=0)
        emitted = sum(map(len, turn.emitted)) / max(1, len(turn.emitted))
        self._purse = min(MOST, self._purse + WAGE + emitted - view.spent(nodes, depth))
        if asked and any(found) and (rest := self._known[max(asked)].rest).resting:
            _judge_probe(rest, any(turn.paths), view.spent(nodes, depth) - 1)

    # ---- the choice --------------------------------------------------------------------------------------------------

    def _choose(self, known: _Known, rooms: list[int], room: int, view: _View, grades: list[int]) -> _Size:
        rest = known.rest
        if not rest.resting or rest.hopeful:
            best = self._best(known, rooms, room, view, grades)
            if best.speedup >= (ENTER if rest.resting else LEAVE):
                rest.resting, known.size = False, best
                return best
            if not rest.resting:
                known.rest = rest = _Rest(resting=True)
            rest.hopeful, known.size = False, PLAIN
        rest.waited += 1
        return self._probe(room, view) if rest.waited >= rest.wait else PLAIN

    def _probe(self, room: int, view: _View) -> _Size:
        """A short draft, unless even drafts that are always right would not pay, or the purse has not enough."""
        if max((1 + depth) / ratio for depth, ratio in enumerate(view.ratios[: self.max_depth + 1])) < ENTER:
            return PLAIN
        depth = min(PROBE, room, self._affordable(view))
        return _Size(depth, depth)

    def _affordable(self, view: _View) -> int:
        """The largest draft whose failure the purse can pay."""
        return sum(1 for ratio in view.ratios[1:] if ratio - 1 <= self._purse)

    def _best(self, known: _Known, rooms: list[int], room: int, view: _View, grades: list[int]) -> _Size:
        going = [(row[grade], own, grade) for row, own, grade in zip(self._rows, rooms, grades, strict=True) if own > 0]
        if self.branching.is_chain or view.unasked:
            return self._best_chain(known, going, len(rooms), min(room, self._affordable(view)), view)
        known.kept += 1
        if known.kept >= _REVIEW or not known.size.depth or known.size.nodes > self._affordable(view):
            known.kept = 0
            return self._best_tree([(row, grade) for row, _, grade in going if grade not in self._unasked], room, view)
        return known.size

    def _best_chain(
        self, known: _Known, going: list[tuple[Record, int, int]], batch: int, longest: int, view: _View
    ) -> _Size:
        """Scan all lengths: tokens add up row by row, and each row's survive with the product of its acceptances."""
        usual = {grade: self._known[grade].pool.usual() for grade in {grade for _, _, grade in going}}
        gains, nobody = [0.0] * (longest + 1), 1.0
        for row, room, grade in going:
            share = row.finds(self._known[grade].pool)
            nobody *= 1 - share
            survival = share
            for depth, (rate, *_) in enumerate(row.rates(usual[grade])[: min(room, longest)], 1):
                survival *= rate
                gains[depth] += survival
        best = same = PLAIN
        for depth, tokens in enumerate(itertools.accumulate(gains)):
            if not depth:
                continue
            cost = 1 + (1 - nobody) * (view.ratios[depth] - 1)  # a turn without any draft is a plain one
            size = _Size(depth, depth, (1 + tokens / batch) / cost)
            best = size if size.speedup > best.speedup else best
            same = size if depth == known.size.depth else same
        return same if same.depth and same.speedup >= CHANGE * best.speedup else best

    def _best_tree(self, going: list[tuple[Record, int]], room: int, view: _View) -> _Size:
        """The best static tree for the rows' mean rates; how the drafter fills it is its own matter."""
        tables = [row.rates(self._known[grade].pool.usual()) for row, grade in going]
        means = [
            [sum(rates) / len(tables) for rates in zip(*depths, strict=True)] for depths in zip(*tables, strict=True)
        ]
        shape, choice = best_tree([_falling(ranks) for ranks in means[:room]], view.costs, self._affordable(view))
        return _Size(max(shape.depths), choice.num_draft_tokens, choice.speedup) if shape.parents else PLAIN

    def _view(self, batch: int, context: int, unasked: bool) -> _View:
        bucket = max(_SHORTEST, 1 << max(0, context - 1).bit_length())
        if (key := (batch, bucket, unasked)) not in self._views:
            assert isinstance(self._costs, CostTable), "rows are admitted before a budget is asked for"
            costs = self._costs.at(batch, bucket, 1 + self.max_nodes)
            plain = costs.verify_ms(1)
            verify = {rows: max(ms, plain * (1 + LEAST * (rows - 1))) for rows, ms in costs.verify.items()}
            costs = TurnCosts(verify) if unasked else TurnCosts(verify, costs.draft_step, costs.draft_turn)
            turns = [costs.turn_ms(nodes, min(nodes, self.max_depth)) for nodes in range(1 + self.max_nodes)]
            self._views[key] = _View(costs, tuple(turn / turns[0] for turn in turns), unasked)
        return self._views[key]


def _falling(ranks: list[float]) -> list[float]:
    """Rates by rank as chances of which child is right: never increasing, and not more than 1 together."""
    falling = list(itertools.accumulate(ranks, min))
    return [rate / max(1.0, sum(falling)) for rate in falling]


def _judge_probe(rest: _Rest, accepted: bool, cost: float) -> None:
    """A probe that found something true may be followed by drafts; one that did not waits longer for the next."""
    longest = max(FIRST_WAIT, min(LONGEST_WAIT, round(cost / SHARE)))
    rest.hopeful, rest.waited = accepted, 0
    rest.wait = 1 if accepted else min(2 * rest.wait, longest)
