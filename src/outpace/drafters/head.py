"""The arithmetic of an EAGLE-3 head: three taps of the target fused into one state, and one layer that walks on it.

Knows nothing of attention over other positions, of caches or of how drafts are made: training and decoding attend in
their own ways and take everything else from here. Parameters bear the names of the published layout.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional

from outpace.errors import UnsupportedError, WeightsError

_SIZES = (
    "hidden_size",
    "target_hidden_size",
    "heads",
    "kv_heads",
    "head_width",
    "feed_forward",
    "vocab_size",
    "draft_vocab_size",
    "max_positions",
)


@dataclass(frozen=True)
class HeadShape:
    """All that a head's configuration says of its arithmetic; nothing here is ever assumed.

    Args:
        hidden_size, target_hidden_size: the width of the head, and that of the features it reads.
        taps: where the target's features are read, low to high: 0 is the embeddings, k the output of layer k.
        heads, kv_heads, head_width: of attention; ``heads`` is a multiple of ``kv_heads``.
        feed_forward: the inner width of the feed-forward.
        vocab_size, draft_vocab_size: ids of the target, and how many of them the head can say.
        norm_eps: of every norm.
        max_positions: the longest text that the head may draft for.
        rotary: as in ``models.shape.Shape``.
        norm_before_residual: the residual is the normed hidden state, not the state itself.
        norm_before_fc: one norm over all taps side by side, before they are fused.
        fc_norm: a norm for each tap, before they are fused; excludes ``norm_before_fc``.
        norm_output: the next step takes the normed output, not the output itself.

    Raises:
        WeightsError: a size is below 1, there is no tap or a negative one, the heads are no multiple of the key-value
            heads, or the draft vocabulary is larger than the target's.
        UnsupportedError: both norms before the fusion are asked for.
    """

    hidden_size: int
    target_hidden_size: int
    taps: tuple[int, ...]
    heads: int
    kv_heads: int
    head_width: int
    feed_forward: int
    vocab_size: int
    draft_vocab_size: int
    norm_eps: float
    max_positions: int
    rotary: Mapping[str, Any]
    norm_before_residual: bool
    norm_before_fc: bool
    fc_norm: bool
    norm_output: bool

    def __post_init__(self) -> None:
        require_sizes(self, _SIZES)
        if not self.taps or min(self.taps) < 0:
            raise WeightsError(f"the taps of the head are {list(self.taps)}; allowed: one or more, each 0 or above")
        if self.draft_vocab_size > self.vocab_size:
            raise WeightsError(
                f"draft_vocab_size is {self.draft_vocab_size}; allowed: up to the vocab_size of {self.vocab_size}"
            )
        if self.norm_before_fc and self.fc_norm:
            raise UnsupportedError("norm_before_fc and fc_norm are both true; allowed: one of them, or neither")


def require_sizes(shape: Any, names: Iterable[str]) -> None:
    """Refuse a shape whose sizes are no sizes, or whose heads cannot share keys and values evenly.

    Raises:
        WeightsError: one of the ``names`` is below 1, or ``heads`` is no multiple of ``kv_heads``.
    """
    for name in names:
        if getattr(shape, name) < 1:
            raise WeightsError(f"{name} of the head is {getattr(shape, name)}; allowed: 1 or more")
    if shape.heads % shape.kv_heads:
        raise WeightsError(f"the head has {shape.heads} heads; allowed: a multiple of its {shape.kv_heads} kv_heads")


class Head(nn.Module):
    """An EAGLE-3 head. At index t it reads the target's features at t and token t + 1, and speaks of token t + 2.

    One step: ``enter`` mixes a state with the embedding of the token behind it, the caller attends, ``leave`` gives the
    output. ``logits`` of it are the draft's, and ``feed`` of it is the state of the next step; the first state of a
    walk is ``fuse`` of the features.

    The norms compute, and states are summed, in the dtype of the norms' weights; matrices are multiplied in that of
    their own. A head of another width than its target's has embeddings of its own, ``embed_tokens``.

    Args:
        shape: the arithmetic. Weights are random until they are loaded; the draft vocabulary is the first ids.

    Source: EAGLE-3 (Li et al., arXiv 2503.01840).
    """

    method = "eagle3"
    """What cards and statistics call it."""
    d2t: Int[Tensor, " draft"] | None
    t2d: Bool[Tensor, " vocab"] | None

    def __init__(self, shape: HeadShape) -> None:
        super().__init__()
        self.shape = shape
        hidden, tapped, eps = shape.hidden_size, shape.target_hidden_size, shape.norm_eps
        own = hidden != tapped
        self.embed_tokens = nn.Embedding(shape.vocab_size, hidden) if own else None
        self.input_norm = nn.RMSNorm(len(shape.taps) * tapped, eps) if shape.norm_before_fc else None
        self.fc_norm = nn.ModuleList(nn.RMSNorm(tapped, eps) for _ in shape.taps) if shape.fc_norm else None
        self.fc = nn.Linear(len(shape.taps) * tapped, hidden, bias=False)
        self.midlayer = _Layer(shape)
        self.norm = nn.RMSNorm(hidden, eps)
        self.lm_head = nn.Linear(hidden, shape.draft_vocab_size, bias=False)
        reduced = shape.draft_vocab_size < shape.vocab_size
        ids = torch.arange(shape.vocab_size)
        self.register_buffer("d2t", torch.zeros_like(ids[: shape.draft_vocab_size]) if reduced else None)
        self.register_buffer("t2d", ids < shape.draft_vocab_size if reduced else None)

    @property
    def layer(self) -> "_Layer":
        """The one layer."""
        return self.midlayer

    @property
    def target_ids(self) -> Int[Tensor, " draft"]:
        """The target's id of every draft id; ``d2t`` holds how far the two lie apart."""
        ids = torch.arange(self.shape.draft_vocab_size, device=self.lm_head.weight.device)
        return ids if self.d2t is None else ids + self.d2t

    def fuse(self, features: Float[Tensor, "*lead taps target"]) -> Float[Tensor, "*lead hidden"]:
        """The first state of a walk, from the target's features at the taps."""
        if self.fc_norm is not None:
            parts = zip(self.fc_norm, features.unbind(-2), strict=True)
            features = torch.stack([norm_states(norm, part) for norm, part in parts], -2)
        joined = features.flatten(-2)
        if self.input_norm is not None:
            joined = norm_states(self.input_norm, joined)
        return self._state(self.fc(joined.to(self.fc.weight.dtype)))

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
        layer, width = self.midlayer, self.shape.head_width
        normed = norm_states(layer.hidden_norm, hidden)
        residual = normed if self.shape.norm_before_residual else self._state(hidden)
        joined = torch.cat((norm_states(layer.input_layernorm, embedded), normed), -1)
        queries, keys, values = layer.self_attn(joined.to(self.fc.weight.dtype))
        return (
            residual,
            queries.unflatten(-1, (self.shape.heads, width)),
            keys.unflatten(-1, (self.shape.kv_heads, width)),
            values.unflatten(-1, (self.shape.kv_heads, width)),
        )

    def leave(
        self, residual: Float[Tensor, "*lead hidden"], attended: Float[Tensor, "*lead projected"]
    ) -> Float[Tensor, "*lead hidden"]:
        """The output of one step, before the last norm.

        Args:
            residual: as ``enter`` gave it.
            attended: what attention gave, all heads side by side.
        """
        layer, dtype = self.midlayer, self.fc.weight.dtype
        between = residual + layer.self_attn.o_proj(attended.to(dtype))
        out: Tensor = between + layer.mlp(norm_states(layer.post_attention_layernorm, between).to(dtype))
        return out

    def feed(self, out: Float[Tensor, "*lead hidden"]) -> Float[Tensor, "*lead hidden"]:
        """What the next step takes as its state."""
        return norm_states(self.norm, out) if self.shape.norm_output else out

    def logits(self, out: Float[Tensor, "*lead hidden"]) -> Float[Tensor, "*lead draft"]:
        """Draft logits over the draft vocabulary."""
        logits: Tensor = self.lm_head(norm_states(self.norm, out).to(self.fc.weight.dtype))
        return logits

    def _state(self, hidden: Tensor) -> Tensor:
        return hidden.to(self.norm.weight.dtype)


class _Layer(nn.Module):
    """The weights of the one layer, under their published names."""

    def __init__(self, shape: HeadShape) -> None:
        super().__init__()
        hidden, eps, width = shape.hidden_size, shape.norm_eps, shape.head_width
        self.self_attn = Attention(2 * hidden, shape.heads * width, shape.kv_heads * width, hidden)
        self.mlp = FeedForward(hidden, shape.feed_forward)
        self.input_layernorm = nn.RMSNorm(hidden, eps)
        self.hidden_norm = nn.RMSNorm(hidden, eps)
        self.post_attention_layernorm = nn.RMSNorm(hidden, eps)


class Attention(nn.Module):
    """Projections of attention under their published names: of what enters into it, and of its heads out of it.

    Args:
        entering, query, key, leaving: how wide the input, all query heads, all key heads, and the output are.
    """

    def __init__(self, entering: int, query: int, key: int, leaving: int) -> None:
        super().__init__()
        self.q_proj = nn.Linear(entering, query, bias=False)
        self.k_proj = nn.Linear(entering, key, bias=False)
        self.v_proj = nn.Linear(entering, key, bias=False)
        self.o_proj = nn.Linear(query, leaving, bias=False)

    def forward(self, joined: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, all heads side by side."""
        return self.q_proj(joined), self.k_proj(joined), self.v_proj(joined)


class FeedForward(nn.Module):
    """The gated feed-forward under its published names."""

    def __init__(self, hidden: int, wide: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(hidden, wide, bias=False)
        self.up_proj = nn.Linear(hidden, wide, bias=False)
        self.down_proj = nn.Linear(wide, hidden, bias=False)

    def forward(self, normed: Tensor) -> Tensor:
        """Down from the gated inner width."""
        gated: Tensor = self.down_proj(functional.silu(self.gate_proj(normed)) * self.up_proj(normed))
        return gated


def norm_states(norm: Any, states: Tensor) -> Tensor:
    """A norm, computed in the dtype of its weights."""
    normed: Tensor = norm(states.to(norm.weight.dtype))
    return normed
