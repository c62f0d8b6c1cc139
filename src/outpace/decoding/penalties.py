"""Penalties, biases and bans: what the options change in the target's logits, as pure functions of prefix and logits.

Knows nothing of drafts or of requests: every processor is told where the text begins, and sees whole prefixes.
"""

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float, Int
from torch import Tensor


@dataclass(frozen=True)
class LogitBias:
    """Adds a number to the logits of some tokens, at every place; -inf forbids."""

    biases: tuple[tuple[int, float], ...]

    def __call__(
        self, prefix_ids: Int[Tensor, "paths length"], logits: Float[Tensor, "paths vocab"]
    ) -> Float[Tensor, "paths vocab"]:
        """The biased logits."""
        ids = torch.tensor([token for token, _ in self.biases], device=logits.device)
        values = [value for _, value in self.biases]
        added = torch.tensor(values, dtype=logits.dtype, device=logits.device).expand(len(logits), -1)
        return logits.index_add(1, ids, added)


@dataclass(frozen=True)
class RepetitionPenalty:
    """Divides positive logits of tokens that stand in prompt or text by ``penalty``, and multiplies negative ones.

    Source: Keskar et al. 1909.05858, section 4.1, with transformers' treatment of negative logits.
    """

    penalty: float

    def __call__(
        self, prefix_ids: Int[Tensor, "paths length"], logits: Float[Tensor, "paths vocab"]
    ) -> Float[Tensor, "paths vocab"]:
        """The penalised logits; a token pays once, however often it stands there."""
        seen = logits.gather(1, prefix_ids)
        return logits.scatter(1, prefix_ids, torch.where(seen < 0, seen * self.penalty, seen / self.penalty))


@dataclass(frozen=True)
class PresencePenalty:
    """Takes ``penalty`` off the logit of every token that stands in the text; the prompt does not count."""

    penalty: float
    prompt_length: int

    def __call__(
        self, prefix_ids: Int[Tensor, "paths length"], logits: Float[Tensor, "paths vocab"]
    ) -> Float[Tensor, "paths vocab"]:
        """The penalised logits; a token pays once."""
        new = prefix_ids[:, self.prompt_length :]
        return logits.scatter(1, new, logits.gather(1, new) - self.penalty)


@dataclass(frozen=True)
class FrequencyPenalty:
    """Takes ``penalty`` off the logit of a token for every time it stands in the text; the prompt does not count."""

    penalty: float
    prompt_length: int

    def __call__(
        self, prefix_ids: Int[Tensor, "paths length"], logits: Float[Tensor, "paths vocab"]
    ) -> Float[Tensor, "paths vocab"]:
        """The penalised logits."""
        new = prefix_ids[:, self.prompt_length :]
        counts = torch.zeros_like(logits).scatter_add_(1, new, torch.ones_like(new, dtype=logits.dtype))
        return logits - self.penalty * counts


@dataclass(frozen=True)
class BadWords:
    """Forbids the token that would complete one of these sequences; its beginning may stand in the prompt."""

    words: tuple[tuple[int, ...], ...]

    @cached_property
    def _groups(self) -> list[tuple[Int[Tensor, "words start"], Int[Tensor, " words"]]]:
        """The words of each length: their beginnings and their last ids."""
        lengths = sorted({len(word) for word in self.words})
        groups = [torch.tensor([word for word in self.words if len(word) == length]) for length in lengths]
        return [(group[:, :-1], group[:, -1]) for group in groups]

    def __call__(
        self, prefix_ids: Int[Tensor, "paths length"], logits: Float[Tensor, "paths vocab"]
    ) -> Float[Tensor, "paths vocab"]:
        """The logits, -inf where a sequence would become complete."""
        left, length = logits.clone(), prefix_ids.shape[1]
        for starts, lasts in self._groups:
            size = starts.shape[1]
            if size <= length:
                ends = prefix_ids[:, None, length - size :]
                path, word = (ends == starts.to(ends.device)).all(-1).nonzero(as_tuple=True)
                left[path, lasts.to(ends.device)[word]] = -math.inf
        return left


@dataclass(frozen=True)
class MinNewTokens:
    """Forbids the end of text until ``count`` tokens stand in it."""

    count: int
    prompt_length: int
    eos_ids: tuple[int, ...]

    def __call__(
        self, prefix_ids: Int[Tensor, "paths length"], logits: Float[Tensor, "paths vocab"]
    ) -> Float[Tensor, "paths vocab"]:
        """The logits, those of the end-of-text ids -inf as long as the text is too short."""
        if prefix_ids.shape[1] - self.prompt_length >= self.count:
            return logits
        return logits.index_fill(1, torch.tensor(self.eos_ids, device=logits.device), -math.inf)
