"""The GGUF reader against a file made here, and against the reader of transformers."""

import json
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from tokenizers.pre_tokenizers import ByteLevel

from outpace.models.gguf import unpack
from outpace.models.staging import silent

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
MERGES = ["Ġ Ġ", "Ġ t", "h e", "Ġt he", "Ġ 1"]  # the last would join a digit with its space, were it let
WIDTH, HEADS, KV_HEADS, HEAD, INNER, LAYERS = 64, 4, 2, 16, 96, 2
TEMPLATE = "{% for message in messages %}<|im_start|>{{ message['content'] }}<|im_end|>{% endfor %}"


def interleaved(weight: np.ndarray, heads: int) -> np.ndarray:
    """Rows as GGUF keeps them: row i of a head's first half, then row i of its second, and so on."""
    blocks = []
    for head in np.split(weight, heads):
        first, second = np.split(head, 2)
        blocks += [row for pair in zip(first, second, strict=True) for row in pair]
    return np.stack(blocks)


def published() -> dict[str, np.ndarray]:
    """Random weights under their published names, in published order of rows."""
    coins = np.random.default_rng(5)
    shapes = {"model.embed_tokens": (len(SPECIAL) + 256 + len(MERGES), WIDTH), "model.norm": (WIDTH,)}
    for layer in range(LAYERS):
        attention, mlp = f"model.layers.{layer}.self_attn", f"model.layers.{layer}.mlp"
        shapes |= {f"{attention}.{name}_proj": (HEAD * KV_HEADS, WIDTH) for name in "kv"}
        shapes |= {f"{attention}.{name}_proj": (WIDTH, WIDTH) for name in "qo"}
        shapes |= {f"{mlp}.{name}_proj": (INNER, WIDTH) for name in ("gate", "up")} | {
            f"{mlp}.down_proj": (WIDTH, INNER)
        }
        shapes |= {f"model.layers.{layer}.{name}_layernorm": (WIDTH,) for name in ("input", "post_attention")}
    return {f"{name}.weight": coins.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def add_tensors(writer: gguf.GGUFWriter, q4: bool) -> None:
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, LAYERS)
    for name, weight in published().items():
        if name.endswith(("q_proj.weight", "k_proj.weight")):
            weight = interleaved(weight, HEADS if "q_proj" in name else KV_HEADS)
        kind = gguf.GGMLQuantizationType.Q4_1 if q4 and weight.ndim == 2 else gguf.GGMLQuantizationType.F32
        stem = names.get_name(name.removesuffix(".weight"))
        writer.add_tensor(f"{stem}.weight", gguf.quantize(weight, kind), raw_dtype=kind)


def write_gguf(file: Path, *, q4: bool = False) -> Path:
    words = [*SPECIAL, *sorted(ByteLevel.alphabet()), *(merge.replace(" ", "") for merge in MERGES)]
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_name("tiny")
    writer.add_context_length(128)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_freq_base(100000.0)
    writer.add_rope_dimension_count(HEAD)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(words))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(words)
    writer.add_token_types([3] * len(SPECIAL) + [1] * (len(words) - len(SPECIAL)))
    writer.add_token_merges(MERGES)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    writer.add_chat_template(TEMPLATE)
    add_tensors(writer, q4)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


@pytest.fixture
def unpacked(tmp_path: Path) -> Path:
    """The tiny model, in full precision, unpacked."""
    folder = tmp_path / "unpacked"
    folder.mkdir()
    unpack(write_gguf(tmp_path / "tiny.gguf"), folder, silent)
    return folder


def test_tensors_come_back_under_published_names_and_in_published_order(unpacked: Path) -> None:
    wanted = {name: torch.from_numpy(weight).to(torch.bfloat16) for name, weight in published().items()}
    found = load_file(unpacked / "model.safetensors")
    assert found.keys() == wanted.keys()
    assert [name for name in wanted if not torch.equal(found[name], wanted[name])] == []


def test_quantised_tensors_equal_those_of_transformers(tmp_path: Path) -> None:
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    unpack(write_gguf(tmp_path / "tiny.gguf", q4=True), tmp_path, silent)
    found = load_file(tmp_path / "model.safetensors")
    config = AutoConfig.from_pretrained(tmp_path)
    assert (config.rope_parameters["rope_theta"], config.rms_norm_eps, config.dtype) == (1e5, 1e-5, torch.bfloat16)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    read = load_gguf_checkpoint(str(tmp_path / "tiny.gguf"), return_tensors=True, model_to_load=model)["tensors"]
    assert found.keys() == read.keys()
    assert [name for name in found if not torch.equal(found[name], read[name].to(torch.bfloat16))] == []
    assert not torch.equal(
        found["model.layers.0.mlp.up_proj.weight"].float(),
        torch.from_numpy(published()["model.layers.0.mlp.up_proj.weight"]),
    ), "nothing was quantised, so nothing was tested"


def test_the_configuration_says_what_the_file_says(unpacked: Path) -> None:
    config = json.loads((unpacked / "config.json").read_text())
    wanted = {"hidden_size": WIDTH, "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "head_dim": HEAD}
    wanted |= {"intermediate_size": INNER, "num_hidden_layers": LAYERS, "max_position_embeddings": 128}
    wanted |= {"vocab_size": 264, "eos_token_id": 2, "tie_word_embeddings": True}
    assert {key: config[key] for key in wanted} == wanted
    assert not {"quantization_config", "_name_or_path", "_model_name_or_path", "torch_dtype"} & config.keys()
    ends = json.loads((unpacked / "generation_config.json").read_text())
    assert ends == {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (" the", ["Ġthe"]),
        ("  1", ["ĠĠ", "1"]),
        ("the 12", ["t", "he", "Ġ", "1", "2"]),
        ("<|im_start|>the<|im_end|>", ["<|im_start|>", "t", "he", "<|im_end|>"]),
    ],
)
def test_digits_stand_alone_and_special_tokens_stay_whole(unpacked: Path, text: str, words: list[str]) -> None:
    tokenizer = Tokenizer.from_file(str(unpacked / "tokenizer.json"))
    encoded = tokenizer.encode(text)
    assert encoded.tokens == words
    assert tokenizer.decode(encoded.ids, skip_special_tokens=False) == text


def test_transformers_reads_the_tokenizer_as_it_stands(unpacked: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(unpacked)
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id, tokenizer.unk_token_id) == (
        1,
        2,
        2,
        0,
    )
    assert tokenizer.model_max_length == 128
    assert tokenizer.chat_template == TEMPLATE
    text = "naïve  12 —\n\tthe 🙂 ,  don 't"
    plain = Tokenizer.from_file(str(unpacked / "tokenizer.json"))
    assert tokenizer(text)["input_ids"] == plain.encode(text).ids
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


def test_two_pulls_write_the_same_bytes(unpacked: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    steps: list[tuple[int, int, str]] = []
    unpack(tmp_path / "tiny.gguf", other, lambda *step: steps.append(step))
    assert steps[0] == (0, 0, "reading")
    assert steps[-1] == (len(published()), len(published()), "dequantising")
    assert sorted(path.name for path in other.iterdir()) == sorted(path.name for path in unpacked.iterdir())
    for file in unpacked.iterdir():
        assert file.read_bytes() == (other / file.name).read_bytes(), file.name
        assert file.stat().st_mode == (other / "config.json").stat().st_mode, file.name
