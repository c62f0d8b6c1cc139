"""Every function of outpace is checked for axes in tests, and refuses what jaxtyping's own decorator refuses."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jaxtyping
import pytest
import torch
from beartype import beartype
from jaxtyping import Float, Int
from torch import Tensor

import axes
from outpace.decoding.generate import speculative_decode
from outpace.verification.probabilities import argmax
from outpace.verification.tree import DraftTree


def product(left: Float[Tensor, "rows inner"], right: Float[Tensor, "inner columns"]) -> Float[Tensor, "rows columns"]:
    return left @ right


def transposed(left: Float[Tensor, "rows inner"], right: Float[Tensor, "inner columns"]) -> Any:
    return product(left, right).T


def wrong(left: Float[Tensor, "rows inner"], right: Float[Tensor, "inner columns"]) -> Float[Tensor, "rows columns"]:
    return (left @ right).T


def many(parts: Sequence[Float[Tensor, "rows width"]], ids: Int[Tensor, " rows"] | None = None) -> int:
    return len(parts)


def plain(count: int) -> str:
    return str(count)


def pieces(whole: Float[Tensor, "rows width"]) -> Iterator[Tensor]:
    yield from whole


def ahead(whole: Float[Tensor, "rows width"], other: "Later | None" = None) -> Float[Tensor, "width rows"]:  # noqa: F821
    return whole.T


@dataclass
class Pair:
    left: Float[Tensor, "rows width"]
    right: Float[Tensor, "rows width"]


def of(*shape: int) -> Tensor:
    return torch.zeros(shape)


CALLS: list[tuple[Any, tuple[Any, ...], bool]] = [
    (product, (of(2, 3), of(3, 4)), True),
    (product, (of(2, 3), of(4, 4)), False),
    (product, (of(2, 3), of(3)), False),
    (product, (of(2, 3), of(3, 4).long()), False),
    (transposed, (of(2, 3), of(3, 4)), True),
    (wrong, (of(2, 3), of(3, 4)), False),
    (many, ([of(2, 3), of(2, 3)],), True),
    (many, ([of(2, 3)], of(2).long()), True),
    (many, ([of(2, 3)], of(3).long()), False),
    (many, ([of(2, 3)], of(2)), False),
    (many, ([of(2)],), False),
    (plain, (1,), True),
    (plain, ("one",), False),
    (pieces, (of(2, 3),), True),
    (pieces, (of(2),), False),
    (ahead, (of(2, 3),), True),
    (ahead, (of(2),), False),
    (Pair, (of(2, 3), of(2, 3)), True),
    (Pair, (of(2, 3), of(3, 3)), False),
]
DECORATORS: dict[str, Callable[..., Any]] = {"ours": axes.jaxtyped, "jaxtyping's": axes.HONEST}


def decorated(given: Any, by: str) -> Any:
    if isinstance(given, type):  # decorated in place: a fresh one each time
        given = dataclass(type(given.__name__, (), {"__annotations__": dict(given.__annotations__)}))
    return DECORATORS[by](given, typechecker=beartype)


@pytest.mark.parametrize("by", DECORATORS)
@pytest.mark.parametrize("place", range(len(CALLS)))
def test_the_same_is_refused(place: int, by: str) -> None:
    given, arguments, fits = CALLS[place]
    function = decorated(given, by)
    for _ in range(2):  # what one call bound means nothing to the next
        if fits:
            function(*arguments)
        else:
            with pytest.raises(jaxtyping.TypeCheckError):
                function(*arguments)


def test_axes_of_one_call_are_no_other_s() -> None:
    """Inside a call another one has axes of its own, and behind it the first has its own again."""

    def outer(left: Float[Tensor, "rows inner"]) -> Float[Tensor, "rows inner"]:
        decorated(product, "ours")(of(5, 7), of(7, 2))
        return left

    decorated(outer, "ours")(of(2, 3))


def test_it_can_be_switched_off() -> None:
    function, before = decorated(wrong, "ours"), jaxtyping.config.jaxtyping_disable
    jaxtyping.config.update("jaxtyping_disable", True)
    try:
        function(of(2, 3), of(3, 4))
    finally:
        jaxtyping.config.update("jaxtyping_disable", before)
    with pytest.raises(jaxtyping.TypeCheckError):
        function(of(2, 3), of(3, 4))


def test_outpace_is_checked() -> None:
    """A function, a method, and the front door: each refuses what has the wrong axes or is of the wrong kind."""
    assert int(argmax(torch.tensor([1.0, 2.0]))[0]) == 1
    for call in (
        lambda: argmax(torch.tensor([1, 2])),
        lambda: DraftTree(of(2).long(), of(2, 3).long()),
        lambda: speculative_decode("target", None, [1], "four", 1.0),  # type: ignore[arg-type]
    ):
        with pytest.raises(jaxtyping.TypeCheckError):
            call()
