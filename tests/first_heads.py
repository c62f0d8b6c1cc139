"""Small EAGLE-1 heads that the tests of drafting share, and their arithmetic written out once more.

Knows nothing of what is tested. Import it as ``first_heads``: ``conftest.py`` puts this folder on the path.
"""

import math
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from heads import ROPE, Played, _norm, _turn, features_of, paths_of, unrolled
from outpace.drafters.drafter import Proposal
from outpace.drafters.first_head import FirstHead, FirstShape
from outpace.models.ends import SharedHead, read_embeddings, read_head
from outpace.models.target import Target
from toys import lively, reference

TAPS = ("last_normed",)
NEAR = 5e-4
"""fp32 with sums in another order: of random heads seen to differ by 1.1e-4; nodes at wrong places, by 38e-4."""


def first_shape(**changes: Any) -> FirstShape:
    """A head for the tiny targets: 64 tokens, 32 wide."""
    said: dict[str, Any] = {
        "hidden_size": 32,
        "heads": 4,
        "kv_heads": 2,
        "head_width": 8,
        "feed_forward": 48,
        "vocab_size": 64,
        "norm_eps": 1e-5,
        "max_positions": 256,
        "rotary": ROPE,
        "fc_bias": True,
    }
    return FirstShape(**(said | changes))


def random_first(
    shape: FirstShape | None = None,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    rows: Tensor | None = None,
) -> FirstHead:
    """Weights that all matter: projections that keep the spread of what goes in, a norm away from one, a bias.

    Args:
        rows: of the target's head, to speak through.
    """
    head = FirstHead(shape or first_shape(), None if rows is None else SharedHead.of_rows(rows))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in head.named_parameters():
            noise = torch.randn(weight.shape, generator=generator)
            if name.endswith("bias"):
                weight.copy_(noise)
            elif weight.dim() == 1:
                weight.copy_(1 + 0.3 * noise)
            else:
                sharp = 2.0 if any(part in name for part in ("q_proj", "k_proj")) else 1.0
                weight.copy_(noise * sharp / math.sqrt(weight.shape[1]))
    return head.to(dtype)


@torch.inference_mode()
def literal_first(
    head: FirstHead,
    embeddings: Tensor,
    rows: Tensor,
    features: Tensor,
    text: Sequence[int],
    path: Sequence[int] = (),
) -> list[Tensor]:
    """Draft logits after a text and after every token of a path behind it, by the formulas and one position at a time.

    x = W (e ; f) + b, the token's embedding first; y = x + attention(x); f' = y + feed-forward(norm(y)); logits are the
    target's rows times f', and f' is the f of the next position.

    Args:
        rows: of the target's head.
        features: ``[time, 1, hidden]``, the target's last normed state at every position of the text but the last.
        path: drafted tokens.
    """
    shape, weights = head.shape, dict(head.state_dict())
    layer = {name.removeprefix("layers.0."): weight for name, weight in weights.items()}
    time, theta = len(features), shape.rotary["rope_theta"]
    assert time == len(text) - 1, "one position for each token that has another behind it"
    keys: list[Tensor] = []
    values: list[Tensor] = []
    said: list[Tensor] = []
    state = torch.empty(0)
    for place in range(time + len(path)):
        if place < time:
            state = features[place, 0]
        token = text[place + 1] if place < time else path[place - time]
        mixed = weights["fc.weight"] @ torch.cat((embeddings[token], state)).to(weights["fc.weight"].dtype)
        if "fc.bias" in weights:
            mixed = mixed + weights["fc.bias"]
        query, key, value = (
            (layer[f"self_attn.{name}_proj.weight"] @ mixed).view(-1, shape.head_width) for name in "qkv"
        )
        keys.append(_turn(key, place, theta))
        values.append(value)
        query = _turn(query, place, theta)
        attended = []
        for number in range(shape.heads):
            group = number // (shape.heads // shape.kv_heads)
            scores = torch.stack([query[number] @ one[group] for one in keys]) / math.sqrt(shape.head_width)
            attended.append(sum(w * one[group] for w, one in zip(scores.softmax(0), values, strict=True)))
        between = mixed + layer["self_attn.o_proj.weight"] @ torch.cat(attended)
        inner = _norm(layer["post_attention_layernorm.weight"], between, shape.norm_eps)
        gate, up = (layer[f"mlp.{name}_proj.weight"] @ inner for name in ("gate", "up"))
        out = between + layer["mlp.down_proj.weight"] @ (gate * gate.sigmoid() * up)
        if place >= time - 1:
            said.append(rows.to(out.dtype) @ out)
            state = out
    return said


class FirstPlayed(Played):
    """A batch whose texts are what a test says, held against an EAGLE-1 head that reads the whole text anew."""

    def check(self, head: FirstHead, target: Target, proposal: Proposal) -> int:  # type: ignore[override]
        """Hold the logits of every node with children; how many."""
        assert proposal.draft_logits is not None
        checked, embeddings, rows = 0, read_embeddings(target), read_head(target)
        for row, (tokens, parents) in enumerate(proposal.tree.to_lists()):
            paths = paths_of(tokens, parents)
            for node in sorted(set(parents)):
                path = paths[node] if node >= 0 else []
                anew = literal_first(head, embeddings, rows, self.features[row], self.texts[row], path)[-1]
                torch.testing.assert_close(proposal.draft_logits[row, node + 1], anew, rtol=0, atol=NEAR)
                checked += 1
        return checked


# ---- a head that is often right --------------------------------------------------------------------------------------


def learnt(target: Target, texts: Sequence[Sequence[int]], shape: FirstShape, passes: int, steps: int = 3) -> FirstHead:
    """A head that learns some texts of a target by heart, a few tokens ahead; the target's head stays what it is."""
    rows, embeddings = read_head(target).clone(), read_embeddings(target).clone()
    head = random_first(shape, seed=1, rows=rows)
    shown = [features_of(target, text, TAPS).clone() for text in texts]
    optimiser = torch.optim.Adam(head.parameters(), lr=5e-3)
    for _ in range(passes):
        loss = torch.zeros(())
        for text, features in zip(texts, shown, strict=True):
            for step, logits in enumerate(unrolled(head, embeddings, features, text, steps)):  # type: ignore[arg-type]
                loss = loss + torch.nn.functional.cross_entropy(logits[:-1], torch.tensor(list(text[2 + step :])))
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return head.eval()


@cache
def fitted_first(prompts: tuple[tuple[int, ...], ...], new: int, passes: int) -> FirstHead:
    """One that learns the texts of the tiny target behind these prompts."""
    target = lively()
    texts = [[*prompt, *reference(target, prompt, new)] for prompt in prompts]
    return learnt(target, texts, first_shape(), passes)
