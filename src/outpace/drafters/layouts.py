"""Read EAGLE-3 heads as others publish them: SafeAILab, SpecForge and SGLang, AngelSlim, ModelOpt, speculators, vLLM.

Knows nothing of where a folder came from. What a configuration leaves out is taken only where all who read that layout
agree on it; what changes the arithmetic in a way that no head here has is refused by name.
"""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from outpace.drafters.configurations import PLAIN_LAYER, layer_sizes, require_one_layer, size, switch
from outpace.drafters.first_layouts import WRAPPED, is_first
from outpace.drafters.head import Head, HeadShape
from outpace.drafters.medusa_layout import is_medusa
from outpace.drafters.stored import FLAGS, fill
from outpace.errors import UnsupportedError, WeightsError
from outpace.models.weights import load_tensors, read_config, tensor_files

Kind = Literal["llama", "speculators"]
"""``llama``: one flat configuration, as all but speculators write it."""
PLAIN = "LlamaForCausalLM"
"""The architecture that SafeAILab writes: a layout without switches."""
IDS = "eagle_aux_hidden_state_layer_ids"
_ONLY: dict[str, Any] = {  # what no head here has in another way; a key that is left out means the same
    **PLAIN_LAYER,
    "bias": False,
    "use_aux_hidden_state": True,
    "use_input_layernorm_in_first_layer": True,
    "use_last_layernorm": True,
    "use_mtp_layernorm": False,
    "next_layer_regular": True,
    "parallel_draft_step": 1,
    "parallel_drafting": False,
}
_ASIDE = ".rotary_emb.inv_freq"
"""Tensors that older writers saved though they follow from the configuration."""


@dataclass(frozen=True)
class Layout:
    """A head that was read.

    Args:
        kind: how its configuration was laid out.
        head: its weights in the dtype of the file.
        embeddings: rows that the file holds though the head is as wide as its target: meant to be the target's own.
    """

    kind: Kind
    head: Head
    embeddings: Tensor | None


def is_head(folder: Path) -> bool:
    """Whether a folder holds a head that reads a target's features, of whatever kind, and no language model.

    Raises:
        WeightsError: as for ``method_of``.
    """
    return method_of(folder) is not None


def method_of(folder: Path) -> str | None:
    """The method of the head that a folder holds; None where it holds none, but a language model.

    It is ``eagle1``, ``medusa``, or ``eagle3``: ``read_layout`` refuses by name what is of yet another method.

    Raises:
        WeightsError: as for ``read_config`` and ``tensor_files``.
    """
    if is_medusa(folder):
        return "medusa"
    config, names = read_config(folder), tensor_files(folder)
    if config.get("model_type") == WRAPPED or is_first(folder):
        return "eagle1"
    return "eagle3" if "speculators_model_type" in config or "fc.weight" in names else None


def read_layout(folder: Path, layers: int | None = None) -> Layout:
    """Read a folder in any of the published layouts.

    Args:
        layers: how many the target has, if that is known: where the configuration does not say where the features are
            read, it means layers that are counted from both ends.

    Raises:
        WeightsError: a file or a tensor is missing, is too many or has another shape or dtype than the configuration
            asks for; a value is of the wrong type, contradicts another, or is needed and not there.
        UnsupportedError: something that changes the arithmetic in a way that no head here has: the value is named.
    """
    config, tensors = read_config(folder), load_tensors(folder)
    kind: Kind = "speculators" if "speculators_model_type" in config else "llama"
    _require_eagle3(config, tensors, folder)
    said = _flat(config, kind, folder)
    shape = _shape(said, kind, layers, folder)
    named = {_published(name): tensor for name, tensor in tensors.items() if not name.endswith(_ASIDE)}
    if len(named) < sum(not name.endswith(_ASIDE) for name in tensors):
        raise WeightsError(f"{folder} holds a tensor twice, under midlayer and under layers.0")
    wide = shape.target_hidden_size == shape.hidden_size
    embeddings = named.pop("embed_tokens.weight", None) if wide else None
    _complete_map(named, shape)
    return Layout(kind, fill(shape, named, str(folder)), embeddings)


def _published(name: str) -> str:
    return f"midlayer.{name.removeprefix('layers.0.')}" if name.startswith("layers.0.") else name


def _require_eagle3(config: Mapping[str, Any], tensors: Mapping[str, Tensor], folder: Path) -> None:
    if (said := config.get("speculators_model_type", "eagle3")) != "eagle3":
        raise UnsupportedError(f"speculators_model_type of {folder} is {said!r}; allowed: 'eagle3'")
    if not any(name.endswith("hidden_norm.weight") for name in tensors):
        raise UnsupportedError(
            f"{folder} holds no hidden_norm.weight, which every EAGLE-3 head has",
            hint="heads of EAGLE-1 and of other methods are not read here",
        )


def _complete_map(tensors: dict[str, Tensor], shape: HeadShape) -> None:
    """Some leave out t2d, which follows from d2t; some write a map of the whole vocabulary onto itself."""
    d2t = tensors.get("d2t")
    if d2t is None:
        return
    if shape.draft_vocab_size == shape.vocab_size and not bool(d2t.any()):
        del tensors["d2t"]
        if bool(tensors.get("t2d", torch.ones(1)).all()):
            tensors.pop("t2d", None)
    elif "t2d" not in tensors and d2t.dtype == torch.int64 and d2t.dim() == 1:
        ids = (torch.arange(len(d2t)) + d2t).clamp(0, shape.vocab_size - 1)  # whether they are ids is asked later
        tensors["t2d"] = torch.zeros(shape.vocab_size, dtype=torch.bool).index_fill(0, ids, True)


# ---- configurations --------------------------------------------------------------------------------------------------


def _flat(config: Mapping[str, Any], kind: Kind, folder: Path) -> dict[str, Any]:
    """All that a configuration says, on one level; what it says twice it must say alike."""
    layer = config.get("transformer_layer_config") if kind == "speculators" else {}
    eagle = config.get("eagle_config") or {}
    if not isinstance(layer, dict) or not isinstance(eagle, dict):
        raise WeightsError(f"config.json of {folder} has no object transformer_layer_config or eagle_config")
    said = dict(config)
    for name, value in {**layer, **{name: value for name, value in eagle.items() if name != IDS}}.items():
        # The model type of speculators' outer level, and its class, are names of its own.
        if name in (*FLAGS, "draft_vocab_size", "target_hidden_size") and said.get(name, value) != value:
            raise WeightsError(f"config.json of {folder} says {name} twice: {said[name]!r} and {value!r}")
        said[name] = value
    return said


def _shape(said: Mapping[str, Any], kind: Kind, layers: int | None, folder: Path) -> HeadShape:
    """The arithmetic that a configuration asks for."""
    _require_known(said, kind, folder)
    _tell_what_is_left_out(said, kind, folder)
    sizes = layer_sizes(said, folder)
    hidden, vocab = sizes["hidden_size"], sizes["vocab_size"]
    flags: dict[str, Any] = {name: _flag(said, name, kind, folder) for name in FLAGS}
    return HeadShape(
        **sizes,
        **flags,
        target_hidden_size=_size(said, "target_hidden_size", hidden, folder),
        draft_vocab_size=_size(said, "draft_vocab_size", vocab, folder),
        taps=_taps(said, layers, folder),
    )


def _size(said: Mapping[str, Any], name: str, otherwise: int, folder: Path) -> int:
    """A size that is another one where nothing is said of it."""
    return otherwise if said.get(name) is None else size(said, name, folder)


def _flag(said: Mapping[str, Any], name: str, kind: Kind, folder: Path) -> bool:
    """A switch; left out, it is off wherever that layout is read, but for one that speculators and vLLM read apart."""
    if name not in said and kind == "speculators" and name == "norm_before_residual":
        raise WeightsError(
            f"config.json of {folder} does not say norm_before_residual; allowed: true or false",
            hint="speculators takes false for it and vLLM true: ask who trained the head, and write it there",
        )
    return switch(said.get(name, False), name, folder)


def _tell_what_is_left_out(said: Mapping[str, Any], kind: Kind, folder: Path) -> None:
    """SafeAILab's layout has no switches; a configuration of any other may have forgotten those that it was made with.

    Switches that add tensors need no word: the tensors tell.
    """
    silent = [name for name in ("norm_before_residual", "norm_output") if name not in said]
    if kind == "llama" and silent and said.get("architectures") != [PLAIN]:
        warnings.warn(
            f"config.json of {folder} does not say {' and '.join(silent)}: taken for false, as vLLM and SGLang do",
            stacklevel=2,
        )


def _require_known(said: Mapping[str, Any], kind: Kind, folder: Path) -> None:
    require_one_layer(said, _ONLY, folder)
    if said.get("tie_word_embeddings") and kind == "llama":
        raise UnsupportedError(
            f"tie_word_embeddings of {folder} is true; allowed: false",
            hint="a head has a lm_head of its own; some writers copied this from the target's configuration",
        )


# ---- where features are read -----------------------------------------------------------------------------------------


def usual_taps(layers: int) -> tuple[int, int, int]:
    """Where the published models are read: low, middle and high."""
    return 2, layers // 2, layers - 3


def _taps(said: Mapping[str, Any], layers: int | None, folder: Path) -> tuple[int, ...]:
    """Indices of states. At the top of a configuration these are written, under ``eagle_config`` those of layers."""
    eagle = said.get("eagle_config") or {}
    found = [
        tuple(index + shift for index in _indices(where[IDS], folder))
        for where, shift in ((said, 0), (eagle, 1))
        if where.get(IDS)
    ]
    if len(set(found)) > 1:
        raise WeightsError(
            f"config.json of {folder} says {IDS} twice: the states {list(found[0])}, and the outputs of the layers "
            f"{eagle[IDS]}, which are the states {list(found[1])}"
        )
    if not found:
        if layers is None:
            raise WeightsError(f"config.json of {folder} does not say {IDS}", hint="read it together with its target")
        found = [usual_taps(layers)]
    taps = found[0]
    if list(taps) != sorted(set(taps)) or (layers is not None and taps[-1] > layers):
        limit = "" if layers is None else f" up to {layers}, the number of layers of the target"
        raise WeightsError(
            f"the taps of {folder} are {list(taps)}; allowed: rising{limit}",
            hint=f"{IDS} counts states at the top of config.json, and layers, one less, under eagle_config",
        )
    return taps


def _indices(given: Any, folder: Path) -> list[int]:
    if not isinstance(given, list) or not all(isinstance(index, int) for index in given):
        raise WeightsError(f"{IDS} in config.json of {folder} is {given!r}; allowed: a list of whole numbers")
    return given
