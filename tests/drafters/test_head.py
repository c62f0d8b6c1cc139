"""The arithmetic of a head is what is published, for every way in which it may be made, and its names are too."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from heads import FLAGS, LEGAL, literal, random_head, says, shape_of
from outpace.drafters.head import Head
from outpace.errors import OutpaceError
from outpace.models.rotary import Rotary, rotate

GENERATOR = torch.Generator().manual_seed(5)
EMBEDDINGS = torch.randn(64, 32, generator=GENERATOR, dtype=torch.float64)
FEATURES = torch.randn(5, 3, 32, generator=GENERATOR, dtype=torch.float64)
TEXT, PATH = [3, 1, 4, 1, 5, 9], [2, 6]
NAMES = {
    "d2t": (40,),
    "t2d": (64,),
    "fc.weight": (32, 96),
    "midlayer.self_attn.q_proj.weight": (32, 64),
    "midlayer.self_attn.k_proj.weight": (16, 64),
    "midlayer.self_attn.v_proj.weight": (16, 64),
    "midlayer.self_attn.o_proj.weight": (32, 32),
    "midlayer.mlp.gate_proj.weight": (48, 32),
    "midlayer.mlp.up_proj.weight": (48, 32),
    "midlayer.mlp.down_proj.weight": (32, 48),
    "midlayer.input_layernorm.weight": (32,),
    "midlayer.hidden_norm.weight": (32,),
    "midlayer.post_attention_layernorm.weight": (32,),
    "norm.weight": (32,),
    "lm_head.weight": (40, 32),
}


def spoken(head: Head, features: Tensor = FEATURES, text: list[int] = TEXT, path: list[int] = PATH) -> list[Tensor]:
    """Draft logits after a text and along a path, with the plainest attention over the head's own arithmetic."""
    shape, time = head.shape, len(features)
    rotary, repeats = Rotary(shape.rotary, shape.head_width, shape.max_positions), shape.heads // shape.kv_heads
    rotary.inverse = rotary.inverse.double()
    hidden, tokens = head.fuse(features), torch.tensor(text[1:])
    keys = values = torch.empty(0, shape.heads, shape.head_width, dtype=torch.float64)
    said = []
    for step, token in enumerate([*path, None]):
        residual, query, key, value = head.enter(EMBEDDINGS[tokens], hidden)
        places = torch.arange(len(keys), len(keys) + len(tokens))[None]
        cos, sin = rotary.at(places, torch.float64)
        query, key = rotate(query[None], cos, sin)[0], rotate(key[None], cos, sin)[0]
        keys = torch.cat((keys, key.repeat_interleave(repeats, 1)))
        values = torch.cat((values, value.repeat_interleave(repeats, 1)))
        scores = torch.einsum("hw,shw->hs", query[-1], keys) / shape.head_width**0.5
        attended = torch.einsum("hs,shw->hw", scores.softmax(-1), values).flatten()
        out = head.leave(residual[-1:], attended[None])
        said.append(head.logits(out)[0])
        hidden, tokens = head.feed(out), torch.tensor([token or 0])
        assert len(keys) == time + step
    return said


@pytest.mark.parametrize("flags", LEGAL, ids=str)
@pytest.mark.parametrize("draft", [40, 64])
@torch.inference_mode()
def test_it_is_what_is_published(flags: dict[str, bool], draft: int) -> None:
    head = random_head(shape_of(draft_vocab_size=draft, **flags), dtype=torch.float64)
    for mine, published in zip(spoken(head), literal(head, EMBEDDINGS, FEATURES, TEXT, PATH), strict=True):
        torch.testing.assert_close(mine, published, rtol=0, atol=1e-5)  # the angles are tabled in fp32


@torch.inference_mode()
def test_every_flag_matters() -> None:
    """No two ways to make a head say the same, so that a flag which is lost is noticed."""
    said = []
    for flags in LEGAL:
        head = random_head(shape_of(**flags), dtype=torch.float64)
        weights = {name: weight for name, weight in random_head(dtype=torch.float64).state_dict().items()}
        head.load_state_dict(weights, strict=False)
        said.append(torch.stack(spoken(head)))
    for place, one in enumerate(said):
        for other in said[place + 1 :]:
            assert (one - other).abs().amax() > 0.1


@pytest.mark.parametrize("flags", LEGAL, ids=str)
def test_names_and_shapes(flags: dict[str, bool]) -> None:
    """Typed from the published layout."""
    expected = dict(NAMES)
    if flags["norm_before_fc"]:
        expected["input_norm.weight"] = (96,)
    if flags["fc_norm"]:
        expected |= {f"fc_norm.{tap}.weight": (32,) for tap in range(3)}
    head = Head(shape_of(**flags))
    assert {name: tuple(weight.shape) for name, weight in head.state_dict().items()} == expected
    assert {name: weight.dtype for name, weight in head.named_buffers()} == {"d2t": torch.int64, "t2d": torch.bool}
    whole = Head(shape_of(draft_vocab_size=64, **flags))
    expected = {name: (64, 32) if name == "lm_head.weight" else size for name, size in expected.items()}
    assert {name: tuple(weight.shape) for name, weight in whole.state_dict().items()} == {
        name: size for name, size in expected.items() if name not in ("d2t", "t2d")
    }


def test_a_head_of_another_width_embeds_by_itself() -> None:
    narrow = Head(shape_of(hidden_size=16, head_width=4))
    assert tuple(narrow.state_dict()["embed_tokens.weight"].shape) == (64, 16)
    assert tuple(narrow.fc.weight.shape) == (16, 96)
    assert narrow.fuse(torch.ones(2, 3, 32)).shape == (2, 16)


def test_ids_are_offsets() -> None:
    head = Head(shape_of(draft_vocab_size=5))
    assert head.target_ids.tolist() == [0, 1, 2, 3, 4]
    says(head, [3, 10, 11, 40, 63])
    assert head.d2t is not None and head.d2t.tolist() == [3, 9, 9, 37, 59]
    assert head.target_ids.tolist() == [3, 10, 11, 40, 63]
    assert Head(shape_of(draft_vocab_size=64)).target_ids.tolist() == list(range(64))


def test_states_are_summed_in_the_dtype_of_the_norms() -> None:
    head = random_head().to(torch.bfloat16)
    for part in head.modules():
        if isinstance(part, torch.nn.RMSNorm):
            part.float()
    hidden = head.fuse(FEATURES.bfloat16())
    residual, query, _, _ = head.enter(EMBEDDINGS[:5].bfloat16(), hidden)
    out = head.leave(residual, query.flatten(1))
    assert (hidden.dtype, residual.dtype, out.dtype, head.feed(out).dtype) == (torch.float32,) * 4
    assert (query.dtype, head.logits(out).dtype) == (torch.bfloat16,) * 2


def test_gradients_reach_every_weight() -> None:
    head = random_head(shape_of(**(LEGAL[0] | {"fc_norm": True})), dtype=torch.float64)
    sum(logits.sum() for logits in spoken(head)).backward()  # type: ignore[union-attr]
    for name, weight in head.named_parameters():
        assert weight.grad is not None and bool(weight.grad.abs().sum() > 0), name


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"heads": 0}, "heads of the head is 0; allowed: 1 or more"),
    ({"heads": 3}, "the head has 3 heads; allowed: a multiple of its 2 kv_heads"),
    ({"taps": ()}, r"the taps of the head are \[\]; allowed: one or more, each 0 or above"),
    ({"taps": (2, -1)}, r"the taps of the head are \[2, -1\]; allowed: one or more, each 0 or above"),
    ({"draft_vocab_size": 65}, "draft_vocab_size is 65; allowed: up to the vocab_size of 64"),
    ({"fc_norm": True, "norm_before_fc": True}, "norm_before_fc and fc_norm are both true; allowed: one of them"),
]


@pytest.mark.parametrize(("changes", "message"), REFUSED, ids=str)
def test_shapes_that_are_none(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(OutpaceError, match=message):
        shape_of(**changes)


@pytest.mark.parametrize("flag", FLAGS)
def test_no_flag_has_a_default(flag: str) -> None:
    said = {name: value for name, value in vars(shape_of()).items() if name != flag}
    with pytest.raises(TypeError, match=flag):
        type(shape_of())(**said)


# ---- planted faults --------------------------------------------------------------------------------------------------


def _hidden_first(head: Head) -> None:
    honest = head.enter
    head.enter = lambda embedded, hidden: honest(hidden, embedded)  # type: ignore[method-assign]


def _fed_normed(head: Head) -> None:
    head.feed = lambda out: head.norm(out)  # type: ignore[method-assign]


def _norms_swapped(head: Head) -> None:
    layer = head.midlayer
    layer.input_layernorm, layer.hidden_norm = layer.hidden_norm, layer.input_layernorm


def _fused_twice(head: Head) -> None:
    head.feed = lambda out: head.fuse(out[:, None].expand(-1, 3, -1))  # type: ignore[method-assign]


def _taps_reversed(head: Head) -> None:
    honest = head.fuse
    head.fuse = lambda features: honest(features.flip(-2))  # type: ignore[method-assign]


@pytest.mark.parametrize("fault", [_hidden_first, _fed_normed, _norms_swapped, _fused_twice, _taps_reversed])
@torch.inference_mode()
def test_a_planted_fault_is_noticed(fault: Callable[[Head], None]) -> None:
    honest = random_head(dtype=torch.float64)
    faulty = copy.deepcopy(honest)
    fault(faulty)
    apart = [
        float((mine - published).abs().amax())
        for mine, published in zip(spoken(faulty), literal(honest, EMBEDDINGS, FEATURES, TEXT, PATH), strict=True)
    ]
    assert apart[1] > 0.1, "a state that is fed back wrongly shows from the second token on, all else from the first"
