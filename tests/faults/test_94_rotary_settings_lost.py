"""94: rotary settings are lost on the way out: fine on short texts, and acceptance falls on long ones."""

from pathlib import Path
from typing import Any

import pytest
import torch

from cards import USUAL, change_document, exported, logits_of, written
from heads import random_head, shape_of
from outpace.drafters import card, configurations
from outpace.drafters.card import read_card
from outpace.drafters.head import HeadShape
from outpace.drafters.layouts import read_layout
from outpace.errors import OutpaceError, UnsupportedError, WeightsError
from outpace.export import safeailab, sglang, speculators
from outpace.models.rotary import Rotary
from toys import must_fail

TRAINED, SHORT, LONG = 32, 5, 95
LLAMA3 = {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
SETTINGS: list[tuple[dict[str, Any], tuple[str, ...]]] = [
    ({"rope_type": "default", "rope_theta": 10000.0}, ("safeailab", "sglang", "speculators", "vllm")),
    ({"rope_type": "default", "rope_theta": 500000.0}, ("safeailab", "sglang", "speculators", "vllm")),
    ({"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}, ("safeailab", "sglang", "speculators", "vllm")),
    (LLAMA3 | {"rope_theta": 500000.0}, ("sglang", "speculators", "vllm")),
    ({"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0}, ("sglang", "speculators", "vllm")),
]


def frequencies(shape: HeadShape) -> torch.Tensor:
    rotary = Rotary(shape.rotary, shape.head_width, shape.max_positions)
    return rotary.inverse * rotary.scale


def case(folder: Path) -> None:
    """Frequencies, and logits near and far, are those of training after every way out and in."""
    for number, (rotary, carried) in enumerate(SETTINGS):
        head = random_head(shape_of(taps=USUAL, max_positions=TRAINED, rotary=rotary))
        read = {}
        try:
            read["card"] = read_card(written(folder / f"card{number}", head))[0]
            for layout in carried:
                read[layout] = read_layout(exported(folder / f"{layout}{number}", layout, head), 8).head
        except OutpaceError as error:
            raise AssertionError(f"what was written is not read: {error}") from error
        for name, back in read.items():
            torch.testing.assert_close(frequencies(back.shape), frequencies(head.shape), rtol=1e-6, atol=0)
            assert torch.equal(logits_of(back, (SHORT, LONG)), logits_of(head, (SHORT, LONG))), name


def test_case(tmp_path: Path) -> None:
    case(tmp_path)


def test_the_settings_differ_far_and_near(tmp_path: Path) -> None:
    """Or losing them would not show."""
    said = []
    for rotary, _ in SETTINGS:
        head = random_head(shape_of(taps=USUAL, max_positions=TRAINED, rotary=rotary))
        said.append(logits_of(head, (SHORT, LONG)))
    for place, one in enumerate(said):
        for other in said[place + 1 :]:
            assert (one - other).abs().amax(-1).min() > 1e-3


def test_a_base_that_is_not_said_is_the_usual_one(tmp_path: Path) -> None:
    """Of the head, not of its target: SafeAILab's trainer never read the target's."""
    head = random_head(shape_of(taps=USUAL, rotary=SETTINGS[1][0]))
    folder = exported(tmp_path / "out", "safeailab", head)
    change_document(folder, lambda config: config.pop("rope_theta"))
    assert read_layout(folder, 8).head.shape.rotary["rope_theta"] == 10000.0


def test_older_and_newer_places_are_read_and_may_not_differ(tmp_path: Path) -> None:
    head = random_head(shape_of(taps=USUAL, rotary=SETTINGS[4][0]))
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256}
    found = []
    for place, said in enumerate(
        (
            {"rope_theta": 10000.0, "rope_scaling": yarn},
            {"rope_theta": 10000.0, "rope_scaling": {"type": "yarn", "factor": 4.0}, "rope_parameters": None},
            {"rope_parameters": yarn | {"rope_theta": 10000.0}},
        )
    ):
        folder = exported(tmp_path / str(place), "vllm", head)
        change_document(folder, lambda config, said=said: (config.pop("rope_scaling"), config.update(said)))
        found.append(frequencies(read_layout(folder, 8).head.shape))
    assert all(torch.equal(each, frequencies(head.shape)) for each in found)
    for said, message in (
        (
            {"rope_theta": 5e5, "rope_parameters": yarn | {"rope_theta": 1e4}},
            "says rope_theta twice: 500000.0 and 10000",
        ),
        (
            {"rope_scaling": {"type": "linear", "factor": 2.0}, "rope_parameters": yarn},
            "says rope_type twice: 'linear'",
        ),
    ):
        folder = exported(tmp_path / message[:15], "vllm", head)
        change_document(folder, lambda config, said=said: config.update(said))
        with pytest.raises(WeightsError, match=message):
            read_layout(folder, 8)


def test_an_unknown_scaling_is_an_error(tmp_path: Path) -> None:
    head = random_head(shape_of(taps=USUAL))
    folder = exported(tmp_path / "out", "vllm", head)
    change_document(folder, lambda config: config.update(rope_scaling={"rope_type": "longrope", "factor": 2.0}))
    with pytest.raises(UnsupportedError, match="the rotary scaling is 'longrope'; the fast lane knows default, linear"):
        read_layout(folder, 8)
    with pytest.raises(UnsupportedError, match="the rotary scaling is 'longrope'"):
        exported(tmp_path / "more", "vllm", random_head(shape_of(taps=USUAL, rotary={"rope_type": "longrope"})))


WRITERS = (card, safeailab, sglang, speculators)


def no_scaling(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = card.rope
    for module in WRITERS:
        monkeypatch.setattr(module, "rope", lambda shape: (honest(shape)[0], None))


def no_base(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = card.rope
    for module in WRITERS:
        monkeypatch.setattr(module, "rope", lambda shape: (10000.0, honest(shape)[1]))


def bases_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reader looks for the base and the scaling in the older place alone."""

    def older(said: dict[str, Any]) -> dict[str, Any]:
        return {"rope_type": "default", "rope_theta": said.get("rope_theta", 1e4)}

    monkeypatch.setattr(configurations, "rotary_parameters", older)


@pytest.mark.parametrize("plant", [no_scaling, no_base, bases_elsewhere])
def test_planted_fault(plant: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    with must_fail():
        case(tmp_path)
