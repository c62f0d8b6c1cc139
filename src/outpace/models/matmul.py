"""Linear layers whose weights may be packed once into the layout that the processor's kernels read.

Knows nothing of models. On CPU, torch re-orders a weight inside every ``F.linear``; packing it once at load saves
that work in every forward. Whether it pays depends on processor, dtype and build, so it is measured, not assumed.
"""

import time

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional


class Matmul:
    """``x @ weight.T + bias``.

    Args:
        weight: ``[outputs, inputs]``.
        bias: ``[outputs]``, or None.
        packed: keep only a packed copy of the weight; what ``packing_pays`` says.
    """

    def __init__(
        self, weight: Float[Tensor, "outputs inputs"], bias: Float[Tensor, " outputs"] | None = None, *, packed: bool
    ) -> None:
        self.bias = bias
        self.packed = packed
        self.weight = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), 1) if packed else weight

    def __call__(self, x: Float[Tensor, "*lead inputs"]) -> Float[Tensor, "*lead outputs"]:
        if self.packed:
            out: Tensor = torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, "none", [], "")
            return out
        return functional.linear(x, self.weight, self.bias)


def packing_pays(weight: Float[Tensor, "outputs inputs"], repeats: int = 51) -> bool:
    """Whether a packed copy of this weight multiplies one row faster, here and now; False where there is none.

    Timed side by side, again and again: packing is declined where the median of the ratios says that it loses by a
    tenth. A busy machine stalls both alike, and then decides as a quiet one does: what is packed also decides how sums
    are rounded.
    """
    if weight.device.type != "cpu" or not torch.backends.mkldnn.enabled:
        return False
    row = torch.ones(1, weight.shape[1], dtype=weight.dtype)
    try:
        plain, packed = Matmul(weight, packed=False), Matmul(weight, packed=True)
        ratios = sorted(_seconds(packed, row) / _seconds(plain, row) for _ in range(repeats))
    except (RuntimeError, NotImplementedError, AttributeError):  # a build without oneDNN, or without this dtype
        return False
    return ratios[repeats // 2] < 1.1


def _seconds(matmul: Matmul, row: Float[Tensor, "1 inputs"]) -> float:
    start = time.perf_counter()
    matmul(row)
    return time.perf_counter() - start
