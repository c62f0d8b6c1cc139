"""Chains judged by the library's rejection rule where every position has one acceptance, set beforehand.

Knows nothing of the formula that it is compared with.
"""

import math

import torch

from outpace.decoding.loop import Request, decode
from outpace.decoding.turn import Turn
from outpace.drafters.small import Small
from outpace.evaluation.metrics import Estimate
from outpace.models.toy import table_target
from outpace.verification.probabilities import Sampling


def simulated(alpha: float, length: int, texts: int, tokens: int, seed: int) -> Estimate:
    """Tokens a turn with chains of ``length``, over the turns that had room for a whole one, with a 95 % interval.

    The target says one of two words, the draft a third one with probability 1 - α: the sum of min(p, q) is α after
    every text.
    """
    target_row = torch.tensor([0.5, 0.5, 0.0], dtype=torch.float64)
    draft_row = torch.tensor([alpha / 2, alpha / 2, 1 - alpha], dtype=torch.float64)
    target, draft = (table_target(row.log().expand(3, 3)) for row in (target_row, draft_row))
    counts: list[int] = []

    def count(turn: Turn, _: list[int]) -> None:
        nodes = turn.proposal.tree.num_nodes.tolist()
        counts.extend(len(path) + 1 for path, drafted in zip(turn.paths, nodes, strict=True) if drafted == length)

    requests = [Request([0], Sampling(1.0), tokens, seed=seed, sample=text) for text in range(texts)]
    for _ in decode(target, Small(draft, target), requests, num_draft_tokens=length, rule="rejection", observer=count):
        pass
    mean = sum(counts) / len(counts)
    spread = math.sqrt(sum((one - mean) ** 2 for one in counts) / (len(counts) - 1))
    half = 1.96 * spread / math.sqrt(len(counts))
    return Estimate(mean, mean - half, mean + half)
