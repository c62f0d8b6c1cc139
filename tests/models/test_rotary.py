"""Rotary positions: a rotation by distance, tables that grow, scalings refused by name."""

from typing import Any

import pytest
import torch
from torch.testing import assert_close

from outpace.errors import UnsupportedError, WeightsError
from outpace.models.rotary import Rotary, rotary_parameters, rotate
from outpace.models.shape import Shape
from outpace.models.toy import tiny_config


def plain(width: int = 8) -> Rotary:
    return Rotary({"rope_type": "default", "rope_theta": 100.0}, width, 64)


def turned(rotary: Rotary, vector: torch.Tensor, position: int) -> torch.Tensor:
    cos, sin = rotary.at(torch.tensor([[position]]), vector.dtype)
    return rotate(vector.view(1, 1, 1, -1), cos, sin).flatten()


def test_products_depend_on_the_distance_alone() -> None:
    """And lengths do not change; position 0 does not turn."""
    query, key = torch.randn(2, 8, generator=torch.Generator().manual_seed(0))
    rotary = plain()
    assert_close(turned(rotary, query, 0), query)
    assert_close(turned(rotary, query, 37).norm(), query.norm())
    products = [turned(rotary, query, start + 5) @ turned(rotary, key, start) for start in (0, 3, 40)]
    assert_close(products, [products[0]] * 3, atol=1e-5, rtol=0)
    assert not torch.isclose(products[0], turned(rotary, query, 6) @ turned(rotary, key, 0))


def test_tables_grow_as_positions_are_asked_for() -> None:
    """Far positions are exact, near ones stay what they were, each dtype has its own table, none is made twice."""
    rotary = plain()
    near = torch.tensor([[0, 1, 200]])
    before = rotary.at(near, torch.float32)
    table = rotary.tables[torch.float32, torch.device("cpu")][0]
    rotary.at(torch.tensor([[255]]), torch.float32)
    assert rotary.tables[torch.float32, torch.device("cpu")][0] is table
    cos, sin = rotary.at(torch.tensor([[256, 1000]]), torch.float32)
    angles = torch.tensor([[256.0], [1000.0]]) * rotary.inverse
    assert_close(cos[0, :, 0], torch.cat((angles.cos(), angles.cos()), -1))
    assert_close(sin[0, :, 0], torch.cat((-angles.sin(), angles.sin()), -1))
    assert_close(rotary.at(near, torch.float32), before, rtol=0, atol=0)
    assert rotary.at(near, torch.bfloat16)[0].dtype == torch.bfloat16


@pytest.mark.parametrize("kind", ["dynamic", "longrope", "su", "mrope"])
def test_scalings_that_are_not_fixed_are_refused_by_name(kind: str) -> None:
    """Before any weights are read, in both layouts."""
    for said in ({"rope_scaling": {"type": kind, "factor": 2.0}}, {"rope_parameters": {"rope_type": kind}}):
        with pytest.raises(
            UnsupportedError,
            match=f"the rotary scaling is '{kind}'; the fast lane knows default, linear, llama3, yarn\n",
        ):
            Shape.from_config(tiny_config(**said))


@pytest.mark.parametrize(("kind", "lacks"), [("linear", "factor"), ("llama3", "factor"), ("yarn", "factor")])
def test_a_scaling_without_its_numbers(kind: str, lacks: str) -> None:
    with pytest.raises(WeightsError, match=f"the rotary scaling '{kind}' has no '{lacks}'"):
        Rotary({"rope_type": kind, "rope_theta": 100.0}, 8, 64)


@pytest.mark.parametrize(
    ("said", "text"),
    [
        (
            {"rope_parameters": {"full_attention": {"rope_theta": 1e4}}},
            r"differ by layer \(full_attention\); allowed: one",
        ),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5; the fast lane knows 1"),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor is 0.5; the fast lane knows 1"),
    ],
)
def test_settings_that_cannot_be_honoured(said: dict[str, Any], text: str) -> None:
    with pytest.raises(UnsupportedError, match=text):
        rotary_parameters(said)
