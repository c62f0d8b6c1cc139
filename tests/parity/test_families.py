"""The fast lane gives the logits of transformers: every family, prompts, chains and trees, ragged rows, turn by turn.

Tolerances. Both sides compute in fp32, with sums in another order. The logits of these lively models have a standard
deviation of 3.5 and reach 17; they were seen to differ by 2e-5. 1e-4, absolute and relative, leaves room for other
processors, and a wrong mask, position or weight moves logits by more than 1. Hidden states reach 225 before the final
norm and are compared at 1e-3 absolute.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from jaxtyping import Bool, Int
from torch import Tensor
from torch.testing import assert_close
from transformers import AutoConfig

from outpace.models import transformer
from outpace.models.shape import FAMILIES, Shape
from outpace.verification.tree import DraftTree

CLOSE = {"atol": 1e-4, "rtol": 1e-4}
LENGTHS = [5, 17, 1]  # below and above the window of 8 and the old context of 16
Rows = list[tuple[list[int], list[int]]]

# Parents of every row's tree, and the path that is then kept: second branches, nothing at all, a whole chain.
TURNS: list[tuple[list[list[int]], list[list[int]]]] = [
    ([[-1, -1, 0, 1, 3], [], [-1, 0]], [[1, 3, 4], [], [0]]),
    ([[], [-1, -1, -1, 1, 1], [-1, 0, 1, 2]], [[], [1, 4], [0, 1, 2, 3]]),
    ([[-1, 0, 1, 2], [-1, 0, 0, 2, 2, 1], [-1, -1]], [[0, 1, 2, 3], [0, 2, 4], [1]]),
    ([[-1, 0, 0, 1, 1], [-1], [-1, -1, 0, 0, 1]], [[], [], []]),
]


def random_ids(*shape: int, seed: int = 0) -> Int[Tensor, "*shape"]:
    return torch.randint(64, shape, generator=torch.Generator().manual_seed(seed))


def planted(parents: list[list[int]], seed: int) -> DraftTree:
    tokens = [random_ids(len(row), seed=seed + 7 * place).tolist() for place, row in enumerate(parents)]
    return DraftTree.from_lists(list(zip(tokens, parents, strict=True)))


def prompts() -> list[list[int]]:
    return [random_ids(length, seed=length).tolist() for length in LENGTHS]


def padded(texts: list[list[int]]) -> Int[Tensor, "batch time"]:
    longest = max(map(len, texts))
    return torch.tensor([[*text, *[63] * (longest - len(text))] for text in texts])


def play(pair: Any, target: transformer.Transformer) -> None:
    """Prompts and turns, each row of each turn against the reference that reads its whole text anew."""
    texts = prompts()
    state = target.open(len(texts), 40)
    read = target.prefill(state, padded(texts), LENGTHS).logits[:, 0]
    assert_close(read, torch.stack([logits[-1] for logits in pair.read(texts)]), **CLOSE)
    for turn, (parents, kept) in enumerate(TURNS):
        tree, last = planted(parents, seed=100 * turn), random_ids(len(texts), seed=turn)
        scored = target.score(state, last, tree).logits
        for row, expected in zip(scored, pair.after(texts, last, tree), strict=True):
            assert_close(row[: len(expected)], expected, **CLOSE)
        width = max(map(len, kept))
        path = torch.tensor([[*nodes, *[-1] * (width - len(nodes))] for nodes in kept], dtype=torch.int64)
        target.keep(state, path.view(len(kept), width), [len(nodes) for nodes in kept])
        for text, root, nodes, (tokens, _) in zip(texts, last.tolist(), kept, tree.to_lists(), strict=True):
            text += [root, *(tokens[node] for node in nodes)]
        assert state.lengths == [len(text) for text in texts]


def test_prompts_chains_and_trees_turn_by_turn(pair: Any) -> None:
    play(pair, pair.target())


@pytest.mark.parametrize("name", ["smollm", "llama-biases-wide-heads", "qwen3-mixed"])
def test_packed_weights_say_the_same(build: Callable[[str], Any], name: str) -> None:
    if not torch.backends.mkldnn.is_available():
        pytest.skip("this build of torch has no packed layout")
    pair = build(name)
    target = pair.target(packed=True)
    assert target.packed and target.head.packed
    play(pair, target)


def test_a_tree_is_one_forward_under_its_mask(pair: Any) -> None:
    """transformers, given our tree as a mask of four axes and as positions, agrees node by node.

    The second branch is deeper than the window of 8, and behind its first node a sibling takes up a place in the line.
    """
    text, target = prompts()[1], pair.target()
    tree, last = planted([[-1, -1, 0, 1, 0, 3, 5, 6, 7, 8, 9, 10, 11]], seed=5), random_ids(1, seed=6)
    state = target.open(1, 40)
    target.prefill(state, torch.tensor([text]), [len(text)])
    parents = [index - 1 for index in range(len(text) + 1)] + [
        len(text) + 1 + parent for parent in tree.parents[0].tolist()
    ]  # of text, root and nodes in one line; -1 of the tree is the root
    line = torch.tensor([*text, *last.tolist(), *tree.tokens[0].tolist()])
    places = torch.zeros(len(line), dtype=torch.int64)
    sees = torch.eye(len(line), dtype=torch.bool)
    for index, parent in enumerate(parents):
        if parent >= 0:
            sees[index] |= sees[parent]
            places[index] = places[parent] + 1
    scored = target.score(state, last, tree).logits[0]
    expected = masked_run(pair, line, places, sees)[len(text) :]
    assert_close(scored, expected, **CLOSE)


def masked_run(
    pair: Any, line: Int[Tensor, " time"], places: Int[Tensor, " time"], sees: Bool[Tensor, "time time"]
) -> Any:
    """The reference on one flat line; a window is cut by position, never by place in the line."""
    config = pair.reference.config
    window = getattr(config, "sliding_window", None)
    near = sees & (places[:, None] - places < window) if window else sees
    full, slides = (torch.zeros(mask.shape).masked_fill(~mask, float("-inf"))[None, None] for mask in (sees, near))
    mixed = getattr(config, "layer_types", None)
    mask: Any = {"full_attention": full, "sliding_attention": slides} if mixed else slides
    with torch.inference_mode():
        out = pair.reference(line[None], attention_mask=mask, position_ids=places[None], use_cache=False)
    return out.logits[0]


def test_a_prompt_in_chunks(pair: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Prompts far over the tokens of one forward, joined by a later row, give what transformers gives at once."""
    monkeypatch.setattr(transformer, "PREFILL_TOKENS", 7)
    texts, target = prompts(), pair.target()
    state = target.open(4, 40)
    read = [target.prefill(state, padded(texts[:2]), LENGTHS[:2]).logits[:, 0]]
    read.append(target.prefill(state, padded(texts[1:]), LENGTHS[1:]).logits[:, 0])
    expected = [logits[-1] for logits in pair.read(texts[:2] + texts[1:])]
    assert_close(torch.cat(read), torch.stack(expected), **CLOSE)
    last, tree = random_ids(4), planted([[-1, -1, 1]] * 4, seed=3)
    scored = target.score(state, last, tree).logits
    assert_close(scored, torch.stack(pair.after(texts[:2] + texts[1:], last, tree)), **CLOSE)


@pytest.mark.parametrize("name", ["llama", "mistral-mixed", "qwen3"])
@pytest.mark.parametrize("chunk", [7, 512])
def test_features_are_the_hidden_states(
    build: Callable[[str], Any], name: str, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tap 0 is the embeddings, k the output of layer k, ``last_normed`` what the head reads; in prompts and trees."""
    monkeypatch.setattr(transformer, "PREFILL_TOKENS", chunk)
    pair = build(name)
    texts, target = prompts(), pair.target()
    taps: tuple[int | str, ...] = (2, 0, "last_normed", 3, 1)
    state = target.open(3, 40)
    prefilled = target.prefill(state, padded(texts), LENGTHS, taps).features  # type: ignore[arg-type]
    for seen, text in zip(prefilled, texts, strict=True):
        assert_close(seen[: len(text)], hidden_states(pair, text, taps), atol=1e-3, rtol=1e-4)
    last, tree = random_ids(3), planted([[-1, -1, 1], [-1, 0], []], seed=3)
    scored = target.score(state, last, tree, taps).features  # type: ignore[arg-type]
    for row, nodes in ((0, [1, 2]), (1, [0, 1]), (2, [])):
        path = [last[row].item(), *(tree.tokens[row, node].item() for node in nodes)]
        expected = hidden_states(pair, texts[row] + path, taps)[-len(path) :]
        assert_close(scored[row, [0, *(1 + node for node in nodes)]], expected, atol=1e-3, rtol=1e-4)


def hidden_states(pair: Any, text: list[int], taps: tuple[int | str, ...]) -> Any:
    """``[time, taps, width]``; by hooks, as transformers shows the last layer's output only after the final norm."""
    model, seen = pair.reference.model, {}
    watched = {0: model.embed_tokens, "last_normed": model.norm} | dict(enumerate(model.layers, start=1))

    def watch(tap: int | str) -> Any:
        return lambda module, given, out: seen.update({tap: out[0] if isinstance(out, tuple) else out})

    hooks = [module.register_forward_hook(watch(tap)) for tap, module in watched.items()]
    with torch.inference_mode():
        shown = pair.reference(torch.tensor([text]), output_hidden_states=True, use_cache=False).hidden_states
    for hook in hooks:
        hook.remove()
    for tap, state in enumerate(shown[:-1]):
        assert_close(seen[tap], state)
    assert_close(seen["last_normed"], shown[-1])
    return torch.stack([seen[tap][0] for tap in taps], 1)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_key_left_out_means_what_it_means_to_transformers(tmp_path: Path, family: str) -> None:
    """Key-value heads, head width, norm, tying, and the layers that slide once sliding is asked for."""
    said = {"num_hidden_layers": 30, "num_attention_heads": 32, "hidden_size": 2048, "use_sliding_window": True}
    said |= {"model_type": family, "vocab_size": 64, "intermediate_size": 64, "max_position_embeddings": 64}
    (tmp_path / "config.json").write_text(json.dumps(said))
    theirs, ours = AutoConfig.from_pretrained(tmp_path), Shape.from_config(said)
    assert ours.kv_heads == theirs.num_key_value_heads
    assert ours.head_width == getattr(theirs, "head_dim", 2048 // 32)
    assert (ours.norm_eps, ours.tied_head) == (theirs.rms_norm_eps, theirs.tie_word_embeddings)
    slides = getattr(theirs, "layer_types", ["sliding_attention"] * 30)
    window = getattr(theirs, "sliding_window", None)
    assert ours.windows == tuple(window if kind == "sliding_attention" else None for kind in slides)


def test_bf16_is_as_near_to_fp32_as_transformers_is(pair: Any) -> None:
    """Two bf16 runs round apart: ours may err from fp32 a quarter more than transformers' own does."""
    texts = [random_ids(24, seed=seed).tolist() for seed in range(8)]
    exact = torch.stack(pair.read(texts))[:, 12:]
    target = pair.target(torch.bfloat16)
    state = target.open(8, 24)
    target.prefill(state, torch.tensor(texts)[:, :12], [12] * 8)
    chain = DraftTree.chain(torch.tensor(texts)[:, 13:])
    ours = target.score(state, torch.tensor(texts)[:, 12], chain).logits
    assert ours.dtype == torch.float32
    theirs = torch.stack(pair.in_bf16().read(texts))[:, 12:]
    error, allowed = ((logits.float() - exact).square().mean().sqrt() for logits in (ours, theirs))
    assert error <= 1.25 * allowed, f"{error:.4f} against {allowed:.4f}"
