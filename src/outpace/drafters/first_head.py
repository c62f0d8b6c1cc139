"""The arithmetic of an EAGLE-1 head: the target's last state mixed with the next token, one layer, the target's head.

Knows nothing of attention over other positions, of caches or of how drafts are made: training and decoding attend in
their own ways and take everything else from here. It has the doors of an EAGLE-3 head, so that whatever walks on one
walks on the other. Parameters bear the names of the published layout.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from outpace.drafters.head import Attention, FeedForward, Head, HeadShape, norm_states, require_sizes
from outpace.models.ends import SharedHead
from outpace.models.target import Tap

_SIZES = (
    "hidden_size",
    "heads",
    "kv_heads",
    "head_width",
    "feed_forward",
    "vocab_size",
    "max_positions",
)


@dataclass(frozen=True)
class FirstShape:
    """All that an EAGLE-1 head's configuration says of its arithmetic; nothing here is ever assumed.

    Args:
        hidden_size: the width of the head, and that of its target.
        heads, kv_heads, head_width: of attention; ``heads`` is a multiple of ``kv_heads``.
        feed_forward: the inner width of the feed-forward.
        vocab_size: ids of the target; the head can say all of them.
        norm_eps: of the one norm.
        max_positions: the longest text that the head may draft for.
        rotary: as in ``models.shape.Shape``.
        fc_bias: the mixture of embedding and state adds a bias.

    Raises:
        WeightsError: a size is below 1, or the heads are no multiple of the key-value heads.
    """

    hidden_size: int
    heads: int
    kv_heads: int
    head_width: int
    feed_forward: int
    vocab_size: int
    norm_eps: float
    max_positions: int
    rotary: Mapping[str, Any]
    fc_bias: bool

    def __post_init__(self) -> None:
        require_sizes(self, _SIZES)

    @property
    def taps(self) -> tuple[Tap, ...]:
        """Where the target is read: behind its last norm, and nowhere else."""
        return ("last_normed",)

    @property
    def target_hidden_size(self) -> int:
        """The width of what it reads: its own."""
        return self.hidden_size

    @property
    def draft_vocab_size(self) -> int:
        """How many ids it can say: all."""
        return self.vocab_size


class FirstHead(nn.Module):
    """An EAGLE-1 head. At index t it reads the target's last normed state and token t + 1, and speaks of token t + 2.

    What it gives at t is its guess at the target's last normed state at t + 1, so the target's own head makes logits of
    it, and the next step takes it as it is. One step: ``enter`` mixes a state with the embedding of the token behind
    it, embedding first, and nothing is normed before attention; ``leave`` gives the output. EAGLE-2 is the same head,
    drafting trees.

    The norm computes, and states are summed, in the dtype of the norm's weights; matrices are multiplied in that of
    their own, and the target's head in the target's. Tokens are embedded as the target does.

    Args:
        shape: the arithmetic. Weights are random until they are loaded.
        shared: the target's head; needed for ``logits`` alone. It is neither trained nor saved, and no copy is made.

    Source: EAGLE (Li et al., arXiv 2401.15077), section 4; EAGLE-2 (arXiv 2406.16858).
    """

    method = "eagle1"
    """What cards and statistics call it."""
    embed_tokens: None = None
    d2t: None = None

    def __init__(self, shape: FirstShape, shared: SharedHead | None = None) -> None:
        super().__init__()
        self.shape, self.shared = shape, shared
        self.fc = nn.Linear(2 * shape.hidden_size, shape.hidden_size, bias=shape.fc_bias)
        self.layers = nn.ModuleList([_Layer(shape)])

    @property
    def layer(self) -> "_Layer":
        """The one layer."""
        return cast("_Layer", self.layers[0])

    @property
    def target_ids(self) -> Int[Tensor, " vocab"]:
        """The target's id of every draft id: the same."""
        return torch.arange(self.shape.vocab_size, device=self.fc.weight.device)

    def fuse(self, features: Float[Tensor, "*lead 1 hidden"]) -> Float[Tensor, "*lead hidden"]:
        """The first state of a walk: the target's last normed state as it is."""
        return self._state(features.squeeze(-2))

    def enter(
        self, embedded: Float[Tensor, "*lead hidden"], hidden: Float[Tensor, "*lead hidden"]
    ) -> tuple[
        Float[Tensor, "*lead hidden"],
        Float[Tensor, "*lead heads width"],
        Float[Tensor, "*lead kv_heads width"],
        Float[Tensor, "*lead kv_heads width"],
    ]:
        """Residual, queries, keys and values of one step, before any rotation.

        Args:
            embedded: the embedding of the token behind each state.
            hidden: the states.
        """
        dtype, width = self.fc.weight.dtype, self.shape.head_width
        mixed = self.fc(torch.cat((embedded.to(dtype), hidden.to(dtype)), -1))
        queries, keys, values = self.layer.self_attn(mixed)
        return (
            self._state(mixed),
            queries.unflatten(-1, (self.shape.heads, width)),
            keys.unflatten(-1, (self.shape.kv_heads, width)),
            values.unflatten(-1, (self.shape.kv_heads, width)),
        )

    def leave(
        self, residual: Float[Tensor, "*lead hidden"], attended: Float[Tensor, "*lead projected"]
    ) -> Float[Tensor, "*lead hidden"]:
        """The output of one step: a guess at the target's next last normed state.

        Args:
            residual: as ``enter`` gave it.
            attended: what attention gave, all heads side by side.
        """
        layer, dtype = self.layer, self.fc.weight.dtype
        between = residual + layer.self_attn.o_proj(attended.to(dtype))
        out: Tensor = between + layer.mlp(norm_states(layer.post_attention_layernorm, between).to(dtype))
        return out

    def feed(self, out: Float[Tensor, "*lead hidden"]) -> Float[Tensor, "*lead hidden"]:
        """What the next step takes as its state: the output itself."""
        return out

    def logits(self, out: Float[Tensor, "*lead hidden"]) -> Float[Tensor, "*lead vocab"]:
        """Draft logits over the target's vocabulary, by the target's head.

        Raises:
            TypeError: the head was given none.
        """
        if self.shared is None:
            raise TypeError("an EAGLE-1 head was asked for logits and given no head of a target")
        return self.shared(out)

    def _state(self, hidden: Tensor) -> Tensor:
        return hidden.to(self.layer.post_attention_layernorm.weight.dtype)


class _Layer(nn.Module):
    """The weights of the one layer, under their published names: there is no norm before attention."""

    def __init__(self, shape: FirstShape) -> None:
        super().__init__()
        hidden, width = shape.hidden_size, shape.head_width
        self.self_attn = Attention(hidden, shape.heads * width, shape.kv_heads * width, hidden)
        self.mlp = FeedForward(hidden, shape.feed_forward)
        self.post_attention_layernorm = nn.RMSNorm(hidden, shape.norm_eps)


AnyHead = Head | FirstHead
"""Whatever a draft can walk on: both have the same doors."""
AnyShape = HeadShape | FirstShape
