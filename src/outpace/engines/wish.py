"""What a plan asks an engine for: one drafter, and what it drafts from which batch size on.

Knows nothing of any engine. A plan has a choice for every category, batch and temperature; an engine is started once,
with one drafter. What is given up for that is said by name, and so is everything that an engine's own file takes off.
"""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

from outpace.decoding.options import AUTO_DEPTH
from outpace.decoding.plan import ALL, Choice, Plan
from outpace.drafters.budget import CHAIN, Branching
from outpace.drafters.load import LOOKUP
from outpace.engines.emission import Cannot
from outpace.engines.guesser import Guesser, alone, guesser
from outpace.errors import UsageError, WeightsError
from outpace.models.weights import DEFAULT, find_weights

ASSUMED = 4
"""Drafts a turn where a plan leaves them to the controller, or where there is no plan: assumed, not measured."""
WIDTH = 4
"""Children of a node where a plan fixes their mass or the tree's shape, and an engine wants their number."""
LONGEST_MATCH = 8
"""Tokens that lookup compares at most, for engines that want a bound; outpace has none."""


@dataclass(frozen=True)
class Level:
    """What is drafted from one batch size on.

    Args:
        batch: 1 or more.
        depth, nodes: the longest path and how many nodes, without the root; 0 and 0 is plain decoding.
        branching: how a draft branches.
        rule: a rule of acceptance by name; None where all of them are one, because everything is greedy.
        most: the longest path that a controller may choose; None where the number is fixed.
    """

    batch: int
    depth: int
    nodes: int
    branching: Branching = CHAIN
    rule: str | None = None
    most: int | None = None

    @property
    def width(self) -> int:
        """How many children a node has, for an engine that wants a number."""
        if self.branching.is_chain:
            return 1
        return int(self.branching.width) if self.branching.kind == "top-k" else WIDTH

    @property
    def words(self) -> str:
        """What is drafted, in words."""
        if self.depth == 0:
            return "no drafts"
        return f"a chain of {self.depth}" if self.branching.is_chain else f"{self.nodes} nodes, {self.depth} deep"


@dataclass(frozen=True)
class Wish:
    """A plan without what no engine could have.

    Args:
        target: its name in the plan.
        path: what an engine opens: a folder or a Hugging Face id.
        drafter: who drafts; None decodes plainly.
        levels: from batch 1 on, rising, no two neighbours alike.
        temperature: at which they hold.
        notes, cannot: as in ``Emission``.
    """

    target: str
    path: str
    drafter: Guesser | None
    levels: tuple[Level, ...]
    temperature: float = 0.0
    notes: tuple[str, ...] = ()
    cannot: tuple[Cannot, ...] = ()

    @property
    def who(self) -> Guesser | None:
        """Who drafts, if anybody does at any batch size."""
        return self.drafter if any(level.depth for level in self.levels) else None

    @property
    def deepest(self) -> int:
        """The longest path at any batch size."""
        return max(level.depth for level in self.levels)

    def without(self, what: str, nearest: str) -> "Wish":
        """The same, and that something is given up."""
        return replace(self, cannot=(*self.cannot, Cannot(what, nearest)))

    def noting(self, note: str) -> "Wish":
        """The same, and something to know."""
        return replace(self, notes=(*self.notes, note))

    def over(self, levels: Iterable[Level]) -> "Wish":
        """The same with other levels; neighbours that are alike become one."""
        alike = groupby(levels, key=lambda level: replace(level, batch=1))
        return replace(self, levels=tuple(next(same) for _, same in alike))

    def chains(self, engine: str) -> "Wish":
        """For an engine that drafts chains alone: of every tree its longest path."""
        wish = self
        for words, depth in dict.fromkeys(
            (f"the tree {level.branching} ({level.words})", level.depth)
            for level in self.levels
            if level.depth and not level.branching.is_chain
        ):
            wish = wish.without(
                f"{words}: {engine} drafts chains with {'' if self.drafter is None else self.drafter.words}",
                f"a chain of {depth}, of which fewer tokens a turn are accepted than of the tree",
            )
        return wish.over(
            level if level.branching.is_chain else replace(level, nodes=level.depth, branching=CHAIN)
            for level in self.levels
        )

    def fixed(self, engine: str) -> "Wish":
        """For an engine whose number of drafts stays what it was started with."""
        adaptive = [level for level in self.levels if level.most is not None]
        if not adaptive:
            return self
        wish = self.without(
            f"auto: {engine} does not choose the number of drafts anew each turn",
            f"{adaptive[0].words}, assumed and not measured: `outpace bench --num-draft-tokens` compares such numbers",
        )
        return wish.over(replace(level, most=None) for level in self.levels)

    def single(self, engine: str) -> "Wish":
        """For an engine that drafts alike at every batch size: what the plan has for batch 1."""
        first, *others = self.levels
        if not others:
            return self
        words = "; ".join(f"{level.words} from batch {level.batch} on" for level in others)
        wish = self.without(
            f"drafts by batch size ({words}): {engine} drafts alike at all of them",
            f"{first.words} at every batch size; --batch N emits what the plan has for N",
        )
        return wish.over([first])


def wish(
    plan: Plan, *, category: str = ALL, batch: int | None = None, temperature: float = 0.0, kind: str | None = None
) -> Wish:
    """What a plan asks for.

    Args:
        plan: for a target that need not be here.
        category: whose choices are taken; those for all where it has none.
        batch: the one batch size that matters; None takes all that the plan tells apart.
        temperature: 0 or more.
        kind: of a drafter that is not here, see ``guesser``.

    Raises:
        UsageError: the plan has no choice for the category, or as for ``Plan.choice`` and ``guesser``.
        WeightsError, UnsupportedError: as for ``guesser``.
    """
    known = list(dict.fromkeys([ALL, *(one.category for one in plan.choices)]))
    if category not in known:
        raise UsageError(f"category is {category!r}; allowed: {', '.join(known)}, as in the plan")
    batches = sorted({one.batch for one in plan.choices if one.category in (category, ALL)})
    chosen = {at: plan.choice(category, at, temperature) for at in (batches if batch is None else [batch])}
    if batch is not None:
        chosen = {1: chosen[batch]}
    names = {at: alone(choice.drafter, plan.fingerprint) for at, choice in chosen.items() if _drafts(choice)}
    main = next(iter(names.values()), None)
    who = None if main is None else guesser(main, plan.fingerprint, kind)
    asked = Wish(plan.target, _path(plan.target), who, (), temperature, _notes(plan, chosen[1], category))
    if any(name == main != LOOKUP and chosen[at].drafter != name for at, name in names.items()):
        asked = asked.without(
            f"lookup beside {main}, where the text repeats itself: an engine is started with one drafter",
            f"{main} there too, which costs its steps; it was not measured so",
        )
    levels: list[Level] = []
    for at, choice in chosen.items():
        level = _level(choice, at, who, temperature)
        if names.get(at, main) != main:
            level = replace(min(levels[-1], level, key=lambda one: one.depth), batch=at)
            asked = asked.without(
                f"the drafter {choice.drafter} from batch {at} on: an engine is started with one, here {main}",
                f"{level.words} by {main} there, which was not measured",
            )
        levels.append(level)
    return _rules(asked.over(levels))


def _drafts(choice: Choice) -> bool:
    return choice.options["num_draft_tokens"] != 0


def _level(choice: Choice, batch: int, who: Guesser | None, temperature: float) -> Level:
    """A choice in numbers, its rule named: the one that ``generate`` takes where the choice names none."""
    asked, bound = choice.options["num_draft_tokens"], choice.options["depth"]
    if who is None or asked == 0:
        return Level(batch, 0, 0)
    branching = Branching.parse(choice.tree)
    if who.kind == "lookup" or (branching.kind in ("top-k", "sampled") and branching.width == 1):
        branching = CHAIN  # lookup has one continuation, and one child each is a chain
    rule = choice.rule
    if rule is None and temperature > 0:
        drawn = "block" if branching.is_chain else "tree-rejection" if branching.kind == "sampled" else "match"
        rule = "match" if who.kind == "lookup" else drawn
    if asked == "auto":
        most = who.within(bound or AUTO_DEPTH)
        depth = min(most, ASSUMED)
        return Level(batch, depth, depth if branching.is_chain else ASSUMED * depth, branching, rule, most)
    depth = who.within(min(asked, bound or (asked if branching.is_chain else AUTO_DEPTH)))
    return Level(batch, depth, depth if branching.is_chain else asked, branching, rule)


_OTHERWISE: Mapping[str, str] = {"tree-rejection": "rejection", "traversal": "block", "greedy": "match"}
"""The rule that is the same one where no node has a sibling, or where everything is greedy."""


def _rules(asked: Wish) -> Wish:
    """One rule at every batch size, and a lossless one: a lossy rule is never replaced by another lossy one."""
    if any(level.rule == "typical" for level in asked.levels):
        asked = asked.without(
            "the rule typical, which is not lossless: no engine has it in this form", "the engine's lossless acceptance"
        )
        asked = asked.over(replace(level, rule="match") if level.rule == "typical" else level for level in asked.levels)
    rules = list(dict.fromkeys(level.rule for level in asked.levels if level.depth))
    if len(rules) > 1:
        first, *others = (rule or "the engine's" for rule in rules)
        asked = asked.without(f"rules by batch size ({', '.join(others)} besides {first}): an engine has one", first)
        asked = asked.over(replace(level, rule=rules[0]) if level.depth else level for level in asked.levels)
    return asked


def chain_rule(level: Level) -> str:
    """The rule of a chain: ``match``, ``rejection`` or ``block``; ``match`` where everything is greedy."""
    rule = level.rule or "match"
    return _OTHERWISE.get(rule, rule)


def _path(target: str) -> str:
    """What an engine can open. ``smollm2`` is a name of outpace's own: its folder is taken, if it is here."""
    if target != DEFAULT:
        folder = Path(os.path.expanduser(target))
        return str(folder.absolute()) if folder.is_dir() else target
    try:
        return str(find_weights(DEFAULT, offline=True))
    except WeightsError:
        return DEFAULT


def _notes(plan: Plan, first: Choice, category: str) -> tuple[str, ...]:
    notes = []
    if plan.target == DEFAULT and _path(DEFAULT) == DEFAULT:
        notes.append("smollm2 is outpace's name: after `outpace pull`, its folder stands here")
    own = sorted({one.category for one in plan.choices} - {ALL, category})
    if own:
        notes.append(f"left out: choices of their own for {', '.join(own)}; --category NAME emits one of them")
    others = sorted({one.temperature for one in plan.choices if one.category in (category, ALL)} - {first.temperature})
    if others:
        words = ", ".join(f"{one:g}" for one in others)
        notes.append(f"left out: choices for temperatures from {words} on; --temperature T emits those for T")
    if (found := first.evidence) is not None and found.speedup is not None and found.prompts:
        sure = "" if found.low is None or found.high is None else f" ({found.low:.2f} to {found.high:.2f})"
        notes.append(
            f"outpace measured {found.speedup:.2f} times plain decoding{sure} with its own decoder, {found.prompts} "
            f"prompts, batch {first.batch}; an engine has its own figure: `outpace bench --endpoint URL` measures it"
        )
    return tuple(notes)
