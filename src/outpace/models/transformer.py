"""One decoder-only transformer in one file (Llama family: Llama, Mistral, Qwen2, Qwen3, SmolLM): the fast lane.

Knows nothing of sampling, drafts judged or text. Reads ordinary safetensors folders through ``weights.py``; its whole
arithmetic is below: embeddings, then per layer a norm, fused query-key-value, rotary positions, grouped attention over
the cache, a norm, a gated feed-forward, and last a norm and the head.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional

from outpace.errors import WeightsError
from outpace.models.cache import Cache, KeysValues, Places, Room
from outpace.models.cached import Cached, tree_mask
from outpace.models.matmul import Matmul, packing_pays
from outpace.models.refine import refine
from outpace.models.rotary import Rotary, rotate
from outpace.models.shape import Shape
from outpace.models.target import Scores, State, Tap
from outpace.verification.tree import DraftTree

PREFILL_TOKENS = 512  # tokens of a prefill forward, over all rows: bounds the memory of activations
FILL = 0.75  # rows whose texts fill less of a common rectangle than this attend one by one


@dataclass(frozen=True)
class Layer:
    """The weights of one layer, projections fused; ``query_norm`` and ``key_norm`` are None outside Qwen3."""

    attention_norm: Float[Tensor, " hidden"]
    query_key_value: Matmul
    query_norm: Float[Tensor, " width"] | None
    key_norm: Float[Tensor, " width"] | None
    output: Matmul
    feed_forward_norm: Float[Tensor, " hidden"]
    gate_up: Matmul
    down: Matmul


@dataclass(frozen=True)
class _Part:
    """Neighbouring rows that attend together: their keys and values in every layer, and a mask a kind of layer."""

    rows: slice
    contexts: list[KeysValues]
    masks: dict[int | None, Tensor | None]


@dataclass(frozen=True)
class _Shared:
    """What all layers of one forward have in common: where to write and read, and the rotation."""

    cache: Cache
    places: Places
    parts: list[_Part]
    cos: Float[Tensor, "batch time heads width"]
    sin: Float[Tensor, "batch time heads width"]


class Transformer(Cached):
    """A Target: a Llama-family model with fused projections, a preallocated cache, tree masks and feature taps.

    Args:
        shape: the arithmetic.
        tensors: weights under their published names; consumed while the model is built.
        dtype, device: of weights, cache and activations. Norms reduce in fp32. Logits come in fp32 at least; where a
            bf16 head is tied or unpacked, the largest of each row are ``refine``d.
        packed: pack CPU weights; None measures whether that pays.
        name, folder, eos_ids, fingerprint: what the Target protocol shows of where the model came from.

    Raises:
        WeightsError: a tensor is missing or has another shape than the configuration says.
    """

    can_tree = True

    def __init__(
        self,
        shape: Shape,
        tensors: Mapping[str, Tensor],
        *,
        dtype: torch.dtype,
        device: torch.device | str = "cpu",
        packed: bool | None = None,
        name: str = "transformer",
        folder: Path | None = None,
        eos_ids: tuple[int, ...] = (),
        fingerprint: str = "",
    ) -> None:
        self.shape, self.dtype, self.device = shape, dtype, torch.device(device)
        self.name, self.folder, self.eos_ids, self.fingerprint = name, folder, eos_ids, fingerprint
        self.vocab_size, self.max_positions = shape.vocab_size, shape.max_positions
        self.room = Room(shape.layers, shape.kv_heads, shape.head_width, dtype)
        self.rotary = Rotary(shape.rotary, shape.head_width, shape.max_positions)
        take = _Reader(shape, tensors, dtype, self.device)
        self.embeddings = take("model.embed_tokens.weight", (shape.vocab_size, shape.hidden_size))
        up = take("model.layers.0.mlp.up_proj.weight", (shape.feed_forward, shape.hidden_size))  # to measure with
        self.packed = packing_pays(up) if packed is None else packed
        self.blocks = [take.layer(index, self.packed) for index in range(shape.layers)]
        self.last_norm = take.norm("model.norm.weight")
        head = self.embeddings if shape.tied_head else take("lm_head.weight", (shape.vocab_size, shape.hidden_size))
        self.head = Matmul(head, packed=self.packed)
        self.head_rows = head if shape.tied_head or not self.packed else None

    # ---- the Target protocol -----------------------------------------------------------------------------------------

    @torch.inference_mode()
    def prefill(
        self, state: State, ids: Int[Tensor, "new time"], lengths: list[int], taps: tuple[Tap, ...] = ()
    ) -> Scores:
        """Read right-padded prompts as new last rows, in chunks; only the last token's logits are computed."""
        cache = self.cache_of(state)
        count, time = ids.shape
        cache.require([0] * count, time)
        first = cache.admit(count).start
        last = torch.zeros(count, 1, self.shape.hidden_size, dtype=self.dtype, device=self.device)
        features = torch.zeros(*ids.shape, len(taps), self.shape.hidden_size, dtype=self.dtype, device=self.device)
        start = 0
        while going := [row for row in range(count) if lengths[row] > start]:  # a prompt that has ended costs nothing
            block = ids[going, start : start + max(1, PREFILL_TOKENS // len(going))].to(self.device)
            stop = start + block.shape[1]
            places = torch.arange(start, stop, device=self.device).expand(len(going), -1)
            triangle = places[:, :, None] >= torch.arange(stop, device=self.device)
            rows = [first + row for row in going]
            hidden, seen = self._forward(cache, rows, [start] * len(going), block, places, triangle, taps)
            for place, row in enumerate(going):
                if lengths[row] <= stop:
                    last[row, 0] = hidden[place, lengths[row] - 1 - start]
            if taps:
                features[going, start:stop] = seen
            start = stop
        cache.lengths[first:] = lengths
        return Scores(self._logits(last), features if taps else None)

    @torch.inference_mode()
    def score(self, state: State, last: Int[Tensor, " batch"], tree: DraftTree, taps: tuple[Tap, ...] = ()) -> Scores:
        """Score the last token and every node in one forward, each seeing the kept tokens and its own ancestors."""
        cache = self.cache_of(state)
        lengths = cache.lengths
        ids = torch.cat((last[:, None], tree.tokens.where(tree.real, last[:, None])), 1).to(self.device)
        cache.require(lengths, ids.shape[1])
        starts = torch.tensor(lengths, device=self.device)
        places = tree.positions(starts)
        visible = tree_mask(tree, starts, max(lengths) + ids.shape[1])
        hidden, features = self._forward(cache, list(range(len(lengths))), lengths, ids, places, visible, taps)
        return Scores(self._logits(hidden), features if taps else None)

    # ---- the arithmetic ----------------------------------------------------------------------------------------------

    def _forward(
        self,
        cache: Cache,
        rows: list[int],
        starts: list[int],
        ids: Int[Tensor, "batch time"],
        places: Int[Tensor, "batch time"],
        visible: Bool[Tensor, "batch time context"],
        taps: tuple[Tap, ...],
    ) -> tuple[Float[Tensor, "batch time hidden"], Float[Tensor, "batch time taps hidden"]]:
        """Run ``ids`` behind ``starts``; the last normed states, and those at the taps."""
        shape, eps = self.shape, self.shape.norm_eps
        shared = _Shared(
            cache,
            cache.places(rows, starts, ids.shape[1]),
            self._parts(cache, rows, starts, visible, places),
            *self._turns(places),
        )
        # The residual stream stays in fp32 or better: a norm computes there anyway, and sixty sums round less.
        hidden = functional.embedding(ids, self.embeddings).to(self.last_norm.dtype)
        seen: dict[Tap, Tensor] = {0: hidden}
        for index, (layer, window) in enumerate(zip(self.blocks, shape.windows, strict=True)):
            normed = functional.rms_norm(hidden, (shape.hidden_size,), layer.attention_norm, eps).to(self.dtype)
            hidden = hidden + layer.output(self._attend(layer, index, normed, shared, window))
            normed = functional.rms_norm(hidden, (shape.hidden_size,), layer.feed_forward_norm, eps).to(self.dtype)
            gate, up = layer.gate_up(normed).chunk(2, -1)
            hidden = hidden + layer.down(functional.silu(gate) * up)
            if index + 1 in taps:
                seen[index + 1] = hidden
        hidden = functional.rms_norm(hidden, (shape.hidden_size,), self.last_norm, eps).to(self.dtype)
        seen["last_normed"] = hidden
        return hidden, torch.stack([seen[tap].to(self.dtype) for tap in taps], 2) if taps else hidden[:, :, None]

    def _logits(self, hidden: Float[Tensor, "batch time hidden"]) -> Float[Tensor, "batch time vocab"]:
        logits = self.head(hidden)
        if logits.dtype.itemsize >= 4:
            return logits
        return logits.float() if self.head_rows is None else refine(logits, hidden, self.head_rows)

    def _attend(
        self,
        layer: Layer,
        index: int,
        normed: Float[Tensor, "batch time hidden"],
        shared: "_Shared",
        window: int | None,
    ) -> Float[Tensor, "batch time projected"]:
        """Grouped attention. The queries of one group are stacked as rows, so that keys are never repeated."""
        shape = self.shape
        batch, time = normed.shape[:2]
        heads, groups, width = shape.heads, shape.kv_heads, shape.head_width
        mixed = layer.query_key_value(normed).view(batch, time, heads + 2 * groups, width)
        if layer.query_norm is not None and layer.key_norm is not None:
            queries = functional.rms_norm(mixed[:, :, :heads], (width,), layer.query_norm, shape.norm_eps)
            keys = functional.rms_norm(mixed[:, :, heads:-groups], (width,), layer.key_norm, shape.norm_eps)
            mixed = torch.cat((queries, keys, mixed[:, :, -groups:]), 2)
        turned = rotate(mixed, shared.cos, shared.sin)
        shared.cache.write(index, shared.places, turned[:, :, heads:])
        stacked = turned[:, :, :heads].reshape(batch, time, groups, heads // groups, width).permute(0, 2, 3, 1, 4)
        stacked = stacked.reshape(batch, groups, -1, width)
        outs = [
            functional.scaled_dot_product_attention(
                stacked[part.rows], *part.contexts[index], attn_mask=part.masks[window]
            )
            for part in shared.parts
        ]
        out = outs[0] if len(outs) == 1 else torch.cat(outs)
        return out.view(batch, groups, heads // groups, time, width).permute(0, 3, 1, 2, 4).reshape(batch, time, -1)

    def _turns(
        self, places: Int[Tensor, "batch time"]
    ) -> tuple[Float[Tensor, "batch time heads width"], Float[Tensor, "batch time heads width"]]:
        """Cosine and signed sine for every head of the fused projection; values are turned by nothing."""
        still = self.shape.kv_heads
        turning = self.shape.heads + still
        cos, sin = self.rotary.at(places, self.dtype)
        return (
            torch.cat((cos.expand(-1, -1, turning, -1), torch.ones_like(cos).expand(-1, -1, still, -1)), 2),
            torch.cat((sin.expand(-1, -1, turning, -1), torch.zeros_like(sin).expand(-1, -1, still, -1)), 2),
        )

    def _parts(
        self,
        cache: Cache,
        rows: list[int],
        starts: list[int],
        visible: Bool[Tensor, "batch time context"],
        places: Int[Tensor, "batch time"],
    ) -> list[_Part]:
        """All rows together where that wastes little; else row by row, each with no more context than it has."""
        time, count = places.shape[1], len(rows)
        ends = [start + time for start in starts]
        whole = rows == list(range(rows[0], rows[0] + count)) and sum(ends) >= FILL * count * max(ends)
        cuts = [slice(0, count)] if whole else [slice(place, place + 1) for place in range(count)]
        parts = []
        for cut in cuts:
            length, own = max(ends[cut]), rows[cut]
            masks = self._masks(visible[cut, :, :length], places[cut], starts[cut])
            parts.append(_Part(cut, cache.read(range(own[0], own[-1] + 1), length), masks))
        return parts

    def _masks(
        self,
        visible: Bool[Tensor, "batch time context"],
        places: Int[Tensor, "batch time"],
        starts: list[int],
    ) -> dict[int | None, Tensor | None]:
        """One additive mask for every kind of layer; a window counts positions (depth), never flat places."""
        masks: dict[int | None, Tensor | None] = {}
        for window in set(self.shape.windows):
            seen = visible if window is None else visible & _near(places, starts, visible.shape[2], window)
            if seen.shape[1] == 1 and bool(seen.all()):
                masks[window] = None  # one query that sees everything: the kernel is faster without a mask
                continue
            added = torch.zeros(seen.shape, dtype=self.dtype, device=self.device).masked_fill_(~seen, float("-inf"))
            masks[window] = added.repeat(1, self.shape.heads // self.shape.kv_heads, 1)[:, None]
        return masks


def _near(
    places: Int[Tensor, "batch time"], starts: list[int], context: int, window: int
) -> Bool[Tensor, "batch time context"]:
    """Whether a column lies less than ``window`` positions back; nodes in flight stand at their depth."""
    columns = torch.arange(context, device=places.device).repeat(len(starts), 1)
    for row, start in enumerate(starts):
        columns[row, start : start + places.shape[1]] = places[row]
    return places[:, :, None] - columns[:, None, :] < window


class _Reader:
    """Takes tensors by their published names, checked and converted; fuses what one layer needs."""

    def __init__(self, shape: Shape, tensors: Mapping[str, Tensor], dtype: torch.dtype, device: torch.device) -> None:
        self.shape, self.tensors, self.dtype, self.device = shape, tensors, dtype, device

    def __call__(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """A tensor of our own: one that still lay in the mapped file would keep the whole file in memory."""
        return self._found(name, shape).to(self.device, self.dtype, copy=True)

    def norm(self, name: str) -> Tensor:
        """The weight of a norm over the residual stream, in the stream's dtype: fp32 or better."""
        return self(name, (self.shape.hidden_size,)).to(torch.promote_types(self.dtype, torch.float32))

    def _found(self, name: str, shape: tuple[int, ...]) -> Tensor:
        found = self.tensors.get(name)
        if found is None:
            raise WeightsError(f"the weights lack the tensor {name!r}", hint="is the download complete?")
        if tuple(found.shape) != shape:
            raise WeightsError(f"the tensor {name!r} has shape {tuple(found.shape)}; config.json says {shape}")
        return found

    def _joined(self, sizes: Mapping[str, tuple[int, ...]]) -> Tensor:
        return torch.cat([self._found(name, size).to(self.device, self.dtype) for name, size in sizes.items()])

    def fused(self, prefix: str, parts: Mapping[str, int], inputs: int, biased: bool, packed: bool) -> Matmul:
        """One matmul for several projections of the same input, their outputs side by side."""
        weight = self._joined({f"{prefix}.{name}.weight": (outputs, inputs) for name, outputs in parts.items()})
        named = {f"{prefix}.{name}.bias": (outputs,) for name, outputs in parts.items()}
        if not biased:
            if stray := [name for name in named if name in self.tensors]:
                raise WeightsError(f"the weights hold {stray[0]!r}; config.json says that there is no such bias")
            return Matmul(weight, packed=packed)
        return Matmul(weight, self._joined(named), packed=packed)

    def layer(self, index: int, packed: bool) -> Layer:
        """The weights of one layer."""
        shape, at = self.shape, f"model.layers.{index}"
        hidden, wide, biased = shape.hidden_size, shape.feed_forward, shape.feed_forward_bias
        query, key = shape.heads * shape.head_width, shape.kv_heads * shape.head_width
        projections = {"q_proj": query, "k_proj": key, "v_proj": key}
        return Layer(
            attention_norm=self.norm(f"{at}.input_layernorm.weight"),
            query_key_value=self.fused(f"{at}.self_attn", projections, hidden, shape.input_bias, packed),
            query_norm=self(f"{at}.self_attn.q_norm.weight", (shape.head_width,)) if shape.head_norms else None,
            key_norm=self(f"{at}.self_attn.k_norm.weight", (shape.head_width,)) if shape.head_norms else None,
            output=self.fused(f"{at}.self_attn", {"o_proj": hidden}, query, shape.output_bias, packed),
            feed_forward_norm=self.norm(f"{at}.post_attention_layernorm.weight"),
            gate_up=self.fused(f"{at}.mlp", {"gate_proj": wide, "up_proj": wide}, hidden, biased, packed),
            down=self.fused(f"{at}.mlp", {"down_proj": hidden}, wide, biased, packed),
        )
