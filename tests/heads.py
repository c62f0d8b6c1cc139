"""Small EAGLE-3 heads that the tests of drafting share, and their arithmetic written out once more.

Knows nothing of what is tested. Import it as ``heads``: ``conftest.py`` puts this folder on the path.
"""

import math
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from outpace.drafters.budget import Branching, Budget
from outpace.drafters.drafter import Proposal
from outpace.drafters.eagle import Eagle
from outpace.drafters.head import Head, HeadShape
from outpace.models.ends import read_embeddings
from outpace.models.target import Target
from outpace.verification.coins import Keys
from outpace.verification.probabilities import Sampling
from toys import lively, reference

FLAGS = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")
LEGAL = [
    dict(zip(FLAGS, (residual, before, each, output), strict=True))
    for residual in (False, True)
    for output in (False, True)
    for before, each in ((False, False), (True, False), (False, True))
]
"""Every way in which a head may be made."""
ROPE = {"rope_type": "default", "rope_theta": 10000.0}
CALM = LEGAL[0]


def shape_of(**changes: Any) -> HeadShape:
    """A head for the tiny targets: 64 tokens of which it can say 40, 32 wide."""
    said: dict[str, Any] = {
        "hidden_size": 32,
        "target_hidden_size": 32,
        "taps": (0, 1, 2),
        "heads": 4,
        "kv_heads": 2,
        "head_width": 8,
        "feed_forward": 48,
        "vocab_size": 64,
        "draft_vocab_size": 40,
        "norm_eps": 1e-5,
        "max_positions": 256,
        "rotary": ROPE,
        **CALM,
    }
    return HeadShape(**(said | changes))


def random_head(shape: HeadShape | None = None, seed: int = 0, dtype: torch.dtype = torch.float32) -> Head:
    """Weights that all matter: projections that keep the spread of what goes in, and norms away from one.

    Of a reduced vocabulary the ids lie scattered.
    """
    head = Head(shape or shape_of())
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in head.named_parameters():
            noise = torch.randn(weight.shape, generator=generator)
            if weight.dim() == 1:
                weight.copy_(1 + 0.3 * noise)
            else:
                sharp = 2.0 if any(part in name for part in ("q_proj", "k_proj", "lm_head")) else 1.0
                weight.copy_(noise * sharp / math.sqrt(weight.shape[1]))
    if head.d2t is not None and head.t2d is not None:
        says(head, torch.randperm(head.shape.vocab_size, generator=generator)[: head.shape.draft_vocab_size].tolist())
    return head.to(dtype)


def says(head: Head, ids: Sequence[int]) -> None:
    """Let the head's draft ids stand for these ids of the target."""
    assert head.d2t is not None and head.t2d is not None and len(ids) == len(head.d2t)
    chosen = torch.tensor(sorted(ids))
    head.d2t.copy_(chosen - torch.arange(len(ids)))
    head.t2d.copy_(torch.zeros_like(head.t2d).index_fill(0, chosen, True))


# ---- the arithmetic, position by position ----------------------------------------------------------------------------


def _norm(weight: Tensor, states: Tensor, eps: float) -> Tensor:
    return states * (states.pow(2).mean(-1, keepdim=True) + eps).rsqrt() * weight


def _turn(states: Tensor, place: int, theta: float) -> Tensor:
    """Each head's pairs (x_i, x_{i + width/2}) as complex numbers, turned."""
    half = states.shape[-1] // 2
    angles = place / theta ** (torch.arange(half, dtype=torch.float64) / half)
    turned = torch.complex(states[..., :half].double(), states[..., half:].double()) * torch.polar(
        torch.ones_like(angles), angles
    )
    return torch.cat((turned.real, turned.imag), -1).to(states.dtype)


@torch.inference_mode()
def literal(
    head: Head, embeddings: Tensor, features: Tensor, text: Sequence[int], path: Sequence[int] = ()
) -> list[Tensor]:
    """Draft logits over the draft vocabulary after a text and after every token of a path behind it.

    One position after the other, as the published forward is told: residual and state of their own, the token's
    embedding first, one layer, the last norm, the head.

    Args:
        features: ``[time, taps, target]``, for every position of the text but the last.
        path: drafted tokens, in the target's ids.
    """
    shape, weights = head.shape, dict(head.state_dict())
    eps, time = shape.norm_eps, len(features)
    assert time == len(text) - 1, "one position for each token that has another behind it"
    keys: list[Tensor] = []
    values: list[Tensor] = []
    said: list[Tensor] = []
    for place in range(time + len(path)):
        if place < time:
            parts = list(features[place].to(weights["fc.weight"].dtype))
            if shape.fc_norm:
                parts = [_norm(weights[f"fc_norm.{tap}.weight"], part, eps) for tap, part in enumerate(parts)]
            joined = torch.cat(parts)
            if shape.norm_before_fc:
                joined = _norm(weights["input_norm.weight"], joined, eps)
            state = weights["fc.weight"] @ joined
            token = text[place + 1]
        else:
            token = path[place - time]
        embedded = embeddings[token].to(state.dtype)
        normed = _norm(weights["midlayer.hidden_norm.weight"], state, eps)
        residual = normed if shape.norm_before_residual else state
        entered = torch.cat((_norm(weights["midlayer.input_layernorm.weight"], embedded, eps), normed))
        query, key, value = (
            (weights[f"midlayer.self_attn.{name}_proj.weight"] @ entered).view(-1, shape.head_width) for name in "qkv"
        )
        keys.append(_turn(key, place, shape.rotary["rope_theta"]))
        values.append(value)
        query = _turn(query, place, shape.rotary["rope_theta"])
        attended = []
        for number in range(shape.heads):
            group = number // (shape.heads // shape.kv_heads)
            scores = torch.stack([query[number] @ one[group] for one in keys]) / math.sqrt(shape.head_width)
            attended.append(sum(w * one[group] for w, one in zip(scores.softmax(0), values, strict=True)))
        between = residual + weights["midlayer.self_attn.o_proj.weight"] @ torch.cat(attended)
        inner = _norm(weights["midlayer.post_attention_layernorm.weight"], between, eps)
        gate, up = (weights[f"midlayer.mlp.{name}_proj.weight"] @ inner for name in ("gate", "up"))
        out = between + weights["midlayer.mlp.down_proj.weight"] @ (gate * gate.sigmoid() * up)
        last = _norm(weights["norm.weight"], out, eps)
        if place >= time - 1:
            said.append(weights["lm_head.weight"] @ last)
            state = last if shape.norm_output else out
    return said


# ---- a head that is often right --------------------------------------------------------------------------------------

HALF, WHOLE = 25, 60
"""Passes over a text after which a head is right more often than not, and always."""


@torch.inference_mode()
def features_of(target: Target, text: Sequence[int], taps: tuple[int, ...]) -> Tensor:
    """What a target shows at the taps, for every position of a text."""
    state = target.open(1, len(text))
    shown = target.prefill(state, torch.tensor([list(text)]), [len(text)], taps).features
    assert shown is not None
    return shown[0]


def unrolled(head: Head, embeddings: Tensor, features: Tensor, text: Sequence[int], steps: int) -> list[Tensor]:
    """Draft logits of every position at once, step by step, fed the text's own tokens: ``[time - 1 - step, draft]``."""
    shape, ids = head.shape, torch.tensor(list(text))
    hidden, keys, values = head.fuse(features[:-1]), [], []
    said = []
    for step in range(steps):
        time = len(text) - 1 - step
        hidden = hidden[:time]
        residual, query, key, value = head.enter(embeddings[ids[1 + step :]], hidden)
        angles = (torch.arange(time) + step)[:, None] / shape.rotary["rope_theta"] ** (
            torch.arange(shape.head_width // 2) / (shape.head_width // 2)
        )
        cos, sin = (part.repeat(1, 2)[:, None] for part in (angles.cos(), angles.sin()))
        query, key = (
            part * cos + torch.cat((-part.chunk(2, -1)[1], part.chunk(2, -1)[0]), -1) * sin for part in (query, key)
        )
        repeats = shape.heads // shape.kv_heads
        keys.append(key.repeat_interleave(repeats, 1))
        values.append(value.repeat_interleave(repeats, 1))
        scores = torch.einsum("thw,shw->hts", query, keys[0][:time])
        scores = scores.masked_fill(torch.ones(time, time, dtype=torch.bool).triu(1), -torch.inf)
        own = [torch.einsum("thw,thw->ht", query, one[:time])[..., None] for one in keys[1:]]
        weights = (torch.cat([scores, *own], -1) / math.sqrt(shape.head_width)).softmax(-1)
        out = torch.einsum("hts,shw->thw", weights[..., :time], values[0][:time])
        for place, one in enumerate(values[1:]):
            out = out + weights[..., time + place].mT[..., None] * one[:time]
        out = head.leave(residual, out.flatten(1))
        said.append(head.logits(out))
        hidden = head.feed(out)
    return said


@cache
def fitted_head(prompts: tuple[tuple[int, ...], ...], new: int, passes: int = HALF) -> Head:
    """A head that learns some texts of the tiny target by heart, three tokens ahead."""
    target, shape = lively(), shape_of(draft_vocab_size=48)
    texts = [[*prompt, *reference(target, prompt, new)] for prompt in prompts]
    head = random_head(shape, seed=1)
    said = sorted({token for text in texts for token in text})
    rest = [token for token in range(shape.vocab_size) if token not in said]
    says(head, [*said, *rest][: shape.draft_vocab_size])
    places = {token: place for place, token in enumerate(head.target_ids.tolist())}
    shown = [features_of(target, text, shape.taps).clone() for text in texts]
    embeddings = read_embeddings(target)
    optimiser = torch.optim.Adam(head.parameters(), lr=5e-3)
    for _ in range(passes):
        loss = torch.zeros(())
        for text, features in zip(texts, shown, strict=True):
            for step, logits in enumerate(unrolled(head, embeddings, features, text, steps=3)):
                labels = torch.tensor([places.get(token, -100) for token in text[2 + step :]])
                loss = loss + torch.nn.functional.cross_entropy(logits[: len(labels)], labels)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return head.eval()


# ---- a batch of the test's own ---------------------------------------------------------------------------------------

TREES = ["top-k:2", "top-k:3", "top-p:0.8", "sampled:2", "sampled:3", "static:0.5,0.2,0.1"]
CLOSE = {"rtol": 0, "atol": 1e-4}  # fp32 with sums in another order: seen to differ by less than 1e-5


def keys_of(rows: int, coupled: bool = False) -> Keys:
    return Keys(tuple(range(rows)), (0,) * rows, (7,) * rows, (coupled,) * rows)


def paths_of(tokens: Sequence[int], parents: Sequence[int]) -> list[list[int]]:
    found: list[list[int]] = []
    for token, parent in zip(tokens, parents, strict=True):
        found.append([*(found[parent] if parent >= 0 else []), token])
    return found


class Played:
    """A batch whose texts are what a test says, beside all features that the target ever showed of them."""

    def __init__(self, drafter: Eagle, width: int = 32, seed: int = 0, slots: int = 8, positions: int = 8) -> None:
        self.drafter, self.state = drafter, drafter.open(slots, positions)
        self.texts: list[list[int]] = []
        self.features: list[Tensor] = []
        self.generator, self.width = torch.Generator().manual_seed(seed), width

    def show(self, count: int) -> Tensor:
        return torch.randn(count, len(self.drafter.taps), self.width, generator=self.generator)

    def ids(self, count: int) -> list[int]:
        return torch.randint(64, (count,), generator=self.generator).tolist()

    def admit(self, *lengths: int) -> None:
        """New rows, as a turn admits them: the prompts, and then the first token of each without features."""
        prompts, shown = [self.ids(length) for length in lengths], [self.show(length) for length in lengths]
        self.drafter.admit(self.state, prompts, shown)
        resting, first = len(self.texts), [self.ids(1) for _ in lengths]
        self.drafter.commit(self.state, [[]] * resting + first, [self.show(0)] * (resting + len(lengths)))
        self.texts += [[*prompt, *tokens] for prompt, tokens in zip(prompts, first, strict=True)]
        self.features += shown

    def commit(self, emitted: Sequence[Sequence[int]]) -> None:
        """What a turn emitted: as many features, of the token before it and the accepted path."""
        shown = [self.show(len(tokens)) for tokens in emitted]
        self.drafter.commit(self.state, [list(tokens) for tokens in emitted], shown)
        for row, tokens in enumerate(emitted):
            self.texts[row] += tokens
            self.features[row] = torch.cat((self.features[row], shown[row]))

    def select(self, rows: list[int]) -> None:
        self.drafter.select(self.state, rows)
        self.texts, self.features = [self.texts[row] for row in rows], [self.features[row] for row in rows]

    def propose(
        self,
        tree: str,
        depths: list[int],
        nodes: list[int] | None = None,
        sampling: Sampling | None = None,
        **key: bool,
    ) -> Proposal:
        budget = Budget(depths, nodes or depths, Branching.parse(tree))
        rows = len(self.texts)
        return self.drafter.propose(self.state, budget, [sampling or Sampling()] * rows, keys_of(rows, **key))

    def check(self, head: Head, embeddings: Tensor, proposal: Proposal) -> int:
        """Hold the logits of every node with children against the head that reads the whole text anew; how many."""
        shown = proposal.shown(head.shape.vocab_size)
        assert shown is not None
        checked = 0
        for row, (tokens, parents) in enumerate(proposal.tree.to_lists()):
            paths = paths_of(tokens, parents)
            for node in sorted(set(parents)):
                path = paths[node] if node >= 0 else []
                anew = literal(head, embeddings, self.features[row], self.texts[row], path)[-1]
                own = shown[row, node + 1]
                torch.testing.assert_close(own[head.target_ids], anew, **CLOSE)
                assert int(own.isfinite().sum()) == len(head.target_ids)
                checked += 1
        return checked
