"""Rotary positions: inverse frequencies of every published scaling that is fixed in advance, and the rotation.

Knows nothing of attention. Scalings that depend on the length of the text (``dynamic``, ``longrope``) would change
keys that are already cached, so they are refused by name.
"""

import math
from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from outpace.errors import UnsupportedError, WeightsError

SCALINGS = ("default", "linear", "llama3", "yarn")


def rotary_parameters(config: Mapping[str, Any]) -> dict[str, Any]:
    """What a configuration says of rotary positions, old layout (``rope_scaling`` beside ``rope_theta``) or new.

    Raises:
        UnsupportedError: layers differ in their settings, or only a part of a head is rotated.
    """
    found = dict(config.get("rope_scaling") or config.get("rope_parameters") or {})
    if nested := [key for key, value in found.items() if isinstance(value, Mapping)]:
        raise UnsupportedError(f"the rotary settings differ by layer ({', '.join(nested)}); allowed: one for all")
    found.setdefault("rope_type", found.get("type", "default"))
    found.setdefault("rope_theta", config.get("rope_theta", 10000.0))
    if "original_max_position_embeddings" in config:  # beside the scaling it goes before what the scaling says
        found["original_max_position_embeddings"] = config["original_max_position_embeddings"]
    share = found.get("partial_rotary_factor", config.get("partial_rotary_factor"))
    if share not in (None, 1):
        raise UnsupportedError(f"partial_rotary_factor is {share}; the fast lane knows 1")
    return found


class Rotary:
    """Tables of cosines and signed sines, grown as positions are asked for.

    Args:
        parameters: ``rope_theta``, ``rope_type`` and what that type needs, as in ``config.json``.
        width: the width of a head; both halves are rotated together.
        max_positions: the model's context, the default of ``original_max_position_embeddings``.

    Raises:
        UnsupportedError: the scaling is not one of ``SCALINGS``.
        WeightsError: a number is missing that the scaling needs.

    Source: Su et al. 2104.09864; linear: Chen et al. 2306.15595; yarn: Peng et al. 2309.00071, section 3.
    """

    def __init__(self, parameters: Mapping[str, Any], width: int, max_positions: int) -> None:
        try:
            self.inverse, self.scale = _frequencies(parameters, width, max_positions)
        except KeyError as error:
            raise WeightsError(f"the rotary scaling {parameters['rope_type']!r} has no {error}") from error
        self.tables: dict[tuple[torch.dtype, torch.device], tuple[Tensor, Tensor]] = {}

    def at(
        self, positions: Int[Tensor, "batch time"], dtype: torch.dtype
    ) -> tuple[Float[Tensor, "batch time 1 width"], Float[Tensor, "batch time 1 width"]]:
        """Cosine and signed sine of these positions, ready to broadcast over heads."""
        key = (dtype, positions.device)
        needed = int(positions.max()) + 1
        if key not in self.tables or self.tables[key][0].shape[0] < needed:
            size = max(256, 1 << (needed - 1).bit_length())
            angles = torch.arange(size, dtype=torch.float32)[:, None] * self.inverse
            cos, sin = angles.cos() * self.scale, angles.sin() * self.scale
            tables = (torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1))
            self.tables[key] = (tables[0].to(positions.device, dtype), tables[1].to(positions.device, dtype))
        cos, sin = self.tables[key]
        return cos[positions].unsqueeze(2), sin[positions].unsqueeze(2)


def rotate(
    states: Float[Tensor, "batch time heads width"],
    cos: Float[Tensor, "batch time #heads width"],
    sin: Float[Tensor, "batch time #heads width"],
) -> Float[Tensor, "batch time heads width"]:
    """Turn every pair ``(x_i, x_{i + width/2})`` by its angle; ``sin`` carries the sign of the first half."""
    return torch.addcmul(states * cos, states.roll(states.shape[-1] // 2, -1), sin)


def _frequencies(parameters: Mapping[str, Any], width: int, max_positions: int) -> tuple[Tensor, float]:
    """Inverse frequencies ``[width / 2]`` and the factor on cosine and sine."""
    kind = str(parameters.get("rope_type", "default"))
    theta = float(parameters.get("rope_theta", 10000.0))
    exponents = torch.arange(0, width, 2, dtype=torch.float32) / width
    inverse = 1.0 / theta**exponents
    if kind == "default":
        return inverse, 1.0
    if kind == "linear":
        return inverse / float(parameters["factor"]), 1.0
    if kind == "llama3":
        return _llama3(parameters, inverse, max_positions), 1.0
    if kind == "yarn":
        return _yarn(parameters, inverse, theta, width, max_positions)
    raise UnsupportedError(
        f"the rotary scaling is {kind!r}; the fast lane knows {', '.join(SCALINGS)}",
        hint="use the hosted lane, or a model with a fixed scaling",
    )


def _llama3(parameters: Mapping[str, Any], inverse: Tensor, max_positions: int) -> Tensor:
    """Long waves are stretched, short ones kept, those between blended by how often they fit the old context."""
    factor, old = float(parameters["factor"]), _old_context(parameters, max_positions)
    low, high = float(parameters["low_freq_factor"]), float(parameters["high_freq_factor"])
    fits = old * inverse / (2 * math.pi)
    blend = ((fits - low) / (high - low)).clamp(0, 1)
    return inverse * (blend + (1 - blend) / factor)


def _old_context(parameters: Mapping[str, Any], max_positions: int) -> float:
    return float(parameters.get("original_max_position_embeddings") or max_positions)


def _yarn(
    parameters: Mapping[str, Any], inverse: Tensor, theta: float, width: int, max_positions: int
) -> tuple[Tensor, float]:
    """Interpolate slow dimensions, keep fast ones, ramp between; and warm the attention by a factor."""
    old = _old_context(parameters, max_positions)
    factor = float(parameters["factor"] or max_positions / old)

    def dimension(rotations: float) -> float:
        return width * math.log(old / (rotations * 2 * math.pi)) / (2 * math.log(theta))

    low = dimension(float(parameters.get("beta_fast") or 32))
    high = dimension(float(parameters.get("beta_slow") or 1))
    if parameters.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, width - 1)
    ramp = ((torch.arange(width // 2, dtype=torch.float32) - low) / max(high - low, 1e-3)).clamp(0, 1)
    return inverse * (1 - ramp) + inverse / factor * ramp, _yarn_warmth(parameters, factor)


def _yarn_warmth(parameters: Mapping[str, Any], factor: float) -> float:
    given = parameters.get("attention_factor")
    if given is not None:
        return float(given)

    def warmth(scale: float) -> float:
        return 0.1 * scale * math.log(factor) + 1.0 if factor > 1 else 1.0

    mscale, mscale_all = parameters.get("mscale"), parameters.get("mscale_all_dim")
    if mscale and mscale_all:
        return warmth(float(mscale)) / warmth(float(mscale_all))
    return warmth(1.0)
