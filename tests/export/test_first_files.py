"""EAGLE-1 heads go out under the names and keys that readers ask for, and come back bit for bit, logit for logit."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from torch import Tensor

from cards import USUAL, card_for, document, model_folder
from first_heads import first_shape, learnt, random_first
from heads import random_head, shape_of
from outpace.decoding.generate import generate
from outpace.drafters.eagle import Eagle
from outpace.drafters.first_head import FirstHead
from outpace.drafters.first_layouts import read_first, require_ends
from outpace.drafters.record import Card, TargetRecord
from outpace.drafters.walk import Walker
from outpace.errors import UnsupportedError, UsageError, WeightsError
from outpace.export.formats import FIRST
from outpace.models.ends import SharedHead, read_embeddings, read_head
from outpace.models.load import load_target
from outpace.models.rotary import Rotary
from outpace.models.target import Target
from toys import reference

LAYER = {
    "layers.0.self_attn.q_proj.weight": [32, 32],
    "layers.0.self_attn.k_proj.weight": [16, 32],
    "layers.0.self_attn.v_proj.weight": [16, 32],
    "layers.0.self_attn.o_proj.weight": [32, 32],
    "layers.0.mlp.gate_proj.weight": [48, 32],
    "layers.0.mlp.up_proj.weight": [48, 32],
    "layers.0.mlp.down_proj.weight": [32, 48],
    "layers.0.post_attention_layernorm.weight": [32],
    "fc.weight": [32, 64],
}
BIAS = {"fc.bias": [32]}
ENDS = {"embed_tokens.weight": [64, 32], "lm_head.weight": [64, 32]}
SETTINGS = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_act": "silu",
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "attention_bias": False,
    "mlp_bias": False,
    "tie_word_embeddings": False,
    "vocab_size": 64,
    "torch_dtype": "bfloat16",
    "rope_theta": 10000.0,
}


def config_of(layout: str, fc_bias: bool) -> dict[str, Any]:
    """Typed out from what the readers ask for."""
    if layout == "safeailab":
        return SETTINGS | {"bias": fc_bias}
    return {
        "architectures": ["EAGLEModel"],
        "model_type": "eagle",
        "model": SETTINGS | {"rope_scaling": None},
        "eagle_fc_bias": fc_bias,
        "truncated_vocab_size": 64,
        "torch_dtype": "bfloat16",
    }


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Target:
    return load_target(model_folder(tmp_path_factory.mktemp("exported") / "target"), dtype="fp32")


@cache
def card_of(target: Target) -> Card:
    """What writers ask of a card is who its target is."""
    return card_for(random_head(shape_of(taps=USUAL)), target)


def made(dtype: torch.dtype = torch.bfloat16, **changes: Any) -> FirstHead:
    return random_first(first_shape(**changes)).to(dtype)


def contents(folder: Path) -> dict[str, tuple[str, list[int]]]:
    """Dtype and shape of every tensor, as the file's own header has them."""
    with safe_open(folder / "model.safetensors", framework="pt") as opened:
        assert opened.metadata() == {"format": "pt"}
        slices = {name: opened.get_slice(name) for name in opened.keys()}  # noqa: SIM118 - it is no mapping
        return {name: (one.get_dtype(), one.get_shape()) for name, one in slices.items()}


@torch.inference_mode()
def logits_of(head: FirstHead, target: Target, places: tuple[int, ...] = (5, 95)) -> Tensor:
    """Draft logits at some places of one text, in fp32: ``[places, vocab]``."""
    generator = torch.Generator().manual_seed(3)
    features = torch.randn(max(places) + 1, 1, 32, generator=generator)
    tokens = torch.randint(64, (max(places) + 1,), generator=generator).tolist()
    shared = SharedHead.of_rows(read_head(target))
    walker = Walker(head, read_embeddings(target), dtype=torch.float32, packed=False, shared=shared)
    said = []
    for place in places:
        cache = walker.open(1, place + 1)
        cache.admit(1)
        residual, queries = walker.read(cache, [0], [features[: place + 1]], [tokens[: place + 1]])
        said.append(walker.logits(walker.attend(cache, residual[None, -1:], queries[None, -1:]))[0, 0])
    return torch.stack(said)


def same_weights(left: FirstHead, right: FirstHead) -> bool:
    mine, theirs = dict(left.state_dict()), dict(right.state_dict())
    return mine.keys() == theirs.keys() and all(
        mine[name].dtype == theirs[name].dtype and torch.equal(mine[name], theirs[name]) for name in mine
    )


# ---- golden ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fc_bias", [True, False])
@pytest.mark.parametrize("layout", FIRST)
def test_files(layout: str, fc_bias: bool, target: Target, tmp_path: Path) -> None:
    """What older vLLM does not borrow is in its folder; SafeAILab's reader takes both ends from the target."""
    FIRST[layout](tmp_path / "out", made(fc_bias=fc_bias), card_of(target))
    assert sorted(entry.name for entry in (tmp_path / "out").iterdir()) == ["config.json", "model.safetensors"]
    assert document(tmp_path / "out") == config_of(layout, fc_bias)
    shapes = LAYER | (BIAS if fc_bias else {}) | (ENDS if layout == "vllm" else {})
    assert contents(tmp_path / "out") == {name: ("BF16", shape) for name, shape in shapes.items()}


@pytest.mark.parametrize("tied", [False, True])
def test_the_ends_are_the_targets(tied: bool, tmp_path: Path) -> None:
    target = load_target(model_folder(tmp_path / "target", tie_word_embeddings=tied), dtype="fp32")
    FIRST["vllm"](tmp_path / "out", made(torch.float32), card_of(target))
    back = read_first(tmp_path / "out")
    assert back.kind == "wrapped" and back.embeddings is not None and back.rows is not None
    assert torch.equal(back.embeddings, read_embeddings(target)) and torch.equal(back.rows, read_head(target))


# ---- round trips -----------------------------------------------------------------------------------------------------

ROTARY: dict[str, dict[str, Any]] = {
    "default": {"rope_type": "default", "rope_theta": 500000.0},
    "linear": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0},
    "llama3": {
        "rope_type": "llama3",
        "rope_theta": 500000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
    "yarn": {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0},
}
SHAPES: dict[str, dict[str, Any]] = {
    "bias": {},
    "no bias": {"fc_bias": False},
    "one wide head": {"heads": 1, "kv_heads": 1, "head_width": 32},
    "narrow heads": {"heads": 4, "kv_heads": 4, "head_width": 6},
    **{name: {"rotary": rotary} for name, rotary in ROTARY.items()},
}
CARRIED = {"vllm": set(SHAPES), "safeailab": {"bias", "no bias", "one wide head", "default", "linear"}}


@pytest.mark.parametrize("layout", FIRST)
@pytest.mark.parametrize("name", SHAPES)
def test_it_comes_back(name: str, layout: str, target: Target, tmp_path: Path) -> None:
    """Every bit of every tensor, every setting, rotary frequencies by what they are, and every logit."""
    head = made(**SHAPES[name])
    if name not in CARRIED[layout]:
        with pytest.raises(UnsupportedError, match="the layout of SafeAILab cannot carry"):
            FIRST[layout](tmp_path / "out", head, card_of(target))
        assert list(tmp_path.iterdir()) == []
        return
    FIRST[layout](tmp_path / "out", head, card_of(target))
    back = read_first(tmp_path / "out").head
    assert same_weights(back, head)
    mine, theirs = (vars(one.shape) | {"rotary": None} for one in (head, back))
    assert mine == theirs
    turned, other = (Rotary(one.shape.rotary, one.shape.head_width, one.shape.max_positions) for one in (head, back))
    assert torch.equal(turned.inverse, other.inverse) and turned.scale == other.scale
    assert torch.equal(logits_of(back, target), logits_of(head, target))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("layout", FIRST)
def test_every_dtype_comes_back(layout: str, dtype: torch.dtype, target: Target, tmp_path: Path) -> None:
    head = made(dtype)
    FIRST[layout](tmp_path / "out", head, card_of(target))
    assert same_weights(read_first(tmp_path / "out").head, head)


@pytest.mark.parametrize("layout", FIRST)
def test_out_and_in_and_out_again_is_the_same_file(layout: str, target: Target, tmp_path: Path) -> None:
    FIRST[layout](tmp_path / "once", made(), card_of(target))
    FIRST[layout](tmp_path / "again", read_first(tmp_path / "once").head, card_of(target))
    for file in ("config.json", "model.safetensors"):
        assert (tmp_path / "once" / file).read_bytes() == (tmp_path / "again" / file).read_bytes()


@cache
def memorised(target: Target) -> tuple[FirstHead, list[int]]:
    """A head that knows one text of the target by heart, three tokens ahead; and the text."""
    text = [1, 2, 3, *reference(target, (1, 2, 3), 32 + 8)]
    return learnt(target, [text], first_shape(), passes=80), text


@pytest.mark.parametrize("layout", ["before", *FIRST])
def test_what_it_knows_by_heart_it_knows_behind_every_layout(layout: str, target: Target, tmp_path: Path) -> None:
    """Acceptance 1 over a whole text, which is that of plain decoding."""
    head, text = memorised(target)
    if layout != "before":
        FIRST[layout](tmp_path / "out", head, card_of(target))
        found = read_first(tmp_path / "out")
        require_ends(target, layout, embeddings=found.embeddings, rows=found.rows)
        head = found.head
    drafter = Eagle(head, target, packed=False)
    said = generate(target, drafter, text[:3], raw=True, max_new_tokens=32, num_draft_tokens=3)
    speculation = said.stats.speculation
    assert said.token_ids == text[3 : 3 + 32]
    assert speculation.acceptance == 1.0 and speculation.drafted == speculation.accepted > 20


# ---- refused ---------------------------------------------------------------------------------------------------------


def _spoilt(head: FirstHead) -> None:
    head.fc.bias.data[3] = torch.inf


def _mixed(head: FirstHead) -> None:
    head.layer.mlp.float()


REFUSED: list[tuple[str, dict[str, Any], Callable[[FirstHead], Any] | None, str]] = [
    (
        "safeailab",
        SHAPES["narrow heads"],
        None,
        "carry 4 heads of width 6 in a layer 32 wide; allowed: heads that are together as wide as the layer",
    ),
    (
        "safeailab",
        SHAPES["llama3"],
        None,
        "carry the rotary scaling 'llama3' by 8 to a base of 500000; allowed: none, o",
    ),
    *((layout, {"rotary": {"rope_type": "longrope"}}, None, "the rotary scaling is 'longrope'") for layout in FIRST),
    *((layout, {}, _spoilt, "fc.bias of the head holds values that are not finite in bfloat16") for layout in FIRST),
    *((layout, {}, _mixed, "weights of the head are torch.bfloat16 and torch.float32; allowed") for layout in FIRST),
]


@pytest.mark.parametrize(
    ("layout", "changes", "spoil", "message"), REFUSED, ids=lambda value: value if isinstance(value, str) else ""
)
def test_refused_by_name(
    layout: str,
    changes: dict[str, Any],
    spoil: Callable[[FirstHead], Any] | None,
    message: str,
    target: Target,
    tmp_path: Path,
) -> None:
    head = made(**changes)
    if spoil is not None:
        spoil(head)
    with pytest.raises((UnsupportedError, WeightsError), match=message):
        FIRST[layout](tmp_path / "out", head, card_of(target))
    assert list(tmp_path.iterdir()) == []


def test_a_target_that_is_not_here_or_is_another(target: Target, tmp_path: Path) -> None:
    """Only the layout that holds its ends asks for it."""
    card = card_of(target)
    gone = Card(**(vars(card) | {"target": TargetRecord(**(vars(card.target) | {"name": "org/nowhere"}))}))
    other = model_folder(tmp_path / "other", seed=2)
    moved = Card(**(vars(card) | {"target": TargetRecord(**(vars(card.target) | {"name": str(other)}))}))
    with pytest.raises(WeightsError, match=r"org/nowhere is not on this machine\nhint: run `outpace pull org/nowhere`"):
        FIRST["vllm"](tmp_path / "out", made(), gone)
    with pytest.raises(
        WeightsError, match=r"other is not the target that the card was made for, .*: their fingerprints d"
    ):
        FIRST["vllm"](tmp_path / "out", made(), moved)
    with pytest.raises(
        WeightsError, match=r"embed_tokens.weight of .* are 64 x 32 and 65 x 32; allowed: one and the same"
    ):
        FIRST["vllm"](tmp_path / "out", made(vocab_size=65), card)
    assert not (tmp_path / "out").exists()
    FIRST["safeailab"](tmp_path / "out", made(), gone)
    with pytest.raises(UsageError, match=r"out holds config.json; allowed: a folder that is new or empty"):
        FIRST["safeailab"](tmp_path / "out", made(), gone)
