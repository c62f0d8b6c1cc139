"""Laws of the fast lane that need no reference: causality, rows that do not know each other, slots, refusals."""

from typing import Any

import pytest
import torch
from torch.testing import assert_close

from outpace.errors import OutpaceError, UnsupportedError, UsageError, WeightsError
from outpace.models.function import FunctionTarget
from outpace.models.shape import Shape
from outpace.models.toy import tiny_config, tiny_tensors, tiny_transformer
from outpace.models.transformer import Transformer
from outpace.verification.tree import DraftTree

KINDS: dict[str, dict[str, Any]] = {
    "llama": {"family": "llama"},
    "window": {"family": "mistral", "sliding_window": 4},
    "mixed": {
        "family": "qwen3",
        "use_sliding_window": True,
        "sliding_window": 4,
        "layer_types": ["sliding_attention", "full_attention"],
    },
}
Turn = tuple[list[int], list[tuple[list[int], list[int]]], list[list[int]]]


@pytest.fixture(params=KINDS)
def target(request: pytest.FixtureRequest) -> Transformer:
    return tiny_transformer(**KINDS[request.param])


def prompt(length: int, seed: int = 0) -> list[int]:
    return torch.randint(64, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


def opened(target: Transformer, *texts: list[int], slots: int = 8, positions: int = 48) -> Any:
    state = target.open(slots, positions)
    admit(target, state, *texts)
    return state


def admit(target: Transformer, state: Any, *texts: list[int]) -> torch.Tensor:
    longest = max(map(len, texts))
    padded = torch.tensor([[*text, *[0] * (longest - len(text))] for text in texts])
    return target.prefill(state, padded, list(map(len, texts))).logits[:, 0]


def score(target: Transformer, state: Any, last: list[int], rows: list[tuple[list[int], list[int]]]) -> torch.Tensor:
    return target.score(state, torch.tensor(last), DraftTree.from_lists(rows)).logits


def play(target: Transformer, state: Any, turn: Turn) -> list[torch.Tensor]:
    """Score and keep; the logits of each row's real nodes."""
    last, rows, kept = turn
    logits = score(target, state, last, rows)
    depth = max(map(len, kept))
    path = torch.tensor([[*nodes, *[-1] * (depth - len(nodes))] for nodes in kept], dtype=torch.int64)
    target.keep(state, path.view(len(kept), depth), list(map(len, kept)))
    return [row[: 1 + len(tokens)] for row, (tokens, _) in zip(logits, rows, strict=True)]


def of_row(turn: Turn, row: int) -> Turn:
    last, rows, kept = turn
    return [last[row]], [rows[row]], [kept[row]]


def test_a_later_token_moves_no_earlier_row(target: Transformer) -> None:
    """A cache of 10 and a block of 5: whichever token changes, the rows before it stay, and its own row moves."""
    state = opened(target, prompt(10))
    draft = prompt(5, seed=1)
    before = score(target, state, [1], [(draft, [-1, 0, 1, 2, 3])])[0]
    for changed in range(5):
        other = [token ^ (place == changed) for place, token in enumerate(draft)]
        after = score(target, state, [1], [(other, [-1, 0, 1, 2, 3])])[0]
        assert_close(after[: changed + 1], before[: changed + 1], atol=1e-6, rtol=0)
        assert (after[changed + 1] - before[changed + 1]).abs().max() > 0.1


def test_branches_do_not_see_each_other(target: Transformer) -> None:
    """Two branches of depth 3, their nodes alternating: a change in one moves its own later rows and no others."""
    state = opened(target, prompt(10))
    tokens, parents = prompt(6, seed=2), [-1, -1, 0, 1, 2, 3]
    before = score(target, state, [1], [(tokens, parents)])[0]
    for changed in range(6):
        other = [token ^ (place == changed) for place, token in enumerate(tokens)]
        moved = (score(target, state, [1], [(other, parents)])[0] - before).abs().amax(-1)
        below = [row for row in range(changed, 6) if row % 2 == changed % 2]
        for row in range(6):
            assert moved[1 + row] > 0.1 if row in below else moved[1 + row] <= 1e-6
        assert moved[0] <= 1e-6


def test_a_chain_is_its_tokens_one_by_one(target: Transformer) -> None:
    draft = prompt(5, seed=3)
    block = score(target, opened(target, prompt(10)), [1], [(draft, [-1, 0, 1, 2, 3])])[0]
    state, single = opened(target, prompt(10)), []
    for token in [1, *draft]:
        single += play(target, state, ([token], [([], [])], [[]]))
    assert_close(block, torch.cat(single), atol=1e-4, rtol=1e-5)


TURNS: list[Turn] = [
    (
        [1, 2, 3, 4],
        [([5, 6, 7], [-1, -1, 1]), ([], []), ([8, 9, 10, 11], [-1, 0, 1, 2]), ([12], [-1])],
        [[1, 2], [], [0], []],
    ),
    (
        [11, 12, 13, 14],
        [([], []), ([15, 16], [-1, -1]), ([17], [-1]), ([18, 19, 20], [-1, -1, 0])],
        [[], [1], [0], [0, 2]],
    ),
    ([21, 22, 23, 24], [([25, 26], [-1, 0])] * 4, [[0, 1]] * 4),
]


def test_rows_of_a_batch_are_single_runs(target: Transformer) -> None:
    """Prompts of 1, 3, 7 and 12 tokens with ragged trees, accepted differently: as if each row were alone."""
    texts = [prompt(length, seed=length) for length in (1, 3, 7, 12)]
    batch = opened(target, *texts)
    alone = [opened(target, text, slots=1) for text in texts]
    for turn in TURNS:
        for row, logits in enumerate(play(target, batch, turn)):
            assert_close(logits, play(target, alone[row], of_row(turn, row))[0], atol=1e-4, rtol=1e-5)
    assert batch.lengths == [state.lengths[0] for state in alone]


def test_slots_are_refilled_between_turns(target: Transformer) -> None:
    """Rows leave from the front, rows join at the end of a batch in flight: each goes on as if it were alone."""
    texts = [prompt(length, seed=length) for length in (5, 2, 9, 4)]
    batch = opened(target, *texts, slots=4)
    play(target, batch, TURNS[0])
    target.select(batch, [3, 1])
    new = [prompt(11, seed=20), prompt(1, seed=21)]
    read = admit(target, batch, *new)
    fresh = [opened(target, text, slots=1) for text in new]
    for row, text in enumerate(new):
        assert_close(read[row], admit(target, target.open(1, 48), text)[0], atol=1e-4, rtol=1e-5)
    stayed = [opened(target, texts[row], slots=1) for row in (3, 1)]
    for row, state in zip((3, 1), stayed, strict=True):
        play(target, state, of_row(TURNS[0], row))
    for row, (logits, state) in enumerate(zip(play(target, batch, TURNS[1]), stayed + fresh, strict=True)):
        assert_close(logits, play(target, state, of_row(TURNS[1], row))[0], atol=1e-4, rtol=1e-5)


def test_what_lies_stale_in_the_cache_is_never_seen(target: Transformer) -> None:
    """All that no row holds is spoiled with 1e4, before a prompt and after rejections: no logit moves by a bit."""
    texts = [prompt(3), prompt(9)]
    clean, spoiled = opened(target, *texts), target.open(8, 48)

    def spoil() -> None:
        for row in range(spoiled.slots):
            length = spoiled.lengths[row] if row < len(spoiled.lengths) else 0
            for store in (spoiled.keys, spoiled.values):
                store[:, row, :, length:] = 1e4

    spoil()
    admit(target, spoiled, *texts)
    for last, rows, kept in TURNS:
        spoil()
        turn: Turn = (last[:2], rows[:2], kept[:2])
        for ours, theirs in zip(play(target, spoiled, turn), play(target, clean, turn), strict=True):
            assert torch.equal(ours, theirs)


def test_rewound_is_never_read(target: Transformer) -> None:
    state = opened(target, prompt(6))
    play(target, state, ([1], [([2, 3], [-1, 0])], [[0, 1]]))
    target.rewind(state, [6])
    again = play(target, state, ([4], [([5, 6, 7], [-1, -1, 1])], [[1, 2]]))[0]
    assert_close(again, play(target, opened(target, prompt(6)), ([4], [([5, 6, 7], [-1, -1, 1])], [[]]))[0])


def test_filler_is_finite(target: Transformer) -> None:
    """Rows past a ragged row's nodes hold no meaning, but no NaN either, which would spread."""
    logits = score(target, opened(target, prompt(9), prompt(2)), [1, 2], [([], []), ([3, 4], [-1, 0])])
    assert logits.shape == (2, 3, 64)
    assert logits.isfinite().all()


def test_a_refused_forward_changes_nothing(target: Transformer) -> None:
    """Too many positions or too many rows: an error in words, and the batch goes on."""
    state = opened(target, prompt(5), slots=2, positions=8)
    with pytest.raises(UsageError, match="the cache holds 8 positions a row and 9 are needed\nhint: open it with more"):
        score(target, state, [1], [([1, 2, 3], [-1, 0, 1])])
    with pytest.raises(UsageError, match="the cache holds 8 positions a row and 11 are needed"):
        admit(target, state, prompt(11))
    with pytest.raises(UsageError, match="2 more rows were given to a cache with 1 of 2 slots free"):
        admit(target, state, prompt(2), prompt(3))
    assert state.lengths == [5]
    expected = score(target, opened(target, prompt(5)), [1], [([1, 2], [-1, 0])])
    assert_close(score(target, state, [1], [([1, 2], [-1, 0])]), expected)


def test_the_state_of_another_target_is_refused() -> None:
    stranger = FunctionTarget(lambda ids: torch.zeros(*ids.shape, 64), 64).open(1, 8)
    with pytest.raises(TypeError, match="a Transformer was given the state of another target: Texts"):
        tiny_transformer().rewind(stranger, [])


REFUSED: list[tuple[dict[str, Any], type[OutpaceError], str]] = [
    (
        {"model_type": "gpt2"},
        UnsupportedError,
        r"model type is 'gpt2'; the fast lane knows llama, mistral, qwen2, qwen3\n",
    ),
    ({"hidden_act": "gelu"}, UnsupportedError, "the activation is 'gelu'; the fast lane knows 'silu'"),
    (
        {"quantization_config": {"quant_method": "fp8"}},
        UnsupportedError,
        r"the weights are quantised \(fp8\); the fast",
    ),
    ({"num_hidden_layers": None}, WeightsError, "config.json has no 'num_hidden_layers'"),
    (
        {"model_type": "mistral", "layer_types": ["chunked_attention", "full_attention"]},
        UnsupportedError,
        "a layer is of type 'chunked_attention'; allowed: full_attention, sliding_attention",
    ),
    ({"model_type": "mistral", "layer_types": ["full_attention"]}, WeightsError, "has 1 layer_types for 2 layers"),
]


@pytest.mark.parametrize(("changes", "kind", "text"), REFUSED)
def test_configurations_that_are_refused(changes: dict[str, Any], kind: type[OutpaceError], text: str) -> None:
    config = {key: value for key, value in (tiny_config() | changes).items() if value is not None}
    with pytest.raises(kind, match=text):
        Shape.from_config(config)


@pytest.mark.parametrize(
    ("family", "changes", "name"),
    [
        ("llama", {}, "model.layers.1.mlp.up_proj.weight"),
        ("llama", {}, "lm_head.weight"),
        ("llama", {"mlp_bias": True}, "model.layers.0.mlp.gate_proj.bias"),
        ("llama", {"attention_bias": True}, "model.layers.0.self_attn.o_proj.bias"),
        ("qwen2", {}, "model.layers.1.self_attn.k_proj.bias"),
        ("qwen3", {}, "model.layers.1.self_attn.q_norm.weight"),
    ],
)
def test_a_missing_tensor_is_named(family: str, changes: dict[str, Any], name: str) -> None:
    """Biases and norms too, whether one of several is lacking or all: none is taken for zero."""
    config = tiny_config(family, **changes)
    tensors = tiny_tensors(config)
    del tensors[name]
    with pytest.raises(WeightsError, match=f"the weights lack the tensor '{name}'\nhint: is the download complete"):
        Transformer(Shape.from_config(config), tensors, dtype=torch.float32, packed=False)


def test_a_wrong_shape_and_a_stray_bias_are_named() -> None:
    config = tiny_config()
    name = "model.layers.1.self_attn.k_proj"
    tensors = tiny_tensors(config) | {f"{name}.weight": torch.zeros(15, 32)}
    with pytest.raises(WeightsError, match=rf"'{name}.weight' has shape \(15, 32\); config.json says \(16, 32\)"):
        Transformer(Shape.from_config(config), tensors, dtype=torch.float32, packed=False)
    tensors = tiny_tensors(config) | {f"{name}.bias": torch.zeros(16)}
    with pytest.raises(
        WeightsError, match=f"the weights hold '{name}.bias'; config.json says that there is no such bias"
    ):
        Transformer(Shape.from_config(config), tensors, dtype=torch.float32, packed=False)
