"""What a drafter may guess in one turn: how deep, how many nodes, and how the draft branches.

Knows nothing of who chose it or of how it is filled.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from outpace.errors import UsageError

Kind = Literal["chain", "top-k", "top-p", "sampled", "static"]
KINDS: tuple[Kind, ...] = get_args(Kind)
TREES = "chain, top-k:K, top-p:P, sampled:K, dynamic, static, static:RATES"
EXAMPLE = "static:0.6,0.15,0.06"
RANKS = 8
"""Siblings that are told apart: those of ``dynamic``, and the ranks whose acceptance is measured."""
SLACK = 1e-9
"""How far above 1 rounding may carry a sum of shares."""


@dataclass(frozen=True)
class Branching:
    """How a draft branches; written ``chain``, ``top-k:3``, ``top-p:0.9``, ``sampled:3``, ``dynamic`` or ``static``.

    * ``chain``: one child each.
    * ``top-k``: the k most probable children of each node, deterministic.
    * ``top-p``: the smallest set of most probable children whose mass reaches p, deterministic: wide where the drafter
      hesitates.
    * ``sampled``: at most k children of each node, drawn without replacement from the drafter's law.
    * ``static``: the shape is fixed before anything is drafted: the best one where the child of rank r is the right one
      in the share ``rates[r]`` of all cases. Its places hold the most probable children, deterministic. Written
      ``static:0.6,0.15,0.06``, or ``static`` for the rates that were measured of the drafter.

    Of ``top-k`` and ``top-p`` trees the nodes with the largest products of probabilities along their paths are kept.
    ``dynamic`` is another word for ``top-k:8``, wide enough that these products alone decide: the tree of EAGLE-2.

    Args:
        kind: one of these.
        width: k, a whole number from 1, or p, in (0, 1]; 1 for a chain and a static tree.
        rates: of a static tree, above 0, never rising, together at most 1; none stands for the drafter's own.

    Raises:
        UsageError: the kind is unknown, the width out of its range, or the rates are none.
    """

    kind: Kind = "chain"
    width: float = 1
    rates: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise UsageError(f"tree is {self.kind!r}; allowed: {TREES}")
        if self.kind in ("chain", "static") and self.width != 1:
            raise UsageError(f"tree is {self.kind}, {self.width:g} wide; allowed: {self.kind}, without a width")
        if self.kind == "top-p" and not 0 < self.width <= 1:
            raise UsageError(f"tree is {self}; allowed: a mass above 0, up to 1")
        if self.kind in ("top-k", "sampled") and not (self.width >= 1 and float(self.width).is_integer()):
            raise UsageError(f"tree is {self}; allowed: a whole number of children from 1 on")
        if self.kind != "static" and self.rates:
            raise UsageError(f"tree is {self} with rates; allowed: rates for static alone")
        if not _falls(self.rates):
            raise UsageError(
                f"tree is {self}; allowed: rates above 0, never rising, together at most 1, such as {EXAMPLE}"
            )

    @classmethod
    def parse(cls, text: str) -> "Branching":
        """Read ``kind``, ``kind:width`` or ``static:rates``, as the flag ``--tree`` has it."""
        if text == "dynamic":
            return DYNAMIC
        kind, colon, behind = text.partition(":")
        if kind not in KINDS or (kind == "chain" and colon) or (kind not in ("chain", "static") and not colon):
            raise UsageError(f"tree is {text!r}; allowed: {TREES}")
        if not colon:
            return cls(kind)
        try:
            if kind == "static":
                return cls(kind, rates=tuple(map(float, behind.split(","))))
            return cls(kind, float(behind))
        except ValueError:
            such = f"numbers behind the colon, such as {EXAMPLE}"
            one = f"a number behind the colon, such as {kind}:1"
            raise UsageError(f"tree is {text!r}; allowed: {such if kind == 'static' else one}") from None

    def __str__(self) -> str:
        numbers = () if self.kind == "chain" else self.rates if self.kind == "static" else (self.width,)
        return self.kind + (":" + ",".join(map(_spelled, numbers)) if numbers else "")

    @property
    def is_chain(self) -> bool:
        """Whether no node has a sibling."""
        return self.kind == "chain"


def _falls(rates: Sequence[float]) -> bool:
    """Whether these can be chances of which child is the right one."""
    falling = all(high >= low for high, low in itertools.pairwise(rates))
    return falling and all(rate > 0 for rate in rates) and sum(rates) <= 1 + SLACK


def _spelled(number: float) -> str:
    """As short as it can be read back."""
    short = f"{number:g}"
    return short if float(short) == number else repr(float(number))


CHAIN = Branching()
DYNAMIC = Branching("top-k", float(RANKS))


@dataclass(frozen=True)
class Budget:
    """What one turn may draft, row by row. A row with depth 0 has 0 nodes and drafts nothing.

    Args:
        depths: the longest path allowed, 0 or more.
        nodes: how many nodes without the root, 0 or more; for a chain the same as the depth.
        branching: how all rows branch.
    """

    depths: list[int]
    nodes: list[int]
    branching: Branching = CHAIN

    @classmethod
    def chain(cls, limits: list[int]) -> "Budget":
        """A chain of at most ``limits[b]`` tokens in row b."""
        return cls(limits, limits)

    @property
    def empty(self) -> bool:
        """Whether no row may draft."""
        return not any(self.depths)
