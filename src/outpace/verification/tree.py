"""A draft tree as parent indices: depths, ancestor mask, positions, paths and pruning.

Knows nothing of probabilities, and nothing of models.

A tree excludes its root. The root is the last emitted token, which the target has not read yet: one forward scores
the root and the N nodes together, so that row 0 of any ``rows`` axis is the root's and row 1 + i is node i's::

    root            tokens    a  b  c  d  e
    ├── a           parents  -1 -1  0  0  1
    │   ├── c       depths    1  1  2  2  2
    │   └── d
    └── b
        └── e
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Bool, Int
from torch import Tensor
from torch.nn.functional import pad

from outpace.errors import UsageError


@dataclass(frozen=True)
class DraftTree:
    """Drafted tokens of a batch, each with the index of its parent.

    A parent stands before its children, siblings stand in the order in which they were drawn, and entries past
    ``num_nodes`` are filler (token -1, parent -1) that no caller may read. A chain is a tree with one child each.

    Args:
        tokens: drafted token ids, target vocabulary, int64.
        parents: index of the parent node, -1 for a child of the root, int64.
        num_nodes: how many nodes of each batch row are real.
    """

    tokens: Int[Tensor, "batch nodes"]
    parents: Int[Tensor, "batch nodes"]
    num_nodes: Int[Tensor, " batch"]

    @classmethod
    def chain(cls, tokens: Int[Tensor, "batch nodes"], num_nodes: Int[Tensor, " batch"] | None = None) -> "DraftTree":
        """Every token the only child of the one before; ``num_nodes`` cuts ragged rows, None takes all of them."""
        batch, nodes = tokens.shape
        parents = torch.arange(-1, nodes - 1, device=tokens.device).expand(batch, nodes)
        if num_nodes is None:
            tree = cls(tokens, parents, torch.full((batch,), nodes, device=tokens.device))
        else:
            real = torch.arange(nodes, device=tokens.device) < num_nodes[:, None]
            tree = cls(tokens.where(real, -1), parents.where(real, -1), num_nodes)
        vars(tree)["is_chain"] = True  # known by construction: comparing parents would make an accelerator wait
        return tree

    @classmethod
    def empty(cls, batch: int, device: torch.device | None = None) -> "DraftTree":
        """No draft for any row: the forward scores the root alone."""
        return cls.chain(torch.empty((batch, 0), dtype=torch.int64, device=device))

    @classmethod
    def from_lists(
        cls, rows: Sequence[tuple[Sequence[int], Sequence[int]]], device: torch.device | None = None
    ) -> "DraftTree":
        """One ``(tokens, parents)`` pair a row, padded over the batch; the inverse of ``to_lists``.

        Raises:
            UsageError: a row has not as many parents as tokens, or is not a tree (see ``validate``).
        """
        for row, (tokens, parents) in enumerate(rows):
            if len(tokens) != len(parents):
                raise UsageError(f"row {row} has {len(tokens)} tokens and {len(parents)} parents; allowed: one each")
        counts = [len(tokens) for tokens, _ in rows]
        width = max(counts, default=0)
        padded = [[[*part, *[-1] * (width - count)] for part in row] for row, count in zip(rows, counts, strict=True)]
        both = torch.tensor(padded, dtype=torch.int64, device=device).reshape(len(rows), 2, width)
        tree = cls(both[:, 0], both[:, 1], torch.tensor(counts, dtype=torch.int64, device=device))
        tree.validate()
        return tree

    def to_lists(self) -> list[tuple[list[int], list[int]]]:
        """One ``(tokens, parents)`` pair a row, without filler."""
        columns = zip(self.tokens.tolist(), self.parents.tolist(), self.num_nodes.tolist(), strict=True)
        return [(tokens[:count], parents[:count]) for tokens, parents, count in columns]

    @property
    def real(self) -> Bool[Tensor, "batch nodes"]:
        """Which entries are nodes and not filler."""
        return torch.arange(self.tokens.shape[1], device=self.tokens.device) < self.num_nodes[:, None]

    @cached_property
    def is_chain(self) -> bool:
        """Whether no node of any row has a sibling: node i is the child of node i - 1. Empty rows are chains."""
        expected = torch.arange(-1, self.tokens.shape[1] - 1, device=self.tokens.device)
        return bool(((self.parents == expected) | ~self.real).all())

    @cached_property
    def _ancestors(self) -> Bool[Tensor, "batch nodes nodes"]:
        batch, nodes = self.tokens.shape
        if vars(self).get("is_chain"):  # only when already known; a tree is not worth the question
            lower = torch.ones((nodes, nodes), dtype=torch.bool, device=self.tokens.device).tril()
            return lower & self.real[:, :, None]
        # Pointer doubling: after step k each row holds the nodes less than 2**k above it. Index 0 is the root.
        above = pad(self.parents + 1, (1, 0))
        mask = torch.eye(nodes + 1, dtype=torch.bool, device=self.tokens.device).expand(batch, -1, -1)
        for _ in range((nodes - 1).bit_length() if nodes else 0):
            mask = mask | mask.gather(1, above[:, :, None].expand(-1, -1, nodes + 1))
            above = above.gather(1, above)
        return mask[:, 1:, 1:] & self.real[:, :, None]

    def ancestor_mask(self) -> Bool[Tensor, "batch nodes nodes"]:
        """Who sees whom: ``[b, i, j]`` is true iff node j is node i or an ancestor of it.

        Rows and columns of filler are false throughout. The tensor is computed once and shared: do not write to it.
        """
        return self._ancestors

    def depths(self) -> Int[Tensor, "batch nodes"]:
        """Distance from the root: 1 for the root's children, 0 for filler."""
        return self._ancestors.sum(-1)

    def heights(self) -> list[int]:
        """The longest path of each row, in nodes."""
        if vars(self).get("is_chain"):  # nothing to compute
            return self.num_nodes.tolist()
        depths = self.depths()
        return depths.amax(1).tolist() if depths.shape[1] else [0] * len(depths)

    def positions(self, lengths: Int[Tensor, " batch"]) -> Int[Tensor, "batch rows"]:
        """Absolute position of the root (column 0) and of every node (column 1 + i), by depth, not by index.

        Args:
            lengths: how many tokens the target has read of each row: the root's position.

        Returns:
            ``lengths + depth``; filler stands at the root's position, which every model can embed.
        """
        return lengths[:, None] + pad(self.depths(), (1, 0))

    def path_to(self, nodes: Int[Tensor, " batch"]) -> Int[Tensor, "batch depth"]:
        """Node indices from the root's child down to one node a row, padded with -1 to the longest of these paths.

        Args:
            nodes: a real node of each row, or -1 for the root, whose path is empty.
        """
        batch, width = self.tokens.shape
        if width == 0:
            return self.tokens
        on_path = self._ancestors[torch.arange(batch, device=nodes.device), nodes.clamp(min=0)] & (nodes >= 0)[:, None]
        longest = max(on_path.sum(-1).tolist(), default=0)
        place = self.depths() * on_path  # column 0 collects what is not on the path, and is cut off
        indices = torch.arange(width, device=nodes.device).expand(batch, width)
        return indices.new_full((batch, 1 + longest), -1).scatter(1, place, indices)[:, 1:]

    def children(self, nodes: Int[Tensor, " batch"]) -> Bool[Tensor, "batch nodes"]:
        """Which entries are children of one node a row; -1 asks for the root's."""
        return (self.parents == nodes[:, None]) & self.real

    def prune(self, keep: Bool[Tensor, "batch nodes"]) -> "DraftTree":
        """The tree of the kept nodes, re-indexed in their old order. What ``keep`` says of filler is ignored.

        Choosing by the tokens drawn is exact for deterministic children only; a sampled tree may be cut by what was
        known before its tokens were drawn.

        Raises:
            UsageError: a node is kept whose parent is not.
        """
        keep = keep & self.real
        orphan = keep & ~(pad(keep, (1, 0), value=True).gather(1, self.parents + 1))
        if orphan.any():
            row, node = orphan.nonzero()[0].tolist()
            parent = int(self.parents[row, node])
            raise UsageError(
                f"row {row} keeps node {node} without its parent {parent}; allowed: a set that holds every ancestor"
            )
        return self._select(keep, self.parents)

    def subtree(self, nodes: Int[Tensor, " batch"]) -> "DraftTree":
        """What hangs below one node a row, with that node as the new root; -1 keeps the whole tree."""
        if self.tokens.shape[1] == 0:
            return self
        rows = torch.arange(self.tokens.shape[0], device=nodes.device)
        below = self._ancestors[rows, :, nodes.clamp(min=0)] | (nodes < 0)[:, None]
        indices = torch.arange(self.tokens.shape[1], device=nodes.device)
        top = self.parents == nodes[:, None]
        return self._select(below & (indices != nodes[:, None]) & self.real, self.parents.masked_fill(top, -1))

    def _select(self, keep: Bool[Tensor, "batch nodes"], parents: Int[Tensor, "batch nodes"]) -> "DraftTree":
        """The kept nodes moved together; ``parents`` are old indices, of kept nodes or -1."""
        counts = keep.sum(1)
        width = max(counts.tolist(), default=0)
        new_index = keep.cumsum(1) - 1
        new_parents = pad(new_index, (1, 0), value=-1).gather(1, parents + 1)
        column = new_index.where(keep, width)  # one column too many collects the rest, and is cut off
        blank = column.new_full((keep.shape[0], width + 1), -1)
        moved = [blank.scatter(1, column, part)[:, :width] for part in (self.tokens, new_parents)]
        return DraftTree(moved[0], moved[1], counts)

    def validate(self) -> None:
        """Check what every reader relies on. Waits for the device: for edges and tests, not for every turn.

        Raises:
            UsageError: tensors that are not int64 or disagree in shape, a count outside 0 … nodes, a parent that does
                not stand before its child, a negative token, or filler that is not -1; row and node are named.
        """
        shape = tuple(self.tokens.shape)
        if self.tokens.dim() != 2 or self.parents.shape != shape or self.num_nodes.shape != shape[:1]:
            shapes = f"{shape}, {tuple(self.parents.shape)} and {tuple(self.num_nodes.shape)}"
            raise UsageError(f"tokens, parents and num_nodes have shapes {shapes}; allowed: [B, N], [B, N] and [B]")
        for name in ("tokens", "parents", "num_nodes"):
            if (dtype := getattr(self, name).dtype) != torch.int64:
                raise UsageError(f"{name} is {dtype}; allowed: torch.int64")
        for row, count in enumerate(self.num_nodes.tolist()):
            if not 0 <= count <= shape[1]:
                raise UsageError(f"row {row} has num_nodes {count}; allowed: 0 to {shape[1]}")
        indices = torch.arange(shape[1], device=self.tokens.device)
        _refuse(
            self.real & ((self.parents < -1) | (self.parents >= indices)),
            "parent",
            self.parents,
            "-1 or an earlier node",
        )
        _refuse(self.real & (self.tokens < 0), "token", self.tokens, "0 or more")
        _refuse(~self.real & (self.tokens != -1), "token", self.tokens, "-1, as this is filler")
        _refuse(~self.real & (self.parents != -1), "parent", self.parents, "-1, as this is filler")


def _refuse(wrong: Bool[Tensor, "batch nodes"], what: str, values: Int[Tensor, "batch nodes"], allowed: str) -> None:
    """Name the first wrong entry, if there is one."""
    if wrong.any():
        row, node = wrong.nonzero()[0].tolist()
        raise UsageError(f"row {row}, node {node} has {what} {int(values[row, node])}; allowed: {allowed}")
