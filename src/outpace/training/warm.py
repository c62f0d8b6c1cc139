"""A warm start: a head begins as the target's own last layer, reading the highest tap.

Knows nothing of training. What fits is copied: the last layer's attention on the half of its input that holds the
state, feed-forward and norms, the last norm, and the rows of the target's head. What the head has and the target has
not begins where it does nothing: the fusion passes the highest tap through, and the embedding is not looked at yet.
"""

import re
import warnings
from collections.abc import Mapping

import torch
from jaxtyping import Float, Int
from torch import Tensor

from outpace.drafters.head import Head
from outpace.models.ends import read_head
from outpace.models.target import Target
from outpace.models.transformer import Transformer
from outpace.models.weights import load_tensors

_LAYER = {
    "self_attn.q_proj.weight": "midlayer.self_attn.q_proj.weight",
    "self_attn.k_proj.weight": "midlayer.self_attn.k_proj.weight",
    "self_attn.v_proj.weight": "midlayer.self_attn.v_proj.weight",
    "self_attn.o_proj.weight": "midlayer.self_attn.o_proj.weight",
    "mlp.gate_proj.weight": "midlayer.mlp.gate_proj.weight",
    "mlp.up_proj.weight": "midlayer.mlp.up_proj.weight",
    "mlp.down_proj.weight": "midlayer.mlp.down_proj.weight",
    "input_layernorm.weight": "midlayer.hidden_norm.weight",
    "post_attention_layernorm.weight": "midlayer.post_attention_layernorm.weight",
}
"""Of the target's last layer, under the names of the Llama family, and where it goes in a head."""
_BEFORE = ("q_proj", "k_proj", "v_proj")


def warm_start(head: Head, target: Target, target_ids: Int[Tensor, " draft"]) -> list[str]:
    """Copy into a head what of its target fits.

    Args:
        head: with random weights; fp32.
        target: the one that it drafts for.
        target_ids: as ``Head.target_ids``.

    Returns:
        The names of the matrices that stay random, with a notice if there are any.

    Raises:
        WeightsError, UnsupportedError: as for ``read_head``.
    """
    weights = dict(head.named_parameters())
    hidden = head.shape.hidden_size
    found = {**_last_layer(target), "lm_head.weight": read_head(target)[target_ids.to(target.device)]}
    left = [name for name, weight in weights.items() if weight.dim() > 1 and name != "embed_tokens.weight"]
    with torch.no_grad():
        for name, given in found.items():
            weight = weights[name]
            part = weight[:, hidden:] if any(one in name for one in _BEFORE) else weight
            if part.shape != given.shape:
                continue
            if part is not weight:
                weight.zero_()
            part.copy_(given)
            if weight.dim() > 1:
                left.remove(name)
        if head.shape.target_hidden_size == hidden:
            fc = weights["fc.weight"]
            fc.zero_()
            fc[:, -hidden:].fill_diagonal_(1.0)
            left.remove("fc.weight")
    if left:
        warnings.warn(
            f"the target {target.name!r} has nothing that fits {', '.join(left)} of the head; they start at random",
            stacklevel=2,
        )
    return left


def _last_layer(target: Target) -> dict[str, Float[Tensor, "..."]]:
    """The last layer of a Llama-like target and its last norm, under the head's names; empty of another target."""
    if isinstance(target, Transformer):
        return _of_memory(target)
    if target.folder is None:
        return {}
    tensors: Mapping[str, Tensor] = load_tensors(target.folder)
    numbers = [int(place[1]) for name in tensors if (place := re.search(r"(?:^|\.)layers\.(\d+)\.", name))]
    if not numbers:
        return {}
    last, found = max(numbers), {}
    for name, weight in tensors.items():
        behind = name.partition(f"layers.{last}.")[2]
        if behind in _LAYER:
            found[_LAYER[behind]] = weight
        elif re.search(r"(^|\.)model\.norm\.weight$", name):
            found["norm.weight"] = weight
    return found if len(found) > len(_LAYER) else {}


def _of_memory(target: Transformer) -> dict[str, Tensor]:
    shape, layer = target.shape, target.blocks[-1]
    sizes = [shape.heads * shape.head_width, *[shape.kv_heads * shape.head_width] * 2]
    query, key, value = _plain(layer.query_key_value.weight).split_with_sizes(sizes)
    gate, up = _plain(layer.gate_up.weight).chunk(2)
    at = "midlayer."
    return {
        f"{at}self_attn.q_proj.weight": query,
        f"{at}self_attn.k_proj.weight": key,
        f"{at}self_attn.v_proj.weight": value,
        f"{at}self_attn.o_proj.weight": _plain(layer.output.weight),
        f"{at}mlp.gate_proj.weight": gate,
        f"{at}mlp.up_proj.weight": up,
        f"{at}mlp.down_proj.weight": _plain(layer.down.weight),
        f"{at}hidden_norm.weight": layer.attention_norm,
        f"{at}post_attention_layernorm.weight": layer.feed_forward_norm,
        "norm.weight": target.last_norm,
    }


def _plain(weight: Tensor) -> Tensor:
    weight = weight.detach()
    return weight.to_dense() if weight.is_mkldnn else weight
