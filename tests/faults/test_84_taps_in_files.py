"""84: an index of a tap means before a layer in one file and after it in another, and the reader takes the other."""

from pathlib import Path
from typing import Any

import pytest
import torch

from cards import FORMATS, LAYERS, USUAL, change_document, exported, written
from heads import random_head, shape_of
from outpace.drafters import layouts
from outpace.drafters.card import read_card
from outpace.drafters.layouts import read_layout, usual_taps
from outpace.errors import WeightsError
from outpace.export import sglang
from outpace.models.shape import Shape
from outpace.models.toy import tiny_config, tiny_tensors
from outpace.models.transformer import Transformer
from toys import must_fail

IDS = "eagle_aux_hidden_state_layer_ids"


def telling() -> Transformer:
    """Layer i adds 10 to the i, and nothing else, to every state; embeddings are zero."""
    config = tiny_config(layers=LAYERS, mlp_bias=True)
    told = {}
    for name, tensor in tiny_tensors(config).items():
        told[name] = tensor if "norm" in name or "lm_head" in name else torch.zeros_like(tensor)
        if name.endswith("mlp.down_proj.bias"):
            told[name] = torch.full_like(tensor, 10.0 ** int(name.split(".")[2]))
    return Transformer(Shape.from_config(config), told, dtype=torch.float64, packed=False, fingerprint="a-b-c")


def shown(taps: tuple[int, ...]) -> list[float]:
    """What the telling target shows at the taps: 111 is the output of its third layer."""
    target = telling()
    features = target.prefill(target.open(1, 2), torch.tensor([[5, 9]]), [2], taps).features
    assert features is not None
    return [float(value) for value in features[0, 0, :, 0]]


def case(folder: Path) -> None:
    """A head reads the states that it was made for, whatever the file calls them."""
    for taps, carriers in ((USUAL, tuple(FORMATS)), ((1, 6, 7), ("sglang", "speculators", "vllm"))):
        head = random_head(shape_of(taps=taps))
        wanted = [float(sum(10**layer for layer in range(tap))) for tap in taps]
        try:
            read = {"card": read_card(written(folder / f"card {taps[0]}", head))[0]}
            for layout in carriers:
                read[layout] = read_layout(exported(folder / f"{layout} {taps[0]}", layout, head), LAYERS).head
        except WeightsError as error:
            raise AssertionError(f"what was written is not read: {error}") from error
        for name, back in read.items():
            assert shown(back.shape.taps) == wanted, name


def test_case(tmp_path: Path) -> None:
    case(tmp_path)


def test_what_the_files_say(tmp_path: Path) -> None:
    """The same states, called by their numbers here and by those of the layers before them there."""
    head = random_head(shape_of(taps=USUAL))
    said: dict[str, Any] = {}
    for layout in FORMATS:
        change_document(exported(tmp_path / layout, layout, head), lambda config, at=layout: said.update({at: config}))
    assert said["vllm"][IDS] == said["speculators"][IDS] == [2, 4, 5]
    assert said["sglang"]["eagle_config"][IDS] == [1, 3, 4] and IDS not in said["sglang"]
    assert "eagle_config" not in said["vllm"] and not any("layer_ids" in name for name in said["safeailab"])


def test_wrong_counts_and_indices_are_errors(tmp_path: Path) -> None:
    """One too few, one behind the last layer, and two meanings in one file."""
    for place, (ids, message) in enumerate(
        (
            ([2, 4], "fc.weight is 32 x 96; allowed: 32 x 64"),
            ([2, 4, 9], r"the taps of .* are \[2, 4, 9\]; allowed: rising up to 8, the number of layers of the target"),
            ([-1, 4, 5], r"the taps of the head are \[-1, 4, 5\]; allowed: one or more, each 0 or above"),
        )
    ):
        folder = exported(tmp_path / str(place), "vllm", random_head(shape_of(taps=USUAL)))
        change_document(folder, lambda config, ids=ids: config.update({IDS: ids}))
        with pytest.raises(WeightsError, match=message):
            read_layout(folder, LAYERS)
    folder = exported(tmp_path / "two", "vllm", random_head(shape_of(taps=USUAL)))
    change_document(folder, lambda config: config.update(eagle_config={IDS: [2, 4, 5]}))
    with pytest.raises(WeightsError, match=r"twice: the states \[2, 4, 5\], .* which are the states \[3, 5, 6\]"):
        read_layout(folder, LAYERS)


def states_for_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The writer forgets that this layout counts layers."""

    def write(out: Path, head: Any, card: Any) -> None:
        sglang.write(out, head, card)
        change_document(out, lambda config: config["eagle_config"].update({IDS: list(head.shape.taps)}))

    monkeypatch.setitem(FORMATS, "sglang", write)


def layers_for_states(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reader takes numbers of layers at the top of a configuration too."""
    honest = layouts._indices
    monkeypatch.setattr(layouts, "_indices", lambda given, folder: [index - 1 for index in honest(given, folder)])


def from_the_other_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reader counts the usual taps as numbers of layers."""

    def layers(count: int) -> tuple[int, ...]:
        return tuple(tap - 1 for tap in usual_taps(count))

    monkeypatch.setattr(layouts, "usual_taps", layers)


@pytest.mark.parametrize("plant", [states_for_layers, layers_for_states, from_the_other_end])
def test_planted_fault(plant: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    with must_fail():
        case(tmp_path)


def test_the_telling_target_tells() -> None:
    assert shown((0, 1, 3)) == [0.0, 1.0, 111.0]
