"""96: a tensor is missing and stays random, is renamed and skipped, or a head's own is overwritten by the target's."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from cards import FORMATS, USUAL, change_tensors, exported, same_weights, target_of, written
from heads import random_head, shape_of
from outpace.drafters import layouts
from outpace.drafters.card import read_card
from outpace.drafters.eagle import Eagle
from outpace.drafters.head import Head, HeadShape
from outpace.drafters.layouts import read_layout
from outpace.drafters.load import load_drafter
from outpace.errors import UnsupportedError, WeightsError
from outpace.models.ends import read_embeddings, read_head
from toys import must_fail

Change = Callable[[dict[str, Tensor]], Any]
SHAPES: dict[str, dict[str, Any]] = {"own head": {}, "own embeddings": {"hidden_size": 16, "head_width": 4}}


def _named(held: dict[str, Tensor], ending: str) -> str:
    return next(name for name in held if name.endswith(ending))


def without(ending: str) -> Change:
    return lambda held: held.pop(_named(held, ending))


def renamed(ending: str) -> Change:
    def change(held: dict[str, Tensor]) -> None:
        name = _named(held, ending)
        held[name.replace("weight", "wait")] = held.pop(name)

    return change


SPOILT: list[tuple[str, Change, str]] = [
    ("own head", without("lm_head.weight"), "lacks lm_head.weight"),
    ("own head", without("mlp.up_proj.weight"), "lacks midlayer.mlp.up_proj.weight"),
    ("own head", renamed("o_proj.weight"), r"lacks midlayer.self_attn.o_proj.weight\nhint: it holds .*o_proj.wait"),
    (
        "own head",
        lambda held: held.update(scale=torch.ones(1)),
        "holds scale, which its configuration does not ask for",
    ),
    ("own embeddings", without("embed_tokens.weight"), "lacks embed_tokens.weight"),
]


def case(folder: Path) -> None:
    """What is loaded is what was saved, bit for bit; what is missing, renamed or too many is an error that names it."""
    for variant, changes in SHAPES.items():
        head = random_head(shape_of(**({"taps": USUAL} | changes)))
        places = {"card": written(folder / variant / "card", head)}
        places |= {layout: exported(folder / variant / layout, layout, head) for layout in FORMATS}
        for name, place in places.items():
            assert same_weights(opened(name, place), head), name
            drafter = load_drafter(str(place), target_of())
            assert isinstance(drafter, Eagle)
            assert torch.equal(drafter.walker.head.lm_head.weight, head.lm_head.weight), name
            rows = read_embeddings(target_of()) if head.embed_tokens is None else head.embed_tokens.weight
            assert torch.equal(drafter.walker.embeddings, rows), name
        for number, (of, change, message) in enumerate(SPOILT):
            for name in (*FORMATS, "card") if of == variant else ():
                spoilt = folder / f"{number} {name}"
                spoilt = written(spoilt, head) if name == "card" else exported(spoilt, name, head)
                try:
                    opened(name, change_tensors(spoilt, change))
                except WeightsError as error:
                    assert re.search(message, str(error)), f"{name}: {error}"
                else:
                    pytest.fail(f"{name}: {message}, and nobody noticed")


def opened(name: str, place: Path) -> Head:
    return read_card(place)[0] if name == "card" else read_layout(place, 8).head


def test_case(tmp_path: Path) -> None:
    case(tmp_path)


def test_embeddings_are_borrowed_and_never_mixed_up(tmp_path: Path) -> None:
    """A head as wide as its target has none of its own; a file with others is refused, not overruled."""
    head = random_head(shape_of(taps=USUAL))
    folder = exported(tmp_path / "out", "speculators", head)
    rows = read_embeddings(target_of())
    change_tensors(folder, lambda held: held.update({"embed_tokens.weight": rows.roll(1, 0)}))
    with pytest.raises(UnsupportedError, match=r"holds an embed_tokens.weight that is not that of the target"):
        load_drafter(str(folder), target_of())


def random_where_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reader skips what it does not know, and leaves what it does not find."""

    def fill(shape: HeadShape, tensors: dict[str, Tensor], where: str) -> Head:
        head = random_head(shape, seed=5)
        head.load_state_dict(dict(tensors), strict=False)
        return head

    monkeypatch.setattr(layouts, "fill", fill)


def overwritten(monkeypatch: pytest.MonkeyPatch) -> None:
    """The target's head stands in for the drafter's."""
    honest = layouts.fill

    def fill(shape: HeadShape, tensors: dict[str, Tensor], where: str) -> Head:
        head = honest(shape, tensors, where)
        head.lm_head.weight.data = read_head(target_of())[head.target_ids, : shape.hidden_size].clone()
        return head

    monkeypatch.setattr(layouts, "fill", fill)


@pytest.mark.parametrize("plant", [random_where_missing, overwritten])
def test_planted_fault(plant: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    with must_fail():
        case(tmp_path)
