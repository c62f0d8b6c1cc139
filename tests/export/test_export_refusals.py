"""What a layout cannot carry is refused by name, with what it can, and nothing is written."""

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from cards import FORMATS, USUAL, card_for, exported, target_of, written
from heads import random_head, shape_of
from outpace.errors import UnsupportedError, UsageError, WeightsError
from outpace.export.formats import export
from outpace.models.toy import tiny_transformer

ON = [{name: True} for name in ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")]
LLAMA3 = {"rope_type": "llama3", "rope_theta": 1e4, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
REFUSED: list[tuple[str, dict[str, Any], str]] = [
    *(("safeailab", flag, f"SafeAILab cannot carry {next(iter(flag))} = true; allowed: false") for flag in ON),
    ("safeailab", {"taps": (2, 4, 6)}, r"carry the taps \[2, 4, 6\]; allowed: \[2, 4, 5\], for a target of 8 layers"),
    ("safeailab", {"taps": (2, 4)}, r"carry the taps \[2, 4\]; allowed: \[2, 4, 5\]"),
    (
        "safeailab",
        {"rotary": LLAMA3},
        "carry the rotary scaling 'llama3' by 8 to a base of 10000; allowed: none, or 'lin",
    ),
    (
        "safeailab",
        {"rotary": {"rope_type": "linear", "rope_theta": 5e5, "factor": 2.0}},
        "carry the rotary scaling 'linear' by 2 to a base of 500000; allowed: none, or 'linear' by more than 1 to a ba",
    ),
    (
        "safeailab",
        {"rotary": {"rope_type": "linear", "rope_theta": 1e4, "factor": 1.0}},
        "carry the rotary scaling 'linear' by 1 to a base of 10000",
    ),
    (
        "safeailab",
        {"hidden_size": 96, "head_width": 24},
        "3 taps that are together 96 wide, as wide as the head; allow",
    ),
    ("sglang", ON[0], "SGLang cannot carry norm_before_residual = true; allowed: false"),
    ("sglang", {"taps": (0, 4, 5)}, "SGLang cannot carry the tap 0; allowed: 1 to 7, for a target of 8 layers"),
    ("sglang", {"taps": (2, 4, 8)}, "SGLang cannot carry the tap 8; allowed: 1 to 7, for a target of 8 layers"),
    ("sglang", {"taps": (4,)}, "SGLang cannot carry 1 taps that are together 32 wide, as wide as the head"),
    *((layout, {"taps": (4, 2, 5)}, r"taps (of the head are )?\[4, 2, 5\]; allowed: ") for layout in FORMATS),
    *((layout, {"rotary": {"rope_type": "longrope"}}, "the rotary scaling is 'longrope'") for layout in FORMATS),
]


@pytest.mark.parametrize(("layout", "changes", "message"), REFUSED, ids=str)
def test_refused_by_name(layout: str, changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    head = random_head(shape_of(**({"taps": USUAL} | changes)))
    with pytest.raises(UnsupportedError, match=message):
        exported(tmp_path / "out", layout, head)
    assert list(tmp_path.iterdir()) == []


def test_the_taps_are_counted_from_the_target(tmp_path: Path) -> None:
    """The same head fits SafeAILab's layout for one target and not for another."""
    head = random_head(shape_of(taps=(2, 5, 7)))
    for layers in (10, 11):
        card = card_for(head, tiny_transformer(layers=layers))
        if layers == 10:
            exported(tmp_path / "ten", "safeailab", head, card)
        else:
            with pytest.raises(UnsupportedError, match=r"\[2, 5, 7\]; allowed: \[2, 5, 8\], for a target of 11 layers"):
                exported(tmp_path / "eleven", "safeailab", head, card)


@pytest.mark.parametrize("layout", FORMATS)
def test_weights_that_are_none(layout: str, tmp_path: Path) -> None:
    head = random_head(shape_of(taps=USUAL))
    head.norm.weight.data[3] = torch.inf
    with pytest.raises(WeightsError, match=r"norm.weight of the head holds values that are not finite in float32"):
        exported(tmp_path / "out", layout, head)
    head = random_head(shape_of(taps=USUAL))
    head.fc.to(torch.bfloat16)
    with pytest.raises(
        WeightsError, match=r"the weights of the head are torch.bfloat16 and torch.float32; allowed: one"
    ):
        exported(tmp_path / "out", layout, head)
    assert list(tmp_path.iterdir()) == []


def test_a_name_that_vllm_cannot_fetch_is_told(tmp_path: Path) -> None:
    head = random_head(shape_of(taps=USUAL))
    with pytest.warns(
        UserWarning, match="called 'tiny-llama', which is no id of the Hugging Face hub: vLLM cannot serve"
    ):
        FORMATS["speculators"](tmp_path / "out", head, card_for(head, target_of()))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for layout in ("vllm", "sglang", "safeailab"):
            FORMATS[layout](tmp_path / layout, head, card_for(head, target_of()))


def test_sources_and_places(tmp_path: Path) -> None:
    folder = written(tmp_path / "card")
    with pytest.raises(UsageError, match="the layout is 'gguf'; allowed: safeailab, sglang, speculators, vllm"):
        export(str(folder), "gguf", tmp_path / "out")
    with pytest.raises(WeightsError, match="'nowhere' is no folder here"):
        export("nowhere", "vllm", tmp_path / "out")
    done = export(str(folder), "vllm", tmp_path / "out")
    assert (done.to, done.path, done.target, done.tensors) == ("vllm", tmp_path / "out", "tiny-llama", 15)
    assert done.files == {
        name: (tmp_path / "out" / name).stat().st_size for name in ("config.json", "model.safetensors")
    }
    with pytest.raises(
        UsageError, match=r"out is no card: it has no outpace.json of a drafter; allowed: a folder that has"
    ):
        export(str(tmp_path / "out"), "vllm", tmp_path / "more")
    with pytest.raises(UsageError, match=r"out holds config.json; allowed: a folder that is new or empty"):
        export(str(folder), "vllm", tmp_path / "out")
    with pytest.raises(UsageError, match=r"card holds config.json; allowed: a folder that is new or empty"):
        export(str(folder), "vllm", folder)
