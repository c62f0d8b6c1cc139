"""A file of JSON lines that grows by whole lines, begun with the settings they depend on.

Knows nothing of what the lines mean. Whatever interrupts the writing, what stands there is whole and is gone on with.
"""

import json
from pathlib import Path
from typing import Any

from outpace.decoding.jobs import AnswerLog
from outpace.errors import UsageError


class Journal(AnswerLog):
    """A file that is made, or gone on with.

    Args:
        path: where to write.
        settings: what its first line says, or has to say.
        what: what its lines are, for messages.

    Raises:
        UsageError: the file cannot be read or written, is no such file, or was begun with other settings.
    """

    def __init__(self, path: Path, settings: dict[str, Any], what: str) -> None:
        self.what = what
        self.lines: list[tuple[int, dict[str, Any]]] = []
        super().__init__(path, settings)

    def _read(self, line: bytes, number: int) -> None:
        try:
            found = json.loads(line)
            if number == 1:
                begun = dict(found["settings"])
            else:
                self.lines.append((number, dict(found)))
        except (ValueError, KeyError, TypeError) as error:
            raise UsageError(
                f"line {number} of {self.path} is not of outpace's {self.what}; "
                "allowed: a new file, or one to go on with",
                hint="name another output file",
            ) from error
        if number == 1:
            self._compare(begun, found.get("format_version"))
