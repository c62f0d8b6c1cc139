"""The card of every method is one document: it comes back as it was written, and what is another method's is named."""

from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from cards import USUAL, card_for, change_document, document, exported, target_of, written
from heads import random_head, shape_of
from outpace.drafters.card import read_card, write_card
from outpace.drafters.eagle import Eagle
from outpace.drafters.either import Either
from outpace.drafters.load import READERS, load_drafter, shipped_drafter, trained_head
from outpace.drafters.record import (
    FILE,
    METHODS,
    ONE_DEEP,
    TAPPED,
    Card,
    is_card,
    read_record,
    require_agreement,
)
from outpace.drafters.record import document as document_of
from outpace.drafters.stored import write_folder
from outpace.errors import OutpaceError, UnsupportedError, UsageError, WeightsError
from outpace.models.target import Target
from toys import must_fail

OTHERS = sorted(set(METHODS) - {"eagle3"})


def card_of(method: str, target: Target | None = None, **changes: Any) -> Card:
    """The card of a drafter of any method for the tiny target of eight layers."""
    made = target or target_of()
    said = {
        "method": method,
        "taps": USUAL if method in TAPPED else (),
        "flags": dict.fromkeys(METHODS[method], True),
        "draft_vocab_size": made.vocab_size,
        "depth_trained": 1 if method in ONE_DEEP else 3,
        "data": {"tokens": 7},
        "recipe": {"name": "tiny"},
        "steps": 10,
    }
    return Card.made(made, **(said | changes))


def at(folder: Path, card: Card) -> Path:
    """A folder with a card and nothing that belongs to it."""
    write_folder(folder, {}, {"config.json": {"model_type": "llama"}, FILE: document_of(card)})
    return folder


# ---- one document ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
def test_it_comes_back(method: str, tmp_path: Path) -> None:
    figures = {"acceptance_by_position": (0.5, 0.25), "acceptance_by_rank": (0.5, 0.1)}
    card = card_of(method, tau=2.5, **figures, acceptance_by_depth_and_rank=((0.5, 0.1), (0.25,)))
    folder = at(tmp_path / "card", card)
    assert is_card(folder) and read_record(folder) == card == read_record(folder, method)
    assert document(folder, FILE).keys() == document(written(tmp_path / "head"), FILE).keys(), "keys are those of all"


def test_what_was_not_measured_is_none() -> None:
    card = card_of("medusa")
    assert (card.tau, card.acceptance_by_position, card.acceptance_by_rank) == (None, None, None)
    assert card.acceptance_by_depth_and_rank is None


def test_the_card_of_a_head_is_one_of_them() -> None:
    head = random_head(shape_of(taps=USUAL))
    card = card_for(head)
    changes = {"flags": card.flags, "draft_vocab_size": head.shape.draft_vocab_size}
    assert replace(card_of("eagle3", **changes), created=card.created) == card


@pytest.mark.parametrize(
    ("method", "changes", "message"),
    [
        ("medusa", {"taps": (2,)}, r"taps of the card are \[2\]; allowed: none for medusa"),
        ("eagle1", {"taps": USUAL}, r"taps of the card are \[2, 4, 5\]; allowed: none for eagle1"),
        ("small", {"taps": (0,)}, r"taps of the card are \[0\]; allowed: none for small"),
        ("eagle3", {"taps": ()}, r"taps of the card are \[\]; allowed: 0 to 8, the layers of the target"),
        ("medusa", {"draft_vocab_size": 40}, "draft_vocab_size of the card is 40; allowed: 64 for medusa, the vocabul"),
        ("eagle1", {"draft_vocab_size": 63}, "draft_vocab_size of the card is 63; allowed: 64 for eagle1"),
        ("small", {"draft_vocab_size": 65}, "draft_vocab_size of the card is 65; allowed: 64 for small"),
        ("eagle1", {"depth_trained": 2}, "depth_trained of the card is 2; allowed: 1 for eagle1"),
        ("small", {"depth_trained": 4}, "depth_trained of the card is 4; allowed: 1 for small"),
        ("medusa", {"depth_trained": 0}, "depth_trained of the card is 0; allowed: 1 or more"),
        ("medusa", {"flags": {}}, "flags of the card are none; allowed: own_head"),
        ("small", {"flags": {"own_head": True}}, "flags of the card are own_head; allowed: none"),
        ("eagle1", {"flags": {"own_head": True}}, "flags of the card are own_head; allowed: fc_bias"),
        ("eagle3", {"flags": {"fc_bias": True}}, "flags of the card are fc_bias; allowed: norm_before_residual"),
        (
            "medusa",
            {"acceptance_by_depth_and_rank": ((0.5,), (0.5, -0.1))},
            r"acceptance_by_depth_and_rank of the card is \[0.5, -0.1\]; allowed: numbers from 0 to 1",
        ),
        (
            "medusa",
            {"acceptance_by_depth_and_rank": ((0.75, 0.5),)},
            "acceptance_by_depth_and_rank of the card is 1.25 together; allowed: up to 1",
        ),
        ("medusa", {"tau": 0.9}, "tau of the card is 0.9; allowed: 1 or more"),
        ("small", {"acceptance_by_position": (1.1,)}, r"acceptance_by_position of the card is \[1.1\]; allowed: numb"),
    ],
)
def test_cards_that_are_none(method: str, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        card_of(method, **changes)


def _set(*path: str, to: Any) -> Callable[[dict[str, Any]], None]:
    def change(said: dict[str, Any]) -> None:
        for name in path[:-1]:
            said = said[name]
        said[path[-1]] = to

    return change


@pytest.mark.parametrize(
    ("method", "change", "message"),
    [
        (
            "medusa",
            _set("flags", "fc_bias", to=True),
            "outpace.json, flags says fc_bias, which is unknown; allowed",
        ),
        ("medusa", _set("flags", to={}), "outpace.json, flags does not say own_head; allowed: true or false"),
        ("medusa", _set("flags", "own_head", to=1), "outpace.json, flags says own_head is 1; allowed: true or false"),
        ("small", _set("flags", "own_head", to=True), "flags says own_head, which is unknown; allowed: no key"),
        (
            "eagle1",
            _set("taps", "indices", to=[2]),
            r"outpace.json: taps of the card are \[2\]; allowed: none for e",
        ),
        ("medusa", _set("draft_vocab_size", to=40), "outpace.json: draft_vocab_size of the card is 40; allowed: 64"),
        ("small", _set("depth_trained", to=2), "outpace.json: depth_trained of the card is 2; allowed: 1 for small"),
        *(
            (
                "medusa",
                _set("acceptance_by_depth_and_rank", to=said),
                "acceptance_by_depth_and_rank is .* allowed: a list of lists of numbers or null",
            )
            for said in ([0.5], [["x"]], [[0.5], None], 0.5)
        ),
        (
            "medusa",
            _set("acceptance_by_depth_and_rank", to=[[0.5], [0.9, 0.2]]),
            "outpace.json: acceptance_by_depth_and_rank of the card is .* allowed: up to 1",
        ),
        ("medusa", _set("method", to="small"), "outpace.json, flags says own_head, which is unknown"),
        ("medusa", _set("method", to="tree"), "is 'tree'; allowed: 'eagle3', 'eagle1', 'medusa', 'small'\nhint: anoth"),
        ("small", _set("method", to=["small"]), r"method of .* is \['small'\]; allowed: 'eagle3'"),
        ("eagle1", _set("format_version", to=2), "format_version of .* is 2; allowed: 1"),
        ("eagle1", _set("heads", to=2), "outpace.json says heads, which is unknown; allowed: format_version"),
    ],
)
def test_a_spoilt_record_is_named(
    method: str, change: Callable[[dict[str, Any]], None], message: str, tmp_path: Path
) -> None:
    folder = change_document(at(tmp_path / "card", card_of(method)), change, FILE)
    with pytest.raises((WeightsError, UnsupportedError), match=message):
        read_record(folder)


# ---- card and weights ------------------------------------------------------------------------------------------------

MADE = {
    "method": "medusa",
    "taps": [],
    "draft_vocab_size": 64,
    "depth_trained": 3,
    "vocab_size of the target": 64,
    "hidden_size of the target": 32,
    "own_head": True,
}


@pytest.mark.parametrize("kind", [UsageError, WeightsError])
@pytest.mark.parametrize("name", MADE)
def test_what_both_say_they_say_alike(name: str, kind: type[OutpaceError], tmp_path: Path) -> None:
    card = card_of("medusa")
    require_agreement(card, MADE, kind, "the card")
    require_agreement(card, {"own_head": True}, kind, "the card")
    with pytest.raises(kind, match=rf"{name} is .* by the card and another by the head; allowed: one and the same"):
        require_agreement(card, MADE | {name: "another"}, kind, "the card")


def test_a_head_has_no_other_method_s_card(tmp_path: Path) -> None:
    head = random_head(shape_of(taps=USUAL))
    for method in OTHERS:
        with pytest.raises(UsageError, match=f"method is {method} by the card and eagle3 by the head"):
            write_card(tmp_path / "card", head, card_of(method))
    assert not (tmp_path / "card").exists()


# ---- who opens it ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", OTHERS)
def test_what_no_reader_opens_is_named(method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not read as a head of EAGLE-3, nor as a language model."""
    target = target_of()
    folder = at(tmp_path / "card", card_of(method, target))
    with pytest.raises(UnsupportedError, match=f"method of .*outpace.json is '{method}'; allowed: 'eagle3'$"):
        read_card(folder)
    with pytest.raises(UsageError, match=f"the head '.*card' is of the method '{method}'; allowed: one of 'eagle3'"):
        trained_head(str(folder), target)
    monkeypatch.delitem(READERS, method)  # type: ignore[attr-defined]
    with pytest.raises(UnsupportedError, match=rf"the drafter '.*card' is of the method '{method}'; allowed: eagle3"):
        load_drafter(str(folder), target)


def picks(target: Target, heads: Path) -> None:
    """Each method's own, whatever lies beside it and comes first by name."""
    for method in METHODS:
        assert shipped_drafter(target, heads, method=method) == heads / f"{'z' if method in TAPPED else 'a'}-{method}"


def test_of_all_that_comes_along_a_head_is_picked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = target_of()
    heads = tmp_path / "heads"
    for method in OTHERS:
        at(heads / f"a-{method}", card_of(method, target))
    assert shipped_drafter(target, heads) is None
    head = random_head(shape_of(taps=USUAL))
    write_card(heads / "z-eagle3", head, card_for(head, target))
    assert shipped_drafter(target, heads) == heads / "z-eagle3"
    picks(target, heads)
    monkeypatch.setattr("outpace.drafters.load.HEADS", heads)
    both = load_drafter("auto", target)
    assert isinstance(load_drafter("eagle3", target), Eagle)
    assert isinstance(both, Either) and isinstance(both.model, Eagle) and both.name == "lookup+eagle3"
    monkeypatch.setattr("outpace.drafters.load.read_record", lambda folder: replace(card_of("medusa", target)))
    with must_fail():  # planted: every card is taken for one and the same
        picks(target, heads)


def test_a_folder_without_a_card_is_opened_as_before(tmp_path: Path) -> None:
    """A layout of others has no method; it is a head by its weights."""
    target, head = target_of(), random_head(shape_of(taps=USUAL))
    folder = exported(tmp_path / "vllm", "vllm", head, card_for(head, target))
    assert not is_card(folder) and isinstance(load_drafter(str(folder), target), Eagle)


def test_every_field_of_a_card_is_in_its_document() -> None:
    """One that is added and not written would be lost."""
    assert document_of(card_of("small")).keys() == {one.name for one in fields(Card)}
