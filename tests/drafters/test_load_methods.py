"""Heads of every method are opened by their folder: a card or a published layout, of EAGLE-1 and of Medusa."""

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from cards import card_for, change_document, change_tensors, model_folder
from first_heads import first_shape, random_first
from heads import random_head, shape_of
from medusas import medusa_shape, random_medusa
from outpace.decoding.generate import generate
from outpace.drafters.card import write_card
from outpace.drafters.eagle import Eagle
from outpace.drafters.first_card import write_first_card
from outpace.drafters.load import READERS, load_drafter, trained_head
from outpace.drafters.medusa import Medusa
from outpace.drafters.medusa_card import write_medusa_card
from outpace.drafters.record import METHODS, Card
from outpace.errors import OutpaceError, UnsupportedError, UsageError, WeightsError
from outpace.export.formats import METHODS as LAYOUTS
from outpace.models.ends import read_embeddings
from outpace.models.load import load_target
from outpace.models.target import Target
from toys import must_fail

RANKS = (0.5, 0.2, 0.1)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Target:
    return load_target(model_folder(tmp_path_factory.mktemp("opened") / "target"), dtype="fp32")


@pytest.fixture(autouse=True)
def loud() -> Iterator[None]:
    """Nothing is said without a reason; tiny targets are no ids of the hub, and layouts may tell."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", "the target is called")
        yield


def card_of(target: Target, method: str, **said: Any) -> Card:
    made = {"method": method, "taps": (), "draft_vocab_size": target.vocab_size, "steps": 1, "data": {}, "recipe": {}}
    return Card.made(target, **{**made, "depth_trained": 1, **said})


def weights_of(method: str) -> Any:
    made = {"eagle1": random_first, "medusa": random_medusa, "eagle3": lambda: random_head(shape_of(taps=(2, 4, 5)))}
    return made[method]()


def card_at(folder: Path, target: Target, method: str, **said: Any) -> Path:
    """A card of random weights."""
    head = weights_of(method)
    if method == "eagle1":
        card = card_of(target, method, flags={"fc_bias": True}, **said)
        write_first_card(folder, head, card, dtype=torch.float32)
    elif method == "medusa":
        card = card_of(target, method, flags={"own_head": False}, **({"depth_trained": 4} | said))
        write_medusa_card(folder, head, card, dtype=torch.float32)
    else:
        write_card(folder, head, card_for(head, target), dtype=torch.float32)
    return folder


def layout_at(folder: Path, target: Target, method: str, layout: str) -> Path:
    LAYOUTS[method][layout](folder, weights_of(method), card_for(random_head(shape_of(taps=(2, 4, 5))), target))
    return folder


def drafted(target: Target, folder: Path, tree: str = "chain", **options: Any) -> tuple[Any, ...]:
    """What came of a greedy text, with its drafts."""
    drafter = load_drafter(str(folder), target, **options)
    found = generate(target, drafter, [1, 2, 3], max_new_tokens=24, raw=True, num_draft_tokens=3, tree=tree)
    speculation = found.stats.speculation
    return found.token_ids, speculation.drafted, speculation.accepted, speculation.turns


OTHERS = [("eagle1", "safeailab"), ("eagle1", "vllm"), ("medusa", "medusa"), ("medusa", "vllm")]


@pytest.mark.parametrize(("method", "kind"), [("eagle1", Eagle), ("medusa", Medusa)])
def test_a_card_drafts(method: str, kind: type, target: Target, tmp_path: Path) -> None:
    """Chains and trees; those of its own rates too, where a card has them."""
    folder = card_at(tmp_path / "head", target, method, acceptance_by_rank=RANKS)
    drafter = load_drafter(str(folder), target)
    assert isinstance(drafter, kind) and drafter.name == f"{method}:{folder}" and drafter.taps == ("last_normed",)
    assert drafter.rates == (RANKS if method == "eagle1" else (RANKS,) * 4)
    plain = generate(target, None, [1, 2, 3], max_new_tokens=24, raw=True).token_ids
    for tree in ("chain", "top-k:2", "static"):
        ids, count, _, _ = drafted(target, folder, tree)
        assert ids == plain and count > 20


@pytest.mark.parametrize(("method", "layout"), OTHERS)
def test_every_layout_drafts_the_same(method: str, layout: str, target: Target, tmp_path: Path) -> None:
    folder = layout_at(tmp_path / layout, target, method, layout)
    assert drafted(target, folder) == drafted(target, card_at(tmp_path / "head", target, method))
    assert load_drafter(str(folder), target).rates == ()


@pytest.mark.parametrize("method", ["eagle1", "medusa"])
def test_dtype(method: str, target: Target, tmp_path: Path) -> None:
    folder = card_at(tmp_path / "head", target, method)
    for dtype, found in (("auto", torch.float32), ("bf16", torch.bfloat16)):
        drafter: Any = load_drafter(str(folder), target, dtype=dtype)
        module = drafter.walker.head if method == "eagle1" else drafter.heads
        assert {weight.dtype for weight in module.parameters() if weight.dim() > 1} == {found}
    with pytest.raises(UsageError, match="dtype is 'fp8'; allowed: auto, bf16, fp32, fp64"):
        load_drafter(str(folder), target, dtype="fp8")


def test_the_file_that_medusa_s_authors_publish(
    target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A configuration and a pickle of tensors alone; those are taken out of it, and kept in the cache."""
    monkeypatch.setenv("OUTPACE_CACHE", str(tmp_path / "cache"))
    folder = layout_at(tmp_path / "head", target, "medusa", "medusa")
    before = drafted(target, folder)
    tensors = load_file(folder / "medusa_lm_head.safetensors")
    (folder / "medusa_lm_head.safetensors").unlink()
    torch.save(tensors, folder / "medusa_lm_head.pt")
    change_document(folder, lambda said: said.pop("vocab_size"))
    assert drafted(target, folder) == before
    assert [path.name for path in (tmp_path / "cache").rglob("*.safetensors")] == ["medusa_lm_head.safetensors"]
    torch.save({"heads": [tensors]}, folder / "medusa_lm_head.pt")
    with pytest.raises(WeightsError, match=r"medusa_lm_head.pt holds a list under 'heads'; only tensors under names"):
        load_drafter(str(folder), target)


# ---- made for another ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["eagle1", "medusa"])
def test_another_target_is_refused_or_told(method: str, target: Target, tmp_path: Path) -> None:
    deep = load_target(model_folder(tmp_path / "deep", num_attention_heads=8, head_dim=4), dtype="fp32")
    with pytest.raises(UsageError, match=r"was made for '.*deep', whose architecture is another than that of the targ"):
        load_drafter(str(card_at(tmp_path / "a", deep, method)), target)
    other = load_target(model_folder(tmp_path / "other", seed=2), dtype="fp32")
    folder = card_at(tmp_path / "b", other, method)
    with pytest.warns(UserWarning, match="made for '.*other', and the target '.*target' has other weights"):
        load_drafter(str(folder), target)


def test_ends_of_the_target(target: Target, tmp_path: Path) -> None:
    """What a file holds of its target is passed over if it is its own, and refused if not."""
    folder = layout_at(tmp_path / "head", target, "eagle1", "safeailab")
    rows = read_embeddings(target)
    change_tensors(folder, lambda held: held.update({"embed_tokens.weight": rows.half()}))
    assert isinstance(load_drafter(str(folder), target), Eagle)
    change_tensors(folder, lambda held: held.update({"lm_head.weight": rows + 0.5}))
    with pytest.raises(
        UnsupportedError, match=r"holds a lm_head.weight that is not that of the target '.*target'; all"
    ):
        load_drafter(str(folder), target)


def test_a_wide_head_is_refused(target: Target, tmp_path: Path) -> None:
    """Without a card the numbers must do."""
    card = card_for(random_head(shape_of(taps=(2, 4, 5))), target)
    wide = random_first(first_shape(hidden_size=48, heads=6))
    LAYOUTS["eagle1"]["safeailab"](tmp_path / "wide", wide, card)
    with pytest.raises(UsageError, match="reads features 48 wide; allowed: 32, those of the target"):
        load_drafter(str(tmp_path / "wide"), target)
    LAYOUTS["medusa"]["medusa"](tmp_path / "many", random_medusa(medusa_shape(hidden_size=48)), card)
    with pytest.raises(OutpaceError, match="48"):
        load_drafter(str(tmp_path / "many"), target)


# ---- by method -------------------------------------------------------------------------------------------------------


def test_every_method_of_a_head_is_opened() -> None:
    """Any card has its reader, and any layout too."""
    assert set(METHODS) == set(READERS) >= set(LAYOUTS)


def test_a_card_of_a_method_without_a_reader(target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = card_at(tmp_path / "head", target, "eagle1")
    monkeypatch.delitem(READERS, "eagle1")  # type: ignore[attr-defined]
    with pytest.raises(UnsupportedError, match=r"is of the method 'eagle1'; allowed: eagle3, medusa"):
        load_drafter(str(folder), target)


@pytest.mark.parametrize("method", ["eagle1", "medusa", "eagle3"])
def test_trained_heads_are_of_their_method(method: str, target: Target, tmp_path: Path) -> None:
    """Asked for by another method's trainer, it is refused by name, as a card and as a layout."""
    card = card_at(tmp_path / "card", target, method)
    layout = layout_at(tmp_path / "layout", target, method, next(iter(LAYOUTS[method])))
    for folder in (card, layout):
        found = trained_head(str(folder), target, method=method).state_dict()
        wanted = weights_of(method).state_dict()
        assert found.keys() == wanted.keys() and all(torch.equal(found[name], wanted[name]) for name in found)
        for other in {"eagle1", "medusa", "eagle3"} - {method}:
            with pytest.raises(UsageError, match=rf"is of the method '{method}'; allowed: one of '{other}'"):
                trained_head(str(folder), target, method=other)
    with pytest.raises(UsageError, match=r"is no trained head; allowed: the folder or id of one, made for"):
        trained_head(target.name, target, method=method)


def test_planted_fault_of_ends(target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a file holds of its target is passed over."""
    monkeypatch.setattr("outpace.drafters.load.require_ends", lambda *_, **__: None)
    with must_fail():
        test_ends_of_the_target(target, tmp_path)
