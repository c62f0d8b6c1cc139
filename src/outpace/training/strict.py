"""A table of settings as a dataclass, under one strict schema: every key known, every value of its kind and in range.

Knows nothing of what a setting is for. A key that is not known is an error: a setting that was misspelt would otherwise
be taken by its default. A dataclass that inherits fields without a use for them names them in ``untold``: it does not
know these keys. One that allows other values than all the others says so in ``ranges`` of its own.
"""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import MISSING, asdict, fields
from typing import Any

from outpace.errors import UsageError

Ranges = Mapping[str, tuple[str, Callable[[Any], bool]]]
"""What is allowed of a value, by the name of its setting: in words, and whether one is."""

_KINDS: Mapping[Any, tuple[str, Callable[[Any], bool]]] = {
    bool: ("true or false", lambda value: isinstance(value, bool)),
    int: ("a whole number", lambda value: isinstance(value, int) and not isinstance(value, bool)),
    float: (
        "a number",
        lambda value: isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value),
    ),
    str: ("a string", lambda value: isinstance(value, str)),
}


def known(kind: Any) -> dict[str, Any]:
    """The fields of a dataclass that are settings, by name."""
    return {one.name: one for one in fields(kind) if one.name not in getattr(kind, "untold", ())}


def plain(table: Any) -> dict[str, Any]:
    """A table's settings by name, as JSON can hold them."""
    return {name: value for name, value in asdict(table).items() if name in known(table)}


def read_table(kind: type, said: Any, where: str, ranges: Ranges, tables: Mapping[str, type] | None = None) -> Any:
    """A table as a dataclass.

    Args:
        kind: the dataclass.
        said: what a document holds in its place.
        where: what errors call it.
        ranges: of its values and of those of its tables.
        tables: the dataclasses of the fields that are tables themselves.

    Raises:
        UsageError: it is no table, a key is unknown, missing or of a wrong type, or a value is out of range; the
            message names the key and what is allowed.
    """
    if not isinstance(said, dict):
        raise UsageError(f"{where} is {said!r}; allowed: a table")
    settings, inner = known(kind), tables or {}
    for name in said:
        if name not in settings:
            raise UsageError(f"{where}: unknown key {name!r}; allowed: {', '.join(settings)}")
    values: dict[str, Any] = {}
    for name, one in settings.items():
        if name in said and name in inner:
            values[name] = read_table(inner[name], said[name], f"{where}, [{name}]", ranges)
        elif name in said:
            values[name] = _value(one, said[name], where)
        elif one.default is MISSING and one.default_factory is MISSING:
            words = "a table" if name in inner else _words(one)
            raise UsageError(f"{where}: {name} is missing; allowed: {words}")
        elif name in inner:
            values[name] = inner[name]()
    made = kind(**values)
    check(made, where, ranges)
    return made


def check(table: Any, where: str, ranges: Ranges) -> None:
    """Refuse values out of range; what is None has no value.

    Raises:
        UsageError: one is; it is named, with what is allowed.
    """
    allowed = {**ranges, **getattr(table, "ranges", {})}
    for name in known(table):
        value = getattr(table, name)
        if value is None or name not in allowed:
            continue
        words, fits = allowed[name]
        if not fits(value):
            raise UsageError(f"{where}: {name} is {value!r}; allowed: {words}")


def toml_lines(table: Mapping[str, Any]) -> list[str]:
    """One line a key; a JSON value is a TOML value once DEL is escaped too. What is None is left out."""
    return [
        f"{name} = {json.dumps(value, ensure_ascii=False)}".replace("\x7f", "\\u007f")
        for name, value in table.items()
        if value is not None
    ]


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
