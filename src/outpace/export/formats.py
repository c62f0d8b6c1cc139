"""The layouts by the method of a card and by name, and a card written in one of them.

Knows nothing of what a layout looks like.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outpace.drafters.card import read_card
from outpace.drafters.first_card import read_first_card
from outpace.drafters.first_head import FirstHead
from outpace.drafters.head import Head
from outpace.drafters.medusa_card import read_medusa_card
from outpace.drafters.medusa_heads import MedusaHeads
from outpace.drafters.record import FILE, Card, is_card, read_record
from outpace.errors import UsageError
from outpace.export import medusa, safeailab, sglang, speculators, vllm
from outpace.models.weights import find_weights

FORMATS: dict[str, Callable[[Path, Head, Card], None]] = {
    "safeailab": safeailab.write,
    "sglang": sglang.write,
    "speculators": speculators.write,
    "vllm": vllm.write,
}
"""Of EAGLE-3."""
FIRST: dict[str, Callable[[Path, FirstHead, Card], None]] = {
    "safeailab": safeailab.write_first,
    "vllm": vllm.write_first,
}
"""Of EAGLE-1."""
MEDUSA: dict[str, Callable[[Path, MedusaHeads, Card], None]] = {
    "medusa": medusa.write,
    "vllm": vllm.write_medusa,
}
"""Of Medusa."""
METHODS: dict[str, dict[str, Any]] = {"eagle3": FORMATS, "eagle1": FIRST, "medusa": MEDUSA}
"""By the method of a card."""
READERS: dict[str, Callable[[Path], tuple[Any, Card]]] = {
    "eagle3": read_card,
    "eagle1": read_first_card,
    "medusa": read_medusa_card,
}
"""Who reads a card of each."""
LAYOUTS: tuple[str, ...] = tuple(dict.fromkeys(name for layouts in METHODS.values() for name in layouts))
"""All names there are."""


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
        to: a name in ``LAYOUTS``, of those that the card's method has.
        out: a new or empty folder.

    Raises:
        UsageError: there is no such layout, or none for the card's method; ``source`` is no card; or ``out`` holds
            something.
        UnsupportedError: the layout cannot carry what the head is; it is named.
        WeightsError: the card cannot be found or read, or the disk fails.
    """
    if to not in LAYOUTS:
        raise UsageError(f"the layout is {to!r}; allowed: {', '.join(LAYOUTS)}")
    folder = find_weights(source)
    if not is_card(folder):
        raise UsageError(f"{source} is no card: it has no {FILE} of a drafter; allowed: a folder that has")
    method = read_record(folder).method
    layouts = METHODS.get(method, {})
    if to not in layouts:
        allowed = ", ".join(layouts) or "none, it is a model as it is"
        raise UsageError(f"the layout is {to!r}, and {source} is of the method {method!r}; allowed: {allowed}")
    head, card = READERS[method](folder)
    layouts[to](out, head, card)
    files = {entry.name: entry.stat().st_size for entry in sorted(out.iterdir())}
    return Exported(to, out, card.target.name, len(head.state_dict()), files)
