"""The arithmetic of Medusa heads: residual blocks on the target's last state, then rows of its head or of their own.

Knows nothing of how drafts are made: training and decoding take everything from here. Parameters bear the names of the
published layout: ``{head}.{block}.linear.weight`` and ``.bias``, and ``{head}.{layers}.weight`` for rows of their own.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from outpace.errors import WeightsError
from outpace.models.ends import SharedHead

_SIZES = ("hidden_size", "vocab_size", "heads", "layers")


@dataclass(frozen=True)
class MedusaShape:
    """All that is to be known of the arithmetic of Medusa heads.

    Args:
        hidden_size: the width of the target's last state, and of every block.
        vocab_size: ids of the target; the heads can say all of them.
        heads: how many tokens are spoken of from one state.
        layers: residual blocks of each head.
        own_head: each head has rows of its own behind its blocks, ``[vocab_size, hidden_size]``; else all of them use
            those of the target's head.

    Raises:
        WeightsError: a size is below 1.
    """

    hidden_size: int
    vocab_size: int
    heads: int
    layers: int
    own_head: bool

    def __post_init__(self) -> None:
        for name in _SIZES:
            if getattr(self, name) < 1:
                raise WeightsError(f"{name} of Medusa heads is {getattr(self, name)}; allowed: 1 or more")


class MedusaHeads(nn.ModuleList):
    """Head i, from 0, reads the state at index t that the target's own head reads, and speaks of token t + 2 + i.

    The target's own head speaks of token t + 1 from that state: what is left to guess begins one further. A head puts
    the state through its blocks, x + SiLU(W x + b) each, and multiplies by its rows. A block computes in the dtype of
    its weights.

    Blocks are zero until they are loaded or trained, and then pass the state on as it is: with the target's rows every
    head begins by saying what the target says of token t + 1. Rows of their own are random until then.

    Args:
        shape: the arithmetic.

    Source: Medusa (Cai et al., arXiv 2401.10774), Medusa-1.
    """

    def __init__(self, shape: MedusaShape) -> None:
        super().__init__(_head(shape) for _ in range(shape.heads))
        self.shape = shape

    @property
    def tables(self) -> tuple[str, ...]:
        """The parameters that hold a row a token."""
        own = self.shape.own_head
        return tuple(f"{head}.{self.shape.layers}.weight" for head in range(self.shape.heads)) if own else ()

    def states(
        self, normed: Float[Tensor, "*lead hidden"], count: int | None = None
    ) -> Float[Tensor, "*lead heads hidden"]:
        """What the rows of the first ``count`` heads multiply, of all heads by default.

        Args:
            normed: the target's last states, behind its last norm.
        """
        found = []
        for _, head in zip(range(self.shape.heads if count is None else count), self, strict=False):
            state = normed
            for _, block in zip(range(self.shape.layers), head.children(), strict=False):
                state = block(state)
            found.append(state)
        return torch.stack(found, -2)

    def logits(
        self, normed: Float[Tensor, "*lead hidden"], shared: SharedHead | None = None, count: int | None = None
    ) -> Float[Tensor, "*lead heads vocab"]:
        """Draft logits of the first ``count`` heads, of all heads by default.

        Args:
            normed: the target's last states, behind its last norm.
            shared: the target's head, asked once for all heads; needed where they have no rows of their own.

        Raises:
            TypeError: it is needed and not given.
        """
        states = self.states(normed, count)
        if not self.shape.own_head:
            if shared is None:
                raise TypeError("Medusa heads without rows of their own were given no head of the target")
            return shared(states)
        own = (list(head.children())[-1] for head in self)
        return torch.stack([last(state) for state, last in zip(states.unbind(-2), own, strict=False)], -2)


class _Block(nn.Module):
    """x + SiLU(W x + b), zero at first."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, state: Float[Tensor, "*lead hidden"]) -> Float[Tensor, "*lead hidden"]:
        state = state.to(self.linear.weight.dtype)
        out: Tensor = state + functional.silu(self.linear(state))
        return out


def _head(shape: MedusaShape) -> nn.Sequential:
    """One head, its parts numbered as they are published."""
    parts: list[nn.Module] = [_Block(shape.hidden_size) for _ in range(shape.layers)]
    if shape.own_head:
        parts.append(nn.Linear(shape.hidden_size, shape.vocab_size, bias=False))
    return nn.Sequential(*parts)
