"""The linear layers of a module, exchanged for packed ones.

Knows nothing of what the module is. A weight that two modules share is packed for the linear layer and stays as it is
for the other.
"""

from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from outpace.models.matmul import Matmul, packing_pays


class Packed(nn.Module):
    """A linear layer whose weight lies packed; ``weight`` shows its dtype and device to those who ask."""

    def __init__(self, weight: Float[Tensor, "outputs inputs"], bias: Float[Tensor, " outputs"] | None) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self.matmul = Matmul(weight, bias, packed=True)
        self.weight, self.bias = self.matmul.weight, bias

    def forward(self, x: Float[Tensor, "*lead inputs"]) -> Float[Tensor, "*lead outputs"]:
        """``x @ weight.T + bias``."""
        return self.matmul(x)


def pack(module: Any, *, packed: bool | None = None) -> bool:
    """Exchange every plain linear layer of the module, ``Conv1D`` of GPT-2 included, for a packed one.

    Args:
        module: changed in place.
        packed: whether to; None measures whether it pays, on the largest of the inner layers.

    Returns:
        Whether it was done.
    """
    names = [name for name, part in module.named_modules() if _weight(part) is not None]
    packed = _pays(module, names) if packed is None else packed
    for name in names if packed else ():
        part = module.get_submodule(name)  # one at a time: each weight goes when its packed copy has come
        owner, _, attribute = name.rpartition(".")
        bias = None if part.bias is None else part.bias.detach()
        setattr(module.get_submodule(owner), attribute, Packed(_weight(part), bias))
    return packed


def _pays(module: Any, names: list[str]) -> bool:
    head = module.get_output_embeddings()
    inner = [part for name in names if (part := module.get_submodule(name)) is not head]
    return bool(inner) and packing_pays(max(map(_weight, inner), key=Tensor.numel))


def _weight(part: Any) -> Any:
    """The weight as ``[outputs, inputs]``, where the module is a linear layer and nothing more."""
    if type(part) is nn.Linear:
        return part.weight.detach()
    # Named, not imported: it is transformers', and its weight lies the other way round.
    return part.weight.detach().mT if type(part).__name__ == "Conv1D" and hasattr(part, "nx") else None
