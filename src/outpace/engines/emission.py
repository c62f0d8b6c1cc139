"""What is handed over to an engine: its command, its configuration or its Python, and what it cannot do.

Knows nothing of any engine.
"""

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

FORMAT_VERSION = 1


@dataclass(frozen=True)
class Cannot:
    """Something that was asked for and that the engine does not do.

    Args:
        what: in words.
        nearest: what is emitted in its place, or what the reader can do.
    """

    what: str
    nearest: str


@dataclass(frozen=True)
class Emission:
    """One engine's settings for one plan.

    Args:
        engine, version: whose.
        argv: the command that serves, word by word; empty for an engine that is a library.
        config: what the engine reads beside its flags, or the options of a library's calls; None where there is none.
        file: the name by which ``argv`` finds ``config``; None where it stands in ``argv`` itself.
        python: a program that opens the pair and generates, for a library.
        prepare: commands that must have been run before, each word by word: exports and conversions.
        notes: what to know of it.
        cannot: what the plan asks for and the engine does not do, then what requests cannot have while it speculates.
    """

    engine: str
    version: str
    argv: tuple[str, ...] = ()
    config: Mapping[str, Any] | None = None
    file: str | None = None
    python: str | None = None
    prepare: tuple[tuple[str, ...], ...] = ()
    notes: tuple[str, ...] = ()
    cannot: tuple[Cannot, ...] = ()

    @property
    def document(self) -> dict[str, Any]:
        """The emission as JSON has it."""
        return {
            "format_version": FORMAT_VERSION,
            "engine": self.engine,
            "version": self.version,
            "argv": list(self.argv),
            "config": self.config,
            "file": self.file,
            "python": self.python,
            "prepare": [list(words) for words in self.prepare],
            "notes": list(self.notes),
            "cannot": [{"what": one.what, "nearest": one.nearest} for one in self.cannot],
        }

    @property
    def text(self) -> str | None:
        """What stands in the file that ``argv`` names: YAML for names that say so, else JSON; None without a file."""
        if self.file is None or self.config is None:
            return None
        if self.file.endswith((".yaml", ".yml")):
            return "".join(f"{line}\n" for line in _yaml(self.config))
        lines = [f"  {json.dumps(name)}: {json.dumps(own)}" for name, own in self.config.items()]
        return "{\n" + ",\n".join(lines) + "\n}\n"

    @property
    def script(self) -> str:
        """All of it as a shell runs it; the program of a library, with what must have been run before as comments."""
        before = [shlex.join(words) for words in self.prepare]
        if self.python is not None:
            return "".join(f"# before: {line}\n" for line in before) + self.python
        if self.text is not None and self.file is not None:
            before.append(f"cat > {shlex.quote(self.file)} <<'END'\n{self.text}END")
        return "\n".join([*before, shlex.join(self.argv), ""])


def _yaml(table: Mapping[str, Any], indent: str = "") -> list[str]:
    """Tables of scalars, lists and tables; every JSON scalar and list is a YAML one."""
    lines = []
    for name, value in table.items():
        if isinstance(value, Mapping):
            lines += [f"{indent}{name}:", *_yaml(value, indent + "  ")]
        else:
            lines.append(f"{indent}{name}: {json.dumps(value, ensure_ascii=False)}")
    return lines
