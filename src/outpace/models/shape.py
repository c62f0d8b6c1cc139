"""What ``config.json`` says of the arithmetic of a Llama-family model, old layout or new.

Knows nothing of weights. What it cannot honour it refuses by name.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from outpace.errors import UnsupportedError, WeightsError
from outpace.models.rotary import Rotary, rotary_parameters

_QWEN = {"num_key_value_heads": 32, "sliding_window": 4096, "max_window_layers": 28}
ASSUMED: dict[str, dict[str, int]] = {  # what a configuration of each family means by leaving a key out
    "llama": {},
    "mistral": {"num_key_value_heads": 8, "sliding_window": 4096},
    "qwen2": _QWEN,
    "qwen3": _QWEN | {"head_dim": 128},
}
FAMILIES = tuple(ASSUMED)


@dataclass(frozen=True)
class Shape:
    """What ``config.json`` says of the arithmetic.

    ``windows`` has one entry a layer: how many positions back a token sees, itself included; None sees all. The last
    four fields say which biases and norms there are besides those that every family has.
    """

    vocab_size: int
    hidden_size: int
    layers: int
    heads: int
    kv_heads: int
    head_width: int
    feed_forward: int
    max_positions: int
    norm_eps: float
    tied_head: bool
    rotary: Mapping[str, Any]
    windows: tuple[int | None, ...]
    input_bias: bool
    output_bias: bool
    feed_forward_bias: bool
    head_norms: bool

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> "Shape":
        """Read a Hugging Face configuration, old or new layout; a key that is left out means what it means there.

        Raises:
            UnsupportedError: the model type, the activation, the rotary scaling, a kind of layer or a quantisation is
                not one the fast lane knows.
            WeightsError: a key is missing without which there is no model.
        """
        kind = config.get("model_type")
        if kind not in FAMILIES:
            raise UnsupportedError(
                f"the model type is {kind!r}; the fast lane knows {', '.join(FAMILIES)}",
                hint="a model of another family needs the hosted lane",
            )
        if config.get("hidden_act", "silu") != "silu":
            raise UnsupportedError(f"the activation is {config['hidden_act']!r}; the fast lane knows 'silu'")
        if quantised := config.get("quantization_config"):
            raise UnsupportedError(
                f"the weights are quantised ({quantised.get('quant_method')}); the fast lane knows floating point",
                hint="use the checkpoint that these weights were quantised from",
            )
        try:
            return cls._read(ASSUMED[kind] | dict(config), kind)
        except KeyError as error:
            raise WeightsError(f"config.json has no {error}", hint="fetch the file again") from error

    @classmethod
    def _read(cls, config: Mapping[str, Any], kind: str) -> "Shape":
        heads, positions = int(config["num_attention_heads"]), int(config["max_position_embeddings"])
        width = int(config.get("head_dim") or config["hidden_size"] // heads)
        attention_bias = kind in ("llama", "qwen3") and bool(config.get("attention_bias", False))
        rotary = rotary_parameters(config)
        Rotary(rotary, width, positions)  # refuses what it does not know before any weights are read
        return cls(
            vocab_size=int(config["vocab_size"]),
            hidden_size=int(config["hidden_size"]),
            layers=int(config["num_hidden_layers"]),
            heads=heads,
            kv_heads=int(config.get("num_key_value_heads") or heads),
            head_width=width,
            feed_forward=int(config["intermediate_size"]),
            max_positions=positions,
            norm_eps=float(config.get("rms_norm_eps", 1e-6)),
            tied_head=bool(config.get("tie_word_embeddings", False)),
            rotary=rotary,
            windows=_windows(config, kind),
            input_bias=kind == "qwen2" or attention_bias,
            output_bias=attention_bias,
            feed_forward_bias=kind == "llama" and bool(config.get("mlp_bias", False)),
            head_norms=kind == "qwen3",
        )


def _windows(config: Mapping[str, Any], kind: str) -> tuple[int | None, ...]:
    layers, window, kinds = int(config["num_hidden_layers"]), config.get("sliding_window"), config.get("layer_types")
    if not window or kind == "llama" or (kind != "mistral" and not config.get("use_sliding_window", False)):
        return (None,) * layers
    if kinds is None:  # Mistral slides everywhere, Qwen from max_window_layers on
        first = min(layers, int(config["max_window_layers"])) if kind != "mistral" else 0
        kinds = ["full_attention"] * first + ["sliding_attention"] * (layers - first)
    if unknown := set(kinds) - {"full_attention", "sliding_attention"}:
        raise UnsupportedError(f"a layer is of type {min(unknown)!r}; allowed: full_attention, sliding_attention")
    if len(kinds) != layers:
        raise WeightsError(f"config.json has {len(kinds)} layer_types for {layers} layers")
    return tuple(int(window) if each == "sliding_attention" else None for each in kinds)
