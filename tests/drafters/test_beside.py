"""What a training leaves beside a card is copied with it, replaced with it, and in no reader's way."""

from pathlib import Path

import pytest
import torch

from cards import USUAL, card_for, same_weights, unnamed
from heads import random_head, shape_of
from outpace.drafters.card import read_card, write_card
from outpace.drafters.record import BESIDE
from outpace.drafters.stored import require_place
from outpace.errors import UsageError, WeightsError
from outpace.export.formats import FORMATS, export
from toys import lively


def left(folder: Path, *names: str) -> dict[str, Path]:
    """Files that a training left, each with its name in it."""
    folder.mkdir(exist_ok=True)
    for name in names:
        (folder / name).write_text(f"{name} of {folder.name}", "utf-8")
    return {name: folder / name for name in names}


def names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


def test_copied_and_replaced(tmp_path: Path) -> None:
    """An older picture does not stay beside a newer head."""
    older, newer = random_head(), random_head(seed=9)
    card = tmp_path / "card"
    write_card(card, older, card_for(older, lively()), beside=left(tmp_path / "first", *BESIDE))
    assert names(card) == sorted(["config.json", "model.safetensors", "outpace.json", *BESIDE])
    assert [(card / name).read_text("utf-8") for name in BESIDE] == [f"{name} of first" for name in BESIDE]
    write_card(card, newer, card_for(newer, lively()), beside=left(tmp_path / "second", *BESIDE[:2]))
    assert names(card) == sorted(["config.json", "model.safetensors", "outpace.json", *BESIDE[:2]])
    assert (card / BESIDE[0]).read_text("utf-8") == f"{BESIDE[0]} of second"
    assert same_weights(read_card(card)[0], newer.bfloat16())


@pytest.mark.parametrize("layout", FORMATS)
def test_no_reader_minds(layout: str, tmp_path: Path) -> None:
    """What is read, and what is exported, is the same with and without them."""
    plain, rich, head = tmp_path / "plain", tmp_path / "rich", random_head(shape_of(taps=USUAL))
    card = card_for(head)
    write_card(plain, head, card, dtype=torch.float32)
    write_card(rich, head, card, dtype=torch.float32, beside=left(tmp_path / "work", *BESIDE))
    assert same_weights(read_card(rich)[0], read_card(plain)[0]) and read_card(rich)[1] == read_card(plain)[1]
    with unnamed():
        ours, theirs = (export(str(one), layout, tmp_path / f"{one.name} elsewhere") for one in (rich, plain))
    assert ours.files == theirs.files and names(ours.path) == names(theirs.path)


def test_a_file_that_is_gone_leaves_no_half_card(tmp_path: Path) -> None:
    head = random_head()
    with pytest.raises(WeightsError, match="cannot write under"):
        write_card(tmp_path / "card", head, card_for(head, lively()), beside={"log.jsonl": tmp_path / "nowhere"})
    assert names(tmp_path) == []


def test_other_files_are_nobody_s_to_replace(tmp_path: Path) -> None:
    head = random_head()
    write_card(tmp_path / "card", head, card_for(head, lively()), beside=left(tmp_path / "work", *BESIDE))
    left(tmp_path / "card", "thesis.txt")
    with pytest.raises(UsageError, match=r"card holds thesis.txt; allowed: a folder that is new or empty"):
        write_card(tmp_path / "card", head, card_for(head, lively()))
    with pytest.raises(UsageError, match=r"work holds log.jsonl; allowed: a folder that is new or empty"):
        require_place(tmp_path / "work")
    require_place(tmp_path / "work", BESIDE)
