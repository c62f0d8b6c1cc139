"""transformers as the reference: random, lively models of every family, saved to a folder and read by both."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoConfig, AutoModelForCausalLM

from outpace.models.shape import Shape
from outpace.models.transformer import Transformer
from outpace.models.weights import load_tensors, read_config
from outpace.verification.tree import DraftTree

# Of every weight but queries and keys. The usual 0.02 makes a tiny model repeat one token: whatever is compared agrees.
SPREAD = 0.5
QUERY_KEY_SPREAD = 0.25  # attention of a few tokens each; at 0.5 it is all or nothing, and blows up rounding
BASE = {
    "vocab_size": 64,
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "rms_norm_eps": 0.02,  # so large that leaving it out is seen
    "tie_word_embeddings": False,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
YARN = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "attention_factor": 1.3}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
MIXED = ["sliding_attention", "full_attention", "sliding_attention"]


@dataclass(frozen=True)
class Case:
    """A model type with its configuration, and how ``config.json`` is edited afterwards (None drops a key)."""

    family: str
    config: dict[str, Any] = field(default_factory=dict)
    edits: dict[str, Any] = field(default_factory=dict)


CASES = {
    "llama": Case("llama", edits={"head_dim": None}),
    "llama-biases-wide-heads": Case(
        "llama", {"attention_bias": True, "mlp_bias": True, "head_dim": 20, "num_key_value_heads": None}
    ),
    "smollm": Case(
        "llama",
        {"tie_word_embeddings": True, "num_attention_heads": 9, "num_key_value_heads": 3, "hidden_size": 72},
    ),
    "llama-linear": Case("llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}}),
    "llama-llama3": Case("llama", {"rope_parameters": LLAMA3}),
    "mistral": Case("mistral", {"sliding_window": None}),
    "mistral-window": Case("mistral", {"sliding_window": 8, "head_dim": 16}),
    "mistral-mixed": Case(
        "ministral",
        {"sliding_window": 8, "layer_types": MIXED, "head_dim": 16},
        {"model_type": "mistral", "architectures": None},
    ),
    "qwen2": Case("qwen2"),
    "qwen2-upper-layers-slide": Case(
        "qwen2", {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}, {"layer_types": None}
    ),
    "qwen2-old-yarn": Case("qwen2", edits={"rope_parameters": None, "rope_theta": 1e6, "rope_scaling": YARN}),
    "qwen3": Case("qwen3", {"head_dim": 16}),
    "qwen3-biases-head-untold": Case(
        "qwen3",
        {"attention_bias": True, "num_attention_heads": 2, "num_key_value_heads": 1},
        {"head_dim": None},
    ),
    "qwen3-mixed": Case(
        "qwen3",
        {"head_dim": 16, "use_sliding_window": True, "sliding_window": 8, "layer_types": MIXED},
    ),
}


@dataclass(frozen=True)
class Pair:
    """A transformers model and the folder that it was saved to."""

    reference: Any
    folder: Path

    def in_bf16(self) -> "Pair":
        """The same folder, read by transformers in bf16."""
        return Pair(_reference(self.folder, torch.bfloat16), self.folder)

    def target(self, dtype: torch.dtype = torch.float32, packed: bool = False) -> Transformer:
        """The fast lane, read from the folder."""
        config = read_config(self.folder)
        return Transformer(Shape.from_config(config), load_tensors(self.folder), dtype=dtype, packed=packed)

    def read(self, texts: list[list[int]]) -> list[Float[Tensor, "time vocab"]]:
        """The reference's logits after every token of every text, each read anew from its start."""
        padded = pad_sequence([torch.tensor(text) for text in texts], batch_first=True)
        with torch.inference_mode():
            logits = self.reference(padded, use_cache=False).logits
        return [row[: len(text)] for row, text in zip(logits, texts, strict=True)]

    def after(
        self, texts: list[list[int]], last: Int[Tensor, " batch"], tree: DraftTree
    ) -> list[Float[Tensor, "rows vocab"]]:
        """The reference's logits after ``last`` and after every node: a run of text, ``last`` and path for each."""
        runs: list[list[int]] = []
        sizes: list[int] = []
        for text, root, (tokens, parents) in zip(texts, last.tolist(), tree.to_lists(), strict=True):
            paths: list[list[int]] = []
            for token, parent in zip(tokens, parents, strict=True):
                paths.append([*(paths[parent] if parent >= 0 else []), token])
            runs += [[*text, root, *path] for path in ([], *paths)]
            sizes.append(1 + len(paths))
        return list(torch.stack([logits[-1] for logits in self.read(runs)]).split(sizes))

    def greedy(self, prompt: list[int], count: int) -> list[int]:
        """The reference's own text."""
        ids = torch.tensor([prompt])
        out = self.reference.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=count, do_sample=False, pad_token_id=0
        )
        text: list[int] = out[0, len(prompt) :].tolist()
        return text


def _reference(folder: Path, dtype: torch.dtype) -> Any:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()


def _liven(model: Any) -> None:
    """Weights, biases and norms that all matter, the same in every run."""
    generator = torch.Generator().manual_seed(7)
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        with torch.no_grad():
            if parameter.dim() == 1:
                parameter.copy_(noise * 0.3 if name.endswith("bias") else 1 + 0.2 * noise)
            else:
                parameter.copy_(noise * (QUERY_KEY_SPREAD if "q_proj" in name or "k_proj" in name else SPREAD))


@pytest.fixture(scope="session")
def build(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Pair]:
    """The pair of a case by name; built once."""
    built: dict[str, Pair] = {}

    def pair_of(name: str) -> Pair:
        if name in built:
            return built[name]
        case, folder = CASES[name], tmp_path_factory.mktemp(name)
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(case.family, **(BASE | case.config)))
        _liven(model)
        model.save_pretrained(folder)
        written = json.loads((folder / "config.json").read_text()) | case.edits
        kept = {key: value for key, value in written.items() if case.edits.get(key, "") is not None}
        (folder / "config.json").write_text(json.dumps(kept))
        pair = built[name] = Pair(_reference(folder, torch.float32), folder)
        text = pair.greedy([3, 1, 4], 40)
        assert len(set(text)) >= 8, f"{name} says {text}: too dull to tell models apart"
        return pair

    return pair_of


@pytest.fixture(params=CASES)
def pair(request: pytest.FixtureRequest, build: Callable[[str], Pair]) -> Pair:
    """Each case in turn."""
    return build(request.param)
