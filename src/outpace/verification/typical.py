"""Judge a draft by whether the target finds it probable enough: typical acceptance, which is lossy.

Knows nothing of how a draft was drawn: the draft's law is not asked for.

A drafted token passes where the target gives it more than a threshold, which falls with the entropy of the row: where
much is possible, little is enough. The longest path of passing tokens is accepted, of equally long ones the most
probable, then the earliest. The next token is drawn from the target's row at its end, whatever was refused there.

Nothing makes good for what was accepted too often, so that the output does not follow the target's law: the rule is
never chosen by itself, and every verdict says that it is not lossless. With one-hot rows it is greedy, and exact.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from outpace.verification.probabilities import argmax, draw
from outpace.verification.tree import DraftTree
from outpace.verification.verdict import Coins, DraftRows, Rule, TargetRows, Verdict

EPSILON, DELTA = 0.09, 0.3
"""A token passes above ``min(EPSILON, DELTA * exp(-entropy))``, entropy in nats; delta is the root of epsilon."""


def _thresholds(target_probs: TargetRows, tree: DraftTree) -> Float[Tensor, "batch rows"]:
    """What a child must have at every row; infinity at rows without children, which are not looked at."""
    thresholds = target_probs.new_full(target_probs.shape[:2], torch.inf)
    # One row at a time: all at once would be a second input.
    for row in sorted({parent + 1 for parent in tree.parents[tree.real].tolist()}):
        entropy = torch.special.entr(target_probs[:, row]).sum(1)
        thresholds[:, row] = (DELTA * (-entropy).exp()).clamp(max=EPSILON)
    return thresholds


def _end(target_probs: TargetRows, tree: DraftTree) -> Int[Tensor, " batch"]:
    """The row where each path ends; it is certain once the draft is there."""
    if tree.tokens.shape[1] == 0:
        return torch.zeros_like(tree.num_nodes)
    batch = torch.arange(len(tree.tokens), device=tree.tokens.device)[:, None]
    parents = tree.parents + 1
    given = target_probs[batch, parents, tree.tokens.clamp(min=0)].where(tree.real, 0)
    passes = given > _thresholds(target_probs, tree).gather(1, parents)
    above = tree.ancestor_mask()
    accepted = (passes[:, None] | ~above).all(2) & tree.real
    lengths = tree.depths().where(accepted, 0)
    longest = lengths.amax(1, keepdim=True)
    likelihood = given.log()[:, None].where(above, 0).sum(2)
    best, _ = argmax(likelihood.masked_fill(~accepted | (lengths < longest), -torch.inf))
    return (best + 1).where(longest.squeeze(1) > 0, 0)


def _judge(target_probs: TargetRows, tree: DraftTree, draft_probs: DraftRows, coins: Coins) -> Verdict:
    end = _end(target_probs, tree)
    batch = torch.arange(len(end), device=end.device)
    path = tree.path_to(end - 1)
    return Verdict(path, (path >= 0).sum(1), draw(target_probs[batch, end], coins[:, -1]), "typical", lossless=False)


def _law(target_probs: TargetRows, tree: DraftTree, draft_probs: DraftRows) -> TargetRows:
    end = _end(target_probs, tree)
    batch = torch.arange(len(end), device=end.device)
    law = torch.zeros_like(target_probs)
    law[batch, end] = target_probs[batch, end]
    return law


TYPICAL = Rule("typical", False, _judge, _law)
"""Accept what the target finds probable enough. The last coin draws the next token, the others are not used.

Source: Medusa (Cai et al., arXiv 2401.10774), typical acceptance.
"""
