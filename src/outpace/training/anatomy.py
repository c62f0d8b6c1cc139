"""What a head for a target looks like: the target's own measures, unless a recipe says otherwise.

Knows nothing of training. A head is cut to its target here, and its vocabulary set.
"""

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import torch
from jaxtyping import Int
from torch import Tensor, nn

from outpace.drafters.first_head import AnyShape, FirstHead, FirstShape
from outpace.drafters.head import Head, HeadShape
from outpace.drafters.load import trained_head
from outpace.drafters.stored import FLAGS
from outpace.errors import UsageError, WeightsError
from outpace.models.target import Target
from outpace.models.transformer import Transformer
from outpace.models.weights import read_config
from outpace.training.recipe import FirstSettings, HeadSettings

_NAMES: Mapping[str, tuple[str, ...]] = {
    "hidden_size": ("hidden_size", "n_embd", "d_model"),
    "layers": ("num_hidden_layers", "n_layer", "num_layers"),
    "heads": ("num_attention_heads", "n_head", "num_heads"),
    "feed_forward": ("intermediate_size", "n_inner", "ffn_dim"),
    "norm_eps": ("rms_norm_eps", "layer_norm_epsilon", "layer_norm_eps"),
}


def measures(target: Target) -> dict[str, Any]:
    """A target's own: hidden_size, layers, heads, kv_heads, head_width, feed_forward, norm_eps, rotary.

    Raises:
        WeightsError: the target has neither a shape nor a configuration that tells them.
    """
    if isinstance(target, Transformer):
        names = ("hidden_size", "layers", "heads", "kv_heads", "head_width", "feed_forward", "norm_eps", "rotary")
        return {name: getattr(target.shape, name) for name in names}
    if target.folder is None:
        raise WeightsError(f"the target {target.name!r} has no config.json that tells its measures")
    said = read_config(target.folder)
    said = said | (said.get("text_config") or {})
    found = {name: next((said[key] for key in keys if said.get(key)), None) for name, keys in _NAMES.items()}
    for name in ("hidden_size", "layers", "heads"):
        if found[name] is None:
            raise WeightsError(f"{target.folder}/config.json lacks {' or '.join(_NAMES[name])}")
    hidden, heads = int(found["hidden_size"] or 0), int(found["heads"] or 0)
    theta = said.get("rope_theta") or (said.get("rope_parameters") or {}).get("rope_theta")
    return {
        "hidden_size": hidden,
        "layers": found["layers"],
        "heads": heads,
        "kv_heads": said.get("num_key_value_heads") or heads,
        "head_width": said.get("head_dim") or hidden // heads,
        "feed_forward": found["feed_forward"] or 4 * hidden,
        "norm_eps": found["norm_eps"] or 1e-5,
        "rotary": {"rope_type": "default", "rope_theta": float(theta or 10000.0)},
    }


def standard_taps(layers: int) -> tuple[int, ...]:
    """Where heads read a target unless told otherwise: low, middle and high, or of a small one its ends and middle.

    Source: EAGLE-3's published code, 2503.01840.
    """
    if layers >= 7:
        return (2, layers // 2, layers - 3)
    return tuple(sorted({0, layers // 2, layers}))


def shape_for(target: Target, settings: HeadSettings) -> HeadShape:
    """The shape of a head for a target.

    Raises:
        WeightsError: as for ``measures`` and ``HeadShape``.
        UnsupportedError: as for ``HeadShape``.
    """
    own = measures(target)
    return HeadShape(
        hidden_size=own["hidden_size"],
        target_hidden_size=own["hidden_size"],
        taps=settings.taps or standard_taps(own["layers"]),
        heads=settings.heads or own["heads"],
        kv_heads=settings.kv_heads or own["kv_heads"],
        head_width=settings.head_width or own["head_width"],
        feed_forward=settings.feed_forward or own["feed_forward"],
        vocab_size=target.vocab_size,
        draft_vocab_size=settings.draft_vocab_size or target.vocab_size,
        norm_eps=own["norm_eps"],
        max_positions=settings.max_positions or target.max_positions,
        rotary=own["rotary"],
        norm_before_residual=settings.norm_before_residual,
        norm_before_fc=settings.norm_before_fc,
        fc_norm=settings.fc_norm,
        norm_output=settings.norm_output,
    )


def first_shape_for(target: Target, settings: FirstSettings) -> FirstShape:
    """The shape of an EAGLE-1 head for a target.

    Raises:
        WeightsError: as for ``measures`` and ``FirstShape``.
    """
    own = measures(target)
    return FirstShape(
        hidden_size=own["hidden_size"],
        heads=settings.heads or own["heads"],
        kv_heads=settings.kv_heads or own["kv_heads"],
        head_width=settings.head_width or own["head_width"],
        feed_forward=settings.feed_forward or own["feed_forward"],
        vocab_size=target.vocab_size,
        norm_eps=own["norm_eps"],
        max_positions=settings.max_positions or target.max_positions,
        rotary=own["rotary"],
        fc_bias=settings.fc_bias,
    )


# ---- heads -----------------------------------------------------------------------------------------------------------

_Head = TypeVar("_Head", Head, FirstHead)
_LAYER = ("heads", "kv_heads", "head_width", "feed_forward", "max_positions")
_SAID = ("taps", "draft_vocab_size", *_LAYER, *FLAGS)
"""What a recipe may say of a head that is gone on with: the same as that head has."""


def given_head(target: Target, settings: HeadSettings) -> Head | None:
    """The trained head that a recipe begins with, fp32; None where it begins with none.

    Raises:
        UsageError: the recipe says another thing than the head, or as for ``trained_head``.
        WeightsError, UnsupportedError: as for ``trained_head``.
    """
    if settings.begin_with is None:
        return None
    found = trained_head(settings.begin_with, target)
    assert isinstance(found, Head)
    _require_said(settings, found.shape, _SAID)
    head = new_head(found.shape, found.target_ids.cpu(), seed=0)
    return _filled(head, found)


def given_first(target: Target, settings: FirstSettings) -> FirstHead | None:
    """The same for a recipe of EAGLE-1."""
    if settings.begin_with is None:
        return None
    found = trained_head(settings.begin_with, target, method=FirstHead.method)
    assert isinstance(found, FirstHead)
    _require_said(settings, found.shape, (*_LAYER, "fc_bias"))
    return _filled(new_first(found.shape, seed=0), found)


def _require_said(settings: HeadSettings | FirstSettings, shape: AnyShape, names: Sequence[str]) -> None:
    for name in names:
        said, own = getattr(settings, name), getattr(shape, name)
        if said is not None and said != own:
            raise UsageError(
                f"{name} of the recipe is {said}, and the head {settings.begin_with!r} that it begins with has {own}; "
                "allowed: the same",
                hint="a head keeps its shape when it is trained on",
            )


def _filled(head: _Head, found: nn.Module) -> _Head:
    """With the weights of another one, in its own dtypes."""
    head.load_state_dict({name: tensor.to(head.state_dict()[name]) for name, tensor in found.state_dict().items()})
    return head


SPREAD = 0.02
"""The standard deviation of random matrices."""


def new_head(shape: HeadShape, ids: Int[Tensor, " draft"], seed: int) -> Head:
    """A head of random weights, fp32, that says these ids of the target, rising."""
    head = _random(Head(shape).float(), seed)
    if head.d2t is not None and head.t2d is not None:
        head.d2t.copy_(ids - torch.arange(len(ids)))
        head.t2d.copy_(torch.zeros_like(head.t2d).index_fill(0, ids, True))
    return head


def new_first(shape: FirstShape, seed: int, *, pass_state: bool = False) -> FirstHead:
    """An EAGLE-1 head of random weights, fp32; its bias is 0, and it has no head of a target to speak through yet.

    Args:
        pass_state: what its mixture gives has the state in it, as it is.
    """
    head = _random(FirstHead(shape).float(), seed)
    with torch.no_grad():
        if head.fc.bias is not None:
            head.fc.bias.zero_()
        if pass_state:
            head.fc.weight[:, shape.hidden_size :].add_(torch.eye(shape.hidden_size))
    return head


def _random(head: _Head, seed: int) -> _Head:
    """With random matrices, in the order of their names."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in head.parameters():
            if weight.dim() > 1:
                weight.copy_(SPREAD * torch.randn(weight.shape, generator=generator))
    return head
