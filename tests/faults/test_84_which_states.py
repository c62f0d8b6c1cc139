"""84: the wrong layers are tapped, or one too few: an index means before a layer here and after it there."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import hosts
from outpace.errors import UsageError
from outpace.models.hosted import host
from outpace.models.shape import Shape
from outpace.models.target import Target
from outpace.models.toy import tiny_config, tiny_tensors
from outpace.models.transformer import Transformer
from outpace.training.features import online, record
from outpace.training.masks import Sample
from outpace.training.reader import Reader
from toys import must_fail

LAYERS = 4
TEXT = Sample("one", torch.tensor([5, 9, 2, 40, 7], dtype=torch.int32), torch.arange(5) >= 3)


def telling(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Weights by which layer i adds 10 to the i, and nothing else, to every state; embeddings are zero."""
    told = {}
    for name, tensor in tensors.items():
        told[name] = tensor if "norm" in name or "lm_head" in name else torch.zeros_like(tensor)
        if name.endswith("mlp.down_proj.bias"):
            told[name] = torch.full_like(tensor, 10.0 ** int(name.split(".")[2]))
    return told


def targets() -> list[Target]:
    """Both lanes, of the same weights."""
    config = tiny_config("llama", layers=LAYERS, mlp_bias=True)
    tensors = telling(tiny_tensors(config))
    own = Transformer(Shape.from_config(config), tensors, dtype=torch.float32, packed=False, fingerprint="own")
    said = {name: value for name, value in config.items() if name not in ("model_type", "rope_theta")}
    model = hosts.AutoModelForCausalLM.from_config(hosts.AutoConfig.for_model("llama", **said, **hosts.NONE)).eval()
    model.load_state_dict(telling(model.state_dict()))
    with hosts.warnings.catch_warnings():
        hosts.warnings.simplefilter("ignore")  # a model that says the same to everything cannot be checked at load
        return [own, host(model, packed=False, fingerprint="hosted")]


def case(folder: Path) -> None:
    """Every boundary tells its own number, the embeddings and the output of the last layer included."""
    for place, target in enumerate(targets()):
        for number, taps in enumerate(((0, 1, 2, 3, 4), (0, 2, 4), (4,), (1, 3))):
            made = [
                online(target, [TEXT], taps=taps),
                record(target, [TEXT], folder / f"{place}-{number}", taps=taps),
            ]
            for each in made:
                [batch] = each.batches(0, 0, 8)
                wanted = torch.tensor([sum(10.0**layer for layer in range(tap)) for tap in taps])
                assert batch.features.shape == (1, 5, len(taps), 32) and each.taps == taps
                assert (batch.features == wanted[:, None]).all()
        for wrong in ((0, 5), (-1, 2), (2, 2), (3, 1)):
            with pytest.raises(UsageError, match="tap"):
                online(target, [TEXT], taps=wrong)


def test_case(tmp_path: Path) -> None:
    case(tmp_path)


def one_later(self: Reader, samples: Any) -> Tensor:
    """Indices of layers, taken for those of states: every tap is the output of the layer of its number."""
    asked, self.asked = self.asked, (*(min(tap + 1, LAYERS) for tap in self.taps), "last_normed")
    try:
        return honest_prefill(self, samples)
    finally:
        self.asked = asked


def one_too_few(self: Reader, samples: Any) -> Tensor:
    """The boundary behind the last layer is never caught; the one before stands in."""
    asked, self.asked = self.asked, (*(min(tap, LAYERS - 1) for tap in self.taps), "last_normed")
    try:
        return honest_prefill(self, samples)
    finally:
        self.asked = asked


honest_prefill = Reader._prefill


@pytest.mark.parametrize("fault", [one_later, one_too_few])
def test_planted_fault(fault: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Reader, "_prefill", fault)
    with must_fail():
        case(tmp_path)
