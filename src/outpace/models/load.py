"""Open a target by name: find its weights, choose dtype and lane, build it.

Knows nothing of tokenizers: a Target works on ids and says in ``folder`` where its text files lie.
"""

import platform
from pathlib import Path
from typing import Any

import torch

from outpace.errors import UnsupportedError, UsageError
from outpace.models.shape import Shape
from outpace.models.staging import Progress
from outpace.models.target import Target
from outpace.models.transformer import Transformer
from outpace.models.weights import DEFAULT, find_weights, fingerprint, load_tensors, read_config

DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32, "fp64": torch.float64}
LANES = ("auto", "fast", "hosted")


def load_target(
    name: str | Path = DEFAULT,
    *,
    dtype: str = "auto",
    device: str = "cpu",
    lane: str = "auto",
    trust_remote_code: bool = False,
    progress: Progress | None = None,
) -> Target:
    """Open a causal language model to be accelerated.

    Args:
        name: a folder, a Hugging Face id, or ``smollm2``, the embedded default, pulled when missing.
        dtype: ``auto`` (bf16 where the processor has it natively, else fp32), ``bf16``, ``fp32`` or ``fp64``.
        device: where to compute; ``cpu``.
        lane: ``fast`` (our own forward, for the families it knows), ``hosted`` (the model of transformers), or
            ``auto``: fast where the family is known, else hosted.
        trust_remote_code: let a hosted model run Python files that came with its weights.
        progress: told of a download as ``(done, total, what)``.

    Returns:
        A Target that also knows the folder of its tokenizer. A hosted one may be limited to chains or to plain
        decoding; it then warns, and says why in ``limited_by``.

    Raises:
        UsageError: the dtype or the lane is not one of these.
        UnsupportedError: the device is not the CPU; nothing has been tested elsewhere.
        WeightsError: the weights cannot be found or read.
        UnsupportedError: the architecture is not one that the lane knows, or no decoder-only language model.
    """
    if dtype != "auto" and dtype not in DTYPES:
        raise UsageError(f"dtype is {dtype!r}; allowed: auto, {', '.join(DTYPES)}")
    if lane not in LANES:
        raise UsageError(f"lane is {lane!r}; allowed: {', '.join(LANES)}")
    if device != "cpu":
        raise UnsupportedError(f"device is {device!r}; allowed: cpu", hint="no other device has been tested yet")
    folder = find_weights(str(name), progress=progress)
    config = read_config(folder)
    shape = _fast_shape(config, lane)
    shown: dict[str, Any] = {
        "dtype": native_dtype(device) if dtype == "auto" else DTYPES[dtype],
        "device": device,
        "name": str(name),
        "folder": folder,
        "eos_ids": eos_ids(folder, config),
        "fingerprint": fingerprint(folder),
    }
    if shape is None:
        from outpace.models.hosted import load_hosted  # transformers takes seconds to import

        return load_hosted(trust_remote_code=trust_remote_code, **shown)
    return Transformer(shape, load_tensors(folder), **shown)


def _fast_shape(config: dict[str, Any], lane: str) -> Shape | None:
    """What the fast lane computes by; None where the hosted lane takes over."""
    if lane == "hosted":
        return None
    try:
        return Shape.from_config(config)
    except UnsupportedError:
        if lane == "fast":
            raise
        return None


def native_dtype(device: str) -> torch.dtype:
    """bf16 where the processor multiplies it natively, else fp32."""
    native = torch.cpu._is_avx512_bf16_supported() or platform.machine() == "arm64"
    return torch.bfloat16 if device == "cpu" and native else torch.float32


def eos_ids(folder: Path, config: dict[str, Any]) -> tuple[int, ...]:
    """The ids that end a text: ``generation_config.json`` if it names any, else ``config.json``; maybe none."""
    generation = folder / "generation_config.json"
    found = read_config(folder, generation.name).get("eos_token_id") if generation.is_file() else None
    found = config.get("eos_token_id") if found is None else found
    return () if found is None else tuple(found) if isinstance(found, list) else (int(found),)
