"""Judge a draft by what the target itself chooses: greedy, match, and the shared-noise coupling.

Knows nothing of how a draft was drawn: the draft's law is not asked for, so a wrong one cannot bias the output. Chains
and trees, sampled and deterministic children are judged alike.

The target chooses one token at every row of the tree, as plain decoding would. From the root the path goes to the
child that equals the choice, if there is one, and so on; the first choice that no child equals ends the turn and is
emitted itself. What is emitted is always the target's own choice, and a row's choice uses that row's noise alone, so
the law is the target's. A later sibling with an earlier one's token adds nothing and is never followed: which of two
equal children is followed must not depend on what was chosen below them.
"""

from collections.abc import Callable

import torch
from jaxtyping import Float, Int, Num
from torch import Tensor
from torch.nn.functional import pad

from outpace.verification.probabilities import argmax, draw, settle_ties
from outpace.verification.tree import DraftTree
from outpace.verification.verdict import Coins, DraftRows, Rule, TargetRows, Verdict

Choose = Callable[[list[int], list[int]], list[int]]
"""``(batch rows, rows of the tree) -> tokens``: what the target chooses there. Row 0 is the root, row 1 + i node i."""


def walk(tree: DraftTree, choose: Choose, rule: str) -> Verdict:
    """The path along which the draft agrees with the target's choices, and the first choice without a child.

    Choices are asked for step by step, and only where a path has come by: most of a draft is never looked at.

    Args:
        choose: the target's tokens at some rows; -1 ends that path with token 0, for a row that has no choice.
        rule: the name that the verdict carries.
    """
    rows = zip(*(part.tolist() for part in (tree.tokens, tree.parents, tree.num_nodes)), strict=True)
    children = [_first_children(*row) for row in rows]
    paths: list[list[int]] = [[] for _ in children]
    final = [0] * len(children)
    going = list(range(len(children)))
    while going:
        places = [paths[row][-1] + 1 if paths[row] else 0 for row in going]
        further = []
        for row, place, token in zip(going, places, choose(going, places), strict=True):
            child = children[row].get((place - 1, token))
            if child is None:
                final[row] = max(token, 0)
            else:
                paths[row].append(child)
                further.append(row)
        going = further
    depth = max(map(len, paths), default=0)
    padded = [path + [-1] * (depth - len(path)) for path in paths]
    new = tree.tokens.new_tensor
    return Verdict(new(padded).view(len(paths), depth), new([len(path) for path in paths]), new(final), rule, True)


def _first_children(tokens: list[int], parents: list[int], count: int) -> dict[tuple[int, int], int]:
    """The first child with each token, by parent and token."""
    child: dict[tuple[int, int], int] = {}
    for node in range(count):
        child.setdefault((parents[node], tokens[node]), node)
    return child


def follow(choice: Int[Tensor, "batch rows"], tree: DraftTree, rule: str) -> Verdict:
    """The walk by choices that were made at every row: ``choice[b, 0]`` at the root, ``choice[b, 1 + i]`` at node i."""
    table = choice.tolist()
    return walk(tree, lambda rows, places: [table[row][place] for row, place in zip(rows, places, strict=True)], rule)


def _reached(steps: Num[Tensor, "batch nodes"], tree: DraftTree) -> Num[Tensor, "batch rows"]:
    """The product of the steps from the root to every row: whether, or how probably, the path comes by.

    Args:
        steps: for every node whether (0 or 1), or how probably, the parent's choice is its token.
    """
    same = (tree.tokens[:, :, None] == tree.tokens[:, None]) & (tree.parents[:, :, None] == tree.parents[:, None])
    repeated = same.tril(-1).any(2)
    steps = steps.masked_fill(repeated | ~tree.real, 0)
    reached = steps[:, None].where(tree.ancestor_mask(), 1).prod(2) * tree.real
    return pad(reached, (1, 0), value=1)


def _law(target_probs: TargetRows, tree: DraftTree) -> TargetRows:
    """Where the path ends and with what: it comes by a row whose choice is none of its children's tokens."""
    batch, node = tree.real.nonzero(as_tuple=True)
    at_node = (batch, tree.parents[batch, node] + 1, tree.tokens[batch, node])
    steps = target_probs.new_zeros(tree.tokens.shape).index_put((batch, node), target_probs[at_node])
    law = _reached(steps, tree)[..., None] * target_probs
    law[at_node] = 0
    return law


def _judge_greedy(target_probs: TargetRows, tree: DraftTree, draft_probs: DraftRows, coins: Coins) -> Verdict:
    return follow(argmax(target_probs)[0], tree, "greedy")


def _greedy_law(target_probs: TargetRows, tree: DraftTree, draft_probs: DraftRows) -> TargetRows:
    certain = torch.zeros_like(target_probs).scatter_(-1, argmax(target_probs)[0][..., None], 1)
    return _law(certain, tree)


def _judge_match(target_probs: TargetRows, tree: DraftTree, draft_probs: DraftRows, coins: Coins) -> Verdict:
    return follow(draw(target_probs, coins), tree, "match")


def _match_law(target_probs: TargetRows, tree: DraftTree, draft_probs: DraftRows) -> TargetRows:
    return _law(target_probs, tree)


GREEDY = Rule("greedy", True, _judge_greedy, _greedy_law)
"""The choice is the argmax, the lowest id on ties. Coins are not used."""

MATCH = Rule("match", True, _judge_match, _match_law)
"""The choice is a draw from the target's row, with the row's own coin: coin 0 the root's, coin 1 + i that of node i.

For deterministic children this is as good as any rule can be; EAGLE's trees judged as one-hot drafts have this law.
"""


CANDIDATES = 64
"""How many tokens of a row get a clock of their own. The law is the same for any number."""


def candidates(probs: Float[Tensor, "*lead vocab"], count: int = CANDIDATES) -> Int[Tensor, "*lead candidates"]:
    """The ``count`` most probable tokens of each row (all, if there are fewer); of equals, the lower ids.

    Which tokens they are depends on the row alone, so that the coupling does too; their order means nothing.
    """
    values, ids = probs.topk(min(count + 1, probs.shape[-1]), dim=-1)
    kept = torch.full(values.shape[:-1], min(count, values.shape[-1]), device=probs.device)
    return settle_ties(probs, values, ids, kept)[..., :count]


def race(
    probs: Float[Tensor, "*lead vocab"],
    candidate_ids: Int[Tensor, "*lead candidates"],
    noise: Float[Tensor, "*lead candidates"],
    tail_noise: Float[Tensor, "*lead"],
    tail_coin: Float[Tensor, "*lead"],
) -> Int[Tensor, "*lead"]:
    """The choice of the coupling: the token whose exponential clock, run at the speed of its probability, rings first.

    The law is the row's. ``noise / prob`` of a candidate is exponential with rate ``prob``; all other tokens share one
    clock with their total mass as its rate. The first of independent exponentials is each one with probability rate
    over the sum of rates, so a candidate wins with its own probability and the tail with its mass; given that, the
    independent tail coin picks a token of the tail with probability ``prob / mass``, by inverse CDF.

    Where noise is keyed by (seed, sample, absolute position, token), the choice is a function of seed, position and
    row alone: neither drafter, draft length, tree nor batch can move it. A drafter racing with the same noise agrees
    often: with probability at least (1 - TV) / (1 + TV) if every token has a clock, and hardly less with a thin tail.

    Args:
        probs: rows to draw from; they need not be normalised.
        candidate_ids: distinct tokens of each row, ``candidates(probs, count)``. The law holds for any set, but the
            set must depend on the row alone, and few tokens in the tail make for agreement.
        noise: a unit exponential for each candidate, keyed by its token.
        tail_noise: a unit exponential for the rest.
        tail_coin: a uniform in [0, 1) for the rest.

    Source: Daliri et al., arXiv 2408.07978; Rowan et al., arXiv 2506.05632. The tail is ours.
    """
    front = probs.gather(-1, candidate_ids)
    tail = (probs.sum(-1) - front.sum(-1)).clamp(min=0)
    times = (noise / front).where(front > 0, torch.inf)  # a token without mass never rings, not even at noise 0
    best = times.argmin(-1, keepdim=True)
    choice = candidate_ids.gather(-1, best).squeeze(-1)
    from_tail = (tail > 0) & (tail_noise / tail < times.gather(-1, best).squeeze(-1))
    if bool(from_tail.any()):
        rest = probs[from_tail].scatter(-1, candidate_ids[from_tail], 0)
        real = rest.sum(-1) > 0  # the difference of two sums may leave a trace of a tail where there is none
        choice[from_tail] = draw(rest, tail_coin[from_tail]).where(real, choice[from_tail])
    return choice
