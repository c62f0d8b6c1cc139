"""The arithmetic of an EAGLE-1 head is what is published, with and without a bias, and its names are too."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from first_heads import first_shape, literal_first, random_first
from heads import shape_of
from outpace.drafters.first_head import FirstHead
from outpace.drafters.head import Head
from outpace.errors import OutpaceError
from outpace.models.ends import SharedHead
from outpace.models.rotary import Rotary, rotate

GENERATOR = torch.Generator().manual_seed(5)
EMBEDDINGS, ROWS = (torch.randn(64, 32, generator=GENERATOR, dtype=torch.float64) for _ in range(2))
FEATURES = torch.randn(5, 1, 32, generator=GENERATOR, dtype=torch.float64)
TEXT, PATH = [3, 1, 4, 1, 5, 9], [2, 6]
NAMES = {
    "fc.weight": (32, 64),
    "fc.bias": (32,),
    "layers.0.self_attn.q_proj.weight": (32, 32),
    "layers.0.self_attn.k_proj.weight": (16, 32),
    "layers.0.self_attn.v_proj.weight": (16, 32),
    "layers.0.self_attn.o_proj.weight": (32, 32),
    "layers.0.mlp.gate_proj.weight": (48, 32),
    "layers.0.mlp.up_proj.weight": (48, 32),
    "layers.0.mlp.down_proj.weight": (32, 48),
    "layers.0.post_attention_layernorm.weight": (32,),
}


def made(**changes: Any) -> FirstHead:
    return random_first(first_shape(**changes), dtype=torch.float64, rows=ROWS)


def spoken(head: FirstHead) -> list[Tensor]:
    """Draft logits after the text and along the path, with the plainest attention over the head's own arithmetic."""
    shape, repeats = head.shape, head.shape.heads // head.shape.kv_heads
    rotary = Rotary(shape.rotary, shape.head_width, shape.max_positions)
    rotary.inverse = rotary.inverse.double()
    hidden, tokens = head.fuse(FEATURES), torch.tensor(TEXT[1:])
    keys = values = torch.empty(0, shape.heads, shape.head_width, dtype=torch.float64)
    said = []
    for token in [*PATH, 0]:
        residual, query, key, value = head.enter(EMBEDDINGS[tokens], hidden)
        cos, sin = rotary.at(torch.arange(len(keys), len(keys) + len(tokens))[None], torch.float64)
        query, key = rotate(query[None], cos, sin)[0], rotate(key[None], cos, sin)[0]
        keys = torch.cat((keys, key.repeat_interleave(repeats, 1)))
        values = torch.cat((values, value.repeat_interleave(repeats, 1)))
        scores = torch.einsum("hw,shw->hs", query[-1], keys) / shape.head_width**0.5
        attended = torch.einsum("hs,shw->hw", scores.softmax(-1), values).flatten()
        out = head.leave(residual[-1:], attended[None])
        said.append(head.logits(out)[0])
        hidden, tokens = head.feed(out), torch.tensor([token])
    return said


@pytest.mark.parametrize("fc_bias", [True, False])
@pytest.mark.parametrize("attention", [{}, {"heads": 1, "kv_heads": 1, "head_width": 16}, {"kv_heads": 4}], ids=str)
@torch.inference_mode()
def test_it_is_what_is_published(fc_bias: bool, attention: dict[str, int]) -> None:
    head = made(fc_bias=fc_bias, **attention)
    for mine, published in zip(spoken(head), literal_first(head, EMBEDDINGS, ROWS, FEATURES, TEXT, PATH), strict=True):
        torch.testing.assert_close(mine, published, rtol=0, atol=1e-5)  # the angles are tabled in fp32


@torch.inference_mode()
def test_the_bias_matters() -> None:
    biased, plain = made(), made(fc_bias=False)
    plain.load_state_dict(biased.state_dict(), strict=False)
    assert min(float((one - other).abs().amax()) for one, other in zip(spoken(biased), spoken(plain), strict=True)) > 1


@pytest.mark.parametrize("fc_bias", [True, False])
def test_names_and_shapes(fc_bias: bool) -> None:
    """Typed from the published layout: neither embeddings nor a head nor a map of ids is saved."""
    head = FirstHead(first_shape(fc_bias=fc_bias), SharedHead.of_rows(ROWS))
    expected = {name: size for name, size in NAMES.items() if fc_bias or name != "fc.bias"}
    assert {name: tuple(weight.shape) for name, weight in head.state_dict().items()} == expected
    assert {name for name, _ in head.named_parameters()} == set(expected) and not dict(head.named_buffers())


def test_it_has_the_doors_of_the_other_head() -> None:
    """Whatever walks on one can ask the other the same."""
    head, other = random_first(), Head(shape_of())
    for door in ("fuse", "enter", "leave", "feed", "logits", "target_ids", "layer", "shape", "method"):
        assert hasattr(head, door) and hasattr(other, door)
    for size in ("hidden_size", "target_hidden_size", "taps", "vocab_size", "draft_vocab_size", "max_positions"):
        assert hasattr(head.shape, size) and hasattr(other.shape, size)
    assert head.shape.taps == ("last_normed",) and head.shape.draft_vocab_size == 64
    assert head.target_ids.tolist() == list(range(64)) and head.embed_tokens is None and head.d2t is None
    assert (head.method, other.method) == ("eagle1", "eagle3")


def test_the_targets_head_is_shared_and_left_alone() -> None:
    """It is nobody's weight: no copy has another one, no move moves it, and no gradient reaches it."""
    rows = ROWS.float().requires_grad_(False)
    head = random_first(rows=rows)
    copied = copy.deepcopy(head).to(torch.bfloat16)
    assert copied.shared is head.shared and copied.fc.weight is not head.fc.weight
    out = torch.randn(3, 32, generator=GENERATOR)
    assert torch.equal(copied.logits(out), out @ rows.T) and copied.logits(out.bfloat16()).dtype == torch.float32
    head.logits(head.leave(out, out)).sum().backward()
    assert rows.grad is None and head.layer.mlp.up_proj.weight.grad is not None
    with pytest.raises(TypeError, match="an EAGLE-1 head was asked for logits and given no head of a target"):
        random_first().logits(out)


def test_states_are_summed_in_the_dtype_of_the_norm() -> None:
    head = random_first(rows=ROWS.float()).to(torch.bfloat16)
    head.layer.post_attention_layernorm.float()
    hidden = head.fuse(FEATURES.bfloat16())
    residual, query, _, _ = head.enter(EMBEDDINGS[:5].bfloat16(), hidden)
    out = head.leave(residual, query.flatten(1))
    assert (hidden.dtype, residual.dtype, out.dtype, head.feed(out).dtype) == (torch.float32,) * 4
    assert (query.dtype, head.logits(out).dtype) == (torch.bfloat16, torch.float32)


def test_gradients_reach_every_weight() -> None:
    head = made()
    sum(logits.square().sum() for logits in spoken(head)).backward()  # type: ignore[union-attr]
    for name, weight in head.named_parameters():
        assert weight.grad is not None and bool(weight.grad.abs().sum() > 0), name


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"heads": 0}, "heads of the head is 0; allowed: 1 or more"),
    ({"heads": 3}, "the head has 3 heads; allowed: a multiple of its 2 kv_heads"),
    ({"max_positions": -1}, "max_positions of the head is -1; allowed: 1 or more"),
]


@pytest.mark.parametrize(("changes", "message"), REFUSED, ids=str)
def test_shapes_that_are_none(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(OutpaceError, match=message):
        first_shape(**changes)


# ---- planted faults --------------------------------------------------------------------------------------------------


def _embedding_second(head: FirstHead) -> None:
    honest = head.enter
    head.enter = lambda embedded, hidden: honest(hidden, embedded)  # type: ignore[method-assign]


def _fed_normed(head: FirstHead) -> None:
    head.feed = lambda out: head.layer.post_attention_layernorm(out)  # type: ignore[method-assign]


def _fed_mixed(head: FirstHead) -> None:
    """The state that went into the layer, not what came out of it."""
    honest, kept = head.leave, []

    def leave(residual: Tensor, attended: Tensor) -> Tensor:
        kept[:] = [residual]
        return honest(residual, attended)

    head.leave = leave  # type: ignore[method-assign]
    head.feed = lambda out: kept[0]  # type: ignore[method-assign]


def _normed_before_attention(head: FirstHead) -> None:
    honest = head.layer.self_attn.forward
    head.layer.self_attn.forward = lambda mixed: honest(head.layer.post_attention_layernorm(mixed))


def _normed_at_the_end(head: FirstHead) -> None:
    honest = head.logits
    head.logits = lambda out: honest(head.layer.post_attention_layernorm(out))  # type: ignore[method-assign]


FAULTS = [_embedding_second, _fed_normed, _fed_mixed, _normed_before_attention, _normed_at_the_end]


@pytest.mark.parametrize("fault", FAULTS)
@torch.inference_mode()
def test_a_planted_fault_is_noticed(fault: Callable[[FirstHead], None]) -> None:
    honest, faulty = made(), made()
    fault(faulty)
    apart = [
        float((mine - published).abs().amax())
        for mine, published in zip(
            spoken(faulty), literal_first(honest, EMBEDDINGS, ROWS, FEATURES, TEXT, PATH), strict=True
        )
    ]
    assert apart[1] > 0.1, "a state that is fed back wrongly shows from the second token on, all else from the first"
