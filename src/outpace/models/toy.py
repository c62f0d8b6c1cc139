"""Table-driven and tiny random models, bit-stable, for tests, docs and first steps.

Knows nothing of downloads: everything here is made from a seed.
"""

import math
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from outpace.models.function import FunctionTarget
from outpace.models.shape import Shape
from outpace.models.transformer import Transformer


def table_target(
    table: Float[Tensor, "vocab vocab"], *, name: str = "table", eos_ids: tuple[int, ...] = ()
) -> FunctionTarget:
    """A target whose next-token logits depend on the last token alone: row t of the table. Its law is known exactly."""

    def logits_of(ids: Int[Tensor, "batch time"]) -> Float[Tensor, "batch time vocab"]:
        return table[ids]

    return FunctionTarget(logits_of, table.shape[1], name=name, eos_ids=eos_ids, dtype=table.dtype)


def random_table(vocab_size: int, *, seed: int = 0, spread: float = 1.0) -> Float[Tensor, "vocab vocab"]:
    """Float64 logits drawn from N(0, spread squared)."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(vocab_size, vocab_size, dtype=torch.float64, generator=generator) * spread


def tiny_config(family: str = "llama", *, vocab_size: int = 64, layers: int = 2, **changes: Any) -> dict[str, Any]:
    """A configuration of one of the fast lane's families, small enough to test with; ``changes`` override it."""
    config: dict[str, Any] = {
        "model_type": family,
        "vocab_size": vocab_size,
        "hidden_size": 32,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "intermediate_size": 48,
        "max_position_embeddings": 256,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": False,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
    }
    return config | changes


def tiny_tensors(config: dict[str, Any], *, seed: int = 0, spread: float = 1.0) -> dict[str, Tensor]:
    """Random weights for a configuration, under their published names.

    ``spread`` is the standard deviation that a projection gives unit inputs. The 0.02 of usual initialisers makes a
    tiny model repeat one token for ever, and tests on it pass blindly; at 1 it is lively.
    """
    shape = Shape.from_config(config)
    generator = torch.Generator().manual_seed(seed)

    def matrix(outputs: int, inputs: int) -> Tensor:
        return torch.randn(outputs, inputs, generator=generator) * (spread / math.sqrt(inputs))

    def norm(width: int) -> Tensor:
        return 1 + 0.2 * torch.randn(width, generator=generator)

    hidden, wide, width = shape.hidden_size, shape.feed_forward, shape.head_width
    tensors = {
        "model.embed_tokens.weight": torch.randn(shape.vocab_size, hidden, generator=generator),
        "model.norm.weight": norm(hidden),
    }
    if not shape.tied_head:
        tensors["lm_head.weight"] = 3 * matrix(shape.vocab_size, hidden)
    for index in range(shape.layers):
        at = f"model.layers.{index}"
        for name, heads in (("q", shape.heads), ("k", shape.kv_heads), ("v", shape.kv_heads)):
            tensors[f"{at}.self_attn.{name}_proj.weight"] = 2 * matrix(heads * width, hidden)
            if shape.input_bias:
                tensors[f"{at}.self_attn.{name}_proj.bias"] = 0.3 * torch.randn(heads * width, generator=generator)
            if shape.head_norms and name != "v":
                tensors[f"{at}.self_attn.{name}_norm.weight"] = norm(width)
        tensors[f"{at}.self_attn.o_proj.weight"] = matrix(hidden, shape.heads * width)
        if shape.output_bias:
            tensors[f"{at}.self_attn.o_proj.bias"] = 0.3 * torch.randn(hidden, generator=generator)
        for name, outputs, inputs in (("gate", wide, hidden), ("up", wide, hidden), ("down", hidden, wide)):
            tensors[f"{at}.mlp.{name}_proj.weight"] = 2 * matrix(outputs, inputs)
            if shape.feed_forward_bias:
                tensors[f"{at}.mlp.{name}_proj.bias"] = 0.3 * torch.randn(outputs, generator=generator)
        tensors[f"{at}.input_layernorm.weight"] = norm(hidden)
        tensors[f"{at}.post_attention_layernorm.weight"] = norm(hidden)
    return tensors


def tiny_transformer(
    family: str = "llama",
    *,
    seed: int = 0,
    spread: float = 1.0,
    dtype: torch.dtype = torch.float32,
    eos_ids: tuple[int, ...] = (),
    **changes: Any,
) -> Transformer:
    """A random fast-lane model: 2 layers, 32 wide, 64 tokens, unless ``changes`` to its configuration say otherwise."""
    config = tiny_config(family, **changes)
    return Transformer(
        Shape.from_config(config),
        tiny_tensors(config, seed=seed, spread=spread),
        dtype=dtype,
        packed=False,
        name=f"tiny-{family}",
        eos_ids=eos_ids,
        fingerprint=f"tiny-{family}-{seed}",
    )
