"""Medusa heads as others publish them are read by what their file holds, and refused by name."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from cards import foreign, model_folder
from medusas import medusa_shape, random_medusa
from outpace.drafters.layouts import method_of
from outpace.drafters.medusa_heads import MedusaHeads
from outpace.drafters.medusa_layout import is_medusa, read_medusa
from outpace.errors import UnsupportedError, WeightsError
from outpace.models.ends import SharedHead

CONFIG = {"medusa_num_heads": 3, "medusa_num_layers": 2, "base_model_name_or_path": "lmsys/vicuna-7b-v1.3"}


def made(own_head: bool = True) -> MedusaHeads:
    shape = medusa_shape(hidden_size=32, vocab_size=64, heads=3, layers=2, own_head=own_head)
    return random_medusa(shape, dtype=torch.float16)


def folder_of(folder: Path, heads: MedusaHeads, config: dict[str, Any] = CONFIG, kind: str = "safetensors") -> Path:
    """As it is published: one file of the heads beside the configuration."""
    foreign(folder, config, dict(heads.state_dict()))
    if kind == "safetensors":
        (folder / "model.safetensors").rename(folder / "medusa_lm_head.safetensors")
    else:
        (folder / "model.safetensors").unlink()
        torch.save(dict(heads.state_dict()), folder / "medusa_lm_head.pt")
    return folder


def same(left: MedusaHeads, right: MedusaHeads) -> bool:
    mine, theirs = dict(left.state_dict()), dict(right.state_dict())
    return mine.keys() == theirs.keys() and all(
        mine[name].dtype == theirs[name].dtype and torch.equal(mine[name], theirs[name]) for name in mine
    )


@pytest.mark.parametrize("kind", ["safetensors", "pt"])
@pytest.mark.parametrize("own_head", [True, False])
def test_both_kinds_are_read(kind: str, own_head: bool, tmp_path: Path) -> None:
    """Rows of their own are told by what the file holds; without them, the vocabulary is the target's."""
    heads = made(own_head)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = read_medusa(folder_of(tmp_path, heads, kind=kind), vocab_size=64)
    back = found.heads
    assert found.kind == "medusa" and found.rows is None and same(back, heads) and back.shape == heads.shape
    state = torch.randn(5, 32).half()
    rows = torch.randn(64, 32).half()
    with torch.inference_mode():
        mine, theirs = (each.logits(state, SharedHead.of_rows(rows)) for each in (back, heads))
    assert torch.equal(mine, theirs)


def test_a_published_number_of_heads_may_be_wrong(tmp_path: Path) -> None:
    """The authors' own file says two and holds five: all are taken, and it is told."""
    heads = made()
    with pytest.warns(UserWarning, match=r"medusa_num_heads of .* is 2, and there are 3 heads: taken are all"):
        back = read_medusa(folder_of(tmp_path, heads, CONFIG | {"medusa_num_heads": 2})).heads
    assert same(back, heads)


VLLM = {
    "architectures": ["MedusaModel"],
    "model_type": "medusa",
    "hidden_size": 32,
    "vocab_size": 64,
    "truncated_vocab_size": 64,
    "num_heads": 3,
    "num_hidden_layers": 2,
    "max_paths": 64,
    "topk": 10,
}


def of_vllm(heads: MedusaHeads, prefix: str = "") -> dict[str, Tensor]:
    """Typed from what vLLM's loader looks for."""
    found = {}
    for name, tensor in heads.state_dict().items():
        head, place, *rest = name.split(".")
        block = f"blocks.{head}.layers.{place}.{rest[-1]}"
        found[prefix + (block if "linear" in rest else f"lm_heads.{head}.weight")] = tensor
    return found


@pytest.mark.parametrize("prefix", ["", "medusa_heads."])
@pytest.mark.parametrize("own_head", [True, False])
def test_vllm(own_head: bool, prefix: str, tmp_path: Path) -> None:
    """The target's rows, which heads without rows of their own bring along, are handed out beside them."""
    heads, rows = made(own_head), torch.randn(64, 32).half()
    config = VLLM | {"medusa_fc_bias": True, "original_lm_head": not own_head}
    for name in ["lm_head.weight", "lm_heads.0.weight"]:
        tensors = of_vllm(heads, prefix) | ({} if own_head else {name: rows})
        found = read_medusa(foreign(tmp_path, config, tensors))
        assert found.kind == "vllm" and same(found.heads, heads) and found.heads.shape == heads.shape
        assert found.rows is None if own_head else found.rows is not None and torch.equal(found.rows, rows)


def test_no_bias_is_a_bias_of_zeros(tmp_path: Path) -> None:
    """What vLLM leaves out unless it is told."""
    heads = made()
    for name, weight in heads.named_parameters():
        if name.endswith("bias"):
            weight.data.zero_()
    tensors = {name: tensor for name, tensor in of_vllm(heads).items() if not name.endswith("bias")}
    assert same(read_medusa(foreign(tmp_path, VLLM, tensors)).heads, heads)
    with pytest.raises(WeightsError, match=r"holds blocks.0.layers.0.bias, which its configuration does not ask for"):
        read_medusa(foreign(tmp_path, VLLM, of_vllm(heads)))


VLLM_REFUSED = [
    ({"truncated_vocab_size": 40}, "truncated_vocab_size of .* is 40; allowed: 64, its vocab_size"),
    ({"logit_scale": 0.5}, "logit_scale of .* is 0.5; allowed: 1.0"),
    ({"num_hidden_layers": 1}, "num_hidden_layers of .* is 1, and its heads have 2; allowed: one and the same"),
    ({"medusa_fc_bias": "yes"}, "medusa_fc_bias in config.json of .* is 'yes'; allowed: true or false"),
    ({"original_lm_head": True}, "holds lm_heads.1.weight, which its configuration does not ask for"),
]


@pytest.mark.parametrize(("said", "message"), VLLM_REFUSED, ids=str)
def test_of_vllm_what_is_refused(said: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises((WeightsError, UnsupportedError), match=message):
        read_medusa(foreign(tmp_path, VLLM | {"medusa_fc_bias": True} | said, of_vllm(made())))


def test_what_are_medusa_heads(tmp_path: Path) -> None:
    alone = folder_of(tmp_path / "alone", made(), kind="pt")
    model = model_folder(tmp_path / "model")
    both = foreign(tmp_path / "both", CONFIG | {"model_type": "llama"}, {"model.embed_tokens.weight": torch.ones(2, 2)})
    other = foreign(
        tmp_path / "other", {"model_type": "medusa", "vocab_size": 4}, {"blocks.0.layers.1.weight": torch.ones(2, 2)}
    )
    assert [is_medusa(each) for each in (alone, model, both, other)] == [True, False, False, True]
    assert [method_of(each) for each in (alone, model, both, other)] == ["medusa", None, None, "medusa"]
    with pytest.raises(WeightsError, match=r"lacks 0.0.linear.weight"):
        read_medusa(other)


REFUSED: list[tuple[dict[str, Any], Callable[[dict[str, Tensor]], Any], str]] = [
    (
        {"medusa_num_layers": 1},
        lambda held: None,
        "medusa_num_layers of .* is 1, and its heads have 2; allowed: one and the",
    ),
    ({"medusa_num_heads": True}, lambda held: None, "medusa_num_heads in config.json of .* is True; allowed: a whole"),
    ({}, lambda held: held.pop("1.0.linear.bias"), "lacks 1.0.linear.bias\nhint: head i has i.0.linear.weight"),
    ({}, lambda held: held.pop("1.2.weight"), "2 of the 3 heads of .* have rows of their own; allowed: all, or none"),
    ({}, lambda held: held.pop("2.1.linear.weight"), "lacks 2.1.linear.weight"),
    ({}, lambda held: held.update({"extra": torch.ones(2)}), "holds extra, which its configuration does not ask for"),
    (
        {},
        lambda held: held.update({"2.2.weight": torch.ones(63, 32).half()}),
        "2.2.weight is 63 x 32; allowed: 64 x 32",
    ),
    ({}, lambda held: held.update({"2.2.weight": torch.ones(64, 32)}), "2.2.weight is float32, 0.0.linear.weight flo"),
    ({}, lambda held: held.clear() or held.update({"x": torch.ones(2)}), "lacks 0.0.linear.weight\nhint: head i has"),
]


@pytest.mark.parametrize(
    ("said", "change", "message"), REFUSED, ids=lambda value: value[:30] if isinstance(value, str) else ""
)
def test_refused_by_name(
    said: dict[str, Any], change: Callable[[dict[str, Tensor]], Any], message: str, tmp_path: Path
) -> None:
    tensors = dict(made().state_dict())
    change(tensors)
    with pytest.raises((WeightsError, UnsupportedError), match=message):
        read_medusa(foreign(tmp_path, CONFIG | said, tensors))


def test_a_vocabulary_that_nothing_tells(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, made(False))
    with pytest.raises(
        WeightsError, match=r"does not say vocab_size, and its heads have no rows of their own\nhint: read it together"
    ):
        read_medusa(folder)
    said = folder_of(tmp_path, made(False), CONFIG | {"vocab_size": 64})
    assert read_medusa(said, vocab_size=99).heads.shape.vocab_size == 64


def test_a_pickle_that_is_more_than_tensors(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, made(), kind="pt")
    torch.save({"0.0.linear.weight": "no tensor"}, folder / "medusa_lm_head.pt")
    with pytest.raises(WeightsError, match=r"holds a str under '0.0.linear.weight'; only tensors under names are read"):
        read_medusa(folder)
