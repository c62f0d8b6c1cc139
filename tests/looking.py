"""A draft model that is a table, as growth looks through it: notes the paths that it was asked for."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from outpace.drafters.growth import Branches

Path = tuple[int, ...]


def paths(tokens: Sequence[int], parents: Sequence[int]) -> list[Path]:
    """The tokens from the root down to every node."""
    found: list[Path] = []
    for token, parent in zip(tokens, parents, strict=True):
        found.append((*(found[parent] if parent >= 0 else ()), token))
    return found


@dataclass
class Looking:
    """Its next token depends on the last one. Behind the rows that were asked for stands one that is no law.

    Args:
        table: the logits after each token.
        last: the last token of every row.
        asked: of every look the paths to the nodes, row by row; the root is the empty one.
    """

    table: Tensor
    last: list[int]
    asked: list[list[list[Path]]] = field(default_factory=list)

    def __call__(self, depth: int, grown: Sequence[Branches], nodes: Sequence[Sequence[int]]) -> Tensor:
        """As growth asks: once a depth, and for no node whose parent was not asked for before."""
        assert depth == len(self.asked) and any(nodes)
        now: list[list[Path]] = []
        said = torch.full(
            (len(nodes), 1 + max(map(len, nodes)), self.table.shape[1]), torch.nan, dtype=self.table.dtype
        )
        for row, own in enumerate(nodes):
            found = paths(*grown[row])
            now.append([found[node] if node >= 0 else () for node in own])
            assert len(now[row]) == len(set(now[row])) and all(len(path) == depth for path in now[row])
            assert depth == 0 or all(path[:-1] in self.asked[-1][row] for path in now[row])
            for place, path in enumerate(now[row]):
                said[row, place] = self.table[path[-1] if path else self.last[row]]
        self.asked.append(now)
        return said

    @property
    def counts(self) -> list[list[int]]:
        """How many nodes of each row every look was for."""
        return [[len(own) for own in rows] for rows in self.asked]
