"""A recipe: all that decides what a training makes, read from TOML under one strict schema.

Knows nothing of how a setting is used. A key that is not known is an error: a setting that was misspelt would otherwise
be trained without.
"""

import json
import math
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from outpace.errors import UsageError
from outpace.training.losses import LOSSES

FORMAT_VERSION = 1
METHODS = ("eagle3",)
FEATURES = ("recorded", "online")
SCHEDULES = ("cosine", "linear", "constant")
PRECISIONS = ("bf16", "fp32")


@dataclass(frozen=True)
class Data:
    """What is trained on.

    Args:
        answers: files of answered prompts and dialogues, trained as they stand.
        prompts: files of prompts, which the target answers.
        most_prompts: at most so many of each file of prompts, the first ones; 0 takes all.
        invent: so many prompts the target makes up, and answers.
        avoid: files of prompts that none may be the same as.
        temperatures: each prompt is answered at one of these.
        max_new_tokens: the most tokens of an answer.
        limit: the most tokens of a sample; longer ones are left out and counted.
        held_out: the share of prompts that only measure.
        features: ``recorded`` keeps what the target shows on disk, ``online`` computes it at each use.
        batch_size: prompts that are invented or answered at once.
        seed: of inventions, answers and the share that is held out.
    """

    answers: tuple[str, ...] = ()
    prompts: tuple[str, ...] = ()
    most_prompts: int = 0
    invent: int = 0
    avoid: tuple[str, ...] = ()
    temperatures: tuple[float, ...] = (0.0,)
    max_new_tokens: int = 512
    limit: int = 2048
    held_out: float = 0.02
    features: str = "recorded"
    batch_size: int = 64
    seed: int = 0


@dataclass(frozen=True)
class HeadSettings:
    """What is trained; what is None is the target's own.

    Args:
        norm_before_residual, norm_before_fc, fc_norm, norm_output: as in ``HeadShape``; never assumed.
        taps: where the target is read, as indices of ``hidden_states``; None takes ``anatomy.standard_taps``.
        draft_vocab_size: how many ids the head can say; None takes all.
        heads, kv_heads, head_width, feed_forward, max_positions: as in ``HeadShape``.
        warm_start: begin with the target's last layer and head; else at random.
        begin_with: a trained head, by folder or hub id, whose weights and vocabulary are gone on with instead.
    """

    norm_before_residual: bool
    norm_before_fc: bool
    fc_norm: bool
    norm_output: bool
    taps: tuple[int, ...] | None = None
    draft_vocab_size: int | None = None
    heads: int | None = None
    kv_heads: int | None = None
    head_width: int | None = None
    feed_forward: int | None = None
    max_positions: int | None = None
    warm_start: bool = True
    begin_with: str | None = None


@dataclass(frozen=True)
class TrainSettings:
    """How it is trained.

    Args:
        depth: steps of the training-time test.
        epochs: passes over the data.
        tokens_per_batch: rows times the longest of them, of one forward pass.
        batches_per_step: forward passes of one step of the optimiser, over all processes.
        learning_rate: the highest.
        warmup: the share of all steps in which it rises to that.
        schedule: how it falls from there on: ``cosine``, ``linear`` or ``constant``.
        final_rate: what it falls to, as a share of the highest.
        betas, weight_decay: of AdamW; only matrices decay.
        clip: the largest norm of a step's gradient.
        loss: one of ``LOSSES``.
        decay: how much less each step of the unrolled draft weighs than the one before.
        mask_outside: give no weight to places whose likeliest token the head cannot say.
        precision: of matrix products, ``bf16`` or ``fp32``; weights and moments are fp32 in either.
        seed: of the order of batches and of random weights.
        checkpoint_minutes: between two checkpoints; one more at the end of every epoch.
        max_bad_steps: so many steps in a row may be skipped for a loss that is no number.
    """

    depth: int = 4
    epochs: int = 2
    tokens_per_batch: int = 2048
    batches_per_step: int = 4
    learning_rate: float = 5e-4
    warmup: float = 0.03
    schedule: str = "cosine"
    final_rate: float = 0.05
    betas: tuple[float, ...] = (0.9, 0.95)
    weight_decay: float = 0.0
    clip: float = 0.5
    loss: str = "cross-entropy"
    decay: float = 0.8
    mask_outside: bool = True
    precision: str = "bf16"
    seed: int = 0
    checkpoint_minutes: float = 10.0
    max_bad_steps: int = 10


@dataclass(frozen=True)
class WalkSettings:
    """What is measured at the end, on prompts that were held out.

    Args:
        prompts: how many; 0 measures nothing.
        new_tokens: of each.
        depth: tokens of a chain; None takes the depth that was trained.
    """

    prompts: int = 32
    new_tokens: int = 128
    depth: int | None = None


@dataclass(frozen=True)
class Recipe:
    """A whole training.

    Args:
        method: ``eagle3``.
        target: a folder, a hub id, or the default.
        dtype: of the target.
        head, data, train, walk: see there.
    """

    head: HeadSettings
    method: str = "eagle3"
    target: str = "smollm2"
    dtype: str = "auto"
    data: Data = field(default_factory=Data)
    train: TrainSettings = field(default_factory=TrainSettings)
    walk: WalkSettings = field(default_factory=WalkSettings)

    @classmethod
    def read(cls, path: str | Path) -> "Recipe":
        """Read a recipe from a file; its own paths are relative to the folder where the command runs.

        Raises:
            UsageError: the file cannot be read, or as ``from_toml``.
        """
        try:
            text = Path(path).read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
            raise UsageError(f"the recipe {path} cannot be read: {reason}") from error
        return cls.from_toml(text, f"the recipe {path}")

    @classmethod
    def from_toml(cls, text: str, source: str = "the recipe") -> "Recipe":
        """Read a recipe.

        Args:
            text: the document.
            source: what an error calls it.

        Raises:
            UsageError: it is no TOML, a key is unknown, missing or of a wrong type, or a value is out of range; the
                message names the key and what is allowed.
        """
        try:
            document = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise UsageError(f"{source} is not TOML: {error}") from error
        version = document.pop("format_version", None)
        if version != FORMAT_VERSION:
            raise UsageError(f"{source}: format_version is {version!r}; allowed: {FORMAT_VERSION}")
        recipe: Recipe = _table(cls, document, source)
        return recipe

    def with_changes(self, section: str, **changes: Any) -> "Recipe":
        """The recipe with other values in one of its tables, checked anew."""
        table = replace(getattr(self, section), **changes)
        _check(table, f"[{section}]")
        return replace(self, **{section: table})

    def to_dict(self) -> dict[str, Any]:
        """The recipe as JSON can hold it."""
        return {"format_version": FORMAT_VERSION} | asdict(self)

    def to_toml(self) -> str:
        """The recipe as text that ``from_toml`` reads as the same; what is None is left out."""
        plain = self.to_dict()
        tables = {name: plain.pop(name) for name in _TABLES}
        lines = _lines(plain)
        for name, table in tables.items():
            lines += ["", f"[{name}]", *_lines(table)]
        return "\n".join(lines) + "\n"


# ---- the schema ------------------------------------------------------------------------------------------------------

_TABLES: Mapping[str, type] = {"head": HeadSettings, "data": Data, "train": TrainSettings, "walk": WalkSettings}
_KINDS: Mapping[Any, tuple[str, Callable[[Any], bool]]] = {
    bool: ("true or false", lambda value: isinstance(value, bool)),
    int: ("a whole number", lambda value: isinstance(value, int) and not isinstance(value, bool)),
    float: (
        "a number",
        lambda value: isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value),
    ),
    str: ("a string", lambda value: isinstance(value, str)),
}
_RANGES: Mapping[str, tuple[str, Callable[[Any], bool]]] = {
    "method": (f"one of {', '.join(METHODS)}", METHODS.__contains__),
    "features": (f"one of {', '.join(FEATURES)}", FEATURES.__contains__),
    "schedule": (f"one of {', '.join(SCHEDULES)}", SCHEDULES.__contains__),
    "precision": (f"one of {', '.join(PRECISIONS)}", PRECISIONS.__contains__),
    "loss": (f"one of {', '.join(LOSSES)}", LOSSES.__contains__),
    "held_out": ("0 up to, not including, 1", lambda value: 0 <= value < 1),
    "warmup": ("0 up to, not including, 1", lambda value: 0 <= value < 1),
    "final_rate": ("0 to 1", lambda value: 0 <= value <= 1),
    "decay": ("above 0, up to 1", lambda value: 0 < value <= 1),
    "betas": ("two numbers from 0 to below 1", lambda value: len(value) == 2 and all(0 <= each < 1 for each in value)),
    "temperatures": ("one or more, each 0 or above", lambda value: len(value) > 0 and min(value) >= 0),
    "taps": ("one or more, each beyond the one before", lambda value: _rising(value)),
    **{
        name: ("0 or more", lambda value: value >= 0)
        for name in ("most_prompts", "invent", "weight_decay", "prompts", "max_bad_steps", "seed")
    },
    **{
        name: ("above 0", lambda value: value > 0) for name in ("learning_rate", "clip", "checkpoint_minutes")
    },
    **{
        name: ("1 or more", lambda value: value >= 1)
        for name in (
            "draft_vocab_size", "heads", "kv_heads", "head_width", "feed_forward", "max_positions", "depth", "epochs",
            "tokens_per_batch", "batches_per_step", "new_tokens", "max_new_tokens", "limit", "batch_size",
        )
    },
}  # fmt: skip


def _rising(value: tuple[int, ...]) -> bool:
    return len(value) > 0 and value[0] >= 0 and all(left < right for left, right in pairwise(value))


def _table(kind: type, said: Any, where: str) -> Any:
    """A table as a dataclass."""
    if not isinstance(said, dict):
        raise UsageError(f"{where} is {said!r}; allowed: a table")
    known = {one.name: one for one in fields(kind)}
    for name in said:
        if name not in known:
            raise UsageError(f"{where}: unknown key {name!r}; allowed: {', '.join(known)}")
    values: dict[str, Any] = {}
    for name, one in known.items():
        if name in said:
            inner = f"{where}, [{name}]"
            values[name] = (
                _table(_TABLES[name], said[name], inner) if name in _TABLES else _value(one, said[name], where)
            )
        elif one.default is MISSING and one.default_factory is MISSING:
            words = "a table" if name in _TABLES else _words(one)
            raise UsageError(f"{where}: {name} is missing; allowed: {words}")
    made = kind(**values)
    _check(made, where)
    return made


def _words(one: Any) -> str:
    kind, many = _kind(one)
    return f"a list, each {_KINDS[kind][0]}" if many else _KINDS[kind][0]


def _kind(one: Any) -> tuple[type, bool]:
    """What a field holds, and whether a list of it."""
    inner = [each for each in getattr(one.type, "__args__", ()) if each is not type(None)]
    whole = inner[0] if type(None) in getattr(one.type, "__args__", ()) else one.type
    if getattr(whole, "__origin__", None) is tuple:
        return whole.__args__[0], True
    return whole, False


def _value(one: Any, said: Any, where: str) -> Any:
    kind, many = _kind(one)
    _, fits = _KINDS[kind]
    if not (isinstance(said, list) and all(map(fits, said)) if many else fits(said)):
        raise UsageError(f"{where}: {one.name} is {said!r}; allowed: {_words(one)}")
    if kind is float:
        said = [float(each) for each in said] if many else float(said)
    return tuple(said) if many else said


def _lines(table: Mapping[str, Any]) -> list[str]:
    """One line a key; a JSON value is a TOML value once DEL is escaped too."""
    return [
        f"{name} = {json.dumps(value, ensure_ascii=False)}".replace("\x7f", "\\u007f")
        for name, value in table.items()
        if value is not None
    ]


def _check(table: Any, where: str) -> None:
    for one in fields(table):
        value = getattr(table, one.name)
        if value is None or one.name not in _RANGES or (one.name == "prompts" and isinstance(value, tuple)):
            continue
        words, fits = _RANGES[one.name]
        if not fits(value):
            raise UsageError(f"{where}: {one.name} is {value!r}; allowed: {words}")
