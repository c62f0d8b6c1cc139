"""A head's walk in decoding: its weights packed, a cache of its own, and one forward for all rows of a batch.

Knows nothing of texts, of what is chosen or of trees: states and tokens come in, outputs and logits go out.
"""

import copy

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional

from outpace.drafters.first_head import AnyHead, FirstHead
from outpace.models.attention import attend
from outpace.models.cache import Cache
from outpace.models.ends import SharedHead
from outpace.models.matmul import packing_pays
from outpace.models.packing import pack
from outpace.models.rotary import Rotary, rotate
from outpace.models.transformer import FILL

GROWTH = 256
"""A cache that is too short gets so many positions more than it needs."""


class Walker:
    """Computes with a head for many rows at once.

    A row's cache holds one entry for every position whose features it has read: entry t is made of the features at t
    and of token t + 1, and stands at position t. Behind them lie the entries of a draft, which the next one overwrites.

    Args:
        head: the weights; a copy is made, with fused projections.
        embeddings: rows by the target's ids, of the head's width.
        dtype: of matrices, cache and attention. Norms and sums are in fp32 or better.
        packed: pack CPU weights; None measures whether that pays.
        shared: the target's head, for a head that has none of its own; it stays as it is.
    """

    def __init__(
        self,
        head: AnyHead,
        embeddings: Float[Tensor, "vocab hidden"],
        *,
        dtype: torch.dtype,
        packed: bool | None = None,
        shared: SharedHead | None = None,
    ) -> None:
        self.shape, self.dtype, self.device = head.shape, dtype, embeddings.device
        self.embeddings = embeddings
        self.head = _served(head, dtype, self.device, packed)
        if isinstance(self.head, FirstHead) and shared is not None:
            self.head.shared = shared
        self.rotary = Rotary(self.shape.rotary, self.shape.head_width, self.shape.max_positions)

    def open(self, slots: int, positions: int) -> Cache:
        """An empty cache."""
        shape = self.shape
        return Cache(
            layers=1,
            slots=slots,
            heads=shape.kv_heads,
            positions=positions,
            width=shape.head_width,
            dtype=self.dtype,
            device=self.device,
        )

    def no_states(self) -> Float[Tensor, "0 hidden"]:
        """Outputs of no row, in the dtype that outputs have."""
        kept = torch.promote_types(self.dtype, torch.float32)
        return torch.zeros(0, self.shape.hidden_size, dtype=kept, device=self.device)

    def roomy(self, cache: Cache, positions: int) -> Cache:
        """The cache itself, or a larger one with the same entries where it has fewer positions."""
        if positions <= cache.positions:
            return cache
        grown = self.open(cache.slots, positions + GROWTH)
        grown.entries[:, :, :, : cache.positions] = cache.entries
        grown.lengths = cache.lengths
        return grown

    @torch.inference_mode()
    def read(
        self,
        cache: Cache,
        rows: list[int],
        features: list[Float[Tensor, "_places taps target"]],
        tokens: list[list[int]],
    ) -> tuple[Float[Tensor, "all hidden"], Float[Tensor, "all heads width"]]:
        """Append the entries of real features to some rows, all in one pass.

        Args:
            features: for each of these rows, of the positions behind those that it has read.
            tokens: the token behind each of those positions.

        Returns:
            Residuals and queries of all these entries, row after row.
        """
        owners = [row for row, part in zip(rows, tokens, strict=True) for _ in part]
        places = [
            cache.lengths[row] + step for row, part in zip(rows, tokens, strict=True) for step in range(len(part))
        ]
        where, positions = (self._ids(part)[:, None] for part in (owners, places))
        ids = self._ids([token for part in tokens for token in part])[:, None]
        hidden = self.head.fuse(features[0] if len(features) == 1 else torch.cat(features))[:, None]
        residual, queries, entries = self._enter(hidden, ids, positions)
        cache.write(0, (where, positions), entries)
        for row, part in zip(rows, tokens, strict=True):
            cache.lengths[row] += len(part)
        return residual[:, 0], queries[:, 0]

    @torch.inference_mode()
    def step(
        self,
        cache: Cache,
        hidden: Float[Tensor, "batch nodes hidden"],
        tokens: Int[Tensor, "batch nodes"],
        positions: Int[Tensor, "batch nodes"],
        drafted: int,
        seen: Bool[Tensor, "batch nodes slots"] | None = None,
    ) -> Float[Tensor, "batch nodes hidden"]:
        """One pass over drafted tokens; their entries are written behind those of the draft so far.

        Args:
            hidden: the state before each of them, what ``feed`` makes of the output there.
            tokens: in the target's ids.
            positions: one more than that of the state before each.
            drafted: how many entries of this draft each row has already.
            seen: which entries of the draft each of them sees, itself included; None sees all, for one node a row.

        Returns:
            The outputs.
        """
        residual, queries, entries = self._enter(hidden, tokens, positions)
        starts = [length + drafted for length in cache.lengths]
        cache.write(0, cache.places(range(len(starts)), starts, tokens.shape[1]), entries)
        return self.attend(cache, residual, queries, drafted + tokens.shape[1], seen)

    def attend(
        self,
        cache: Cache,
        residual: Float[Tensor, "batch nodes hidden"],
        queries: Float[Tensor, "batch nodes heads width"],
        drafted: int = 0,
        seen: Bool[Tensor, "batch nodes slots"] | None = None,
    ) -> Float[Tensor, "batch nodes hidden"]:
        """Outputs of nodes that see all that their row has read, and of the draft's entries those ``seen``.

        Args:
            residual, queries: of the nodes.
            drafted, seen: as in ``step``, their own entries counted.
        """
        ends = [length + drafted for length in cache.lengths]
        whole = sum(ends) >= FILL * len(ends) * max(ends)
        cuts = [range(len(ends))] if whole else [range(row, row + 1) for row in range(len(ends))]
        parts = []
        for cut in cuts:
            at = slice(cut.start, cut.stop)
            mask = self._mask(cache.lengths[at], drafted, len(residual[0]), None if seen is None else seen[at])
            [(keys, values)] = cache.read(cut, max(1, *ends[at]))
            out, _ = attend(self.head, queries[at].transpose(1, 2), keys, values, mask)
            parts.append(out.flatten(2))
        return self.head.leave(residual, parts[0] if whole else torch.cat(parts))

    def feed(self, out: Float[Tensor, "*lead hidden"]) -> Float[Tensor, "*lead hidden"]:
        """What the next step takes as its state."""
        return self.head.feed(out)

    @torch.inference_mode()
    def logits(self, out: Float[Tensor, "*lead hidden"]) -> Float[Tensor, "*lead draft"]:
        """Draft logits over the draft vocabulary, in fp32 or better: even a maximum costs more in bf16."""
        return self.head.logits(out).to(torch.promote_types(self.dtype, torch.float32))

    def _ids(self, numbers: list[int]) -> Int[Tensor, " count"]:
        return torch.tensor(numbers, dtype=torch.int64, device=self.device)

    def _enter(
        self,
        hidden: Float[Tensor, "batch nodes hidden"],
        tokens: Int[Tensor, "batch nodes"],
        positions: Int[Tensor, "batch nodes"],
    ) -> tuple[
        Float[Tensor, "batch nodes hidden"],
        Float[Tensor, "batch nodes heads width"],
        Float[Tensor, "batch nodes both_heads width"],
    ]:
        """Residuals, queries and what the cache keeps, both turned to their positions."""
        embedded = functional.embedding(tokens, self.embeddings)
        residual, queries, keys, values = self.head.enter(embedded, hidden)
        cos, sin = self.rotary.at(positions, self.dtype)
        entries = torch.cat((rotate(keys, cos, sin), values), 2)
        # A row whose features are no numbers may leave its slot to another one: behind a mask, 0 times NaN is NaN.
        return residual, rotate(queries, cos, sin), entries.nan_to_num_(0.0, 0.0, 0.0)

    def _mask(
        self, lengths: list[int], drafted: int, nodes: int, seen: Bool[Tensor, "batch nodes slots"] | None
    ) -> Float[Tensor, "batch 1 nodes context"] | None:
        """0 where a node sees an entry, minus infinity elsewhere; None where all see everything."""
        if seen is None and len(set(lengths)) == 1:
            return None
        starts = self._ids(lengths)[:, None]
        columns = torch.arange(max(lengths) + drafted, device=self.device)
        if seen is None:
            visible = (columns < starts + drafted)[:, None].expand(-1, nodes, -1)
        else:
            visible = (columns < starts)[:, None].repeat(1, nodes, 1)
            index = starts + torch.arange(drafted, device=self.device)
            visible.scatter_(2, index[:, None].expand(-1, nodes, -1), seen)
        return torch.zeros(visible.shape, dtype=self.dtype, device=self.device).masked_fill_(~visible, -torch.inf)[
            :, None
        ]


def _served(head: AnyHead, dtype: torch.dtype, device: torch.device, packed: bool | None) -> AnyHead:
    """A copy of a head that computes in ``dtype``, its projections fused and perhaps packed."""
    own = copy.deepcopy(head).eval().requires_grad_(False).to(device)
    for part in own.modules():
        kept = torch.promote_types(dtype, torch.float32) if isinstance(part, nn.RMSNorm) else dtype
        for weight in part.parameters(recurse=False):
            weight.data = weight.data.to(kept)
    layer = own.layer
    packs = packing_pays(layer.mlp.up_proj.weight) if packed is None else packed
    layer.add_module("self_attn", _FusedAttention(layer.self_attn))
    layer.add_module("mlp", _FusedFeedForward(layer.mlp))
    if packs:
        pack(own, packed=True)
    return own


class _FusedAttention(nn.Module):
    """The projections of attention, those into it as one."""

    def __init__(self, plain: nn.Module) -> None:
        super().__init__()
        parts = [plain.get_submodule(f"{name}_proj") for name in "qkv"]
        self.o_proj = plain.get_submodule("o_proj")
        self.query_key_value, self.sizes = _joined(parts)

    def forward(self, joined: Tensor) -> tuple[Tensor, ...]:
        parts: tuple[Tensor, ...] = self.query_key_value(joined).split(self.sizes, -1)
        return parts


class _FusedFeedForward(nn.Module):
    """The gated feed-forward, gate and up as one."""

    def __init__(self, plain: nn.Module) -> None:
        super().__init__()
        self.down_proj = plain.get_submodule("down_proj")
        self.gate_up, self.sizes = _joined([plain.get_submodule(f"{name}_proj") for name in ("gate", "up")])

    def forward(self, normed: Tensor) -> Tensor:
        gate, up = self.gate_up(normed).split(self.sizes, -1)
        gated: Tensor = self.down_proj(functional.silu(gate) * up)
        return gated


def _joined(parts: list[nn.Module]) -> tuple[nn.Module, list[int]]:
    """Linear layers of one input as one layer, and how wide each one's outputs are."""
    weights: list[Tensor] = [part.get_parameter("weight").detach() for part in parts]
    sizes = [len(weight) for weight in weights]
    joined = nn.Linear(weights[0].shape[1], sum(sizes), bias=False, device="meta")
    joined.weight = nn.Parameter(torch.cat(weights), requires_grad=False)
    return joined, sizes
