"""A packed linear layer is the linear layer; whether packing pays is measured, and never fails."""

import pytest
import torch
from torch.testing import assert_close

from outpace.models.matmul import Matmul, packing_pays

packs = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this build of torch has no packed layout")


def random(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=torch.float32).to(dtype)


@packs
@pytest.mark.parametrize("rows", [(1,), (1, 1), (2, 7), (300,)])
@pytest.mark.parametrize("biased", [False, True])
def test_packed_is_unpacked(rows: tuple[int, ...], biased: bool) -> None:
    """One row, a draft, a prefill; unit variance, so 1e-5 is absolute."""
    weight, bias = random(40, 24) / 24**0.5, random(40) if biased else None
    x = random(*rows, 24)
    expected = torch.nn.functional.linear(x, weight, bias)
    packed = Matmul(weight, bias, packed=True)(x)
    assert packed.shape == expected.shape
    assert_close(packed, expected, atol=1e-5, rtol=0)
    assert_close(Matmul(weight, bias, packed=False)(x), expected, atol=0, rtol=0)


@packs
def test_a_slice_can_be_packed() -> None:
    """As a fused weight may be cut from a larger tensor."""
    weight, x = random(40, 48)[::2, 24:], random(3, 24)
    assert_close(Matmul(weight, packed=True)(x), x @ weight.T, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_whether_packing_pays_is_a_bool_for_every_dtype(dtype: torch.dtype) -> None:
    assert type(packing_pays(random(16, 8, dtype=dtype), repeats=2)) is bool


def test_packing_never_pays_where_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    assert packing_pays(torch.empty(16, 8, device="meta")) is False
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", False)
    assert packing_pays(random(16, 8)) is False
