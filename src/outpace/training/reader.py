"""A target read for its features: what it shows at the taps at every place, and what it says where an answer follows.

Knows nothing of files or batches. The head is the dearest part: it is asked only where a draft will be judged, that is
before tokens of answers, and of its rows of logits no more is kept than the likeliest token and the log-sum-exp.
"""

import math
from collections.abc import Sequence
from itertools import accumulate, pairwise

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from outpace.errors import NumericsError, UnsupportedError, UsageError
from outpace.models.ends import read_head
from outpace.models.matmul import Matmul, packing_pays
from outpace.models.refine import refine
from outpace.models.target import Tap, Target, padded
from outpace.models.transformer import Transformer
from outpace.training.masks import Sample
from outpace.training.shards import Recorded
from outpace.verification.probabilities import argmax

ROWS = 8
"""Texts of one forward: of like length, they waste little; many short ones are read faster than one by one."""
LOGITS = 1 << 23
"""Logits at a time: of more, every block of memory goes back to the system and comes back page by page."""
SUMS = 1 << 20
"""Logits to be summed at a time: they stay in the processor's cache."""
PROBE = 8


class Reader:
    """Reads texts with one target.

    Args:
        target: a model that shows features.
        taps: which of its states, as indices of ``hidden_states``, rising: 0 are the embeddings, k is the output of
            layer k. There may be none: the state that the target's head reads is read in any case.

    Raises:
        UsageError: taps that do not rise, or one that the target does not have.
        UnsupportedError: the target's logits are not those of its head's rows alone: scaled, capped or with a bias.
        NumericsError: its logits are not finite.
        WeightsError: the rows of its head cannot be found.
    """

    def __init__(self, target: Target, taps: Sequence[int]) -> None:
        self.target, self.taps = target, tuple(taps)
        _check_taps(target, self.taps)
        self.asked: tuple[Tap, ...] = (*self.taps, "last_normed")
        if isinstance(target, Transformer):
            self.head, self.refining = target.head, target.head_rows
        else:
            rows = read_head(target)
            self.head, self.refining = Matmul(rows, packed=packing_pays(rows)), None
        self.width = self._probe()

    def num_bytes(self, tokens: int) -> int:
        """What the recording of so many tokens takes."""
        state = self.width * self.target.dtype.itemsize
        return tokens * (len(self.asked) * state + sum((4, 1, 4, 4)))  # ids, mask, likeliest token, log-sum-exp

    @torch.no_grad()
    def read(self, samples: Sequence[Sample]) -> Recorded:
        """What the target shows and says of these texts, on its own device.

        Raises:
            UsageError: a sample holds an id that the target does not know.
            NumericsError: a state or a logit is not finite; the sample is named.
        """
        lengths = [len(sample) for sample in samples]
        ends = list(accumulate(lengths))
        ids, mask = (torch.cat([getattr(one, name) for one in samples]) for name in ("ids", "loss_mask"))
        device, dtype = self.target.device, self.target.dtype
        self._check_ids(samples)
        states = torch.empty(ends[-1], len(self.asked), self.width, dtype=dtype, device=device)
        by_length = sorted(range(len(samples)), key=lambda place: -lengths[place])
        for start in range(0, len(samples), ROWS):
            group = by_length[start : start + ROWS]
            for place, seen in zip(group, self._prefill([samples[place] for place in group]), strict=True):
                states[ends[place] - lengths[place] : ends[place]] = seen[: lengths[place]]
        if not bool(states.isfinite().all()):
            self._refuse(samples, ends, ~states.isfinite().all(-1).all(-1), "states")
        law = before_answers(mask, ends).to(device)
        likeliest = torch.full((ends[-1],), -1, dtype=torch.int32, device=device)
        logsumexp = torch.zeros(ends[-1], dtype=torch.float32, device=device)
        likeliest[law], logsumexp[law] = self._law(states[law, -1])
        if not bool(logsumexp.isfinite().all()):
            self._refuse(samples, ends, ~logsumexp.isfinite(), "logits")
        on = (ids.to(device), mask.to(device))
        # Two tensors of their own: a batch that is cut out of one of them does not keep the other alive.
        return Recorded(*on, states[:, :-1].contiguous(), states[:, -1].contiguous(), likeliest, logsumexp, lengths)

    def _prefill(self, samples: Sequence[Sample]) -> Float[Tensor, "rows time taps hidden"]:
        rows = [sample.ids.tolist() for sample in samples]
        lengths = [len(row) for row in rows]
        state = self.target.open(len(rows), max(lengths))
        features = self.target.prefill(state, padded(rows, 0), lengths, self.asked).features
        assert features is not None, "taps were asked for"
        return features

    def _law(self, hidden: Float[Tensor, "places hidden"]) -> tuple[Int[Tensor, " places"], Float[Tensor, " places"]]:
        """The likeliest token and the log-sum-exp behind each place, by the logits that decoding goes by."""
        vocab = self.target.vocab_size
        tokens, sums = [], []
        for part in _pieces(hidden, LOGITS // vocab):
            logits = _pieces(self.head(part), SUMS // vocab)
            for few, states in zip(logits, _pieces(part, SUMS // vocab), strict=True):
                token, total = self._summed(few, states)
                tokens.append(token.int())
                sums.append(total.float())
        empty = torch.empty(0, device=hidden.device)
        return torch.cat([empty.int(), *tokens]), torch.cat([empty, *sums])

    def _summed(
        self, logits: Float[Tensor, "few vocab"], states: Float[Tensor, "few hidden"]
    ) -> tuple[Int[Tensor, " few"], Float[Tensor, " few"]]:
        logits = self._fine(logits, states)
        token, largest = argmax(logits)
        return token, largest - logits.log_softmax(-1).gather(1, token[:, None]).squeeze(1)

    def _fine(
        self, logits: Float[Tensor, "few vocab"], states: Float[Tensor, "few hidden"]
    ) -> Float[Tensor, "few vocab"]:
        """Logits in fp32 or better, as fine as the target gives them."""
        if logits.dtype.itemsize >= 4:
            return logits
        return logits.float() if self.refining is None else refine(logits, states, self.refining)

    def _probe(self) -> int:
        """The width of a state, found by reading a few tokens; their logits are compared with the head's."""
        ids = torch.arange(min(PROBE, self.target.vocab_size, self.target.max_positions))[None]
        scores = self.target.prefill(self.target.open(1, ids.shape[1]), ids, [ids.shape[1]], self.asked)
        assert scores.features is not None, "taps were asked for"
        states, said = scores.features[0, -1:, -1], scores.logits[0].float()
        ours = self._fine(self.head(states), states).float()
        tolerance = 1e-3 if self.target.dtype.itemsize >= 4 else 2.0**-5
        apart, scale = float((ours - said).abs().max()), float(said.abs().max())
        if not math.isfinite(scale):
            raise NumericsError(
                f"the logits of the target {self.target.name!r} behind its first ids are not finite",
                hint="the weights are damaged, or its dtype has too little range",
            )
        if not apart <= tolerance * scale:
            raise UnsupportedError(
                f"the logits of the target {self.target.name!r} are not its head times its last normed state: they lie "
                f"{apart:.3g} apart where the largest is {scale:.3g}; allowed: a plain head",
                hint="logits that are scaled or capped cannot be taught from states alone",
            )
        return states.shape[-1]

    def _check_ids(self, samples: Sequence[Sample]) -> None:
        for sample in samples:
            low, high = int(sample.ids.min()), int(sample.ids.max())
            if low < 0 or high >= self.target.vocab_size:
                raise UsageError(
                    f"{sample.key} holds the id {low if low < 0 else high}; allowed: 0 to {self.target.vocab_size - 1}"
                )

    def _refuse(self, samples: Sequence[Sample], ends: list[int], wrong: Bool[Tensor, " places"], what: str) -> None:
        place = int(wrong.nonzero()[0])
        sample = next(one for one, end in zip(samples, ends, strict=True) if place < end)
        dtype = str(self.target.dtype).removeprefix("torch.")
        raise NumericsError(
            f"the target's {what} in {sample.key} are not finite in {dtype}; allowed: finite ones",
            hint="load the target in a dtype of wider range, such as bf16 or fp32",
        )


def _pieces(rows: Float[Tensor, "rows width"], size: int) -> list[Tensor]:
    size = max(1, size)
    return [rows[start : start + size] for start in range(0, len(rows), size)]


def before_answers(mask: Bool[Tensor, " places"], ends: Sequence[int]) -> Bool[Tensor, " places"]:
    """The places whose next token is an answer's; texts stand one behind the other and end at ``ends``."""
    law = torch.cat((mask[1:], mask.new_zeros(1)))
    law[torch.tensor(ends) - 1] = False
    return law


def _check_taps(target: Target, taps: tuple[int, ...]) -> None:
    if any(left >= right for left, right in pairwise(taps)):
        raise UsageError(f"the taps are {taps}; allowed: each beyond the one before")
    layers = target.shape.layers if isinstance(target, Transformer) else None
    for tap in taps:
        if tap < 0 or (layers is not None and tap > layers):
            most = "its number of layers" if layers is None else f"{layers} (the last layer's output)"
            raise UsageError(f"the tap {tap} is not of {target.name!r}; allowed: 0 (the embeddings) to {most}")
