"""What a head's configuration says, value by value: sizes, numbers, rotary settings, and what may not be otherwise.

Knows nothing of any one layout. All published heads describe their layer in the words of a Llama configuration.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from outpace.errors import UnsupportedError, WeightsError
from outpace.models.rotary import Rotary, rotary_parameters

ASSUMED: Mapping[str, Any] = {
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-6,
    "vocab_size": 32000,
}
"""What a Llama configuration means by leaving a key out."""
PLAIN_LAYER: Mapping[str, Any] = {
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
    "qkv_bias": False,
    "quantization_config": None,
    "logit_scale": 1.0,
}
"""What no layer here has in another way; a key that is left out means the same."""
_NUMBERS = ("rope_theta", "factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")


def size(said: Mapping[str, Any], name: str, folder: Path) -> int:
    """A whole number, 1 or more.

    Raises:
        WeightsError: it is something else.
    """
    value = said[name]
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise WeightsError(f"{name} in config.json of {folder} is {value!r}; allowed: a whole number, 1 or more")
    return value


def number(value: Any, name: str, folder: Path) -> float:
    """A number above 0.

    Raises:
        WeightsError: it is something else.
    """
    if not isinstance(value, int | float) or isinstance(value, bool) or not value > 0:
        raise WeightsError(f"{name} in config.json of {folder} is {value!r}; allowed: a number above 0")
    return float(value)


def switch(value: Any, name: str, folder: Path) -> bool:
    """True or false.

    Raises:
        WeightsError: it is something else.
    """
    if not isinstance(value, bool):
        raise WeightsError(f"{name} in config.json of {folder} is {value!r}; allowed: true or false")
    return value


def layer_sizes(said: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Sizes, epsilon and rotary settings of the one layer, under the names of ``HeadShape`` and ``FirstShape``.

    Raises:
        WeightsError: a value is of the wrong type, or the rotary settings contradict each other or lack a number.
        UnsupportedError: the rotary scaling is one that nothing here has.
    """
    whole = {**ASSUMED, **{name: value for name, value in said.items() if value is not None}}
    sizes = {name: size(whole, name, folder) for name in ASSUMED if name != "rms_norm_eps"}
    heads, hidden, positions = (
        sizes[name] for name in ("num_attention_heads", "hidden_size", "max_position_embeddings")
    )
    width = size(whole, "head_dim", folder) if "head_dim" in whole else hidden // heads
    return {
        "hidden_size": hidden,
        "heads": heads,
        "kv_heads": size(whole, "num_key_value_heads", folder) if "num_key_value_heads" in whole else heads,
        "head_width": width,
        "feed_forward": sizes["intermediate_size"],
        "vocab_size": sizes["vocab_size"],
        "norm_eps": number(whole["rms_norm_eps"], "rms_norm_eps", folder),
        "max_positions": positions,
        "rotary": rotary(said, width, positions, folder),
    }


def require_one_layer(said: Mapping[str, Any], only: Mapping[str, Any], folder: Path) -> None:
    """Refuse by name what is not one Llama layer with full attention, or differs from what is ``only`` allowed.

    Raises:
        UnsupportedError: a value is another.
    """
    if said.get("model_type") != "llama":
        raise UnsupportedError(f"model_type of the layer of {folder} is {said.get('model_type')!r}; allowed: 'llama'")
    if (count := said.get("num_hidden_layers", ASSUMED["num_hidden_layers"])) != 1:
        raise UnsupportedError(f"num_hidden_layers of {folder} is {count}; allowed: 1")
    for name, allowed in only.items():
        if (value := said.get(name)) not in (None, allowed):
            raise UnsupportedError(f"{name} of {folder} is {value!r}; allowed: {allowed!r}")
    if "sliding_attention" in (said.get("layer_types") or ()):
        raise UnsupportedError(f"layer_types of {folder} is {said['layer_types']}; allowed: full_attention")


def rotary(said: Mapping[str, Any], width: int, positions: int, folder: Path) -> dict[str, Any]:
    """Rotary settings of either layout; where both are there, they must agree.

    Args:
        width: of a head.
        positions: the longest text.

    Raises:
        WeightsError: they do not, or a number is missing or none.
        UnsupportedError: the scaling is one that nothing here has.
    """
    scalings = [said[name] for name in ("rope_scaling", "rope_parameters") if said.get(name)]
    if not all(isinstance(one, dict) for one in scalings):
        raise WeightsError(f"rope_scaling in config.json of {folder} is {scalings[0]!r}; allowed: null or an object")
    bases = [said.get("rope_theta"), *(one.get("rope_theta") for one in scalings)]
    kinds = [one.get("rope_type", one.get("type", "default")) for one in scalings]
    for name, values in (("rope_theta", bases), ("rope_type", kinds)):
        found = [value for value in values if value is not None]
        if len(set(found)) > 1:
            raise WeightsError(f"config.json of {folder} says {name} twice: {found[0]!r} and {found[-1]!r}")
    found_here = rotary_parameters(said)
    for name, value in found_here.items():
        if name in _NUMBERS and value is not None:
            number(value, name, folder)
    Rotary(found_here, width, positions)  # refuses what it does not know
    return found_here
