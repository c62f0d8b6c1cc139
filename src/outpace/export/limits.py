"""What a layout cannot carry is refused by name, before anything is written.

Knows nothing of any one layout.
"""

from outpace.drafters.head import HeadShape
from outpace.drafters.stored import flags_of
from outpace.errors import UnsupportedError


def require(carried: bool, layout: str, what: str, allowed: str, why: str) -> None:
    """Refuse what a layout does not carry.

    Args:
        carried: whether it does.
        layout, what, allowed, why: for the error's sentence and its hint.

    Raises:
        UnsupportedError: it does not.
    """
    if not carried:
        raise UnsupportedError(f"the layout of {layout} cannot carry {what}; allowed: {allowed}", hint=why)


def require_off(shape: HeadShape, layout: str, names: tuple[str, ...]) -> None:
    """Refuse a head that has one of these switches on.

    Raises:
        UnsupportedError: it has; the switch is named.
    """
    flags = flags_of(shape)
    for name in names:
        require(not flags[name], layout, f"{name} = true", "false", "whoever reads this layout computes without it")


def require_fusion(shape: HeadShape, layout: str) -> None:
    """Refuse features that are together as wide as the head: some readers tell by the width whether they are fused.

    Raises:
        UnsupportedError: they are.
    """
    wide = len(shape.taps) * shape.target_hidden_size
    require(
        wide != shape.hidden_size,
        layout,
        f"{len(shape.taps)} taps that are together {wide} wide, as wide as the head",
        "another width",
        "whoever reads this layout takes such features for states, and leaves out the fusion",
    )
