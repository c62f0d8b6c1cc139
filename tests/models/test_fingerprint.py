"""A fingerprint is of the model, not of its files, and tells which part differs."""

import json
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from outpace.errors import WeightsError
from outpace.models.weights import compare_fingerprints, fingerprint, read_config, save_tensors

EMBED, UP, NORM = "model.embed_tokens.weight", "model.layers.0.mlp.up_proj.weight", "model.norm.weight"


def write_json(file: Path, document: Any) -> None:
    file.write_text(json.dumps(document), encoding="utf-8")


def compare(weights_folder: Path, before: str) -> str:
    return compare_fingerprints(fingerprint(weights_folder), before)


def test_the_print_is_of_the_model_and_not_of_its_files(held: dict[str, Tensor], weights_folder: Path) -> None:
    before = fingerprint(weights_folder)
    assert [len(part) for part in before.split("-")] == [12, 12, 12]
    save_tensors(weights_folder, {name: tensor.float() for name, tensor in reversed(held.items())})
    assert fingerprint(weights_folder) == before  # an fp32 copy
    save_tensors(weights_folder, held | {"lm_head.weight": held[EMBED]})
    assert fingerprint(weights_folder) == before  # the tied head written out
    config = read_config(weights_folder)
    other = {key: config[key] for key in reversed(config) if key != "rope_theta"}
    other |= {"rope_parameters": {"rope_type": "default", "rope_theta": 10000}, "rms_norm_eps": 9.999999747378752e-06}
    write_json(weights_folder / "config.json", other | {"transformers_version": "5.99"})
    assert fingerprint(weights_folder) == before  # a newer writer
    moved = {"model": {"vocab": {"b": 1, "a": 0}}, "added_tokens": [{"id": 2, "content": "<end>", "special": True}]}
    write_json(weights_folder / "tokenizer.json", moved)
    assert fingerprint(weights_folder) == before
    (weights_folder / "tokenizer.json").unlink()
    write_json(weights_folder / "vocab.json", {"a": 0, "b": 1, "<end>": 2})
    assert compare(weights_folder, before) == "same"


@pytest.mark.parametrize(
    ("file", "change", "verdict"),
    [
        ("config.json", {"hidden_size": 8}, "architecture differs"),
        ("config.json", {"vocab_size": 9}, "architecture differs"),
        ("config.json", {"num_hidden_layers": 2}, "architecture differs"),
        ("config.json", {"model_type": "qwen2"}, "architecture differs"),
        ("config.json", {"rope_theta": 20000.0}, "weights differ"),
        ("config.json", {"rope_scaling": {"type": "linear", "factor": 4.0}}, "weights differ"),
        ("config.json", {"rms_norm_eps": 1e-6}, "weights differ"),
        ("tokenizer.json", {"added_tokens": [{"id": 2, "content": "<stop>"}]}, "tokenizer differs"),
        ("tokenizer.json", {"model": {"vocab": {"b": 0, "a": 1, "<end>": 2}}}, "tokenizer differs"),
    ],
)
def test_the_print_tells_what_differs(weights_folder: Path, file: str, change: dict[str, Any], verdict: str) -> None:
    before = fingerprint(weights_folder)
    write_json(weights_folder / file, read_config(weights_folder, file) | change)
    assert compare(weights_folder, before) == verdict


@pytest.mark.parametrize("name", [EMBED, UP, NORM])
def test_every_tensor_counts(held: dict[str, Tensor], weights_folder: Path, name: str) -> None:
    before = fingerprint(weights_folder)
    held[name] = held[name] * 1.02  # more than one bf16 step
    save_tensors(weights_folder, held)
    assert compare(weights_folder, before) == "weights differ"


def test_old_and_new_layouts_of_rotary_scaling_are_one(weights_folder: Path) -> None:
    config = read_config(weights_folder)
    write_json(weights_folder / "config.json", config | {"rope_scaling": {"type": "linear", "factor": 4}})
    before = fingerprint(weights_folder)
    new = {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0}
    write_json(weights_folder / "config.json", config | {"rope_parameters": new})
    assert fingerprint(weights_folder) == before


def test_a_tokenizer_that_is_not_there_is_not_held_against_a_model(weights_folder: Path) -> None:
    before = fingerprint(weights_folder)
    (weights_folder / "tokenizer.json").unlink()
    assert fingerprint(weights_folder).split("-")[1] == "none"
    assert compare(weights_folder, before) == "same"
    assert compare_fingerprints(before, fingerprint(weights_folder)) == "same"


def test_a_unigram_vocabulary_is_read(weights_folder: Path) -> None:
    before = fingerprint(weights_folder)
    write_json(weights_folder / "tokenizer.json", {"model": {"vocab": [["a", -1.0], ["b", -2.0], ["<end>", 0.0]]}})
    assert fingerprint(weights_folder) == before


@pytest.mark.parametrize("text", ["", "abc", "a-b", "a--c", "a-b-c-d"])
def test_what_is_no_print_is_named(text: str) -> None:
    with pytest.raises(WeightsError, match=rf"{text!r} is no fingerprint; architecture-tokenizer-weights is expected"):
        compare_fingerprints("a-b-c", text)
