"""The arithmetic of Medusa heads is what is published, with rows of their own and without, and their names are too."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from medusas import medusa_shape, random_medusa, spoken
from outpace.drafters.medusa_heads import MedusaHeads
from outpace.errors import WeightsError
from outpace.models.ends import SharedHead

GENERATOR = torch.Generator().manual_seed(5)
ROWS = torch.randn(64, 32, generator=GENERATOR, dtype=torch.float64)
STATES = torch.randn(3, 5, 32, generator=GENERATOR, dtype=torch.float64)
SHARED = SharedHead.of_rows(ROWS)
KINDS = [{"layers": layers, "own_head": own} for layers in (1, 2) for own in (False, True)]


def anew(heads: MedusaHeads) -> Tensor:
    """What is published, state by state."""
    flat = [torch.stack(spoken(heads, state, ROWS)) for state in STATES.flatten(0, 1)]
    return torch.stack(flat).unflatten(0, STATES.shape[:2])


@pytest.mark.parametrize("kind", KINDS, ids=str)
@torch.inference_mode()
def test_it_is_what_is_published(kind: dict[str, Any]) -> None:
    heads = random_medusa(medusa_shape(**kind), dtype=torch.float64)
    torch.testing.assert_close(heads.logits(STATES, SHARED), anew(heads), rtol=0, atol=1e-9)
    for number, one in enumerate(anew(heads).unbind(2)):
        for other in anew(heads).unbind(2)[:number]:
            assert (one - other).abs().amax() > 1, "two heads that say the same would hide one in the other's place"


@pytest.mark.parametrize("own", [False, True])
def test_names_and_shapes(own: bool) -> None:
    """Typed from the published layout: three heads of two blocks."""
    expected: dict[str, tuple[int, ...]] = {}
    for head in "012":
        for block in "01":
            expected |= {f"{head}.{block}.linear.weight": (32, 32), f"{head}.{block}.linear.bias": (32,)}
        expected |= {f"{head}.2.weight": (64, 32)} if own else {}
    heads = MedusaHeads(medusa_shape(heads=3, layers=2, own_head=own))
    assert {name: tuple(weight.shape) for name, weight in heads.state_dict().items()} == expected


@pytest.mark.parametrize("layers", [1, 2])
def test_new_heads_say_what_the_target_says(layers: int) -> None:
    """Their blocks pass the state on, to the bit: training begins there."""
    heads = MedusaHeads(medusa_shape(layers=layers)).double()
    assert torch.equal(heads.states(STATES), STATES[:, :, None].expand(-1, -1, 4, -1))
    torch.testing.assert_close(heads.logits(STATES, SHARED), (STATES @ ROWS.mT)[:, :, None].expand(-1, -1, 4, -1))


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_gradients_reach_every_weight(kind: dict[str, Any]) -> None:
    """Of new heads too: what is zero must not stay so."""
    fresh = MedusaHeads(medusa_shape(**kind)).double()
    for heads in (fresh, random_medusa(medusa_shape(**kind), dtype=torch.float64)):
        (heads.logits(STATES, SHARED) ** 2).sum().backward()
        for name, weight in heads.named_parameters():
            assert weight.grad is not None and bool(weight.grad.abs().sum() > 0), name
    assert ROWS.grad is None


@pytest.mark.parametrize("own", [False, True])
def test_no_more_heads_are_computed_than_asked_for(own: bool) -> None:
    heads = random_medusa(medusa_shape(own_head=own), dtype=torch.float64)
    asked: list[int] = []
    for number, head in enumerate(heads):
        for part in head.children():
            part.register_forward_hook(lambda *_, number=number: asked.append(number))
    whole = heads.logits(STATES, SHARED)
    assert asked == [0, 1, 2, 3] * (2 if own else 1)
    for count in (1, 3):
        asked.clear()
        torch.testing.assert_close(heads.logits(STATES, SHARED, count), whole[:, :, :count])
        assert set(asked) == set(range(count))


def test_the_targets_head_is_asked_once_for_all() -> None:
    sizes: list[tuple[int, ...]] = []

    def product(states: Tensor) -> Tensor:
        sizes.append(tuple(states.shape))
        return states @ ROWS.mT

    random_medusa(dtype=torch.float64).logits(STATES, SharedHead(product, torch.float64), 3)
    assert sizes == [(3, 5, 3, 32)]
    with pytest.raises(TypeError, match="Medusa heads without rows of their own were given no head of the target"):
        random_medusa().logits(STATES.float())


@torch.inference_mode()
def test_a_block_computes_in_the_dtype_of_its_weights() -> None:
    heads = random_medusa(medusa_shape(layers=2, own_head=True)).to(torch.bfloat16)
    states, logits = heads.states(STATES.float()), heads.logits(STATES.float())
    assert (states.dtype, logits.dtype) == (torch.bfloat16, torch.bfloat16)
    exact = anew(random_medusa(medusa_shape(layers=2, own_head=True), dtype=torch.float64))
    assert float((logits.double() - exact).abs().amax()) < 0.5 < float(exact.std())


@pytest.mark.parametrize("name", ["hidden_size", "vocab_size", "heads", "layers"])
def test_shapes_that_are_none(name: str) -> None:
    with pytest.raises(WeightsError, match=f"{name} of Medusa heads is 0; allowed: 1 or more"):
        medusa_shape(**{name: 0})


@pytest.mark.parametrize("name", ["hidden_size", "vocab_size", "heads", "layers", "own_head"])
def test_nothing_has_a_default(name: str) -> None:
    said = {other: value for other, value in vars(medusa_shape()).items() if other != name}
    with pytest.raises(TypeError, match=name):
        type(medusa_shape())(**said)


# ---- planted faults --------------------------------------------------------------------------------------------------


def _no_bias(heads: MedusaHeads) -> None:
    for name, weight in heads.named_parameters():
        if name.endswith("bias"):
            weight.zero_()


def _no_residual(heads: MedusaHeads) -> None:
    for head in heads:
        block = next(head.children())
        block.forward = lambda state, linear=block.linear: nn.functional.silu(linear(state))


def _other_activation(heads: MedusaHeads) -> None:
    for head in heads:
        block = next(head.children())
        block.forward = lambda state, linear=block.linear: state + linear(state).relu()


def _activated_twice(heads: MedusaHeads) -> None:
    for head in heads:
        block = next(head.children())
        block.forward = lambda state, linear=block.linear: nn.functional.silu(state + linear(state))


def _one_head_on(heads: MedusaHeads) -> None:
    parts = list(heads.children())
    for number, part in enumerate([*parts[1:], parts[0]]):
        heads[number] = part


def _blocks_swapped(heads: MedusaHeads) -> None:
    for head in heads:
        head[0], head[1] = head[1], head[0]


@pytest.mark.parametrize(
    "fault", [_no_bias, _no_residual, _other_activation, _activated_twice, _one_head_on, _blocks_swapped]
)
@torch.inference_mode()
def test_a_planted_fault_is_noticed(fault: Callable[[MedusaHeads], None]) -> None:
    honest = random_medusa(medusa_shape(layers=2), dtype=torch.float64)
    faulty = copy.deepcopy(honest)
    fault(faulty)
    apart = (faulty.logits(STATES, SHARED) - anew(honest)).abs().amax((0, 1, 3))
    assert float(apart.min()) > 0.1, "every head shows it"
