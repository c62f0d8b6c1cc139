"""What an engine opens of a drafter: the folder as it is, or the one that an export or a conversion makes of it.

Knows nothing of any engine's settings; it writes nothing, but says which commands do.
"""

from collections.abc import Mapping
from pathlib import Path

from outpace.drafters.layouts import usual_taps
from outpace.drafters.record import Card
from outpace.engines.guesser import Guesser
from outpace.errors import UnsupportedError, UsageError

Commands = tuple[tuple[str, ...], ...]


def ready(who: Guesser, layouts: Mapping[str, str]) -> tuple[str, Commands]:
    """The path that an engine opens, and the commands that make it.

    Args:
        who: the drafter.
        layouts: by kind, the layout of ``outpace export`` that the engine reads where it does not read a card's own.

    Raises:
        UnsupportedError: as for ``require_carried``.
    """
    if who.card is None or who.kind not in layouts:
        return who.path, ()
    layout = layouts[who.kind]
    if who.kind == "eagle3":
        require_carried(who.card, layout)
    made = f"{Path(who.path).name}-{layout}"
    return made, (("outpace", "export", who.path, "--to", layout, "--out", made),)


def require_carried(card: Card, layout: str) -> None:
    """Refuse an EAGLE-3 head that a reader would compute otherwise; ``outpace export`` refuses the same.

    Args:
        card: of the head.
        layout: ``sglang``, or ``safeailab`` for readers that know of no switches and count the taps themselves.

    Raises:
        UnsupportedError: a switch is on, or a tap is another, than the layout can say.
    """
    name, layers = _NAMES[layout], card.target.layers
    off = ("norm_before_residual",) if layout == "sglang" else tuple(card.flags)
    for flag in off:
        if card.flags[flag]:
            raise UnsupportedError(f"the layout of {name} cannot carry {flag} = true; allowed: false")
    for tap in card.taps if layout == "sglang" else ():
        if not 1 <= tap < layers:
            raise UnsupportedError(
                f"the layout of {name} cannot carry the tap {tap}; allowed: 1 to {layers - 1}, for a target of "
                f"{layers} layers"
            )
    if layout == "safeailab" and card.taps != (usual := usual_taps(layers)):
        raise UnsupportedError(
            f"the layout of {name} cannot carry the taps {list(card.taps)}; allowed: {list(usual)}, for a target of "
            f"{layers} layers",
            hint="its readers count the taps from the target's number of layers",
        )


_NAMES = {"sglang": "SGLang", "safeailab": "SafeAILab"}


def require_apart(target: str, drafter: str) -> None:
    """Refuse a target and a drafter that conversions would write to one place: the target would be overwritten.

    Raises:
        UsageError: they would.
    """
    if target == drafter:
        raise UsageError(f"the target and the drafter both become {target!r}; allowed: folders of different names")


def refuse(engine: str, who: Guesser, instead: str) -> UnsupportedError:
    """The error for a drafter that an engine does not have in any version that is known."""
    return UnsupportedError(
        f"{engine} does not draft with {who.words}; allowed: {instead}",
        hint="emit for another engine, or make a plan with such a drafter",
    )
