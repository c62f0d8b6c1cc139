"""Small Medusa heads that the tests of drafting share: random, set by hand, or with texts known by heart.

Knows nothing of what is tested. Import it as ``medusas``: ``conftest.py`` puts this folder on the path.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from heads import CLOSE, Played, features_of, paths_of
from outpace.drafters.drafter import Proposal
from outpace.drafters.medusa import Medusa
from outpace.drafters.medusa_heads import MedusaHeads, MedusaShape
from outpace.models.function import FunctionTarget
from outpace.models.shape import Shape
from outpace.models.target import Scores, State, Tap, Target
from outpace.models.toy import tiny_config, tiny_tensors
from outpace.models.transformer import Transformer
from outpace.verification.tree import DraftTree

STATE: tuple[Any, ...] = ("last_normed",)


def medusa_shape(**changes: Any) -> MedusaShape:
    """Four heads for the tiny targets: 64 tokens, 32 wide."""
    said: dict[str, Any] = {"hidden_size": 32, "vocab_size": 64, "heads": 4, "layers": 1, "own_head": False}
    return MedusaShape(**(said | changes))


def random_medusa(shape: MedusaShape | None = None, seed: int = 0, dtype: torch.dtype = torch.float32) -> MedusaHeads:
    """Weights and biases that all matter, so that every head says something of its own."""
    heads = MedusaHeads(shape or medusa_shape())
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in heads.named_parameters():
            noise = torch.randn(weight.shape, generator=generator)
            sharp = 2.0 if "linear" in name else 3.0
            weight.copy_(0.5 * noise if weight.dim() == 1 else noise * sharp / math.sqrt(weight.shape[1]))
    return heads.to(dtype).eval()


def spoken(heads: MedusaHeads, state: Tensor, rows: Tensor | None = None) -> list[Tensor]:
    """Draft logits of every head from one state, written out from the weights by their published names.

    Args:
        rows: those of the target's head, for heads that have none.
    """
    weights, shape, said = heads.state_dict(), heads.shape, []
    for number in range(shape.heads):
        x = state
        for layer in range(shape.layers):
            z = weights[f"{number}.{layer}.linear.weight"] @ x + weights[f"{number}.{layer}.linear.bias"]
            x = x + z / (1 + (-z).exp())
        own = weights[f"{number}.{shape.layers}.weight"] if shape.own_head else rows
        assert own is not None
        said.append(own @ x)
    return said


# ---- a target whose last state is known ------------------------------------------------------------------------------


class Showing(FunctionTarget):
    """A target whose next token depends on the last one alone, by a table; its last state says which token that was."""

    def __init__(self, table: Tensor, **shown: Any) -> None:
        super().__init__(lambda ids: table[ids], table.shape[1], **shown)

    def prefill(self, state: State, ids: Tensor, lengths: list[int], taps: tuple[Tap, ...] = ()) -> Scores:
        return self._showing(super().prefill(state, ids, lengths), ids, taps)

    def score(self, state: State, last: Tensor, tree: DraftTree, taps: tuple[Tap, ...] = ()) -> Scores:
        read = torch.cat((last[:, None], tree.tokens.clamp(min=0)), 1)
        return self._showing(super().score(state, last, tree), read, taps)

    def _showing(self, scores: Scores, read: Tensor, taps: tuple[Tap, ...]) -> Scores:
        assert taps in ((), STATE)
        states = one_hot(read, self.vocab_size)[:, :, None].to(self.dtype)
        return Scores(scores.logits, states if taps else None)


def saying(tables: Sequence[Tensor]) -> MedusaHeads:
    """Heads for such a target: behind token t head i says row t of ``tables[i]``."""
    vocab = tables[0].shape[1]
    heads = MedusaHeads(medusa_shape(hidden_size=vocab, vocab_size=vocab, heads=len(tables), own_head=True))
    with torch.no_grad():
        for number, table in enumerate(tables):
            heads.get_parameter(f"{number}.1.weight").copy_(table.T)
    return heads.eval()


# ---- a target that counts --------------------------------------------------------------------------------------------

COUNT = 64


def counting() -> Transformer:
    """Behind token t it says t + 1, modulo 64: its last state is 8 in place t, nearly, and 0 elsewhere."""
    config = tiny_config(vocab_size=COUNT, hidden_size=COUNT, layers=1)
    tensors = tiny_tensors(config)
    for name, weight in tensors.items():
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            weight.zero_()
    tensors["model.embed_tokens.weight"] = torch.eye(COUNT)
    tensors["model.norm.weight"] = torch.ones(COUNT)
    tensors["lm_head.weight"] = _further(1)
    return Transformer(Shape.from_config(config), tensors, dtype=torch.float32, packed=False, name="counting")


def _further(steps: int) -> Tensor:
    """The matrix that leads from place t to place t + steps."""
    return torch.eye(COUNT).roll(steps, 0)


def counting_heads(own_head: bool, heads: int = 4, shift: int = 0) -> MedusaHeads:
    """Set by hand: behind token t head i says t + 2 + i + shift, modulo 64."""
    made = MedusaHeads(medusa_shape(hidden_size=COUNT, vocab_size=COUNT, heads=heads, own_head=own_head))
    with torch.no_grad():
        for number in range(heads):
            steps = 2 + number + shift
            if own_head:
                made.get_parameter(f"{number}.1.weight").copy_(_further(steps))
            else:  # to the state t + steps - 1, twice as strong as what passes by; the target's head goes one further
                made.get_parameter(f"{number}.0.linear.weight").copy_(2 * _further(steps - 1))
    return made.eval()


# ---- heads that know texts by heart ----------------------------------------------------------------------------------


def always_first(place: int, head: int) -> int:
    """The right token stands first."""
    return 0


def mostly_first(place: int, head: int) -> int:
    """It stands first at most places, and second to fourth at the others."""
    return (0, 0, 1, 0, 3, 0, 0, 2)[(3 * place + 5 * head) % 8]


@torch.no_grad()
def by_heart(
    target: Target,
    texts: Sequence[tuple[Sequence[int], Sequence[int]]],
    heads: int = 4,
    rank: Callable[[int, int], int] = always_first,
) -> MedusaHeads:
    """Heads with rows of their own, through as many states as the answers have: no more than the target is wide.

    Args:
        texts: prompts and answers; what stands further behind an answer is not known.
        rank: by place of the state and head, how many other tokens are thought more probable than the right one.
    """
    vocab, states, wanted, known = target.vocab_size, [], [], []
    for prompt, said in texts:
        text = [*prompt, *said]
        shown = features_of(target, text, STATE)[:, 0]
        for place in range(len(prompt) - 1, len(text) - 2):
            right = [text[place + 2 + head] if place + 2 + head < len(text) else None for head in range(heads)]
            states.append(shown[place].double())
            wanted.append(torch.stack([_logits(vocab, token, rank(place, head)) for head, token in enumerate(right)]))
            known.append(right)
    width = len(states[0])
    assert len(states) <= width, f"{len(states)} states do not fit into a width of {width}"
    found = MedusaHeads(medusa_shape(hidden_size=width, vocab_size=vocab, heads=heads, own_head=True))
    rows = torch.einsum("hs,snv->nvh", torch.linalg.pinv(torch.stack(states)), torch.stack(wanted))
    for head in range(heads):
        found.get_parameter(f"{head}.1.weight").copy_(rows[head])
    apart = found.logits(torch.stack(states).float()) - torch.stack(wanted)
    assert float(apart.abs().max()) < 0.25, "states too much alike: take other texts"
    return found.eval()


def _logits(vocab: int, token: int | None, rank: int) -> Tensor:
    """The right token stands far above the others, but for so many that stand a little higher."""
    row = torch.zeros(vocab, dtype=torch.float64)
    if token is not None:
        for place in range(rank + 1):
            row[(token + place) % vocab] = 16.0 + place
    return row


# ---- drafters --------------------------------------------------------------------------------------------------------

OWN_RATES = ((0.5, 0.3), (0.4, 0.1, 0.1), (0.3,), (0.2, 0.2))
"""Rates of four heads, for static trees."""


def medusa_on(target: Target, *, own: bool = False, layers: int = 1, seed: int = 0, **options: Any) -> Medusa:
    """A drafter of random heads."""
    heads = random_medusa(medusa_shape(own_head=own, layers=layers), seed=seed)
    return Medusa(heads, target, packed=False, **({"rates": OWN_RATES} | options))


def said_by(drafter: Medusa, target: Transformer, state: Tensor) -> list[Tensor]:
    """What its heads say of a state, written out."""
    return spoken(drafter.heads, state, None if drafter.shape.own_head else target.head.weight)


def held(drafter: Medusa, target: Transformer, played: Played, proposal: Proposal) -> int:
    """Hold the logits of every node with children against the head of its depth, written out; how many were held."""
    assert proposal.draft_logits is not None
    count = 0
    for row, (tokens, parents) in enumerate(proposal.tree.to_lists()):
        paths, said = paths_of(tokens, parents), said_by(drafter, target, played.features[row][-1, 0])
        for node in sorted(set(parents)):
            depth = len(paths[node]) if node >= 0 else 0
            torch.testing.assert_close(proposal.draft_logits[row, node + 1], said[depth], **CLOSE)
            count += 1
    return count
