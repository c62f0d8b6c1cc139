"""A head as its files keep it: settings in the words of a Llama configuration, tensors checked name by name.

Knows nothing of who made a head or for what. It is the common part of all published layouts; what differs between
them is said by whoever reads or writes one.
"""

import difflib
import json
import shutil
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch
from jaxtyping import Bool, Int
from torch import Tensor, nn

from outpace.drafters.first_head import AnyShape
from outpace.drafters.head import Head, HeadShape
from outpace.errors import UnsupportedError, UsageError, WeightsError
from outpace.models.rotary import Rotary
from outpace.models.staging import staged
from outpace.models.weights import save_tensors

Filled = TypeVar("Filled", bound=nn.Module)

DTYPES = {torch.bfloat16: "bfloat16", torch.float16: "float16", torch.float32: "float32"}
"""What floating weights are stored in, one of them for all of a head, and what configurations call it."""
FLAGS = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")
"""The switches of a head's arithmetic; none of them has a default."""
_COUNTED = ("llama3", "yarn")  # scalings that are counted from the context that there was before
_HINT = (
    "tensors follow from the configuration: norm_before_fc adds input_norm, fc_norm adds fc_norm.0 and so on, a "
    "target_hidden_size of its own embed_tokens, a reduced vocabulary d2t and t2d"
)


def flags_of(shape: HeadShape) -> dict[str, bool]:
    """The four switches by name."""
    return {name: getattr(shape, name) for name in FLAGS}


def dtype_of(head: nn.Module) -> torch.dtype:
    """The one dtype of a head's floating weights.

    Raises:
        WeightsError: there are several.
    """
    found = sorted({str(weight.dtype) for weight in head.parameters()})
    if len(found) > 1:
        raise WeightsError(f"the weights of the head are {' and '.join(found)}; allowed: one dtype for all")
    return next(head.parameters()).dtype


def dtype_name(dtype: torch.dtype) -> str:
    """What configurations call a dtype.

    Raises:
        UnsupportedError: it is not one of ``DTYPES``.
    """
    if dtype not in DTYPES:
        raise UnsupportedError(f"the dtype to store is {dtype}; allowed: {', '.join(map(str, DTYPES))}")
    return DTYPES[dtype]


# ---- settings --------------------------------------------------------------------------------------------------------


def settings(shape: AnyShape, dtype: torch.dtype) -> dict[str, Any]:
    """What every layout's configuration says, all of it said and nothing left to a default, rotary settings apart.

    Raises:
        UnsupportedError: ``dtype`` is not one of ``DTYPES``, or the taps do not rise: engines sort them.
    """
    name = dtype_name(dtype)
    if isinstance(shape, HeadShape) and list(shape.taps) != sorted(set(shape.taps)):
        raise UnsupportedError(f"the taps of the head are {list(shape.taps)}; allowed: rising, as engines sort them")
    said: dict[str, Any] = {
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": shape.hidden_size,
        "intermediate_size": shape.feed_forward,
        "num_hidden_layers": 1,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_width,
        "max_position_embeddings": shape.max_positions,
        "rms_norm_eps": shape.norm_eps,
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,
        "vocab_size": shape.vocab_size,
    }
    if isinstance(shape, HeadShape):
        said["draft_vocab_size"] = shape.draft_vocab_size
    said["torch_dtype"] = name
    if shape.target_hidden_size != shape.hidden_size:  # where the key is there, a reader keeps the head's embeddings
        said["target_hidden_size"] = shape.target_hidden_size
    return said


def rope(shape: AnyShape) -> tuple[float, dict[str, Any] | None]:
    """The rotary base, and the scaling if there is one, with all that a reader would take from elsewhere.

    Engines widen the context that a configuration names; a scaling that is counted from it must not follow.

    Raises:
        UnsupportedError, WeightsError: as for ``Rotary``.
    """
    Rotary(shape.rotary, shape.head_width, shape.max_positions)
    kind = str(shape.rotary.get("rope_type", "default"))
    theta = float(shape.rotary.get("rope_theta", 10000.0))
    if kind == "default":
        return theta, None
    named = ("rope_type", "type", "rope_theta")
    scaling = {name: value for name, value in shape.rotary.items() if name not in named and value is not None}
    if kind in _COUNTED:
        old = scaling.get("original_max_position_embeddings") or shape.max_positions
        scaling["original_max_position_embeddings"] = old
        scaling["factor"] = scaling.get("factor") or shape.max_positions / old
    return theta, {"rope_type": kind, **scaling}


# ---- tensors ---------------------------------------------------------------------------------------------------------


def tensors_of(head: nn.Module, dtype: torch.dtype) -> dict[str, Tensor]:
    """Every tensor of a head under its published name, floating ones rounded to ``dtype``.

    Raises:
        WeightsError: a weight is not finite in that dtype, or the map of ids is wrong, see ``fill``.
    """
    if isinstance(head, Head):
        _require_map(head.d2t, head.t2d, head.shape, "the head")
    found = {}
    for name, tensor in head.state_dict().items():
        stored = tensor.detach().to("cpu", dtype if tensor.is_floating_point() else tensor.dtype)
        if stored.is_floating_point() and not bool(stored.isfinite().all()):
            raise WeightsError(f"{name} of the head holds values that are not finite in {DTYPES[dtype]}")
        found[name] = stored.contiguous()
    return found


def fill(shape: HeadShape, tensors: Mapping[str, Tensor], where: str) -> Head:
    """An EAGLE-3 head of this shape with these tensors, copied.

    Args:
        where: what errors call the place that they come from.

    Raises:
        WeightsError: as for ``fill_module``; or the map of ids leaves the vocabulary, does not rise, or says one thing
            in d2t and another in t2d.
    """
    head = fill_module(lambda: Head(shape), tensors, where, _HINT)
    _require_map(head.d2t, head.t2d, shape, where)
    return head


def fill_module(make: Callable[[], Filled], tensors: Mapping[str, Tensor], where: str, hint: str) -> Filled:
    """A module with these tensors, copied, and not one of them missing or to spare.

    Args:
        make: gives the module; its own weights are never made.
        where: what errors call the place that the tensors come from.
        hint: what they say of which tensors there should be.

    Raises:
        WeightsError: a tensor is missing (or renamed), is too many, or has another shape or dtype than the module asks
            for; or there are several floating dtypes.
    """
    with torch.device("meta"):
        module = make()
    wanted = dict(module.state_dict())
    extra = sorted(set(tensors) - set(wanted))
    for name in wanted:
        if name not in tensors:
            close = difflib.get_close_matches(name, extra, n=1)
            raise WeightsError(
                f"{where} lacks {name}", hint=f"it holds {close[0]}, which no such head has" if close else hint
            )
    if extra:
        raise WeightsError(f"{where} holds {extra[0]}, which its configuration does not ask for", hint=hint)
    first = "fc.weight" if "fc.weight" in wanted else next(iter(wanted))
    for name, meant in wanted.items():
        tensor = tensors[name]
        if tensor.shape != meant.shape:
            found, allowed = (" x ".join(map(str, one.shape)) or "one number" for one in (tensor, meant))
            raise WeightsError(f"{where}: {name} is {found}; allowed: {allowed}", hint=hint)
        _require_dtype(name, tensor.dtype, meant.dtype, first, tensors[first].dtype, where)
    module.load_state_dict({name: tensor.clone() for name, tensor in tensors.items()}, assign=True)
    return module.eval()


def _require_dtype(
    name: str, found: torch.dtype, wanted: torch.dtype, first: str, stored: torch.dtype, where: str
) -> None:
    """Floating weights have one dtype, that of the ``first``."""
    names = {dtype: str(dtype).removeprefix("torch.") for dtype in (found, wanted, stored)}
    if not wanted.is_floating_point:
        if found != wanted:
            raise WeightsError(f"{where}: {name} is {names[found]}; allowed: {names[wanted]}")
    elif found not in DTYPES:
        raise WeightsError(f"{where}: {name} is {names[found]}; allowed: {', '.join(DTYPES.values())}")
    elif found != stored:
        raise WeightsError(f"{where}: {name} is {names[found]}, {first} {names[stored]}; allowed: one dtype for all")


def _require_map(
    d2t: Int[Tensor, " draft"] | None, t2d: Bool[Tensor, " vocab"] | None, shape: HeadShape, where: str
) -> None:
    """Draft ids stand for rising ids of the target: ``i + d2t[i]``, which are those that ``t2d`` marks."""
    if d2t is None or t2d is None:
        return
    ids = torch.arange(len(d2t), device=d2t.device) + d2t
    low, high = int(ids.min()), int(ids.max())
    if low < 0 or high >= shape.vocab_size:
        raise WeightsError(
            f"{where}: d2t leads to ids from {low} to {high}; allowed: 0 to {shape.vocab_size - 1}",
            hint="d2t[i] is the difference between the target's id and i, not the id itself",
        )
    if len(ids) > 1 and not bool((ids.diff() > 0).all()):
        raise WeightsError(
            f"{where}: d2t leads to ids that do not rise; allowed: every draft id stands for a higher id than the last",
            hint="d2t[i] is the difference between the target's id and i, not the id itself",
        )
    marked = t2d.nonzero().flatten()
    if marked.tolist() != ids.tolist():
        raise WeightsError(f"{where}: t2d marks {len(marked)} ids, and they are not the {len(ids)} that d2t leads to")


# ---- folders ---------------------------------------------------------------------------------------------------------


def require_place(folder: Path, over: Collection[str] = ()) -> None:
    """Refuse to write a folder where something else stands.

    Args:
        over: files that may stand there, to be replaced.

    Raises:
        UsageError: it is a file, or holds another one.
    """
    if folder.is_file():
        raise UsageError(f"{folder} is a file; allowed: a folder that is new or empty")
    there = sorted(entry.name for entry in folder.iterdir()) if folder.is_dir() else []
    if other := next((name for name in there if name not in over), None):
        raise UsageError(f"{folder} holds {other}; allowed: a folder that is new or empty")


def write_folder(
    folder: Path,
    tensors: Mapping[str, Tensor],
    documents: Mapping[str, Mapping[str, Any]],
    *,
    copies: Mapping[str, Path] | None = None,
    over: Collection[str] = (),
    file: str = "model.safetensors",
) -> None:
    """Write the tensors, JSON documents and copies of other files, all of it or nothing.

    Args:
        folder: a new one, or an empty one.
        documents: by file name.
        copies: by file name, what is copied there.
        over: as for ``require_place``.
        file: of the tensors.

    Raises:
        UsageError: something else stands there.
        WeightsError: the disk is full, or the folder cannot be written.
    """
    require_place(folder, over)
    with staged(folder.absolute()) as growing:
        save_tensors(growing, tensors, file=file)
        for name, document in documents.items():
            (growing / name).write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
        for name, source in (copies or {}).items():
            shutil.copyfile(source, growing / name)
