"""Read EAGLE-1 heads as others publish them: SafeAILab's layout, and the wrapping of it that older vLLM asks for.

Knows nothing of where a folder came from. The target's embeddings and head, which some files hold, are handed out
beside a head; what changes the arithmetic in a way that no EAGLE-1 head here has is refused by name.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from outpace.drafters.configurations import ASSUMED, PLAIN_LAYER, layer_sizes, require_one_layer, switch
from outpace.drafters.first_head import FirstHead, FirstShape
from outpace.drafters.stored import fill_module, rope, settings
from outpace.errors import UnsupportedError, WeightsError
from outpace.models.ends import read_embeddings, read_head
from outpace.models.target import Target
from outpace.models.weights import load_tensors, read_config, tensor_files

FirstKind = Literal["llama", "wrapped"]
"""``llama``: one flat configuration. ``wrapped``: it stands under ``model``, as older vLLM wants it."""
WRAPPED = "eagle"
"""The model type of a wrapping."""
_ONLY: Mapping[str, Any] = {
    **PLAIN_LAYER,
    "add_para_norm": False,
    "skip_prenorm": True,
    "skip_output_norm": True,
}
_TWICE = (*ASSUMED, "num_key_value_heads", "head_dim", "rope_theta", "rope_scaling", "eagle_fc_bias", "bias")
"""What both levels of a wrapping may say, and must say alike."""
_ASIDE = ".rotary_emb.inv_freq"
_HINT = (
    "tensors follow from the configuration: bias, which a wrapping calls eagle_fc_bias, adds fc.bias; there is no norm "
    "before attention and none at the end"
)


@dataclass(frozen=True)
class FirstLayout:
    """A head that was read.

    Args:
        kind: how its configuration was laid out.
        head: its weights in the dtype of the file.
        embeddings, rows: what the file holds of embeddings and of a head: meant to be the target's own; else None.
    """

    kind: FirstKind
    head: FirstHead
    embeddings: Tensor | None
    rows: Tensor | None


def is_first(folder: Path) -> bool:
    """Whether a folder holds an EAGLE-1 head. The tensors tell: an EAGLE-3 head norms its state, this one does not.

    Raises:
        WeightsError: as for ``read_config`` and ``tensor_files``.
    """
    if "speculators_model_type" in read_config(folder):
        return False
    names = tensor_files(folder)
    return "fc.weight" in names and not any(map(_of_eagle3, names))


def _of_eagle3(name: str) -> bool:
    return name.endswith("hidden_norm.weight") or name.startswith("midlayer.")


def read_first(folder: Path) -> FirstLayout:
    """Read a folder in either layout.

    Raises:
        WeightsError: a file or a tensor is missing, is too many or has another shape or dtype than the configuration
            asks for; a value is of the wrong type or contradicts another.
        UnsupportedError: it is a head of EAGLE-3; or there are several layers, a vocabulary of its own, norms that
            EAGLE-1 has not, or what else changes the arithmetic: the value is named.
    """
    config, tensors = read_config(folder), load_tensors(folder)
    if (stranger := next(filter(_of_eagle3, sorted(tensors)), None)) is not None:
        raise UnsupportedError(f"{folder} holds {stranger}, which no EAGLE-1 head has", hint="EAGLE-3 heads have it")
    kind: FirstKind = "wrapped" if config.get("model_type") == WRAPPED else "llama"
    said = _unwrapped(config, folder) if kind == "wrapped" else config
    require_one_layer(said, _ONLY, folder)
    sizes = layer_sizes(said, folder)
    shape = FirstShape(**sizes, fc_bias=_fc_bias(said, kind, folder))
    _require_whole_vocabulary(said, shape.vocab_size, folder)
    kept = {name: tensor for name, tensor in tensors.items() if not name.endswith(_ASIDE)}
    named = {_published(name) if kind == "wrapped" else name: tensor for name, tensor in kept.items()}
    if len(named) < len(kept):
        raise WeightsError(f"{folder} holds a tensor twice, with and without model. before its name")
    embeddings, rows = (named.pop(f"{name}.weight", None) for name in ("embed_tokens", "lm_head"))
    head = fill_module(lambda: FirstHead(shape), named, str(folder), _HINT)
    return FirstLayout(kind, head, embeddings, rows)


def _published(name: str) -> str:
    """Older vLLM takes names with ``model.`` before them, once or twice, and without."""
    return name.removeprefix("model.").removeprefix("model.")


def _unwrapped(config: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Both levels of a wrapping on one."""
    inner = config.get("model")
    if not isinstance(inner, dict):
        raise WeightsError(f"config.json of {folder} has no object model, though its model_type is {WRAPPED!r}")
    outer = {name: value for name, value in config.items() if name not in ("model", "model_type", "architectures")}
    for name in _TWICE:
        if name in inner and outer.get(name, inner[name]) != inner[name]:
            raise WeightsError(f"config.json of {folder} says {name} twice: {outer[name]!r} and {inner[name]!r}")
    return inner | outer


def _fc_bias(said: Mapping[str, Any], kind: FirstKind, folder: Path) -> bool:
    """Left out, there is one for SafeAILab, and none for vLLM, whose oldest releases called it ``bias`` too."""
    if kind == "llama":
        return switch(said.get("bias", True), "bias", folder)
    named = {name: switch(said[name], name, folder) for name in ("eagle_fc_bias", "bias") if name in said}
    if len(set(named.values())) > 1:
        raise WeightsError(f"config.json of {folder} says {' and '.join(f'{k} = {v}' for k, v in named.items())}")
    return any(named.values())


def _require_whole_vocabulary(said: Mapping[str, Any], vocab_size: int, folder: Path) -> None:
    for name in ("truncated_vocab_size", "draft_vocab_size"):
        if (count := said.get(name)) not in (None, vocab_size):
            raise UnsupportedError(
                f"{name} of {folder} is {count!r}; allowed: {vocab_size}, its vocab_size",
                hint="an EAGLE-1 head speaks through its target's head, whole",
            )


# ---- what the target has too -----------------------------------------------------------------------------------------


def require_ends(target: Target, name: str, *, embeddings: Tensor | None = None, rows: Tensor | None = None) -> None:
    """Refuse what a head's file holds of its target, where it is another's; it may be rounded otherwise.

    Args:
        target: the one to be accelerated.
        name: the drafter's, for errors.
        embeddings, rows: of embeddings and of a head; None where the file holds none.

    Raises:
        UnsupportedError: one of them is not the target's; or as for ``read_head``, if there are ``rows``.
        WeightsError: as for ``read_embeddings`` and ``read_head``.
    """
    both = (("an embed_tokens", "embeddings", embeddings, read_embeddings), ("a lm_head", "head", rows, read_head))
    for tensor, what, found, read in both:
        if found is None:
            continue
        own = read(target).float()
        if own.shape != found.shape or not torch.allclose(found.to(own), own, rtol=2**-7, atol=1e-6):
            raise UnsupportedError(
                f"the drafter {name!r} holds {tensor}.weight that is not that of the target {target.name!r}; "
                f"allowed: the target's {what}, or none",
                hint="it may have been made for another target",
            )


# ---- out -------------------------------------------------------------------------------------------------------------


def first_config(shape: FirstShape, dtype: torch.dtype) -> dict[str, Any]:
    """The flat configuration, with all that is in it said: rotary settings in the words that engines read.

    Raises:
        UnsupportedError, WeightsError: as for ``settings`` and ``rope``.
    """
    theta, scaling = rope(shape)
    return {
        "architectures": ["LlamaForCausalLM"],
        **settings(shape, dtype),
        "bias": shape.fc_bias,
        "rope_theta": theta,
        "rope_scaling": scaling,
    }
