"""83: the states that are kept for the teacher's head lack the last norm, or have it twice: acceptance is too low."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import hosts
from outpace.errors import UnsupportedError
from outpace.models.ends import read_head
from outpace.models.hosted import host
from outpace.models.target import Target
from outpace.models.toy import tiny_transformer
from outpace.training.features import online, record
from outpace.training.masks import Sample
from outpace.training.reader import Reader
from toys import must_fail

TEXT = Sample("one", torch.tensor([5, 9, 2, 40, 7, 7, 21, 3], dtype=torch.int32), torch.arange(8) >= 3)


def uneven(weight: Tensor) -> Tensor:
    """Far from 1: a norm that is left out, or done twice, shows."""
    return torch.linspace(0.2, 5.0, len(weight)).roll(7)


def targets() -> list[Target]:
    """Both lanes; the norm's weight far from one."""
    own = tiny_transformer(seed=3)
    own.last_norm = uneven(own.last_norm)
    model = hosts.copy.deepcopy(hosts.model_of("llama"))
    model.model.norm.weight.data = uneven(model.model.norm.weight)
    return [own, host(model, packed=False, fingerprint="hosted")]


def case(folder: Path) -> None:
    """The head's rows times what was kept are the target's own logits, for every way by which it is kept."""
    for place, target in enumerate(targets()):
        try:
            made = [online(target, [TEXT], taps=(1,)), record(target, [TEXT], folder / str(place), taps=(1,))]
        except UnsupportedError as error:
            raise AssertionError("the states were found to be others at the start") from error
        for each in made:
            [batch] = each.batches(0, 0, 8)
            kept = batch.last_normed[0] @ read_head(target).T
            for length in range(1, 9):
                ids = TEXT.ids[None, :length].long()
                said = target.prefill(target.open(1, length), ids, [length]).logits[0, 0]
                torch.testing.assert_close(kept[length - 1], said, atol=1e-4, rtol=1e-4)


def test_case(tmp_path: Path) -> None:
    case(tmp_path)


def without_norm(self: Reader, samples: Any) -> Tensor:
    """The output of the last layer stands for what the head reads."""
    last = 2 if isinstance(getattr(self.target, "blocks", None), list) else 3
    honest_asked, self.asked = self.asked, (*self.taps, last)
    try:
        return honest_prefill(self, samples)
    finally:
        self.asked = honest_asked


def with_two(self: Reader, samples: Any) -> Tensor:
    seen = honest_prefill(self, samples).clone()
    last = seen[:, :, -1]
    seen[:, :, -1] = torch.nn.functional.rms_norm(last, last.shape[-1:], uneven(last[0, 0]))
    return seen


honest_prefill = Reader._prefill


@pytest.mark.parametrize("fault", [without_norm, with_two])
def test_planted_fault(fault: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Reader, "_prefill", fault)
    with must_fail():
        case(tmp_path)


def test_the_check_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """A target whose states before the head are not what its head reads is refused before anything is recorded."""
    for target in targets():
        honest = target.prefill

        def doubled(state: Any, ids: Any, lengths: Any, taps: Any = (), honest: Any = honest) -> Any:
            scores = honest(state, ids, lengths, taps)
            last = scores.features.clone()
            last[:, :, -1] = torch.nn.functional.rms_norm(last[:, :, -1], last.shape[-1:], uneven(last[0, 0, -1]))
            return type(scores)(scores.logits, last)

        monkeypatch.setattr(target, "prefill", doubled)
        with pytest.raises(UnsupportedError, match="are not its head times its last normed state"):
            Reader(target, (1,))
