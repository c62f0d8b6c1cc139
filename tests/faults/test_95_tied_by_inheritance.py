"""95: the target's flag for tied weights is inherited, and a head of few rows is tied to embeddings of many."""

from pathlib import Path
from typing import Any

import pytest
import torch

from cards import FORMATS, USUAL, card_for, change_document, document, exported, logits_of, target_of
from heads import random_head, shape_of
from outpace.drafters import card, stored
from outpace.drafters.card import read_card, write_card
from outpace.drafters.eagle import Eagle
from outpace.drafters.layouts import read_layout
from outpace.drafters.load import load_drafter
from outpace.errors import OutpaceError, UnsupportedError
from outpace.export import safeailab, sglang, speculators
from outpace.models.ends import read_embeddings
from toys import must_fail


def case(folder: Path) -> None:
    """The target is tied, the drafter is not, though it has as many rows: by its files, its memory and its logits."""
    target = target_of(tie_word_embeddings=True)
    for vocab in (20, 64):
        head = random_head(shape_of(draft_vocab_size=vocab, taps=USUAL))
        try:
            write_card(folder / f"card{vocab}", head, card_for(head, target), dtype=torch.float32)
            read = {"card": read_card(folder / f"card{vocab}")[0]}
            for layout in FORMATS:
                place = exported(folder / f"{layout}{vocab}", layout, head, card_for(head, target))
                said = document(place)
                assert said.get("transformer_layer_config", said)["tie_word_embeddings"] is False, layout
                read[layout] = read_layout(place, 8).head
        except OutpaceError as error:
            raise AssertionError(f"what was written is not read: {error}") from error
        for name, back in read.items():
            assert torch.equal(logits_of(back), logits_of(head)), name
        drafter = load_drafter(str(folder / f"card{vocab}"), target)
        assert isinstance(drafter, Eagle)
        rows = read_embeddings(target)
        assert drafter.walker.head.lm_head.weight.shape[0] == vocab
        assert torch.equal(drafter.walker.embeddings, rows)
        assert not torch.equal(drafter.walker.head.lm_head.weight, rows[:vocab])
        assert drafter.walker.head.lm_head.weight.data_ptr() != drafter.walker.embeddings.data_ptr()


def test_case(tmp_path: Path) -> None:
    case(tmp_path)


def test_a_flag_that_was_inherited_is_refused(tmp_path: Path) -> None:
    """It says that the head's rows are not in the file, and they are."""
    head = random_head(shape_of(taps=USUAL))
    for layout in ("safeailab", "sglang", "vllm"):
        folder = exported(tmp_path / layout, layout, head)
        change_document(folder, lambda config: config.update(tie_word_embeddings=True))
        with pytest.raises(
            UnsupportedError, match=r"tie_word_embeddings of .* is true; allowed: false\nhint: a head has"
        ):
            read_layout(folder, 8)


def inherited(monkeypatch: pytest.MonkeyPatch) -> None:
    """The writer copies the flag."""
    honest = stored.settings
    for module in (card, safeailab, sglang, speculators):
        monkeypatch.setattr(module, "settings", lambda *given: honest(*given) | {"tie_word_embeddings": True})


def tied(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reader ties what has as many rows."""
    honest = stored.fill

    def fill(shape: Any, tensors: Any, where: str) -> Any:
        head = honest(shape, tensors, where)
        if shape.draft_vocab_size == shape.vocab_size:
            head.lm_head.weight.data = read_embeddings(target_of(tie_word_embeddings=True)).clone()
        return head

    monkeypatch.setattr("outpace.drafters.layouts.fill", fill)


@pytest.mark.parametrize("plant", [inherited, tied])
def test_planted_fault(plant: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    with must_fail():
        case(tmp_path)
