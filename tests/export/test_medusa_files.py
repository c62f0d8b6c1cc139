"""Medusa heads go out under the names and keys of their authors, and come back bit for bit, logit for logit."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open

from cards import USUAL, card_for, document, model_folder
from heads import random_head, shape_of
from medusas import medusa_shape, random_medusa
from outpace.drafters.first_layouts import require_ends
from outpace.drafters.medusa_heads import MedusaHeads
from outpace.drafters.medusa_layout import is_medusa, read_medusa
from outpace.drafters.record import Card
from outpace.errors import UnsupportedError, UsageError, WeightsError
from outpace.export.formats import FORMATS, LAYOUTS, MEDUSA, METHODS
from outpace.models.ends import SharedHead
from outpace.models.load import load_target
from outpace.models.target import Target

KINDS = [
    {"own_head": own, "layers": layers, "heads": heads} for own in (True, False) for layers, heads in ((1, 4), (2, 3))
]


def card() -> Card:
    """What writers ask of a card is who its target is."""
    return card_for(random_head(shape_of(taps=USUAL)))


def made(dtype: torch.dtype = torch.bfloat16, **changes: Any) -> MedusaHeads:
    return random_medusa(medusa_shape(**changes), dtype=dtype)


def same_weights(left: MedusaHeads, right: MedusaHeads) -> bool:
    mine, theirs = dict(left.state_dict()), dict(right.state_dict())
    return mine.keys() == theirs.keys() and all(
        mine[name].dtype == theirs[name].dtype and torch.equal(mine[name], theirs[name]) for name in mine
    )


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_files(kind: dict[str, Any], tmp_path: Path) -> None:
    """Typed from the published layout: heads and their parts by number, no bias behind the rows."""
    MEDUSA["medusa"](tmp_path / "out", made(**kind), card())
    assert sorted(entry.name for entry in (tmp_path / "out").iterdir()) == ["config.json", "medusa_lm_head.safetensors"]
    assert document(tmp_path / "out") == {
        "medusa_num_heads": kind["heads"],
        "medusa_num_layers": kind["layers"],
        "base_model_name_or_path": "tiny-llama",
        "hidden_size": 32,
        "vocab_size": 64,
        "torch_dtype": "bfloat16",
    }
    shapes: dict[str, list[int]] = {}
    for head in range(kind["heads"]):
        for block in range(kind["layers"]):
            shapes |= {f"{head}.{block}.linear.weight": [32, 32], f"{head}.{block}.linear.bias": [32]}
        if kind["own_head"]:
            shapes[f"{head}.{kind['layers']}.weight"] = [64, 32]
    with safe_open(tmp_path / "out" / "medusa_lm_head.safetensors", framework="pt") as opened:
        found = {name: opened.get_slice(name) for name in opened.keys()}  # noqa: SIM118 - it is no mapping
        assert {name: (one.get_dtype(), one.get_shape()) for name, one in found.items()} == {
            name: ("BF16", shape) for name, shape in shapes.items()
        }


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_it_comes_back(kind: dict[str, Any], dtype: torch.dtype, tmp_path: Path) -> None:
    heads = made(dtype, **kind)
    MEDUSA["medusa"](tmp_path / "once", heads, card())
    assert is_medusa(tmp_path / "once")
    back = read_medusa(tmp_path / "once").heads
    assert same_weights(back, heads) and back.shape == heads.shape
    generator = torch.Generator().manual_seed(3)
    state, rows = torch.randn(5, 32, generator=generator), torch.randn(64, 32, generator=generator)
    with torch.inference_mode():
        mine, theirs = (each.logits(state, SharedHead.of_rows(rows)) for each in (back, heads))
    assert torch.equal(mine, theirs)
    MEDUSA["medusa"](tmp_path / "again", back, card())
    for file in ("config.json", "medusa_lm_head.safetensors"):
        assert (tmp_path / "once" / file).read_bytes() == (tmp_path / "again" / file).read_bytes()


# ---- vLLM ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Target:
    return load_target(model_folder(tmp_path_factory.mktemp("exported") / "target"), dtype="fp32")


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_files_of_vllm(kind: dict[str, Any], target: Target, tmp_path: Path) -> None:
    """Typed from its loader; the target's head is in the folder where it is shared. And all comes back."""
    heads = made(**kind)
    MEDUSA["vllm"](tmp_path / "out", heads, card_for(random_head(shape_of(taps=USUAL)), target))
    assert document(tmp_path / "out") == {
        "architectures": ["MedusaModel"],
        "model_type": "medusa",
        "hidden_size": 32,
        "vocab_size": 64,
        "truncated_vocab_size": 64,
        "num_heads": kind["heads"],
        "num_hidden_layers": kind["layers"],
        "original_lm_head": not kind["own_head"],
        "medusa_fc_bias": True,
        "torch_dtype": "bfloat16",
    }
    shapes: dict[str, list[int]] = {} if kind["own_head"] else {"lm_head.weight": [64, 32]}
    for head in range(kind["heads"]):
        for block in range(kind["layers"]):
            at = f"blocks.{head}.layers.{block}"
            shapes |= {f"{at}.weight": [32, 32], f"{at}.bias": [32]}
        if kind["own_head"]:
            shapes[f"lm_heads.{head}.weight"] = [64, 32]
    with safe_open(tmp_path / "out" / "model.safetensors", framework="pt") as opened:
        found = {name: opened.get_slice(name) for name in opened.keys()}  # noqa: SIM118 - it is no mapping
        assert {name: (one.get_dtype(), one.get_shape()) for name, one in found.items()} == {
            name: ("BF16", shape) for name, shape in shapes.items()
        }
    back = read_medusa(tmp_path / "out")
    assert back.kind == "vllm" and same_weights(back.heads, heads) and back.heads.shape == heads.shape
    if back.rows is not None:
        require_ends(target, "it", rows=back.rows)
    assert (back.rows is None) == kind["own_head"]


# ---- refused ---------------------------------------------------------------------------------------------------------


def test_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(
        UnsupportedError, match=r"the dtype to store is torch.float64; allowed: torch.bfloat16, torch.fl"
    ):
        MEDUSA["medusa"](tmp_path / "out", made(torch.float64), card())
    spoilt = made()
    spoilt.get_parameter("1.0.linear.bias").data[3] = torch.nan
    with pytest.raises(WeightsError, match=r"1.0.linear.bias of the head holds values that are not finite in bfloat16"):
        MEDUSA["medusa"](tmp_path / "out", spoilt, card())
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(WeightsError, match=r"'tiny-llama' is no folder here"):
        MEDUSA["vllm"](tmp_path / "out", made(own_head=False), card())
    MEDUSA["medusa"](tmp_path / "out", made(), card())
    with pytest.raises(UsageError, match=r"out holds config.json; allowed: a folder that is new or empty"):
        MEDUSA["medusa"](tmp_path / "out", made(), card())


def test_every_method_has_its_layouts() -> None:
    """Typed out; names are shared where two methods have a layout of one project."""
    assert {method: sorted(layouts) for method, layouts in METHODS.items()} == {
        "eagle3": ["safeailab", "sglang", "speculators", "vllm"],
        "eagle1": ["safeailab", "vllm"],
        "medusa": ["medusa", "vllm"],
    }
    assert METHODS["eagle3"] is FORMATS and LAYOUTS == ("safeailab", "sglang", "speculators", "vllm", "medusa")
