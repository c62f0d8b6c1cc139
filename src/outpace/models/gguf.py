"""Read the embedded default's GGUF file: dequantise and rename its tensors, and write its configuration and tokenizer.

Knows nothing of where the file comes from, and of no other model than the Llama family with a byte-level BPE.

The ``gguf`` package alone is used, not the reader of transformers: that one takes four times as long (it reads the
file three times and builds the model), and the tokenizer that it makes of this very file depends on its version (5.0:
another EOS, and a BOS before every text; 5.0 and 5.24: digits are not split from the spaces before them, as the model
was trained to see them). The tensors of both readers are equal to the bit; what is written here is the same file for
everyone.
"""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from outpace.models.staging import Progress

_PLACES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_CONTROL = 3  # tokenizer.ggml.token_type of a token that never arises from text


def published_name(name: str) -> str:
    """Its name in a published checkpoint: ``blk.3.attn_q.weight`` is ``model.layers.3.self_attn.q_proj.weight``."""
    stem, kind = name.rsplit(".", 1)
    if not stem.startswith("blk."):
        return f"{_TOP[stem]}.{kind}"
    _, layer, place = stem.split(".")
    return f"model.layers.{layer}.{_PLACES[place]}.{kind}"


def _halves_together(weight: Float[np.ndarray, "rows columns"], heads: int) -> Float[np.ndarray, "rows columns"]:
    """Undo GGUF's order of rows: a head's rotary pairs side by side, where published checkpoints keep two halves."""
    rows, columns = weight.shape
    return weight.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)


def _tensors(reader: Any, fields: dict[str, Any], progress: Progress) -> dict[str, Tensor]:
    from gguf import dequantize

    turned = {"attn_q": fields["llama.attention.head_count"], "attn_k": fields["llama.attention.head_count_kv"]}
    tensors = {}
    for done, entry in enumerate(reader.tensors):
        progress(done, len(reader.tensors), "dequantising")
        weight = dequantize(entry.data, entry.tensor_type)
        place = entry.name.split(".")[-2]
        if place in turned:
            weight = _halves_together(weight, turned[place])
        tensors[published_name(entry.name)] = torch.from_numpy(weight.copy()).to(torch.bfloat16)
    progress(len(reader.tensors), len(reader.tensors), "dequantising")
    return tensors


def _config(fields: dict[str, Any], tied: bool) -> dict[str, Any]:
    heads, width = fields["llama.attention.head_count"], fields["llama.embedding_length"]
    theta = float(fields["llama.rope.freq_base"])
    return {
        "architectures": ["LlamaForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": fields["tokenizer.ggml.bos_token_id"],
        "dtype": "bfloat16",
        "eos_token_id": fields["tokenizer.ggml.eos_token_id"],
        "head_dim": fields.get("llama.rope.dimension_count", width // heads),
        "hidden_act": "silu",
        "hidden_size": width,
        "initializer_range": 0.02,
        "intermediate_size": fields["llama.feed_forward_length"],
        "max_position_embeddings": fields["llama.context_length"],
        "mlp_bias": False,
        "model_type": "llama",
        "num_attention_heads": heads,
        "num_hidden_layers": fields["llama.block_count"],
        "num_key_value_heads": fields["llama.attention.head_count_kv"],
        "pad_token_id": fields["tokenizer.ggml.padding_token_id"],
        # The file holds the nearest float32; the shortest decimal that gives the same float32 is what was meant.
        "rms_norm_eps": float(str(np.float32(fields["llama.attention.layer_norm_rms_epsilon"]))),
        "rope_parameters": {"rope_theta": theta, "rope_type": "default"},
        "rope_theta": theta,  # where engines that do not read rope_parameters look
        "tie_word_embeddings": tied,
        "use_cache": True,
        "vocab_size": fields["llama.vocab_size"],
    }


def _tokenizer(fields: dict[str, Any]) -> dict[str, Any]:
    """A byte-level BPE whose digits stand alone, as every engine reads the ``smollm`` kind of GGUF vocabulary."""
    words = fields["tokenizer.ggml.tokens"]
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    kinds = enumerate(fields["tokenizer.ggml.token_type"])
    bytes_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": index, "content": words[index], **flags} for index, kind in kinds if kind == _CONTROL],
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [{"type": "Digits", "individual_digits": True}, bytes_level],
        },
        "post_processor": None,
        "decoder": {**bytes_level, "add_prefix_space": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {word: index for index, word in enumerate(words)},
            "merges": fields["tokenizer.ggml.merges"],
        },
    }


def _tokenizer_config(fields: dict[str, Any]) -> dict[str, Any]:
    words = fields["tokenizer.ggml.tokens"]
    roles = {"bos": "bos", "eos": "eos", "pad": "padding", "unk": "unknown"}
    named = {f"{role}_token": words[fields[f"tokenizer.ggml.{key}_token_id"]] for role, key in roles.items()}
    return {
        "add_prefix_space": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": fields["llama.context_length"],
        "tokenizer_class": "PreTrainedTokenizerFast",
        **named,
    }


def unpack(file: Path, folder: Path, progress: Progress) -> None:
    """Write what ``file`` holds into ``folder`` as any reader of published checkpoints expects it, weights in bf16.

    Args:
        file: a GGUF file of the Llama family with a byte-level BPE vocabulary.
        folder: an existing folder; gets model.safetensors, config.json, generation_config.json, tokenizer.json,
            tokenizer_config.json and chat_template.jinja.
        progress: told after every tensor.
    """
    from gguf import GGUFReader
    from safetensors.torch import save_file

    progress(0, 0, "reading")
    reader = GGUFReader(file)
    fields = {name: field.contents() for name, field in reader.fields.items()}
    config = _config(fields, tied=all(entry.name != "output.weight" for entry in reader.tensors))
    ends = {key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
    documents = {
        "config.json": config,
        "generation_config.json": ends,
        "tokenizer.json": _tokenizer(fields),
        "tokenizer_config.json": _tokenizer_config(fields),
    }
    for name, document in documents.items():
        text = json.dumps(document, indent=2, ensure_ascii=False) + "\n"
        (folder / name).write_text(text, encoding="utf-8")
    (folder / "chat_template.jinja").write_text(fields["tokenizer.chat_template"], encoding="utf-8")
    weights = folder / "model.safetensors"
    save_file(_tensors(reader, fields, progress), weights, metadata={"format": "pt"})
    os.chmod(weights, (folder / "config.json").stat().st_mode)  # safetensors makes its files private
