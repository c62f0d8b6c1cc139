"""A head is opened by its folder and held against the target: what it was made for, what it embeds, what it can say."""

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from cards import USUAL, card_for, change_document, change_tensors, exported, model_folder
from heads import random_head, says, shape_of
from outpace.decoding.generate import generate
from outpace.drafters.card import write_card
from outpace.drafters.eagle import Eagle
from outpace.drafters.head import Head
from outpace.drafters.load import load_drafter, shipped_drafter
from outpace.drafters.record import FILE, Card
from outpace.errors import OutpaceError, UnsupportedError, UsageError, WeightsError
from outpace.models.ends import read_embeddings
from outpace.models.load import load_target
from outpace.models.target import Target
from outpace.models.toy import random_table, table_target, tiny_transformer


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Target:
    return load_target(model_folder(tmp_path_factory.mktemp("opened") / "target"), dtype="fp32")


@pytest.fixture(autouse=True)
def loud() -> Iterator[None]:
    """Nothing is said without a reason."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def head_for(**changes: Any) -> Head:
    return random_head(shape_of(**({"taps": USUAL} | changes)))


def card_at(folder: Path, target: Target, head: Head | None = None, **changes: Any) -> Path:
    head = head or head_for()
    card = Card(**(vars(card_for(head, target)) | changes))
    write_card(folder, head, card, dtype=torch.float32)
    return folder


def test_a_card_drafts(target: Target, tmp_path: Path) -> None:
    folder = card_at(tmp_path / "head", target)
    drafter = load_drafter(str(folder), target)
    assert isinstance(drafter, Eagle) and drafter.name == f"eagle3:{folder}" and drafter.taps == USUAL
    plain = generate(target, None, [1, 2, 3], max_new_tokens=24, raw=True)
    fast = generate(target, drafter, [1, 2, 3], max_new_tokens=24, raw=True, num_draft_tokens=3)
    assert fast.token_ids == plain.token_ids and fast.stats.speculation.drafted > 20


@pytest.mark.parametrize("layout", ["safeailab", "sglang", "speculators", "vllm"])
def test_every_layout_drafts_the_same(layout: str, target: Target, tmp_path: Path) -> None:
    head = head_for()
    folder = exported(tmp_path / layout, layout, head, card_for(head, target))
    drafts = []
    for name in (str(card_at(tmp_path / "head", target, head)), str(folder)):
        drafter = load_drafter(name, target)
        found = generate(target, drafter, [1, 2, 3], max_new_tokens=24, raw=True, num_draft_tokens=3)
        drafts.append((found.token_ids, found.stats.speculation.accepted, found.stats.speculation.turns))
        assert isinstance(drafter, Eagle)
        assert torch.equal(drafter.walker.head.lm_head.weight, head.lm_head.weight)
    assert drafts[0] == drafts[1]


def test_a_pickled_head_is_read_too(target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As SafeAILab publishes it; its tensors alone are taken out of the pickle, and kept in the cache."""
    monkeypatch.setenv("OUTPACE_CACHE", str(tmp_path / "cache"))
    head = head_for()
    folder = exported(tmp_path / "head", "safeailab", head, card_for(head, target))
    (folder / "model.safetensors").unlink()
    torch.save(dict(head.state_dict()), folder / "pytorch_model.bin")
    drafter = load_drafter(str(folder), target)
    assert isinstance(drafter, Eagle) and torch.equal(drafter.walker.head.fc.weight, head.fc.weight)


@pytest.mark.parametrize(
    ("dtype", "found"), [("auto", torch.float32), ("bf16", torch.bfloat16), ("fp64", torch.float64)]
)
def test_dtype(dtype: str, found: torch.dtype, target: Target, tmp_path: Path) -> None:
    drafter = load_drafter(str(card_at(tmp_path / "head", target)), target, dtype=dtype)
    assert isinstance(drafter, Eagle) and drafter.walker.dtype == found


def test_a_dtype_that_is_none(target: Target, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="dtype is 'fp8'; allowed: auto, bf16, fp32, fp64"):
        load_drafter(str(card_at(tmp_path / "head", target)), target, dtype="fp8")


def test_a_card_is_no_language_model_whatever_it_lacks(target: Target, tmp_path: Path) -> None:
    folder = card_at(tmp_path / "head", target)
    change_tensors(folder, lambda held: held.pop("fc.weight"))
    with pytest.raises(WeightsError, match=r"head lacks fc.weight"):
        load_drafter(str(folder), target)


# ---- made for another ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"num_attention_heads": 8, "head_dim": 4},
            "whose architecture is another than that of the target .*target'; a",
        ),
        ({"words": "x"}, "whose tokenizer is another than that of the target .*target'; allowed: one and the same"),
    ],
)
def test_another_target_is_refused(changes: dict[str, Any], message: str, target: Target, tmp_path: Path) -> None:
    other = load_target(model_folder(tmp_path / "other", **changes), dtype="fp32")
    folder = card_at(tmp_path / "head", other)
    with pytest.raises(UsageError, match=f"the drafter '.*head' was made for '.*other', {message}"):
        load_drafter(str(folder), target)


def test_other_weights_are_told(target: Target, tmp_path: Path) -> None:
    other = load_target(model_folder(tmp_path / "other", seed=2), dtype="fp32")
    folder = card_at(tmp_path / "head", other)
    with pytest.warns(
        UserWarning, match="made for '.*other', and the target '.*target' has other weights: the text sta"
    ):
        assert isinstance(load_drafter(str(folder), target), Eagle)


def test_a_target_without_a_print_is_told(tmp_path: Path) -> None:
    nameless = tiny_transformer(layers=8)
    folder = card_at(tmp_path / "head", nameless)
    nameless.fingerprint = ""
    with pytest.warns(UserWarning, match="the target 'tiny-llama' has no fingerprint to tell whether that is it"):
        load_drafter(str(folder), nameless)


def test_taps_and_sizes_of_another(target: Target, tmp_path: Path) -> None:
    """Without a card the numbers must do."""
    head = head_for()
    deep = exported(tmp_path / "deep", "vllm", head_for(taps=(2, 4, 9)), card_for(head_for(taps=(2, 4, 8)), target))
    with pytest.raises(
        WeightsError, match=r"the taps of .*deep are \[2, 4, 9\]; allowed: rising up to 8, the number of"
    ):
        load_drafter(str(deep), target)
    large = exported(tmp_path / "large", "vllm", head_for(vocab_size=65), card_for(head, target))
    with pytest.raises(UsageError, match="is for a vocabulary of 65; allowed: 64, that of the target"):
        load_drafter(str(large), target)
    wide = exported(tmp_path / "wide", "vllm", head_for(hidden_size=48, target_hidden_size=48), card_for(head, target))
    with pytest.raises(UsageError, match="reads features 48 wide; allowed: 32, those of the target"):
        load_drafter(str(wide), target)
    with pytest.raises(OutpaceError, match="'table' does not tell its width and its number of layers"):
        load_drafter(str(deep), table_target(random_table(64)))


# ---- what it embeds and says -----------------------------------------------------------------------------------------


def test_embeddings_of_the_target(target: Target, tmp_path: Path) -> None:
    """A copy of the target's rows is passed over, however it was rounded; others are refused."""
    head = head_for()
    folder = exported(tmp_path / "head", "speculators", head, card_for(head, target))
    rows = read_embeddings(target)
    for stored in (rows, rows.bfloat16(), rows.half()):
        change_tensors(folder, lambda held, stored=stored: held.update({"embed_tokens.weight": stored}))
        drafter = load_drafter(str(folder), target)
        assert isinstance(drafter, Eagle) and torch.equal(drafter.walker.embeddings, rows)
    for other in (rows.flip(0), rows[:, :16], rows + 0.1):
        change_tensors(folder, lambda held, other=other: held.update({"embed_tokens.weight": other.contiguous()}))
        with pytest.raises(UnsupportedError, match=r"an embed_tokens.weight that is not that of the target '.*target'"):
            load_drafter(str(folder), target)


def test_an_end_that_cannot_be_said_is_told(tmp_path: Path) -> None:
    ending = tiny_transformer(layers=8, eos_ids=(2, 9))
    head = head_for()
    says(head, [2, *range(10, 49)])
    with pytest.warns(
        UserWarning, match="cannot say 9, which end texts of the target 'tiny-llama': what it drafts there"
    ):
        load_drafter(str(card_at(tmp_path / "head", ending, head)), ending)
    says(head, [2, 9, *range(11, 49)])
    load_drafter(str(card_at(tmp_path / "said", ending, head)), ending)


# ---- shipped ---------------------------------------------------------------------------------------------------------


def test_the_head_that_comes_along(target: Target, tmp_path: Path) -> None:
    """By the whole fingerprint: other weights have no shipped head."""
    assert shipped_drafter(target) is None, "none is shipped for a toy"
    assert shipped_drafter(target, tmp_path) is None
    other = load_target(model_folder(tmp_path / "other", seed=2), dtype="fp32")
    card_at(tmp_path / "heads" / "a", other)
    assert shipped_drafter(target, tmp_path / "heads") is None
    mine = card_at(tmp_path / "heads" / "b", target)
    assert shipped_drafter(target, tmp_path / "heads") == mine
    assert shipped_drafter(other, tmp_path / "heads") == tmp_path / "heads" / "a"
    drafter = load_drafter(str(mine), target)
    assert isinstance(drafter, Eagle)
    change_document(mine, lambda said: said.pop("taps"), FILE)
    with pytest.raises(WeightsError, match="does not say taps"):
        shipped_drafter(target, tmp_path / "heads")
