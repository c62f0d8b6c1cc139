"""The largest logits of a row once more, in fp32, where the head rounds what it gives.

Knows nothing of models: logits, the states they came from, and rows of the head.

A bf16 logit between 32 and 64 is a multiple of a quarter: the best two tokens then tie where they are a tenth apart,
and a likely token's probability may be an eighth too large. Nothing but the head's last rounding is to blame: it
multiplies in bf16, adds in fp32, and gives bf16. So the few logits that decide are added up again.
"""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad

REFINED = 8
"""How many of the largest logits of a row: more than ever lie within one step of bf16 below the largest."""

_BLOCK = 256  # a row is searched in two levels: the largest tokens lie in the blocks with the largest maxima


def refine(
    logits: Float[Tensor, "*lead vocab"], hidden: Float[Tensor, "*lead width"], head: Float[Tensor, "vocab width"]
) -> Float[Tensor, "*lead vocab"]:
    """The logits in fp32, the ``REFINED`` largest of each row computed anew from the states and the head's rows.

    Args:
        logits: what the head gave for ``hidden``, in bf16 or fp16.
        hidden: what the head read.
        head: its weight, unpacked, of the same dtype.

    Source: ours; benchmarks/plain_speed.py counts the first differences to fp32 that it takes away.
    """
    vocab, states = logits.shape[-1], hidden.reshape(-1, hidden.shape[-1], 1).float()
    rows = logits.float().view(-1, vocab)
    block = min(_BLOCK, vocab)
    filled = pad(rows, (0, -vocab % block), value=-torch.inf) if vocab % block else rows
    blocks = filled.view(len(rows), filled.shape[1] // block, block)
    best = blocks.amax(-1).topk(min(REFINED, blocks.shape[1])).indices
    inside = blocks.gather(1, best[..., None].expand(-1, -1, block)).flatten(1)
    place = inside.topk(min(REFINED, vocab)).indices
    ids = best.gather(1, place // block) * block + place % block
    return rows.scatter_(1, ids, (head[ids].float() @ states).squeeze(-1)).view(logits.shape)
