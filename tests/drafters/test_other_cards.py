"""Cards of EAGLE-1 and of Medusa come back as they were written, bit for bit, and tell when a file was changed."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from cards import change_document, change_tensors, document, model_folder
from first_heads import first_shape, random_first
from medusas import medusa_shape, random_medusa
from outpace.drafters.first_card import read_first_card, write_first_card
from outpace.drafters.first_layouts import first_config, is_first
from outpace.drafters.medusa_card import read_medusa_card, write_medusa_card
from outpace.drafters.medusa_layout import is_medusa
from outpace.drafters.record import FILE, Card, read_record
from outpace.errors import OutpaceError, UnsupportedError, UsageError, WeightsError
from outpace.export.formats import METHODS, export
from outpace.models.load import load_target
from outpace.models.target import Target

READ: dict[str, Callable[[Path], tuple[Any, Card]]] = {"eagle1": read_first_card, "medusa": read_medusa_card}
WRITE: dict[str, Callable[..., None]] = {"eagle1": write_first_card, "medusa": write_medusa_card}


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Target:
    return load_target(model_folder(tmp_path_factory.mktemp("carded") / "target"), dtype="fp32")


def made(method: str, flag: bool = True) -> Any:
    if method == "eagle1":
        return random_first(first_shape(fc_bias=flag))
    return random_medusa(medusa_shape(own_head=flag, heads=3, layers=2))


def card_of(method: str, target: Target, flag: bool = True, **changes: Any) -> Card:
    said: dict[str, Any] = {
        "method": method,
        "taps": (),
        "flags": {"fc_bias" if method == "eagle1" else "own_head": flag},
        "draft_vocab_size": 64,
        "depth_trained": 1 if method == "eagle1" else 3,
        "data": {"tokens": 7},
        "recipe": {"name": "tiny"},
        "steps": 10,
    }
    return Card.made(target, **(said | changes))


def same(left: Any, right: Any) -> bool:
    mine, theirs = dict(left.state_dict()), dict(right.state_dict())
    return mine.keys() == theirs.keys() and all(
        mine[name].dtype == theirs[name].dtype and torch.equal(mine[name], theirs[name]) for name in mine
    )


@pytest.mark.parametrize("flag", [True, False])
@pytest.mark.parametrize("method", READ)
def test_it_comes_back(method: str, flag: bool, target: Target, tmp_path: Path) -> None:
    for dtype in (torch.bfloat16, torch.float16, torch.float32):  # the second and third replace a card
        card = card_of(method, target, flag)
        WRITE[method](tmp_path / "it", made(method, flag), card, dtype=dtype)
        head, read = READ[method](tmp_path / "it")
        assert same(head, made(method, flag).to(dtype)) and head.shape == made(method, flag).shape
        assert vars(read) == vars(card) == vars(read_record(tmp_path / "it"))
    assert sorted(entry.name for entry in (tmp_path / "it").iterdir()) == ["config.json", "model.safetensors", FILE]
    assert (is_first(tmp_path / "it"), is_medusa(tmp_path / "it")) == (method == "eagle1", method == "medusa")
    assert document(tmp_path / "it", FILE)["taps"] == {"indices": [], "convention": "hidden_states"}


@pytest.mark.parametrize(("method", "layout"), [(method, layout) for method in READ for layout in METHODS[method]])
def test_it_is_exported(method: str, layout: str, target: Target, tmp_path: Path) -> None:
    WRITE[method](tmp_path / "it", made(method), card_of(method, target))
    done = export(str(tmp_path / "it"), layout, tmp_path / "out")
    assert done.to == layout and done.target == target.name
    assert done.files == {entry.name: entry.stat().st_size for entry in (tmp_path / "out").iterdir()}
    with pytest.raises(
        UsageError,
        match=f"the layout is 'sglang', and .*it is of the method '{method}'; allowed: {next(iter(METHODS[method]))}",
    ):
        export(str(tmp_path / "it"), "sglang", tmp_path / "more")


DISAGREE: list[tuple[str, dict[str, Any], str]] = [
    ("eagle1", {"flags": {"fc_bias": False}}, "fc_bias is False by the card and True by the head"),
    ("medusa", {"flags": {"own_head": False}}, "own_head is False by the card and True by the head"),
    ("medusa", {"depth_trained": 4}, "depth_trained is 4 by the card and 3 by the head"),
]


@pytest.mark.parametrize(("method", "changes", "message"), DISAGREE, ids=str)
def test_card_and_weights_must_agree(
    method: str, changes: dict[str, Any], message: str, target: Target, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=message):
        WRITE[method](tmp_path / "it", made(method), card_of(method, target, **changes))
    with pytest.raises(UsageError, match=r"method is .* by the card and .* by the head; allowed: one and the same"):
        WRITE[method](tmp_path / "it", made(method), card_of("medusa" if method == "eagle1" else "eagle1", target))
    assert list(tmp_path.iterdir()) == []


def _document(file: str, **changes: Any) -> Callable[[Path], Any]:
    return lambda folder: change_document(folder, lambda said: said.update(changes), file)


def _tensors(change: Callable[[dict[str, torch.Tensor]], Any]) -> Callable[[Path], Any]:
    return lambda folder: change_tensors(folder, change)


CHANGED: list[tuple[str, Callable[[Path], Any], str]] = [
    ("eagle1", _document("config.json", tie_word_embeddings=True), "tie_word_embeddings in .* is True; allowed: False"),
    ("eagle1", _document("config.json", more=1), "says more, which is unknown in a card"),
    ("eagle1", _document("config.json", bias=False), "holds fc.bias, which its configuration does not ask for"),
    ("eagle1", _document(FILE, draft_vocab_size=40), "draft_vocab_size of the card is 40; allowed: 64 for eagle1"),
    ("eagle1", _document(FILE, flags={"fc_bias": False}), "fc_bias is False by .*outpace.json and True by the head"),
    ("eagle1", _tensors(lambda held: held.pop("fc.bias")), "lacks fc.bias"),
    (
        "eagle1",
        _tensors(lambda held: held.update({"embed_tokens.weight": torch.ones(64, 32)})),
        "holds embed_tokens.weight, which its card does not ask for: it is the target's",
    ),
    (
        "medusa",
        _document("config.json", base_model_name_or_path="other"),
        "base_model_name_or_path in .* is 'other'; al",
    ),
    ("medusa", _document("config.json", torch_dtype="float16"), "torch_dtype in .* is 'float16'; allowed: 'float32'"),
    ("medusa", _document(FILE, depth_trained=2), "depth_trained is 2 by .*outpace.json and 3 by the head"),
    ("medusa", _tensors(lambda held: held.pop("2.2.weight")), "2 of the 3 heads of .* have rows of their own"),
    ("medusa", _tensors(lambda held: held.pop("0.1.linear.bias")), "lacks 0.1.linear.bias"),
]


@pytest.mark.parametrize(
    ("method", "change", "message"), CHANGED, ids=lambda value: value if isinstance(value, str) else ""
)
def test_what_was_changed_is_told(
    method: str, change: Callable[[Path], Any], message: str, target: Target, tmp_path: Path
) -> None:
    WRITE[method](tmp_path / "it", made(method), card_of(method, target), dtype=torch.float32)
    READ[method](tmp_path / "it")
    change(tmp_path / "it")
    with pytest.raises((WeightsError, UnsupportedError), match=message):
        READ[method](tmp_path / "it")


def test_a_card_of_another_method(target: Target, tmp_path: Path) -> None:
    write_medusa_card(tmp_path / "it", made("medusa"), card_of("medusa", target))
    with pytest.raises(UnsupportedError, match=r"method of .*outpace.json is 'medusa'; allowed: 'eagle1'"):
        read_first_card(tmp_path / "it")
    with pytest.raises(OutpaceError, match=r"it holds log.txt; allowed: a folder that is new or empty"):
        (tmp_path / "it" / "log.txt").write_text("mine")
        write_medusa_card(tmp_path / "it", made("medusa"), card_of("medusa", target))


def test_what_a_card_says_of_the_layer() -> None:
    """Typed out: a flat Llama configuration, with every rotary setting spelt and the bias never left out."""
    said = first_config(first_shape(fc_bias=False), torch.float32)
    assert said["bias"] is False and said["rope_theta"] == 10000.0 and said["rope_scaling"] is None
    assert said["architectures"] == ["LlamaForCausalLM"] and said["model_type"] == "llama"
