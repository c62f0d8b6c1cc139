"""AdamW is torch's own; Muon moves a matrix in all its directions alike; what either remembers is enough to go on."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lessons import settings_of
from outpace.drafters.medusa_heads import MedusaHeads, MedusaShape
from outpace.training.optimiser import TABLES, Optimiser

RATE = 0.01


class Pupil(nn.Module):
    """A matrix inside, a vector, rows of tokens, and what is not trained."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(5)
        self.inner = nn.Linear(6, 4)
        self.lm_head = nn.Linear(4, 9, bias=False)
        self.frozen = nn.Linear(2, 2)
        self.frozen.requires_grad_(False)
        for weight in self.parameters():
            weight.data = torch.randn(weight.shape, generator=generator)


def moved(pupil: nn.Module, optimiser: Any, steps: int, first: int = 0) -> None:
    for step in range(first, first + steps):
        generator = torch.Generator().manual_seed(step)
        for name, weight in pupil.named_parameters():
            noise = torch.randn(weight.shape, generator=generator)
            weight.grad = None if name.startswith("frozen") else noise
        if isinstance(optimiser, Optimiser):
            optimiser.step(RATE / (step + 1))
            optimiser.forget()
        else:
            for group in optimiser.param_groups:
                group["lr"] = RATE / (step + 1)
            optimiser.step()
    assert all(weight.grad is None for weight in pupil.parameters()) or not isinstance(optimiser, Optimiser)


def weights_of(pupil: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in pupil.state_dict().items()}


def same(first: dict[str, Tensor], second: dict[str, Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def test_adamw_is_torchs_and_vectors_do_not_decay() -> None:
    pupil = Pupil()
    twin = copy.deepcopy(pupil)
    moved(pupil, Optimiser(pupil, settings_of(weight_decay=0.3, learning_rate=RATE)), 4)
    groups: list[dict[str, Any]] = [
        {"params": [twin.inner.weight, twin.lm_head.weight], "weight_decay": 0.3},
        {"params": [twin.inner.bias], "weight_decay": 0.0},
    ]
    moved(twin, torch.optim.AdamW(groups, RATE, (0.9, 0.95)), 4)
    assert same(weights_of(pupil), weights_of(twin))


def test_muon_moves_a_matrix_in_all_directions_alike() -> None:
    """Gradients of one strong direction: AdamW's step has one as well, Muon's has none.

    The iteration that finds the nearest orthogonal matrix is a rough one: its singular values lie within 0.5 to 1.3.
    """
    ratios = {}
    for optimiser in ("adamw", "muon"):
        pupil = Pupil()
        before = pupil.inner.weight.detach().clone()
        factor = {"muon_factor": 3.0} if optimiser == "muon" else {}
        taking = Optimiser(pupil, settings_of(optimiser=optimiser, learning_rate=RATE, **factor))
        for weight in pupil.parameters():
            weight.grad = torch.ones_like(weight) if weight.requires_grad else None
        strong = 20 * torch.outer(torch.tensor([1.0, -1, 1, 1]), torch.ones(6))
        pupil.inner.weight.grad = strong + torch.randn(4, 6, generator=torch.Generator().manual_seed(0))
        taking.step(RATE)
        values = torch.linalg.svdvals(pupil.inner.weight.detach() - before)
        ratios[optimiser] = float(values[0] / values[-1])
        if optimiser == "muon":
            width = 3.0 * RATE * 0.2 * 6**0.5  # the rate, and 0.2 of the root of the longer side
            assert torch.all((values / width > 0.5) & (values / width < 1.3))
    assert ratios["muon"] < 2.2 < ratios["adamw"]


def test_rows_of_tokens_and_vectors_are_adamws_under_muon() -> None:
    """And they move as they do without it."""
    pupil, twin = Pupil(), Pupil()
    muon = Optimiser(pupil, settings_of(optimiser="muon", learning_rate=RATE))
    assert muon.kinds == {"inner.weight": "muon", "inner.bias": "adamw", "lm_head.weight": "adamw"}
    assert all(name.endswith("weight") for name in TABLES)
    moved(pupil, muon, 3)
    moved(twin, Optimiser(twin, settings_of(learning_rate=RATE)), 3)
    one, other = weights_of(pupil), weights_of(twin)
    assert not torch.equal(one.pop("inner.weight"), other.pop("inner.weight")) and same(one, other)


@pytest.mark.parametrize("optimiser", ["adamw", "muon"])
def test_what_is_remembered_is_enough_to_go_on(optimiser: str) -> None:
    """Steps 3 to 5 after three, and the same by another one that was told what the first remembered.

    Planted: one that forgot it goes elsewhere.
    """
    chosen = settings_of(optimiser=optimiser, learning_rate=RATE)
    pupil = Pupil()
    first = Optimiser(pupil, chosen)
    moved(pupil, first, 3)
    kept = {name: tensor.clone() for name, tensor in first.tensors().items()}
    twin, forgetful = copy.deepcopy(pupil), copy.deepcopy(pupil)
    moved(pupil, first, 3, first=3)
    second = Optimiser(twin, chosen)
    second.restore(kept)
    moved(twin, second, 3, first=3)
    assert same(weights_of(pupil), weights_of(twin)) and same(first.tensors(), second.tensors())
    moved(forgetful, Optimiser(forgetful, chosen), 3, first=3)
    assert not same(weights_of(pupil), weights_of(forgetful))


def test_all_that_is_remembered_has_a_name() -> None:
    pupil = Pupil()
    optimiser = Optimiser(pupil, settings_of(optimiser="muon"))
    assert optimiser.tensors() == {}
    moved(pupil, optimiser, 1)
    adam = [f"{what}.{name}" for name in ("inner.bias", "lm_head.weight") for what in ("step", "exp_avg", "exp_avg_sq")]
    assert sorted(optimiser.tensors()) == sorted(["momentum_buffer.inner.weight", *adam])


@pytest.mark.parametrize("own", [False, True])
def test_rows_of_medusas_own_are_rows_of_tokens(own: bool) -> None:
    heads = MedusaHeads(MedusaShape(hidden_size=6, vocab_size=9, heads=2, layers=1, own_head=own))
    kinds = Optimiser(heads, settings_of(optimiser="muon")).kinds
    inside = {name for name, kind in kinds.items() if kind == "muon"}
    assert inside == {"0.0.linear.weight", "1.0.linear.weight"} and ("0.1.weight" in kinds) == own
