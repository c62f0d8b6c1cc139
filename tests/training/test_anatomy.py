"""A head is cut to its target: every measure is the target's own, unless a recipe says otherwise."""

import json
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from lessons import PLAIN
from outpace.drafters.head import HeadShape
from outpace.errors import UnsupportedError, WeightsError
from outpace.models.function import FunctionTarget
from outpace.training.anatomy import SPREAD, measures, new_head, shape_for, standard_taps
from outpace.training.recipe import HeadSettings
from toys import VOCAB, lively, must_fail

OWN = HeadSettings(**PLAIN)


def told(folder: Path, **config: Any) -> FunctionTarget:
    """A target of which nothing is known but its configuration."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config), "utf-8")
    target = FunctionTarget(lambda ids: torch.zeros(*ids.shape, VOCAB), VOCAB, name="told", max_positions=128)
    target.folder = folder
    return target


# ---- measures --------------------------------------------------------------------------------------------------------


def test_a_target_in_memory_tells_its_shape() -> None:
    target = lively(rms_norm_eps=1e-4, rope_theta=500.0)
    found = measures(target)
    assert all(value == getattr(target.shape, name) for name, value in found.items())
    assert found["kv_heads"] == 2 and found["norm_eps"] == 1e-4 and found["rotary"]["rope_theta"] == 500.0


LLAMA = {
    "hidden_size": 48,
    "num_hidden_layers": 9,
    "num_attention_heads": 6,
    "num_key_value_heads": 3,
    "head_dim": 16,
    "intermediate_size": 100,
    "rms_norm_eps": 1e-6,
    "rope_theta": 500.0,
}
MEASURED = {
    "hidden_size": 48,
    "layers": 9,
    "heads": 6,
    "kv_heads": 3,
    "head_width": 16,
    "feed_forward": 100,
    "norm_eps": 1e-6,
    "rotary": {"rope_type": "default", "rope_theta": 500.0},
}


@pytest.mark.parametrize(
    ("config", "changed"),
    [
        (LLAMA, {}),
        ({"model_type": "vision", "hidden_size": 7, "text_config": LLAMA}, {}),
        ({**LLAMA, "rope_theta": None, "rope_parameters": {"rope_type": "default", "rope_theta": 500.0}}, {}),
        ({name: value for name, value in LLAMA.items() if name != "head_dim"}, {"head_width": 8}),
        ({**LLAMA, "num_key_value_heads": None}, {"kv_heads": 6}),
        ({**LLAMA, "intermediate_size": None}, {"feed_forward": 192}),
        (
            {"n_embd": 48, "n_layer": 9, "n_head": 6, "n_inner": None, "layer_norm_epsilon": 1e-6},
            {
                "kv_heads": 6,
                "head_width": 8,
                "feed_forward": 192,
                "rotary": {"rope_type": "default", "rope_theta": 10000.0},
            },
        ),
        (
            {"d_model": 48, "num_layers": 9, "num_heads": 6, "ffn_dim": 100, "layer_norm_eps": 1e-6},
            {"kv_heads": 6, "head_width": 8, "rotary": {"rope_type": "default", "rope_theta": 10000.0}},
        ),
    ],
    ids=["llama", "nested", "new layout", "no head_dim", "no groups", "no inner", "gpt2", "opt"],
)
def test_another_target_tells_them_in_its_configuration(
    config: dict[str, Any], changed: dict[str, Any], tmp_path: Path
) -> None:
    assert measures(told(tmp_path, **config)) == MEASURED | changed


@pytest.mark.parametrize("name", ["hidden_size", "num_hidden_layers", "num_attention_heads"])
def test_a_configuration_that_does_not_tell_is_refused(name: str, tmp_path: Path) -> None:
    config = {each: value for each, value in LLAMA.items() if each != name}
    with pytest.raises(WeightsError, match=f"config.json lacks {name} or "):
        measures(told(tmp_path, **config))


def test_a_target_without_any_is_refused() -> None:
    target = FunctionTarget(lambda ids: torch.zeros(*ids.shape, VOCAB), VOCAB, name="bare")
    with pytest.raises(WeightsError, match=r"the target 'bare' has no config.json that tells its measures"):
        measures(target)


# ---- taps ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("layers", "taps"),
    [
        (1, (0, 1)),
        (2, (0, 1, 2)),
        (3, (0, 1, 3)),
        (6, (0, 3, 6)),
        (7, (2, 3, 4)),
        (8, (2, 4, 5)),
        (30, (2, 15, 27)),
        (32, (2, 16, 29)),
        (80, (2, 40, 77)),
    ],
)
def test_standard_taps(layers: int, taps: tuple[int, ...]) -> None:
    """Typed out; those of thirty-two layers are those of the published heads for Llama-3.1-8B."""
    assert standard_taps(layers) == taps


def test_standard_taps_rise_and_are_the_targets() -> None:
    for layers in range(1, 200):
        taps = standard_taps(layers)
        assert list(taps) == sorted(set(taps)) and taps[0] >= 0 and taps[-1] <= layers
        assert len(taps) == (2 if layers == 1 else 3)


# ---- shapes ----------------------------------------------------------------------------------------------------------


def test_what_a_recipe_leaves_out_is_the_targets() -> None:
    target = lively()
    own = target.shape
    assert shape_for(target, OWN) == HeadShape(
        hidden_size=own.hidden_size,
        target_hidden_size=own.hidden_size,
        taps=(0, 1, 2),
        heads=own.heads,
        kv_heads=own.kv_heads,
        head_width=own.head_width,
        feed_forward=own.feed_forward,
        vocab_size=VOCAB,
        draft_vocab_size=VOCAB,
        norm_eps=own.norm_eps,
        max_positions=own.max_positions,
        rotary=own.rotary,
        **PLAIN,
    )


SAID: dict[str, Any] = {
    "taps": (1, 2),
    "draft_vocab_size": 40,
    "heads": 8,
    "kv_heads": 1,
    "head_width": 6,
    "feed_forward": 20,
    "max_positions": 100,
    "norm_before_residual": True,
    "norm_before_fc": True,
    "fc_norm": True,
    "norm_output": True,
}


def overruled() -> None:
    target = lively()
    assert SAID.keys() == {one.name for one in fields(HeadSettings)} - {"warm_start", "begin_with"}
    for name, value in SAID.items():
        usual, changed = shape_for(target, OWN), shape_for(target, replace(OWN, **{name: value}))
        assert getattr(usual, name) != value and changed == replace(usual, **{name: value}), name


def test_what_a_recipe_says_goes_before() -> None:
    """One setting at a time; every other one stays the target's."""
    overruled()


@pytest.mark.parametrize(
    ("changes", "kind", "message"),
    [
        ({"draft_vocab_size": VOCAB + 1}, WeightsError, f"draft_vocab_size is {VOCAB + 1}; allowed: up to"),
        ({"kv_heads": 3}, WeightsError, "the head has 4 heads; allowed: a multiple of its 3 kv_heads"),
        ({"norm_before_fc": True, "fc_norm": True}, UnsupportedError, "norm_before_fc and fc_norm are both true"),
    ],
)
def test_shapes_that_cannot_be(changes: dict[str, Any], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        shape_for(lively(), replace(OWN, **changes))


@pytest.mark.parametrize("name", sorted(SAID))
def test_a_setting_that_is_not_looked_at_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: one setting of a recipe has no effect."""

    def deaf(target: Any, settings: HeadSettings) -> HeadShape:
        return honest_shape_for(target, replace(settings, **{name: getattr(OWN, name)}))

    monkeypatch.setitem(globals(), "shape_for", deaf)
    with must_fail():
        overruled()


honest_shape_for = shape_for


# ---- new heads -------------------------------------------------------------------------------------------------------


def test_a_new_head_is_named_by_its_seed() -> None:
    shape, ids = shape_for(lively(), replace(OWN, draft_vocab_size=5)), torch.tensor([3, 10, 11, 40, 63])
    head, again, other = (new_head(shape, ids, seed) for seed in (1, 1, 2))
    ours, same, others = (each.state_dict() for each in (head, again, other))
    assert all(torch.equal(ours[name], same[name]) for name in ours)
    matrices = [name for name, weight in head.named_parameters() if weight.dim() > 1]
    assert len(matrices) == 9 and not any(torch.equal(ours[name], others[name]) for name in matrices)
    assert {weight.dtype for weight in head.parameters()} == {torch.float32}


def test_a_new_head_begins_small_and_says_its_ids() -> None:
    """Norms of one. The spread of a thousand numbers or more is within 15 % of its own: of that many independent ones
    it is 2.2 % off at one standard deviation, and the seed is fixed."""
    ids = torch.tensor([3, 10, 11, 40, 63])
    head = new_head(shape_for(lively(), replace(OWN, draft_vocab_size=5)), ids, 0)
    for name, weight in head.named_parameters():
        if weight.dim() == 1:
            assert bool((weight == 1).all()), name
        elif weight.numel() >= 1000:
            assert float(weight.detach().std()) == pytest.approx(SPREAD, rel=0.15), name
    assert head.d2t is not None and head.t2d is not None
    assert head.target_ids.tolist() == ids.tolist() and head.t2d.nonzero()[:, 0].tolist() == ids.tolist()
    assert head.t2d.dtype == torch.bool and head.d2t.dtype == torch.int64
    whole = new_head(shape_for(lively(), OWN), torch.arange(VOCAB), 0)
    assert whole.d2t is None and whole.target_ids.tolist() == list(range(VOCAB))
