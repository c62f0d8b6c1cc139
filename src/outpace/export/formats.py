"""The layouts by name, and a card written in one of them.

Knows nothing of what a layout looks like.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from outpace.drafters.card import FILE, Card, is_card, read_card
from outpace.drafters.head import Head
from outpace.errors import UsageError
from outpace.export import safeailab, sglang, speculators, vllm
from outpace.models.weights import find_weights

FORMATS: dict[str, Callable[[Path, Head, Card], None]] = {
    "safeailab": safeailab.write,
    "sglang": sglang.write,
    "speculators": speculators.write,
    "vllm": vllm.write,
}


@dataclass(frozen=True)
class Exported:
    """What was written.

    Args:
        to: the layout.
        path: the folder.
        target: the name of the model that it drafts for.
        tensors: how many there are.
        files: bytes of each file by its name.
    """

    to: str
    path: Path
    target: str
    tensors: int
    files: dict[str, int]


def export(source: str, to: str, out: Path) -> Exported:
    """Write a card in another layout, bit for bit the same weights.

    Args:
        source: the folder or hub id of a card.
        to: a name in ``FORMATS``.
        out: a new or empty folder.

    Raises:
        UsageError: there is no such layout, ``source`` is no card, or ``out`` holds something.
        UnsupportedError: the layout cannot carry what the head is; it is named.
        WeightsError: the card cannot be found or read, or the disk fails.
    """
    if to not in FORMATS:
        raise UsageError(f"the layout is {to!r}; allowed: {', '.join(FORMATS)}")
    folder = find_weights(source)
    if not is_card(folder):
        raise UsageError(f"{source} is no card: it has no {FILE} of a drafter; allowed: a folder that has")
    head, card = read_card(folder)
    FORMATS[to](out, head, card)
    files = {entry.name: entry.stat().st_size for entry in sorted(out.iterdir())}
    return Exported(to, out, card.target.name, len(head.state_dict()), files)
