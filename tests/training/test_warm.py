"""A warm head begins as the target's last layer: it says the target's own logits, to rounding, before any training."""

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from heads import CLOSE, features_of, literal, random_head, shape_of
from hosts import hosted
from lessons import PLAIN, target_folder
from outpace.drafters.head import Head, HeadShape
from outpace.models.load import load_target
from outpace.models.target import Target
from outpace.models.transformer import Transformer
from outpace.training import warm as module
from outpace.training.anatomy import new_head, shape_for
from outpace.training.recipe import HeadSettings
from outpace.training.warm import warm_start
from toys import dense_logits, lively, must_fail, reference

PROMPT, NEW = (1, 2, 3), 12
ATTENTION = [f"midlayer.self_attn.{name}_proj.weight" for name in "qkvo"]
FEED_FORWARD = [f"midlayer.mlp.{name}_proj.weight" for name in ("gate", "up", "down")]
IDS = torch.arange(0, 64, 2)


def begun(target: Target, shape: HeadShape, ids: Tensor, seed: int = 0) -> tuple[Head, Head, list[str]]:
    """A head before and after its warm start, and what stayed random."""
    before, after = new_head(shape, ids, seed), new_head(shape, ids, seed)
    return before, after, warm_start(after, target, ids)


# ---- the law ---------------------------------------------------------------------------------------------------------


def case(target: Transformer) -> None:
    """A head that reads what the last layer reads says what the target says there, for the ids that it has."""
    layers = target.shape.layers
    text = [*PROMPT, *reference(target, PROMPT, NEW)]
    for taps, ids in (((0, layers - 1), torch.arange(64)), ((layers - 1,), IDS)):
        settings = HeadSettings(**PLAIN, taps=taps, draft_vocab_size=len(ids))
        _, head, left = begun(target, shape_for(target, settings), ids)
        assert left == []
        shown, own = features_of(target, text, taps), dense_logits(target, text)
        for length in (2, 5, len(text)):
            [said] = literal(head, target.embeddings, shown[: length - 1], text[:length])
            torch.testing.assert_close(said, own[length - 2, ids], **CLOSE)


@pytest.mark.parametrize("layers", [2, 4])
def test_it_is_the_targets_last_layer(layers: int) -> None:
    case(lively(layers=layers))


def test_what_the_embedding_brings_begins_at_nothing() -> None:
    target = lively()
    _, head, _ = begun(target, shape_for(target, HeadSettings(**PLAIN)), torch.arange(64))
    for name in ATTENTION[:3]:
        weight = head.get_parameter(name)
        assert not weight[:, :32].any() and bool(weight[:, 32:].any(1).all())
    assert bool((head.midlayer.input_layernorm.weight == 1).all()), "it norms what the target never normed"


def swapped(first: str, second: str) -> Any:
    def fault(target: Transformer) -> dict[str, Tensor]:
        found = honest_of_memory(target)
        return found | {first: found[second], second: found[first]}

    return fault


def the_layer_before(target: Transformer) -> dict[str, Tensor]:
    last, target.blocks = target.blocks, target.blocks[:-1]
    try:
        return honest_of_memory(target)
    finally:
        target.blocks = last


def without_a_norm(target: Transformer) -> dict[str, Tensor]:
    return {name: weight for name, weight in honest_of_memory(target).items() if name != "norm.weight"}


def other_ids(target: Target) -> Tensor:
    return honest_read_head(target).roll(1, 0)


honest_of_memory, honest_read_head = module._of_memory, module.read_head


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("_of_memory", swapped(FEED_FORWARD[0], FEED_FORWARD[1])),
        ("_of_memory", swapped("midlayer.hidden_norm.weight", "midlayer.post_attention_layernorm.weight")),
        ("_of_memory", swapped(*ATTENTION[1:3])),
        ("_of_memory", the_layer_before),
        ("_of_memory", without_a_norm),
        ("read_head", other_ids),
    ],
)
def test_planted_faults(name: str, fault: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, name, fault)
    with must_fail():
        case(lively())


# ---- other targets ---------------------------------------------------------------------------------------------------


def test_every_lane_and_dtype_gives_the_same(tmp_path: Path) -> None:
    """Out of memory, and out of the files of a target that transformers runs; one may have rounded to its dtype."""
    folder = target_folder(tmp_path / "target", vocab_size=64, eos_id=0)
    for dtype in ("fp32", "bf16"):
        targets = [load_target(folder, dtype=dtype, lane=lane) for lane in ("fast", "hosted")]
        shape = shape_for(targets[0], HeadSettings(**PLAIN, draft_vocab_size=len(IDS)))
        heads = [begun(target, shape, IDS)[1].state_dict() for target in targets]
        for name, weight in heads[0].items():
            given = heads[1][name]
            rounded = given.to(targets[0].dtype).to(given.dtype) if given.is_floating_point() else given
            assert torch.equal(weight, given) or torch.equal(weight, rounded), name


def test_what_does_not_fit_stays_random_and_is_named() -> None:
    """Each with its own notice; all else is copied."""
    target = lively()
    for changes, names in (
        ({"heads": 8, "kv_heads": 4}, ATTENTION),
        ({"heads": 2}, [ATTENTION[0], ATTENTION[3]]),
        ({"feed_forward": 20}, FEED_FORWARD),
    ):
        shape = shape_for(target, HeadSettings(**PLAIN, **changes))
        with pytest.warns(UserWarning, match=f"has nothing that fits {', '.join(names)} of the head; they start at"):
            before, after, left = begun(target, shape, torch.arange(64))
        assert left == names
        ours, theirs = dict(before.named_parameters()), dict(after.named_parameters())
        for name, weight in ours.items():
            same = torch.equal(weight, theirs[name])
            assert same == (name in left or name == "midlayer.input_layernorm.weight"), name


def test_a_target_of_another_kind_lends_its_head() -> None:
    """GPT-2 has no layer like it: only the rows of its head, and the fusion, are set."""
    target = hosted("gpt2")
    shape = shape_of(hidden_size=64, target_hidden_size=64, heads=4, head_width=16, feed_forward=64)
    ids = torch.arange(40)
    with pytest.warns(UserWarning, match="the target .* has nothing that fits midlayer.self_attn.q_proj.weight, "):
        before, head, left = begun(target, shape, ids)
    assert left == ATTENTION + FEED_FORWARD
    assert torch.equal(head.lm_head.weight, module.read_head(target)[:40])
    assert all(torch.equal(head.get_parameter(name), before.get_parameter(name)) for name in left)
    features = torch.randn(5, 3, 64, generator=torch.Generator().manual_seed(0))
    assert torch.equal(head.fuse(features), features[:, -1]), "the highest tap goes through"


def test_a_head_of_another_width_begins_at_random() -> None:
    target = lively()
    head = random_head(shape_of(hidden_size=16, head_width=4, draft_vocab_size=64))
    before = {name: weight.clone() for name, weight in head.state_dict().items()}
    with pytest.warns(UserWarning, match="has nothing that fits fc.weight, "):
        left = warm_start(head, target, torch.arange(64))
    assert set(left) == {"fc.weight", "lm_head.weight", *ATTENTION, *FEED_FORWARD}
    assert all(torch.equal(before[name], weight) for name, weight in head.state_dict().items())


def test_a_target_that_fits_gives_no_notice() -> None:
    target = lively()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert begun(target, shape_for(target, HeadSettings(**PLAIN)), torch.arange(64))[2] == []
