"""What one version of an engine takes: its settings by name, which go together, and where that was read.

Knows nothing of plans. Schemas are data, a file an engine and version under ``schemas``; what requests must do without
while an engine speculates stands in ``limits.toml``.
"""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from outpace.engines.emission import Cannot
from outpace.errors import UnsupportedError, UsageError

FOLDER = Path(__file__).with_name("schemas")
LIMITS = Path(__file__).with_name("limits.toml")


@dataclass(frozen=True)
class Schema:
    """One version of one engine.

    Args:
        engine, version: which.
        source: where it was read.
        settings: each by name: ``type``, and where there are ``allowed`` values, or the ``least`` and the ``most``.
        rules: ``when`` settings have these values (an empty list: any), it ``needs`` others and is ``without`` others.
        removed: names that this version refuses by name.
    """

    engine: str
    version: str
    source: str
    settings: Mapping[str, Mapping[str, Any]]
    rules: tuple[Mapping[str, Any], ...] = ()
    removed: tuple[str, ...] = ()

    def check(self, said: Mapping[str, Any]) -> None:
        """Refuse what this version does not take.

        Raises:
            UnsupportedError: a name is unknown, a value of another type or out of range, or two do not go together;
                names the setting, and the versions that take it where some do.
        """
        for name, value in said.items():
            self.require(name, value)
        for rule in self.rules:
            if all(name in said and (not values or said[name] in values) for name, values in rule["when"].items()):
                which = " and ".join(f"{name} = {said[name]!r}" for name in rule["when"])
                for name in rule.get("needs", ()):
                    if name not in said:
                        raise UnsupportedError(f"{self.engine} {self.version}: {which} without {name}; allowed: both")
                for name in rule.get("without", ()):
                    if name in said:
                        raise UnsupportedError(f"{self.engine} {self.version}: {which} with {name}; allowed: one")

    def require(self, name: str, value: object) -> None:
        """Refuse one setting with this value.

        Raises:
            UnsupportedError: as for ``check``.
        """
        if (fault := self._fault(name, value)) is not None:
            others = [one for one in versions(self.engine) if schema(self.engine, one)._fault(name, value) is None]
            raise UnsupportedError(
                f"{self.engine} {self.version} does not take {name} = {value!r}; allowed: {fault}",
                hint=f"--engine-version {others[-1]} does" if others else None,
            )

    def takes(self, name: str) -> bool:
        """Whether it has a setting of this name."""
        return name in self.settings

    def _fault(self, name: str, value: object) -> str | None:
        """What would be allowed in place of a value that is not; None where it is."""
        if name not in self.settings:
            return ", ".join(self.settings)
        kind = self.settings[name]
        if not _TYPES[kind["type"]](value):
            return f"a value of type {kind['type']}"
        if "allowed" in kind and value not in kind["allowed"]:
            return ", ".join(map(str, kind["allowed"]))
        if isinstance(value, int | float) and not kind.get("least", value) <= value <= kind.get("most", value):
            return f"{kind.get('least', 'any')} to {kind['most']}" if "most" in kind else f"{kind['least']} or more"
        return None


_TYPES: Mapping[str, Any] = {
    "integer": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "list": lambda value: isinstance(value, list),
    "table": lambda value: isinstance(value, dict),
    "any": lambda value: True,
}


def versions(engine: str) -> list[str]:
    """The versions of an engine that are known, the newest one last.

    A version of numbers goes by them; commits, which have no order of their own, by the one of their file.
    """
    found = [path.stem.removeprefix(f"{engine}-") for path in FOLDER.glob(f"{engine}-*.toml")]
    return sorted(found, key=lambda version: (_read(engine, version).get("order", 0), _numbers(version)))


def schema(engine: str, version: str | None = None) -> Schema:
    """The schema of a version, of the newest one by default.

    Raises:
        UsageError: the version is not known; the message lists those that are.
    """
    known = versions(engine)
    version = known[-1] if version is None else version
    if version not in known:
        raise UsageError(
            f"the version of {engine} is {version!r}; allowed: {', '.join(known)}",
            hint="take the known one that is nearest to yours, and look at what the engine says when it starts",
        )
    said = {name: value for name, value in _read(engine, version).items() if name != "order"}
    return Schema(**said | {"rules": tuple(said.get("rules", ())), "removed": tuple(said.get("removed", ()))})


def limits(engine: str, kind: str) -> tuple[Cannot, ...]:
    """What requests cannot have, or have otherwise, while this engine speculates with a drafter of this kind."""
    said = _limits().get(engine, [])
    return tuple(Cannot(one["what"], one["nearest"]) for one in said if kind in one.get("kinds", (kind,)))


@cache
def _read(engine: str, version: str) -> dict[str, Any]:
    return tomllib.loads((FOLDER / f"{engine}-{version}.toml").read_text("utf-8"))


@cache
def _limits() -> dict[str, Any]:
    return tomllib.loads(LIMITS.read_text("utf-8"))


def _numbers(version: str) -> list[int]:
    whole = re.fullmatch(r"\d+(\.\d+)*", version)
    return [int(part) for part in version.split(".")] if whole else []
