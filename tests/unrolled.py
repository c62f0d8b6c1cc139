"""Toy heads, recordings of a made-up target, and the slow literal simulation of a training-time test.

Knows nothing of how ``unroll`` works: a draft is walked behind every prefix on its own, one token after the other, over
a list of keys, with softmax, rotation and losses written out from their definitions over the whole vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from outpace.drafters.head import Head, HeadShape
from outpace.models.rotary import Rotary
from outpace.training.batch import Batch
from outpace.training.teacher import Teacher

VOCAB = 13
FLAGS = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")


def toy_shape(**changes: Any) -> HeadShape:
    """A head of eight dimensions; flags are off unless they are named."""
    given: dict[str, Any] = {
        "hidden_size": 8,
        "target_hidden_size": 8,
        "taps": (0, 1, 2),
        "heads": 2,
        "kv_heads": 1,
        "head_width": 4,
        "feed_forward": 12,
        "vocab_size": VOCAB,
        "draft_vocab_size": 9,
        "norm_eps": 1e-5,
        "max_positions": 64,
        "rotary": {"rope_type": "default", "rope_theta": 20.0},
    }
    return HeadShape(**(given | dict.fromkeys(FLAGS, False) | changes))


def toy_head(shape: HeadShape, seed: int = 0) -> Head:
    """Lively weights in float64: scores, gates and logits that differ by whole units; a draft vocabulary with gaps."""
    head = Head(shape).double()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in head.named_parameters():
            spread = 0.3 if "norm" in name else 2 / weight.shape[-1] ** 0.5
            weight.copy_(
                spread * torch.randn(weight.shape, generator=generator, dtype=torch.float64) + ("norm" in name)
            )
    if head.d2t is not None and head.t2d is not None:
        ids = torch.randperm(shape.vocab_size, generator=generator)[: shape.draft_vocab_size].sort().values
        head.d2t.copy_(ids - torch.arange(len(ids)))
        head.t2d.zero_()
        head.t2d[ids] = True
    return head


@dataclass(frozen=True)
class Recorded:
    """A batch, and the matrices of the target that it was recorded from."""

    batch: Batch
    embeddings: Tensor
    rows: Tensor

    def teacher(self, head: Head) -> Teacher:
        return Teacher.of(self.embeddings, self.rows, head.target_ids)


def recorded(shape: HeadShape, masks: Sequence[Sequence[int]], seed: int = 0, padding: int = 0) -> Recorded:
    """Random texts, one a mask (1 where a token of an answer stands), as long as their masks; float64.

    Args:
        padding: places behind the longest text. All that stands behind a text's end is not a number, or not an id.
    """
    generator = torch.Generator().manual_seed(seed)

    def noise(*sizes: int) -> Tensor:
        return torch.randn(sizes, generator=generator, dtype=torch.float64)

    lengths = [len(mask) for mask in masks]
    size, time, width = len(masks), max(lengths) + padding, shape.target_hidden_size
    ids = torch.randint(shape.vocab_size, (size, time), generator=generator)
    features, last = noise(size, time, len(shape.taps), width), noise(size, time, width)
    embeddings, rows = noise(shape.vocab_size, width), 1.5 * noise(shape.vocab_size, width)
    logits = last @ rows.T
    argmax, sums = logits.argmax(-1), logits.logsumexp(-1)
    loss_mask = torch.ones(size, time, dtype=torch.bool)  # behind the end too: lengths alone decide there
    for row, mask in enumerate(masks):
        loss_mask[row, : len(mask)] = torch.tensor(list(mask), dtype=torch.bool)
        behind = slice(len(mask), None)
        ids[row, behind], argmax[row, behind] = -7, -7
        features[row, behind], last[row, behind], sums[row, behind] = torch.nan, torch.nan, torch.nan
    return Recorded(Batch(ids, loss_mask, features, last, argmax, sums, lengths), embeddings, rows)


# ---- drafting, literally ---------------------------------------------------------------------------------------------


def walked(head: Head, table: Tensor, ids: Tensor, features: Tensor, prefix: int, steps: int) -> list[Tensor]:
    """Draft logits of each step behind the prefix 0..``prefix`` of one text, the text's own tokens fed in."""
    rotary = Rotary(head.shape.rotary, head.shape.head_width, head.shape.max_positions)
    cache: list[tuple[Tensor, Tensor]] = []

    def turned(states: Tensor, position: int) -> Tensor:
        angles = (position * rotary.inverse).repeat(2)  # tables of angles are fp32, whatever is turned by them
        left, right = states.chunk(2, -1)
        return states * angles.cos().to(states) + torch.cat((-right, left), -1) * angles.sin().to(states)

    def step(hidden: Tensor, place: int) -> Tensor:
        """Reads the token behind ``place``, and stands at ``place``."""
        residual, queries, keys, values = head.enter(table[ids[place + 1]], hidden)
        cache.append((turned(keys, place), values))
        queries = turned(queries, place)
        mixed = []
        for index, query in enumerate(queries):
            own = index * head.shape.kv_heads // head.shape.heads
            scores = torch.stack([query @ key[own] for key, _ in cache]) / head.shape.head_width**0.5
            weights = scores.exp() / scores.exp().sum()
            mixed.append(sum(weight * value[own] for weight, (_, value) in zip(weights, cache, strict=True)))
        return head.leave(residual, torch.cat(mixed))

    for place in range(prefix + 1):
        out = step(head.fuse(features[place]), place)
    logits = [head.logits(out)]
    for later in range(1, steps):
        out = step(head.feed(out), prefix + later)
        logits.append(head.logits(out))
    return logits


def simulated(
    head: Head, made: Recorded, steps: int, loss: str = "cross-entropy", mask_outside: bool = True
) -> dict[str, Tensor]:
    """Every sum of ``StepCounts`` by step, the losses with their gradient."""
    batch, target_ids = made.batch, head.target_ids
    table = made.embeddings if head.embed_tokens is None else head.embed_tokens.weight
    names = ("losses", "weights", "places", "matches", "reached", "kept", "accepted")
    sums = {name: [torch.zeros((), dtype=torch.float64) for _ in range(steps)] for name in names}
    for row, length in enumerate(batch.lengths):
        mask = batch.loss_mask[row, :length].tolist()
        for prefix in range(length - 2):
            depth = min(steps, length - 2 - prefix)
            if not any(mask[prefix + 2 : prefix + 2 + depth]):
                continue
            logits = walked(head, table, batch.ids[row], batch.features[row], prefix, depth)
            alive = True
            for step in range(depth):
                label, law_at = prefix + 2 + step, prefix + 1 + step
                if not mask[label]:
                    alive = False
                    continue
                law = (made.rows @ batch.last_normed[row, law_at]).softmax(-1)
                likeliest = int(law.argmax())
                weight = float(likeliest in target_ids.tolist() or not mask_outside)
                draft = torch.zeros_like(law).index_put((target_ids,), logits[step].softmax(-1))
                right = int(draft.argmax()) == likeliest
                sums["losses"][step] = sums["losses"][step] + weight * _by_definition(loss, draft, law, target_ids)
                for name, value in (
                    ("weights", weight),
                    ("places", 1),
                    ("matches", right),
                    ("reached", alive),
                    ("kept", alive and right),
                    ("accepted", torch.minimum(draft, law).sum().detach()),
                ):
                    sums[name][step] = sums[name][step] + value
                alive = alive and right
    return {name: torch.stack(values) for name, values in sums.items()}


def _by_definition(loss: str, draft: Tensor, law: Tensor, ids: Tensor) -> Tensor:
    """Over the whole vocabulary."""
    if loss == "cross-entropy":
        return -(law[ids] / law[ids].sum() * draft[ids].log()).sum()
    assert loss == "total-variation"
    return (draft - law).abs().sum() / 2


def gradients(head: Head, total: Tensor) -> dict[str, Tensor]:
    """Of every parameter by name; 0 where it plays no part."""
    named = dict(head.named_parameters())
    nothing = [None] * len(named)
    found = torch.autograd.grad(total, list(named.values()), allow_unused=True) if total.requires_grad else nothing
    pairs = zip(named.items(), found, strict=True)
    return {name: torch.zeros_like(weight) if each is None else each for (name, weight), each in pairs}
