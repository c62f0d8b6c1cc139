"""Who takes a step: AdamW for all weights, or Muon for the matrices inside and AdamW for the rest.

Knows nothing of losses, schedules or several processes: it is told a rate. What it remembers goes into checkpoints by
name.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from outpace.training.ranges import ADAMW, MUON
from outpace.training.recipe import TrainSettings

TABLES = ("lm_head.weight", "embed_tokens.weight")
"""Matrices of one row a token. A row is moved by what its own token shows, so they are not made orthogonal. A module
names others of its own as ``tables``."""
_REMEMBERED = {ADAMW: ("step", "exp_avg", "exp_avg_sq"), MUON: ("momentum_buffer",)}
_MOMENTUM = 0.95


class Optimiser:
    """Moves the weights of a module by their gradients; matrices decay, vectors do not.

    Under Muon a matrix inside is moved by the orthogonal matrix nearest to its momentum, so that a few strong
    directions do not take the whole step; scaled so that its root mean square is 0.2 of the rate, where AdamW's comes
    close to the rate itself. ``muon_factor`` times the learning rate is the rate of those matrices.

    Args:
        module: fp32; those of its weights that ask for gradients are moved in place.
        settings: which optimiser, its highest rate, betas, decay and factor.

    Source: Muon as in Moonlight (Liu et al., arXiv 2502.16982), torch's own.
    """

    def __init__(self, module: nn.Module, settings: TrainSettings) -> None:
        self.weights = {name: weight for name, weight in module.named_parameters() if weight.requires_grad}
        muon, tables = settings.optimiser == MUON, (*TABLES, *getattr(module, "tables", ()))
        self.kinds = {
            name: MUON if muon and each.dim() == 2 and not name.endswith(tables) else ADAMW
            for name, each in self.weights.items()
        }
        self.factors = {ADAMW: 1.0, MUON: settings.muon_factor}
        inside, rest = (
            [self.weights[name] for name in self.kinds if self.kinds[name] == kind] for kind in (MUON, ADAMW)
        )
        decay, highest = settings.weight_decay, settings.learning_rate
        self.parts: dict[str, torch.optim.Optimizer] = {}
        if rest:
            groups = [
                {"params": [weight for weight in rest if weight.dim() > 1], "weight_decay": decay},
                {"params": [weight for weight in rest if weight.dim() <= 1], "weight_decay": 0.0},
            ]
            first, second = settings.betas
            self.parts[ADAMW] = torch.optim.AdamW(groups, highest, (first, second))
        if inside:
            self.parts[MUON] = torch.optim.Muon(
                inside, highest, weight_decay=decay, momentum=_MOMENTUM, adjust_lr_fn="match_rms_adamw"
            )

    def step(self, learning_rate: float) -> None:
        """Move all weights by their gradients."""
        for kind, part in self.parts.items():
            for group in part.param_groups:
                group["lr"] = learning_rate * self.factors[kind]
            part.step()

    def forget(self) -> None:
        """Drop the gradients."""
        for part in self.parts.values():
            part.zero_grad()

    def tensors(self) -> dict[str, Tensor]:
        """All that is remembered, by what it is and of which weight."""
        return {
            f"{what}.{name}": tensor
            for name, weight in self.weights.items()
            for what, tensor in self._state(name).get(weight, {}).items()
        }

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Remember what ``tensors`` gave."""
        for name, weight in self.weights.items():
            found = {what: tensors.get(f"{what}.{name}") for what in _REMEMBERED[self.kinds[name]]}
            self._state(name)[weight] = {
                what: tensor if what == "step" else tensor.to(weight.device)
                for what, tensor in found.items()
                if tensor is not None
            }

    def _state(self, name: str) -> Any:
        return self.parts[self.kinds[name]].state
