"""Tiny lively models of transformers, and how a target is held against what they say of whole texts.

Knows nothing of how a target computes. Import it as ``hosts``: ``conftest.py`` puts this folder on the path.

Tolerances. Both sides compute in fp32, with sums in another order. The logits of these models have a standard deviation
of 2 to 8 and were seen to differ by less than 3e-5; a wrong mask, position or cache entry moves them by more than 1.
"""

import copy
import warnings
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.testing import assert_close
from transformers import AutoConfig, AutoModelForCausalLM

from outpace.models.hosted import host
from outpace.models.target import Target
from outpace.verification.tree import DraftTree

CLOSE = {"atol": 1e-4, "rtol": 1e-4}
SPREAD = 0.5  # the usual 0.02 makes a tiny model repeat one token: whatever is compared agrees
QUERY_KEY_SPREAD = 0.25  # attention of a few tokens each; at 0.5 it is all or nothing, and blows up rounding
WINDOW = 8
NONE = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
SIZE: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "tie_word_embeddings": False,
    **NONE,
}
DROPPED = object()  # a key that a family does not know
MIXED = ["sliding_attention", "full_attention", "sliding_attention"]
GEMMA = {"query_pre_attn_scalar": 16, "sliding_window": WINDOW}
EXPERTS = {"num_local_experts": 4, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
ROPE = {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}

FAMILIES: dict[str, dict[str, Any]] = {
    "gpt2": {},
    "llama": {},
    "qwen2": {},
    "qwen3": {},
    "qwen3-mixed": {"use_sliding_window": True, "sliding_window": WINDOW, "layer_types": MIXED},
    "mistral": {"sliding_window": WINDOW},
    "gemma": {},
    "gemma2": {"attn_logit_softcapping": 20.0, "final_logit_softcapping": 15.0, **GEMMA},
    "gemma3_text": {"layer_types": MIXED, **GEMMA},
    "phi": {"partial_rotary_factor": 0.5},
    "gpt_neox": {"rotary_pct": 0.5},
    "mixtral": {"sliding_window": WINDOW, **EXPERTS},
    "qwen2_moe": {"shared_expert_intermediate_size": 32, **EXPERTS},
    "gpt_oss": {"sliding_window": WINDOW, "layer_types": MIXED, **EXPERTS, **ROPE},
    "falcon": {"new_decoder_architecture": False, "multi_query": True, "alibi": False, "head_dim": DROPPED},
}
"""Learned positions, rotary ones whole and in part; windows everywhere and in some layers; capped scores, sinks and
experts; queries, keys and values of one projection. ``falcon`` takes its mask as an argument."""
SEEDS: dict[str, int] = {"gpt_neox": 9}
"""Where the usual one makes a dull model."""


@cache
def model_of(family: str) -> Any:
    """A random model in fp32, evaluated by transformers' own plain code; not to be changed."""
    said = {name: value for name, value in (SIZE | FAMILIES[family]).items() if value is not DROPPED}
    config = AutoConfig.for_model(family.partition("-")[0], **said)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    liven(model, seed=SEEDS.get(family, 7))
    text = greedy(model, [3, 1, 4], 40)
    assert len(set(text)) >= 8, f"{family} says {text}: too dull to tell models apart"
    return model


def liven(model: Any, seed: int = 7) -> None:
    """Weights, biases and norms that all matter, the same in every run."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        with torch.no_grad():
            if parameter.dim() == 1:
                parameter.copy_(noise * 0.3 if name.endswith("bias") else 1 + 0.2 * noise)
            else:
                mixes = any(part in name for part in ("q_proj", "k_proj", "c_attn", "query_key_value"))
                parameter.copy_(noise * (QUERY_KEY_SPREAD if mixes else SPREAD))


def hosted(family: str, **options: Any) -> Target:
    """A fresh target over a copy of the family's model; not packed unless asked for."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # none of these families is limited
        return host(copy.deepcopy(model_of(family)), **({"packed": False} | options))


@torch.inference_mode()
def whole(model: Any, texts: Sequence[Sequence[int]]) -> list[Tensor]:
    """A model's own logits after every token of every text, each read anew from its start."""
    padded = pad_sequence([torch.tensor(list(text)) for text in texts], batch_first=True)
    logits = model(input_ids=padded, use_cache=False).logits
    return [row[: len(text)] for row, text in zip(logits, texts, strict=True)]


def greedy(model: Any, prompt: Sequence[int], new: int) -> list[int]:
    """A model's own greedy text, the whole of it read anew for every token."""
    text = list(prompt)
    for _ in range(new):
        text.append(int(whole(model, [text])[0][-1].argmax()))
    return text[len(prompt) :]


def after(model: Any, texts: list[list[int]], last: list[int], tree: DraftTree) -> list[Tensor]:
    """The model's logits after ``last`` and after every node: a run of text, ``last`` and path for each."""
    runs: list[list[int]] = []
    sizes: list[int] = []
    for text, root, (tokens, parents) in zip(texts, last, tree.to_lists(), strict=True):
        paths: list[list[int]] = []
        for token, parent in zip(tokens, parents, strict=True):
            paths.append([*(paths[parent] if parent >= 0 else []), token])
        runs += [[*text, root, *path] for path in ([], *paths)]
        sizes.append(1 + len(paths))
    return list(torch.stack([logits[-1] for logits in whole(model, runs)]).split(sizes))


def random_ids(count: int, seed: int) -> list[int]:
    return torch.randint(64, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


def planted(parents: Sequence[Sequence[int]], seed: int) -> DraftTree:
    """Trees of these parents with random tokens."""
    rows = [(random_ids(len(row), seed + 7 * place), list(row)) for place, row in enumerate(parents)]
    return DraftTree.from_lists(rows)


def admit(target: Target, state: Any, texts: list[list[int]]) -> Tensor:
    """Read prompts as new last rows; filler on the right must not matter."""
    longest = max(map(len, texts))
    ids = torch.tensor([[*text, *[63] * (longest - len(text))] for text in texts])
    return target.prefill(state, ids, list(map(len, texts))).logits[:, 0]


LENGTHS = (5, 17, 1)  # below and above the window
# Parents of every row's tree, and the path that is then kept: second branches, nothing at all, a whole chain; the last
# tree has a branch deeper than the window, behind two leaves, so that places and depths part.
TURNS: list[tuple[list[list[int]], list[list[int]]]] = [
    ([[-1, -1, 0, 1, 3], [], [-1, 0]], [[1, 3, 4], [], [0]]),
    ([[], [-1, -1, -1, 1, 1], [-1, 0, 1, 2]], [[], [1, 4], [0, 1, 2, 3]]),
    ([[-1, -1, -1, *range(2, 13)], [-1, 0, 0, 2, 2, 1], [-1, -1]], [[2, 3, 4], [0, 2, 4], [1]]),
    ([[-1, 0, 0, 1, 1], [-1], [-1, -1, 0, 0, 1]], [[], [], []]),
]


def play(model: Any, target: Target) -> None:
    """Ragged prompts and turns; a row leaves, another joins, all are taken back: each row of each turn held against the
    model that reads its whole text anew."""
    texts = [random_ids(length, length) for length in LENGTHS]
    state: Any = target.open(4, 64)
    assert_close(admit(target, state, texts), torch.stack([logits[-1] for logits in whole(model, texts)]), **CLOSE)
    for turn, (parents, kept) in enumerate(TURNS):
        take(model, target, state, texts, parents, kept, seed=100 * turn)
    target.select(state, [2, 0])
    texts = [texts[2], texts[0], random_ids(9, seed=9)]
    assert_close(admit(target, state, texts[2:]), whole(model, texts[2:])[0][-1:], **CLOSE)
    take(model, target, state, texts, *TURNS[0], seed=500)
    before = [len(text) - 3 for text in texts]
    target.rewind(state, before)
    texts = [text[:length] for text, length in zip(texts, before, strict=True)]
    take(model, target, state, texts, *TURNS[2], seed=600)


def take(
    model: Any,
    target: Target,
    state: Any,
    texts: list[list[int]],
    parents: list[list[int]],
    kept: list[list[int]],
    *,
    seed: int,
) -> None:
    """One turn, held against the model; ``texts`` grow by what is kept."""
    tree, last = planted(parents, seed), random_ids(len(texts), seed + 1)
    scored = target.score(state, torch.tensor(last), tree).logits
    for row, expected in zip(scored, after(model, texts, last, tree), strict=True):
        assert_close(row[: len(expected)], expected, **CLOSE)
    width = max(map(len, kept))
    path = torch.tensor([[*nodes, *[-1] * (width - len(nodes))] for nodes in kept], dtype=torch.int64)
    target.keep(state, path.view(len(kept), width), [len(nodes) for nodes in kept])
    for text, root, nodes, (tokens, _) in zip(texts, last, kept, tree.to_lists(), strict=True):
        text += [root, *(tokens[node] for node in nodes)]
    assert state.lengths == [len(text) for text in texts]
