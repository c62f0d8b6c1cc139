"""Two ways to get the rule wrong that look right, each as a sampler and as the law that it really follows.

Knows nothing of how samples are judged.

* The lesson's snippet, as printed: it keeps the drafted token's probability where the residual needs the whole row, so
  that numpy subtracts one number from every entry of the target's row.
* A drafter that reports another law than the one it drew from: a flatter one, as a forgotten temperature makes it.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad

from outpace.drafters.budget import Budget
from outpace.drafters.drafter import DraftState, Proposal
from outpace.drafters.small import Small
from outpace.verification.coins import Keys
from outpace.verification.oracle import Drafting, Drafts
from outpace.verification.probabilities import Sampling
from outpace.verification.rules import RULES
from outpace.verification.tree import DraftTree
from outpace.verification.verdict import DraftRows, Rule, TargetRows

Rows = NDArray[np.float64]


def snippet_step(target: Rows, draft: Rows, last: int, K: int, rng: np.random.Generator) -> list[int]:
    """The lesson's ``speculative_step`` at temperature 1 on rows by last token, with its own residual.

    Where the drafted token is more probable than any token of the target, that residual is empty and the snippet stops
    with an error; here such a token is drawn from the target's row, which is the kindest repair.
    """
    draft_tokens: list[int] = []
    q_probs: list[float] = []
    state = last
    for _ in range(K):
        state = int(rng.choice(len(draft), p=draft[state]))
        q_probs.append(float(draft[draft_tokens[-1] if draft_tokens else last][state]))
        draft_tokens.append(state)
    p_probs_all = target[[last, *draft_tokens]]
    accepted: list[int] = []
    for k, tok in enumerate(draft_tokens):
        if rng.uniform() < p_probs_all[k][tok] / q_probs[k]:
            accepted.append(tok)
            continue
        residual = np.maximum(p_probs_all[k] - q_probs[k], 0)  # the fault: q_probs[k] is one number
        residual = residual if residual.sum() > 0 else p_probs_all[k]
        return [*accepted, int(rng.choice(len(residual), p=residual / residual.sum()))]
    return [*accepted, int(rng.choice(len(p_probs_all[K]), p=p_probs_all[K]))]


def snippet_law(target_probs: TargetRows, tree: DraftTree, draft_probs: DraftRows) -> TargetRows:
    """The law of the same over (accepted path, next token), for chains without filler, so that it can be enumerated."""
    assert draft_probs is not None
    tokens = tree.tokens[..., None]
    p, q = (rows[:, :-1].gather(2, tokens).squeeze(2) for rows in (target_probs, draft_probs))
    passes = (p / q).clamp(max=1)
    ends = pad(passes.cumprod(1), (1, 0), value=1) * (1 - pad(passes, (0, 1)))
    rest = target_probs.clone()
    rest[:, :-1] = (rest[:, :-1] - q[..., None]).clamp(min=0)
    mass = rest.sum(-1, keepdim=True)
    rest = torch.where(mass > 0, rest / mass, target_probs)
    return ends[..., None] * rest


def breaks_down(target: Float[Tensor, "vocab vocab"], draft: Float[Tensor, "vocab vocab"]) -> Float[Tensor, " vocab"]:
    """How probably the snippet stops with an error at its first place, after every last token."""
    refused = draft * (1 - (target / draft).clamp(max=1))
    return (refused * (draft >= target.amax(1, keepdim=True))).sum(1)


SNIPPET = Rule("as printed", False, RULES["rejection"].judge, snippet_law)
"""For the oracle alone: its ``judge`` is never asked."""


def flattened(rows: Float[Tensor, "*lead vocab"]) -> Float[Tensor, "*lead vocab"]:
    """What a drafter reports that forgot to divide by a temperature of one half."""
    flat = rows.sqrt()
    return flat / flat.sum(-1, keepdim=True)


class Liar(Small):
    """Draws from its law, and reports the flattened one."""

    def propose(self, state: DraftState, budget: Budget, sampling: list[Sampling], keys: Keys) -> Proposal:
        honest = super().propose(state, budget, sampling, keys)
        if honest.draft_probs is None:
            return honest
        return replace(honest, draft_probs=flattened(honest.draft_probs))


def lying(drafting: Drafting) -> Drafting:
    """The same for the oracle: every draft as probable as before, its laws reported flattened."""

    def drafts(starts: Int[Tensor, " starts"]) -> Drafts:
        honest = drafting(starts)
        assert honest.draft_probs is not None
        return replace(honest, draft_probs=flattened(honest.draft_probs))

    return drafts


Sampler = Callable[[int, int], NDArray[np.int64]]
"""``(samples, first seed) -> counts`` of every cell."""
