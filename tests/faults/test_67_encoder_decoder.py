"""67: a model with an encoder is loaded as if it had none."""

import json
from pathlib import Path

import pytest
from safetensors.torch import save_file

from outpace.errors import UnsupportedError
from outpace.models import shape
from outpace.models.load import load_target
from outpace.models.toy import tiny_config, tiny_tensors
from toys import must_fail


def case(folder: Path) -> None:
    """Refused at load, in words, though all its other keys and tensors could be read."""
    save_file(tiny_tensors(tiny_config()), folder / "model.safetensors")
    for kind in ("t5", "bart"):
        config = tiny_config(model_type=kind, is_encoder_decoder=True)
        (folder / "config.json").write_text(json.dumps(config), "utf-8")
        with pytest.raises(UnsupportedError, match=f"the model type is '{kind}', which has an encoder; allowed: "):
            load_target(str(folder))


def test_an_encoder_is_refused_at_load(tmp_path: Path) -> None:
    case(tmp_path)


def test_planted_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shape, "FAMILIES", (*shape.FAMILIES, "t5", "bart"))
    monkeypatch.setattr(shape, "ASSUMED", shape.ASSUMED | {"t5": {}, "bart": {}})
    with must_fail():
        case(tmp_path)
