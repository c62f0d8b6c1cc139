"""What a rule decides about a draft, and what a rule is.

Knows nothing of models or text: rows of probabilities, a tree and coins come in, a verdict goes out.
"""

from collections.abc import Callable
from dataclasses import dataclass

from jaxtyping import Float, Int
from torch import Tensor

from outpace.verification.tree import DraftTree


@dataclass(frozen=True)
class Verdict:
    """The accepted path of every batch row and the one token that follows it.

    A turn emits, per row, the tokens of ``path`` and then ``next_token``: ``num_accepted + 1`` tokens.

    Args:
        path: node indices from the root's child downwards, padded with -1.
        num_accepted: length of each path, 0 when the root's children were all refused.
        next_token: the correction after a refusal or the bonus after a leaf; always the target's.
        rule: the name of the rule in force.
        lossless: whether the rule keeps the target's law exactly.
    """

    path: Int[Tensor, "batch depth"]
    num_accepted: Int[Tensor, " batch"]
    next_token: Int[Tensor, " batch"]
    rule: str
    lossless: bool


TargetRows = Float[Tensor, "batch rows vocab"]
TargetRow = Float[Tensor, "batch vocab"]
RowAt = Callable[[int], TargetRow]
"""The target's law at one row of the tree, for every batch row, when it is asked for."""
DraftRows = Float[Tensor, "batch rows vocab"] | None
Coins = Float[Tensor, "batch rows"]


@dataclass(frozen=True)
class Rule:
    """A named acceptance rule: a sampler and the law that it draws from.

    ``rows`` is 1 + N: row 0 belongs to the root, row 1 + i to node i of the tree.

    Args:
        name: the field's name of the rule.
        lossless: whether the emitted tokens follow the target's law exactly.
        judge: ``(target_probs, tree, draft_probs, coins) -> Verdict``; a pure function of its arguments. Every coin
            is uniform in [0, 1) and used at most once.
        law: ``(target_probs, tree, draft_probs) -> [batch, rows, vocab]``; entry ``[b, r, v]`` is the probability
            that the path of row b ends at row r (0: nothing accepted) and that the next token is v. Sums to one.
        judge_reached: ``judge`` for laws that are costly to make: it asks for a row only where a path may stand. None
            where a rule looks at all rows.
    """

    name: str
    lossless: bool
    judge: Callable[[TargetRows, DraftTree, DraftRows, Coins], Verdict]
    law: Callable[[TargetRows, DraftTree, DraftRows], TargetRows]
    judge_reached: Callable[[RowAt, DraftTree, DraftRows, Coins], Verdict] | None = None
