"""A drafter on disk: a folder of weights in a layout that engines read, and beside them what it was made for, and how.

Knows nothing of how a head is trained or drafts. ``config.json`` and ``model.safetensors`` are those of vLLM's layout,
``outpace.json`` is the card; everything that stands in two of them is checked against the other.
"""

import json
import math
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from outpace.drafters.budget import SLACK
from outpace.drafters.head import Head, HeadShape
from outpace.drafters.layouts import IDS, read_layout
from outpace.drafters.stored import FLAGS, dtype_of, flags_of, rope, settings, tensors_of, write_folder
from outpace.errors import UnsupportedError, UsageError, WeightsError
from outpace.models.target import Target
from outpace.models.transformer import Transformer
from outpace.models.weights import read_config

FORMAT_VERSION = 1
METHOD = "eagle3"
CONVENTION = "hidden_states"
"""What an index of a tap means: 0 is the embeddings, k the output of layer k."""
FILE = "outpace.json"
BESIDE = ("log.jsonl", "recipe.toml", "training.png")
"""What a training leaves beside a card; no reader needs it."""
OURS = ("model.safetensors", "config.json", FILE, *BESIDE)
"""What may stand where a card is written, and is replaced."""
RATES = ("acceptance_by_position", "acceptance_by_rank")
NEWER: Mapping[str, Any] = {"acceptance_by_rank": None}
"""What cards may lack that were written before it was measured."""


@dataclass(frozen=True)
class TargetRecord:
    """The model that a drafter was made for.

    Args:
        name: as it was opened: a path, a hub id, or ``smollm2``.
        fingerprint: as of ``Target``.
        vocab_size, hidden_size, layers: what a head must fit.
        architecture: its class by ``config.json``, such as ``LlamaForCausalLM``; None where that is not known.
    """

    name: str
    fingerprint: str
    vocab_size: int
    hidden_size: int
    layers: int
    architecture: str | None

    @classmethod
    def of(cls, target: Target) -> "TargetRecord":
        """What is to be recorded of a target: a fast one, a hosted one, or one with a folder.

        Raises:
            WeightsError: it does not tell how wide it is or how many layers it has.
        """
        config: Mapping[str, Any] = {} if target.folder is None else read_config(target.folder)
        model: Any = getattr(target, "model", None)
        if not config and hasattr(model, "config"):
            config = model.config.to_dict()
        text = config.get("text_config") or config
        hidden = _first(text, "hidden_size", "n_embd", "d_model")
        layers = _first(text, "num_hidden_layers", "n_layer", "num_layers")
        if isinstance(target, Transformer):
            hidden, layers = target.shape.hidden_size, target.shape.layers
        if hidden is None or layers is None:
            raise WeightsError(
                f"the target {target.name!r} does not tell its width and its number of layers; allowed: a model with a "
                "config.json, or one in memory"
            )
        architecture = next(iter(config.get("architectures") or ()), None)
        return cls(target.name, target.fingerprint, target.vocab_size, hidden, layers, architecture)


def _first(config: Mapping[str, Any], *names: str) -> int | None:
    return next((int(config[name]) for name in names if name in config), None)


@dataclass(frozen=True)
class Card:
    """What is known of a drafter beside its weights.

    Args:
        target: what it was made for.
        taps: as in ``HeadShape``; so are ``flags``, all four of them by name, and ``draft_vocab_size``.
        depth_trained: steps of the training-time test, 1 or more.
        data: what it was trained on: names, checksums, counts; anything that JSON can hold.
        recipe: how it was trained: settings by name; anything that JSON can hold.
        steps: of the optimiser.
        acceptance_by_position: of chains, each on the condition that those before were accepted; None if not measured.
        tau: tokens emitted per forward of the target; None if not measured.
        acceptance_by_rank: of the positions that chains decided, the share at which the token of rank 1, 2, ... was the
            target's own; None if not measured.
        created: time in UTC, ISO 8601.
        versions: of what made it, by package.
        method: ``eagle3``.
        format_version: of ``outpace.json``.

    Raises:
        UsageError: a value is out of its range, or JSON cannot hold it.
        UnsupportedError: the method or the format version is another.
    """

    target: TargetRecord
    taps: tuple[int, ...]
    flags: Mapping[str, bool]
    draft_vocab_size: int
    depth_trained: int
    data: Mapping[str, Any]
    recipe: Mapping[str, Any]
    steps: int
    acceptance_by_position: tuple[float, ...] | None
    tau: float | None
    created: str
    versions: Mapping[str, str]
    acceptance_by_rank: tuple[float, ...] | None = None
    method: str = METHOD
    format_version: int = FORMAT_VERSION

    def __post_init__(self) -> None:
        if self.method != METHOD:
            raise UnsupportedError(f"method of the card is {self.method!r}; allowed: {METHOD!r}")
        if self.format_version != FORMAT_VERSION:
            raise UnsupportedError(
                f"format_version of the card is {self.format_version}; allowed: {FORMAT_VERSION}",
                hint="another version of outpace wrote it",
            )
        if sorted(self.flags) != sorted(FLAGS):
            raise UsageError(f"flags of the card are {', '.join(sorted(self.flags))}; allowed: {', '.join(FLAGS)}")
        for name, least in (("depth_trained", 1), ("steps", 0), ("draft_vocab_size", 1)):
            if getattr(self, name) < least:
                raise UsageError(f"{name} of the card is {getattr(self, name)}; allowed: {least} or more")
        if not self.taps or max(self.taps) > self.target.layers or min(self.taps) < 0:
            raise UsageError(
                f"taps of the card are {list(self.taps)}; allowed: 0 to {self.target.layers}, the layers of the target"
            )
        for name in RATES:
            rates = getattr(self, name) or ()
            if not all(0 <= rate <= 1 for rate in rates):
                raise UsageError(f"{name} of the card is {list(rates)}; allowed: numbers from 0 to 1")
        if (whole := sum(self.acceptance_by_rank or ())) > 1 + SLACK:
            raise UsageError(f"acceptance_by_rank of the card is {whole} together; allowed: up to 1")
        if self.tau is not None and not (math.isfinite(self.tau) and self.tau >= 1):
            raise UsageError(f"tau of the card is {self.tau}; allowed: 1 or more")
        for name in ("data", "recipe", "versions"):
            try:
                json.dumps(getattr(self, name), allow_nan=False)
            except (TypeError, ValueError) as error:
                raise UsageError(f"{name} of the card cannot be written as JSON: {error}") from error

    @classmethod
    def of(
        cls,
        head: Head,
        target: Target,
        *,
        depth_trained: int,
        steps: int,
        data: Mapping[str, Any],
        recipe: Mapping[str, Any],
        acceptance_by_position: tuple[float, ...] | None = None,
        acceptance_by_rank: tuple[float, ...] | None = None,
        tau: float | None = None,
    ) -> "Card":
        """The card of a head that was trained for a target, made now.

        Raises:
            UsageError: as for ``Card``.
            WeightsError: as for ``TargetRecord.of``.
        """
        return cls(
            target=TargetRecord.of(target),
            taps=head.shape.taps,
            flags=flags_of(head.shape),
            draft_vocab_size=head.shape.draft_vocab_size,
            depth_trained=depth_trained,
            data=data,
            recipe=recipe,
            steps=steps,
            acceptance_by_position=acceptance_by_position,
            acceptance_by_rank=acceptance_by_rank,
            tau=tau,
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            versions={"outpace": version("outpace"), "torch": torch.__version__, "python": platform.python_version()},
        )


# ---- writing ---------------------------------------------------------------------------------------------------------


def engine_config(shape: HeadShape, dtype: torch.dtype) -> dict[str, Any]:
    """``config.json`` of a card, which is that of vLLM's layout.

    Raises:
        UnsupportedError, WeightsError: as for ``settings`` and ``rope``.
    """
    theta, scaling = rope(shape)
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        **settings(shape, dtype),
        "rope_theta": theta,
        "rope_scaling": scaling,
        **flags_of(shape),
        IDS: list(shape.taps),
        "num_aux_hidden_states": len(shape.taps),
    }


def write_card(
    folder: Path,
    head: Head,
    card: Card,
    *,
    dtype: torch.dtype = torch.bfloat16,
    beside: Mapping[str, Path] | None = None,
) -> None:
    """Write a drafter to ``folder``, whole or not at all; a card that stood there is replaced.

    Args:
        head: its floating weights are rounded to ``dtype``.
        card: must agree with the head.
        dtype: bf16, fp16 or fp32.
        beside: what of ``BESIDE`` is copied into the folder, by name.

    Raises:
        UsageError: the card says another thing than the head, or the folder holds something else than a card.
        UnsupportedError: the dtype is another, or the taps do not rise.
        WeightsError: a weight is not finite in that dtype, the map of ids is wrong, the disk is full.
    """
    _require_agreement(card, head.shape, UsageError, "the card")
    documents = {"config.json": engine_config(head.shape, dtype), FILE: _document(card)}
    write_folder(folder, tensors_of(head, dtype), documents, copies=beside, over=OURS)


def _document(card: Card) -> dict[str, Any]:
    """The card as JSON has it."""
    said = {name: getattr(card, name) for name in _CARD}
    taps = {"indices": list(card.taps), "convention": CONVENTION}
    target = {name: getattr(card.target, name) for name in _TARGET}
    plain = {name: dict(said[name]) for name in ("flags", "data", "recipe", "versions")}
    return said | {"target": target, "taps": taps} | plain


def _require_agreement(card: Card, shape: HeadShape, kind: type[UsageError] | type[WeightsError], where: str) -> None:
    """What card and weights both say, they say alike."""
    pairs = {
        "taps": (list(card.taps), list(shape.taps)),
        "draft_vocab_size": (card.draft_vocab_size, shape.draft_vocab_size),
        "vocab_size of the target": (card.target.vocab_size, shape.vocab_size),
        "hidden_size of the target": (card.target.hidden_size, shape.target_hidden_size),
        **{name: (card.flags[name], flag) for name, flag in flags_of(shape).items()},
    }
    for name, (said, made) in pairs.items():
        if said != made:
            raise kind(f"{name} is {said} by {where} and {made} by the head; allowed: one and the same")


# ---- reading ---------------------------------------------------------------------------------------------------------


def is_card(folder: Path) -> bool:
    """Whether a folder holds a drafter with its card; other folders of ours have an ``outpace.json`` too.

    Raises:
        WeightsError: the file is not JSON.
    """
    return (folder / FILE).is_file() and "method" in read_config(folder, FILE)


def read_card(folder: Path) -> tuple[Head, Card]:
    """Read a drafter, every key and tensor of it checked; its weights have the dtype of the file.

    Raises:
        WeightsError: a file, key or tensor is missing, renamed, too many, of the wrong type, shape, dtype or range, or
            one file says another thing than the other.
        UnsupportedError: the card is of another method or format version, or ``read_layout`` refuses the settings.
    """
    card, config = read_record(folder), read_config(folder)
    said = {name: config[name] for name in FLAGS if name in config}
    _check_keys(said, dict.fromkeys(FLAGS, _YES), str(folder / "config.json"))
    head = read_layout(folder, card.target.layers).head
    _require_agreement(card, head.shape, WeightsError, str(folder / FILE))
    _require_config(config, engine_config(head.shape, dtype_of(head)), folder / "config.json")
    return head, card


def read_record(folder: Path) -> Card:
    """The card alone, without the weights.

    Raises:
        WeightsError, UnsupportedError: as for ``read_card``.
    """
    said, file = {**NEWER, **read_config(folder, FILE)}, str(folder / FILE)
    for name, only in (("format_version", FORMAT_VERSION), ("method", METHOD)):  # of another, keys mean other things
        if said.get(name, only) != only:
            raise UnsupportedError(
                f"{name} of {file} is {said[name]!r}; allowed: {only!r}", hint="another version of outpace wrote it"
            )
    _check_keys(said, _CARD, file)
    for name, kinds in (("target", _TARGET), ("taps", _TAPS), ("flags", dict.fromkeys(FLAGS, _YES))):
        _check_keys(said[name], kinds, f"{file}, {name}")
    if (convention := said["taps"]["convention"]) != CONVENTION:
        raise UnsupportedError(f"taps.convention of {file} is {convention!r}; allowed: {CONVENTION!r}")
    parts = {
        "target": TargetRecord(**said["target"]),
        "taps": tuple(said["taps"]["indices"]),
        **{name: None if said[name] is None else tuple(map(float, said[name])) for name in RATES},
    }
    try:
        return Card(**(said | parts))
    except UsageError as error:
        raise WeightsError(f"{file}: {error.message}") from error


_WHOLE, _STRING, _OBJECT, _YES = "a whole number", "a string", "an object", "true or false"
_NUMBER, _NUMBERS, _WHOLES = "a number or null", "a list of numbers or null", "a list of whole numbers"
_CARD = {
    "format_version": _WHOLE,
    "method": _STRING,
    "target": _OBJECT,
    "taps": _OBJECT,
    "flags": _OBJECT,
    "draft_vocab_size": _WHOLE,
    "depth_trained": _WHOLE,
    "data": _OBJECT,
    "recipe": _OBJECT,
    "steps": _WHOLE,
    "acceptance_by_position": _NUMBERS,
    "acceptance_by_rank": _NUMBERS,
    "tau": _NUMBER,
    "created": _STRING,
    "versions": _OBJECT,
}
_TARGET = {
    "name": _STRING,
    "fingerprint": _STRING,
    "vocab_size": _WHOLE,
    "hidden_size": _WHOLE,
    "layers": _WHOLE,
    "architecture": f"{_STRING} or null",
}
_TAPS = {"indices": _WHOLES, "convention": _STRING}


def _is(value: object, kind: str) -> bool:
    if kind.endswith(" or null"):
        return value is None or _is(value, kind.removesuffix(" or null"))
    if kind.startswith("a list of "):
        return isinstance(value, list) and all(_is(each, f"a {kind.removeprefix('a list of ')[:-1]}") for each in value)
    number = isinstance(value, int | float) and not isinstance(value, bool)
    found = {
        _WHOLE: number and isinstance(value, int),
        "a number": number,
        _STRING: isinstance(value, str),
        _OBJECT: isinstance(value, dict),
        _YES: isinstance(value, bool),
    }
    return found[kind]


def _check_keys(said: Mapping[str, Any], kinds: Mapping[str, str], where: str) -> None:
    """Every key that is known, and no other, with a value of its kind."""
    for name in (*kinds, *said):
        if name not in said:
            raise WeightsError(f"{where} does not say {name}; allowed: {kinds[name]}")
        if name not in kinds:
            raise WeightsError(f"{where} says {name}, which is unknown; allowed: {', '.join(kinds)}")
        if not _is(said[name], kinds[name]):
            raise WeightsError(f"{where} says {name} is {said[name]!r}; allowed: {kinds[name]}")


def _require_config(said: Mapping[str, Any], meant: Mapping[str, Any], file: Path) -> None:
    """A card's ``config.json`` is what was written, key by key."""
    for name in (*meant, *said):
        if name not in meant:
            raise WeightsError(f"{file} says {name}, which is unknown in a card; allowed: {', '.join(meant)}")
        if said.get(name, ...) != meant[name]:
            now = repr(said[name]) if name in said else "nothing"
            raise WeightsError(f"{name} in {file} is {now}; allowed: {meant[name]!r}, as card and weights have it")
