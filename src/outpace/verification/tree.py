"""A draft tree as parent indices: depths, ancestor mask, positions, paths, growth and pruning.

Knows nothing of probabilities beyond those handed to its builders, and nothing of models.

A tree excludes its root. The root is the last emitted token, which the target has not read yet: one forward scores
the root and the N nodes together, so that row 0 of any ``rows`` axis is the root's and row 1 + i is node i's::

    root            tokens    a  b  c  d  e
    ├── a           parents  -1 -1  0  0  1
    │   ├── c       depths    1  1  2  2  2
    │   └── d
    └── b
        └── e
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from torch import Tensor


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

    @property
    def real(self) -> Bool[Tensor, "batch nodes"]:
        """Which entries are nodes and not filler."""
        return torch.arange(self.tokens.shape[1], device=self.tokens.device) < self.num_nodes[:, None]
