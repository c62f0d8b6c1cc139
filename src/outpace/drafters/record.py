"""The card of a drafter: what it was made for, how, and what it showed, in one document for every method.

Knows nothing of weights. The document is ``outpace.json``; what only one method has is said by ``METHODS``. Whoever
reads or writes a method's weights holds them against the card with ``require_agreement``.
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
from outpace.drafters.head import Head
from outpace.drafters.stored import FLAGS, flags_of
from outpace.errors import UnsupportedError, UsageError, WeightsError
from outpace.models.target import Target
from outpace.models.transformer import Transformer
from outpace.models.weights import read_config

FORMAT_VERSION = 1
METHODS: Mapping[str, tuple[str, ...]] = {"eagle3": FLAGS, "eagle1": ("fc_bias",), "medusa": ("own_head",), "small": ()}
"""Each method, and the switches of its arithmetic, none of which has a default."""
TAPPED = ("eagle3",)
"""Methods that read states between the target's layers, and may say a part of its vocabulary; others say all of it."""
ONE_DEEP = ("eagle1", "small")
"""Methods that are trained to say the next token alone."""
CONVENTION = "hidden_states"
"""What an index of a tap means: 0 is the embeddings, k the output of layer k."""
FILE = "outpace.json"
BESIDE = ("log.jsonl", "recipe.toml", "training.png")
"""What a training leaves beside a card; no reader needs it."""
OURS = ("model.safetensors", "config.json", FILE, *BESIDE)
"""What may stand where a card is written, and is replaced."""
RATES = ("acceptance_by_position", "acceptance_by_rank")
BY_DEPTH = "acceptance_by_depth_and_rank"
NEWER: Mapping[str, Any] = {"acceptance_by_rank": None, BY_DEPTH: None}
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
        taps: where the target is read, as in ``HeadShape``; none but for methods that are ``TAPPED``.
        flags: the switches of its method, all of them by name.
        draft_vocab_size: how many ids it can say; all of the target's but for methods that are ``TAPPED``.
        depth_trained: tokens ahead that it was taught: steps of a training-time test, or heads; 1 or more, and 1 for
            methods that are ``ONE_DEEP``.
        data: what it was trained on: names, checksums, counts; anything that JSON can hold.
        recipe: how it was trained: settings by name; anything that JSON can hold.
        steps: of the optimiser.
        acceptance_by_position: of chains, each on the condition that those before were accepted; None if not measured.
        tau: tokens emitted per forward of the target; None if not measured.
        acceptance_by_rank: of the positions that chains decided, the share at which the token of rank 1, 2, ... was the
            target's own; None if not measured.
        acceptance_by_depth_and_rank: the same, a list a depth; None if not measured.
        created: time in UTC, ISO 8601.
        versions: of what made it, by package.
        method: one of ``METHODS``.
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
    acceptance_by_depth_and_rank: tuple[tuple[float, ...], ...] | None = None
    method: str = "eagle3"
    format_version: int = FORMAT_VERSION

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise UnsupportedError(f"method of the card is {self.method!r}; allowed: {', '.join(METHODS)}")
        if self.format_version != FORMAT_VERSION:
            raise UnsupportedError(
                f"format_version of the card is {self.format_version}; allowed: {FORMAT_VERSION}",
                hint="another version of outpace wrote it",
            )
        self._require_shape()
        by_depth = [(BY_DEPTH, rates) for rates in self.acceptance_by_depth_and_rank or ()]
        for name, rates in [*((name, getattr(self, name) or ()) for name in RATES), *by_depth]:
            if not all(0 <= rate <= 1 for rate in rates):
                raise UsageError(f"{name} of the card is {list(rates)}; allowed: numbers from 0 to 1")
            if name != "acceptance_by_position" and (whole := sum(rates)) > 1 + SLACK:
                raise UsageError(f"{name} of the card is {whole} together; allowed: up to 1")
        if self.tau is not None and not (math.isfinite(self.tau) and self.tau >= 1):
            raise UsageError(f"tau of the card is {self.tau}; allowed: 1 or more")
        for name in ("data", "recipe", "versions"):
            try:
                json.dumps(getattr(self, name), allow_nan=False)
            except (TypeError, ValueError) as error:
                raise UsageError(f"{name} of the card cannot be written as JSON: {error}") from error

    def _require_shape(self) -> None:
        """What a method's drafters may look like."""
        flags = METHODS[self.method]
        if sorted(self.flags) != sorted(flags):
            found, allowed = (", ".join(each) or "none" for each in (sorted(self.flags), flags))
            raise UsageError(f"flags of the card are {found}; allowed: {allowed}")
        for name, least in (("depth_trained", 1), ("steps", 0), ("draft_vocab_size", 1)):
            if getattr(self, name) < least:
                raise UsageError(f"{name} of the card is {getattr(self, name)}; allowed: {least} or more")
        if self.method in ONE_DEEP and self.depth_trained > 1:
            raise UsageError(f"depth_trained of the card is {self.depth_trained}; allowed: 1 for {self.method}")
        if self.method in TAPPED:
            if not self.taps or max(self.taps) > self.target.layers or min(self.taps) < 0:
                layers = f"0 to {self.target.layers}, the layers of the target"
                raise UsageError(f"taps of the card are {list(self.taps)}; allowed: {layers}")
            return
        if self.taps:
            raise UsageError(f"taps of the card are {list(self.taps)}; allowed: none for {self.method}")
        if self.draft_vocab_size != self.target.vocab_size:
            whole = f"{self.target.vocab_size} for {self.method}, the vocabulary of the target"
            raise UsageError(f"draft_vocab_size of the card is {self.draft_vocab_size}; allowed: {whole}")

    @classmethod
    def made(cls, target: Target, **said: Any) -> "Card":
        """The card of a drafter that was made for a target, now.

        Args:
            said: what else ``Card`` takes; without rates and tau, they were not measured.

        Raises:
            UsageError, UnsupportedError: as for ``Card``.
            WeightsError: as for ``TargetRecord.of``.
        """
        now = datetime.now(UTC).isoformat(timespec="seconds")
        by = {"outpace": version("outpace"), "torch": torch.__version__, "python": platform.python_version()}
        unmeasured: dict[str, Any] = dict.fromkeys((*RATES, "tau"))
        return cls(target=TargetRecord.of(target), created=now, versions=by, **(unmeasured | said))

    @classmethod
    def of(cls, head: Head, target: Target, **said: Any) -> "Card":
        """The card of an EAGLE-3 head that was trained for a target, made now.

        Args:
            said: ``depth_trained``, ``steps``, ``data`` and ``recipe``, and what of the rates and tau was measured.

        Raises:
            UsageError: as for ``Card``.
            WeightsError: as for ``TargetRecord.of``.
        """
        return cls.made(
            target,
            taps=head.shape.taps,
            flags=flags_of(head.shape),
            draft_vocab_size=head.shape.draft_vocab_size,
            **said,
        )


def document(card: Card) -> dict[str, Any]:
    """The card as JSON has it."""
    said = {name: getattr(card, name) for name in _CARD}
    taps = {"indices": list(card.taps), "convention": CONVENTION}
    target = {name: getattr(card.target, name) for name in _TARGET}
    plain = {name: dict(said[name]) for name in ("flags", "data", "recipe", "versions")}
    return said | {"target": target, "taps": taps} | plain


def require_agreement(
    card: Card, made: Mapping[str, Any], kind: type[UsageError] | type[WeightsError], where: str
) -> None:
    """What card and weights both say, they say alike.

    Args:
        made: what the weights are: ``method`` first, then any of ``taps``, ``draft_vocab_size``, ``depth_trained``,
            ``vocab_size of the target``, ``hidden_size of the target`` and the flags, by name.
        kind: what is raised.
        where: what errors call the card.

    Raises:
        UsageError, WeightsError: one of them differs; it is named, with both values.
    """
    told = {
        "method": card.method,
        "taps": list(card.taps),
        "draft_vocab_size": card.draft_vocab_size,
        "depth_trained": card.depth_trained,
        "vocab_size of the target": card.target.vocab_size,
        "hidden_size of the target": card.target.hidden_size,
        **card.flags,
    }
    for name, value in made.items():
        if told[name] != value:
            raise kind(f"{name} is {told[name]} by {where} and {value} by the head; allowed: one and the same")


# ---- reading ---------------------------------------------------------------------------------------------------------


def is_card(folder: Path) -> bool:
    """Whether a folder holds a drafter with its card; other folders of ours have an ``outpace.json`` too.

    Raises:
        WeightsError: the file is not JSON.
    """
    return (folder / FILE).is_file() and "method" in read_config(folder, FILE)


def read_record(folder: Path, method: str | None = None) -> Card:
    """The card alone, without the weights.

    Args:
        method: the only one that will do; None takes all.

    Raises:
        WeightsError: the file or a key is missing, a key is unknown or its value of the wrong type or out of range.
        UnsupportedError: the card is of another method or format version.
    """
    said, file = {**NEWER, **read_config(folder, FILE)}, str(folder / FILE)
    methods = METHODS if method is None else (method,)
    for name, allowed in (("format_version", (FORMAT_VERSION,)), ("method", methods)):  # else keys mean other things
        if name in said and said[name] not in [*allowed]:
            raise UnsupportedError(
                f"{name} of {file} is {said[name]!r}; allowed: {', '.join(map(repr, allowed))}",
                hint="another version of outpace wrote it" if said[name] not in [*METHODS] else None,
            )
    check_keys(said, _CARD, file)
    flags = dict.fromkeys(METHODS[said["method"]], YES)
    for name, kinds in (("target", _TARGET), ("taps", _TAPS), ("flags", flags)):
        check_keys(said[name], kinds, f"{file}, {name}")
    if (convention := said["taps"]["convention"]) != CONVENTION:
        raise UnsupportedError(f"taps.convention of {file} is {convention!r}; allowed: {CONVENTION!r}")
    parts = {
        "target": TargetRecord(**said["target"]),
        "taps": tuple(said["taps"]["indices"]),
        **{name: None if said[name] is None else tuple(map(float, said[name])) for name in RATES},
        BY_DEPTH: None if said[BY_DEPTH] is None else tuple(tuple(map(float, each)) for each in said[BY_DEPTH]),
    }
    try:
        return Card(**(said | parts))
    except UsageError as error:
        raise WeightsError(f"{file}: {error.message}") from error


YES = "true or false"
_WHOLE, _STRING, _OBJECT = "a whole number", "a string", "an object"
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
    BY_DEPTH: "a list of lists of numbers or null",
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
        inner = kind.removeprefix("a list of ")
        one = f"a list{inner.removeprefix('lists')}" if inner.startswith("lists") else f"a {inner[:-1]}"
        return isinstance(value, list) and all(_is(each, one) for each in value)
    number = isinstance(value, int | float) and not isinstance(value, bool)
    found = {
        _WHOLE: number and isinstance(value, int),
        "a number": number,
        _STRING: isinstance(value, str),
        _OBJECT: isinstance(value, dict),
        YES: isinstance(value, bool),
    }
    return found[kind]


def check_keys(said: Mapping[str, Any], kinds: Mapping[str, str], where: str) -> None:
    """Every key that is known, and no other, with a value of its kind.

    Raises:
        WeightsError: a key is missing or unknown, or its value of another kind.
    """
    for name in (*kinds, *said):
        if name not in said:
            raise WeightsError(f"{where} does not say {name}; allowed: {kinds[name]}")
        if name not in kinds:
            raise WeightsError(f"{where} says {name}, which is unknown; allowed: {', '.join(kinds) or 'no key'}")
        if not _is(said[name], kinds[name]):
            raise WeightsError(f"{where} says {name} is {said[name]!r}; allowed: {kinds[name]}")


def require_config(said: Mapping[str, Any], meant: Mapping[str, Any], file: Path) -> None:
    """A card's ``config.json`` is what was written, key by key.

    Raises:
        WeightsError: a key is unknown or missing, or its value another.
    """
    for name in (*meant, *said):
        if name not in meant:
            raise WeightsError(f"{file} says {name}, which is unknown in a card; allowed: {', '.join(meant)}")
        if said.get(name, ...) != meant[name]:
            now = repr(said[name]) if name in said else "nothing"
            raise WeightsError(f"{name} in {file} is {now}; allowed: {meant[name]!r}, as card and weights have it")
