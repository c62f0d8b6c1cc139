"""85: a table of draft ids holds offsets or ids, and the reader takes the other; or there is none, and it counts."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from cards import FORMATS, USUAL, card_for, change_tensors, exported, target_of
from heads import keys_of, random_head, says, shape_of
from outpace.drafters import stored
from outpace.drafters.budget import Branching, Budget
from outpace.drafters.card import write_card
from outpace.drafters.eagle import Eagle
from outpace.drafters.head import Head
from outpace.drafters.load import load_drafter
from outpace.errors import WeightsError
from outpace.export import safeailab, sglang, speculators, vllm
from outpace.verification.probabilities import Sampling
from toys import must_fail

IDS, ALWAYS = [3, 10, 11, 40, 63], 4


def stubborn(vocab: int = len(IDS)) -> Head:
    """A head that says its draft id 4 to features of ones, and again to all that it fed itself."""
    head = random_head(shape_of(draft_vocab_size=vocab, taps=USUAL))
    layer = head.midlayer
    for weight in (layer.self_attn.o_proj.weight, layer.mlp.down_proj.weight, head.lm_head.weight):
        weight.data.zero_()
    head.fc.weight.data.fill_(0.1)
    head.norm.weight.data.fill_(1.0)
    head.lm_head.weight.data[ALWAYS] = 1.0
    return head


def drafted(drafter: Any) -> list[int]:
    """Three drafts after a text of four tokens."""
    assert isinstance(drafter, Eagle)
    state = drafter.open(1, 16)
    drafter.admit(state, [[1, 2, 3]], [torch.ones(3, 3, 32)])
    drafter.commit(state, [[5]], [torch.ones(0, 3, 32)])
    budget = Budget([3], [3], Branching.parse("chain"))
    [(tokens, _)] = drafter.propose(state, budget, [Sampling()], keys_of(1)).tree.to_lists()
    return list(tokens)


def folders(folder: Path, head: Head) -> dict[str, Path]:
    write_card(folder / "card", head, card_for(head), dtype=torch.float32)
    return {"card": folder / "card"} | {layout: exported(folder / layout, layout, head) for layout in FORMATS}


def case(folder: Path) -> None:
    """Draft id 4 is the target's 63, after every way out and in; of a whole vocabulary it is 4."""
    for vocab, wanted in ((len(IDS), 63), (64, ALWAYS)):
        head = stubborn(vocab)
        if vocab < 64:
            says(head, IDS)
        for name, place in folders(folder / str(vocab), head).items():
            try:
                drafter = load_drafter(str(place), target_of())
            except WeightsError as error:
                raise AssertionError(f"{name}: what was written is not read") from error
            assert drafted(drafter) == [wanted] * 3, name


def test_case(tmp_path: Path) -> None:
    case(tmp_path)


def test_what_the_table_holds(tmp_path: Path) -> None:
    """Offsets in int64, and marks in bool where an id can be said, and nowhere else."""
    head = stubborn()
    says(head, IDS)
    for place in folders(tmp_path, head).values():
        held: dict[str, Tensor] = {}
        change_tensors(place, held.update)
        assert held["d2t"].tolist() == [3, 9, 9, 37, 59] and held["d2t"].dtype == torch.int64
        assert held["t2d"].nonzero().flatten().tolist() == IDS and held["t2d"].dtype == torch.bool


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda held: held.pop("d2t"), "lacks d2t"),
        (lambda held: held["d2t"].__setitem__(4, 60), "d2t leads to ids from 3 to 64; allowed: 0 to 63"),
        (lambda held: held["d2t"].add_(torch.arange(5)), "d2t leads to ids from 3 to 67; allowed: 0 to 63"),
        (lambda held: held["d2t"].zero_(), "t2d marks 5 ids, and they are not the 5 that d2t leads to"),
    ],
)
def test_a_table_that_is_wrong_is_refused(change: Any, message: str, tmp_path: Path) -> None:
    head = stubborn()
    says(head, IDS)
    for name, place in folders(tmp_path, head).items():
        with pytest.raises(WeightsError, match=message):
            load_drafter(str(change_tensors(place, change)), target_of())
        assert name


def ids_for_offsets(monkeypatch: pytest.MonkeyPatch) -> None:
    """The writer saves the ids themselves."""
    honest = stored.tensors_of

    def written(head: Head, dtype: torch.dtype) -> dict[str, Tensor]:
        found = honest(head, dtype)
        return found | ({"d2t": head.target_ids} if "d2t" in found else {})

    for module in (safeailab, sglang, speculators, vllm):
        monkeypatch.setattr(module, "tensors_of", written)


def offsets_for_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reader takes what the table holds for ids."""
    honest = Head.target_ids.fget
    assert honest is not None
    monkeypatch.setattr(Head, "target_ids", property(lambda self: honest(self) if self.d2t is None else self.d2t))


def no_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reader counts: draft ids are the first of the vocabulary."""
    monkeypatch.setattr(Head, "target_ids", property(lambda self: torch.arange(self.shape.draft_vocab_size)))


@pytest.mark.parametrize("plant", [ids_for_offsets, offsets_for_ids, no_table])
def test_planted_fault(plant: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    with must_fail():
        case(tmp_path)
