"""The log of a training: one JSON line a step and one a validation; a run that is gone on with goes on with its log.

Knows nothing of how figures come about.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from outpace.models.staging import disk_errors

LOG = "log.jsonl"
"""What the file is called, in the folder of a training."""


class Ledger:
    """A file of lines, each with the ``step`` that it tells of.

    Args:
        path: the file; made when it is begun.
        writes: whether this process does; of many only one.
    """

    def __init__(self, path: Path, writes: bool = True) -> None:
        self.path, self.writes = path, writes

    def begin(self, step: int, settings: Mapping[str, Any]) -> None:
        """Keep the lines up to a step, which the checkpoint stands behind, and drop what came after it.

        Raises:
            WeightsError: the disk is full, or the folder cannot be written.
        """
        if not self.writes:
            return
        kept = [line for line in read_ledger(self.path) if line.get("step", 0) <= step] if step else []
        lines = kept or [{"format_version": 1, "settings": dict(settings)}]
        growing = self.path.with_name(f".{self.path.name}.growing")
        with disk_errors(self.path.parent):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            growing.write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
            os.replace(growing, self.path)

    def write(self, line: Mapping[str, Any]) -> None:
        """Append a line.

        Raises:
            WeightsError: the disk is full, or the file cannot be written.
        """
        if self.writes:
            with disk_errors(self.path.parent), self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")


def read_ledger(path: Path) -> list[dict[str, Any]]:
    """The lines of a log; a last one that was cut off is left out, and a file that is missing has none."""
    if not path.is_file():
        return []
    lines = []
    for line in path.read_text("utf-8").splitlines():
        try:
            lines.append(dict(json.loads(line)))
        except ValueError:
            break
    return lines
