"""What a drafter may guess in one turn: how deep, how many nodes, and how the draft branches.

Knows nothing of who chose it or of how it is filled.
"""

from dataclasses import dataclass
from typing import Literal, get_args

from outpace.errors import UsageError

Kind = Literal["chain", "top-k", "top-p", "sampled"]
KINDS: tuple[Kind, ...] = get_args(Kind)
ALLOWED = "chain, top-k:K, top-p:P, sampled:K, dynamic"


@dataclass(frozen=True)
class Branching:
    """How a draft branches; written ``chain``, ``top-k:3``, ``top-p:0.9``, ``sampled:3`` or ``dynamic``.

    * ``chain``: one child each.
    * ``top-k``: the k most probable children of each node, deterministic.
    * ``top-p``: the smallest set of most probable children whose mass reaches p, deterministic: wide where the drafter
      hesitates.
    * ``sampled``: at most k children of each node, drawn without replacement from the drafter's law.

    Of ``top-k`` and ``top-p`` trees the nodes with the largest products of probabilities along their paths are kept.
    ``dynamic`` is another word for ``top-k:8``, wide enough that these products alone decide: the tree of EAGLE-2.

    Args:
        kind: one of these.
        width: k, a whole number from 1, or p, in (0, 1]; 1 for a chain.

    Raises:
        UsageError: the kind is unknown or the width out of its range.
    """

    kind: Kind = "chain"
    width: float = 1

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise UsageError(f"tree is {self.kind!r}; allowed: {ALLOWED}")
        if self.kind == "chain" and self.width != 1:
            raise UsageError(f"tree is {self}; allowed: chain, without a width")
        if self.kind == "top-p" and not 0 < self.width <= 1:
            raise UsageError(f"tree is {self}; allowed: a mass above 0, up to 1")
        if self.kind in ("top-k", "sampled") and not (self.width >= 1 and self.width == int(self.width)):
            raise UsageError(f"tree is {self}; allowed: a whole number of children from 1 on")

    @classmethod
    def parse(cls, text: str) -> "Branching":
        """Read ``kind`` or ``kind:width``, as the flag ``--tree`` has it."""
        if text == "dynamic":
            return DYNAMIC
        kind, colon, width = text.partition(":")
        if kind not in KINDS or (kind == "chain") == bool(colon):
            raise UsageError(f"tree is {text!r}; allowed: {ALLOWED}")
        if kind == "chain":
            return CHAIN
        try:
            return cls(kind, float(width))
        except ValueError:
            raise UsageError(f"tree is {text!r}; allowed: a number behind the colon, such as {kind}:1") from None

    def __str__(self) -> str:
        return self.kind if self.kind == "chain" else f"{self.kind}:{self.width:g}"

    @property
    def is_chain(self) -> bool:
        """Whether no node has a sibling."""
        return self.kind == "chain"


CHAIN = Branching()
DYNAMIC = Branching("top-k", 8.0)


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
