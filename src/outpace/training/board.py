"""The log of a training in TensorBoard: every figure of it, as soon as it is written.

Knows nothing of how figures come about. It needs tensorboard, which only those install who want to watch.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from outpace.errors import UsageError
from outpace.training.trainer import Report


class Board:
    """Shows a log; a watcher of the training that writes it, to be closed behind it.

    Args:
        folder: of the board; one that stands there shows this log from its beginning from now on.
        log: of the training.

    Raises:
        UsageError: tensorboard is not installed.
    """

    def __init__(self, folder: Path, log: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise UsageError(
                f"a board in {folder} needs tensorboard, which is not installed; allowed: no board",
                hint="pip install 'outpace[tensorboard]'",
            ) from error
        self.folder, self.log, self.read = folder, log, 0
        self.open: Any = SummaryWriter
        self.writer: Any = None

    def __call__(self, report: Report) -> None:
        """Show what the log says by now."""
        if self.writer is None:
            self.writer = self.open(str(self.folder), purge_step=0)  # what an earlier run showed there is hidden
        self._show()

    def close(self) -> None:
        """Show the rest."""
        if self.writer is not None:
            self._show()
            self.writer.close()

    def _show(self) -> None:
        with self.log.open("rb") as file:
            file.seek(self.read)
            for line in file:
                self.read += len(line)
                said = json.loads(line)
                for name, value in figures(said):
                    self.writer.add_scalar(name, value, said["step"])


def figures(line: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, float]]:
    """The numbers of a line of a log by name: of several, one for each token of a draft, as ``loss/1``."""
    if "validation" in line:
        yield from figures(line["validation"], "validation-")
        return
    for name, value in line.items():
        if isinstance(value, list):
            yield from ((f"{before}{name}/{place}", one) for place, one in enumerate(value, 1) if one is not None)
        elif isinstance(value, int | float) and name not in ("step", "format_version"):
            yield f"{before}{name}", value
