"""Both ends of a target are what it embeds with and what its head multiplies by, wherever they are read from."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from hosts import hosted, model_of
from outpace.errors import UnsupportedError, WeightsError
from outpace.models.ends import read_embeddings, read_ends, read_head, stored_ends
from outpace.models.function import FunctionTarget
from outpace.models.load import load_target
from outpace.models.shape import Shape
from outpace.models.target import Target
from outpace.models.toy import tiny_config, tiny_tensors
from outpace.models.transformer import Transformer
from outpace.models.weights import save_tensors
from toys import Watched

IDS = [3, 1, 4, 1, 5]
FAMILIES = ("gpt2", "llama", "qwen2", "gemma", "gpt_neox", "mixtral", "falcon")


def check(target: Target, read: Target, embeddings: Tensor) -> None:
    """What ``read`` shows of its ends, held against its published embeddings and against the logits of ``target``."""
    ends = read_ends(read)
    assert ends.embeddings.dtype == ends.head.dtype == read.dtype
    assert not ends.embeddings.is_mkldnn and not ends.head.is_mkldnn
    assert torch.equal(ends.embeddings, embeddings)
    shown = target.prefill(target.open(1, 8), torch.tensor([IDS]), [len(IDS)], ("last_normed",))
    assert shown.features is not None
    torch.testing.assert_close(ends.head @ shown.features[0, -1, 0], shown.logits[0, 0], rtol=0, atol=1e-4)


def beside(target: Target, folder: Path) -> Watched:
    """A target of which only its folder is known."""
    watched = Watched(target)
    watched.folder = folder
    return watched


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("packed", [False, True])
def test_a_model_of_the_fast_lane(tied: bool, packed: bool, tmp_path: Path) -> None:
    if packed and not torch.backends.mkldnn.is_available():
        pytest.skip("this build of torch has no packed layout")
    config = tiny_config(tie_word_embeddings=tied)
    tensors = tiny_tensors(config)
    target = Transformer(Shape.from_config(config), dict(tensors), dtype=torch.float32, packed=packed)
    check(target, target, tensors["model.embed_tokens.weight"])
    ends = read_ends(target)
    assert torch.equal(ends.head, tensors["model.embed_tokens.weight" if tied else "lm_head.weight"])
    assert ends.embeddings.data_ptr() == target.embeddings.data_ptr()
    assert (ends.head.data_ptr() == target.embeddings.data_ptr()) == tied
    save_tensors(tmp_path, tensors)
    (tmp_path / "config.json").write_text(json.dumps(config))
    check(target, beside(target, tmp_path), tensors["model.embed_tokens.weight"])
    assert read_embeddings(load_target(tmp_path, dtype="bf16")).dtype == torch.bfloat16


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("packed", [False, True])
def test_a_hosted_model(family: str, packed: bool, tmp_path: Path) -> None:
    if packed and not torch.backends.mkldnn.is_available():
        pytest.skip("this build of torch has no packed layout")
    target = hosted(family, packed=packed)
    check(target, target, model_of(family).get_input_embeddings().weight)
    model_of(family).save_pretrained(tmp_path)
    check(target, beside(target, tmp_path), model_of(family).get_input_embeddings().weight)


def test_a_head_with_a_bias_is_refused(tmp_path: Path) -> None:
    """Its rows alone would not be the target's logits; the embeddings are read all the same."""
    target = hosted("phi")
    model_of("phi").save_pretrained(tmp_path)
    for read in (target, beside(target, tmp_path)):
        assert torch.equal(read_embeddings(read), model_of("phi").get_input_embeddings().weight)
        with pytest.raises(
            UnsupportedError, match=f"the head of the target '{target.name}' adds a bias; allowed: a head of"
        ):
            read_head(read)


CHANGES: list[tuple[dict[str, str | None], dict[str, Any], str]] = [
    (
        {"model.embed_tokens.weight": "model.tokens.weight"},
        {},
        "lacks such a tensor; allowed: one of embed_tokens.weight",
    ),
    ({"lm_head.weight": None}, {"tie_word_embeddings": False}, "lacks such a tensor; allowed: one of lm_head.weight"),
    (
        {"model.norm.weight": "other.wte.weight"},
        {},
        r"holds model\.embed_tokens\.weight, other\.wte\.weight; allowed: one of",
    ),
]


@pytest.mark.parametrize(("renamed", "said", "message"), CHANGES, ids=str)
def test_what_is_missing_is_named(
    renamed: dict[str, str | None], said: dict[str, Any], message: str, tmp_path: Path, tiny: Transformer
) -> None:
    config = tiny_config()
    save_tensors(tmp_path, tiny_tensors(config))
    (tmp_path / "config.json").write_text(json.dumps(config | said))
    tensors = load_file(tmp_path / "model.safetensors")
    kept = {renamed.get(name, name): tensor for name, tensor in tensors.items()}
    save_tensors(tmp_path, {name: tensor for name, tensor in kept.items() if name is not None})
    with pytest.raises(WeightsError, match=message):
        read_ends(beside(tiny, tmp_path))


def test_what_is_tied_by_default_has_no_head_in_its_file(tmp_path: Path, tiny: Transformer) -> None:
    config = {name: value for name, value in tiny_config().items() if name != "tie_word_embeddings"}
    tensors = tiny_tensors(tiny_config())
    (tmp_path / "config.json").write_text(json.dumps(config))
    save_tensors(tmp_path, tensors)
    assert torch.equal(read_head(beside(tiny, tmp_path)), tensors["lm_head.weight"])
    save_tensors(tmp_path, {name: tensor for name, tensor in tensors.items() if name != "lm_head.weight"})
    assert torch.equal(read_head(beside(tiny, tmp_path)), tensors["model.embed_tokens.weight"])


def test_a_function_has_no_ends() -> None:
    function = FunctionTarget(lambda ids: torch.zeros(*ids.shape, 8), 8)
    with pytest.raises(WeightsError, match="the target 'function' shows no embeddings: it is no model in memory"):
        read_ends(function)


def test_another_head_is_noticed(tmp_path: Path) -> None:
    """The fault: the embeddings are taken for the head of a target whose head is its own."""
    target = hosted("qwen2")
    with pytest.raises(AssertionError):
        torch.testing.assert_close(read_head(target), read_embeddings(target))
    model_of("qwen2").save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text()) | {"tie_word_embeddings": True}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(AssertionError):
        check(target, beside(target, tmp_path), read_embeddings(target))


@pytest.mark.parametrize("tied", [False, True])
def test_ends_of_a_folder_are_those_of_its_model(tied: bool, tmp_path: Path) -> None:
    config = tiny_config(tie_word_embeddings=tied)
    save_tensors(tmp_path, tiny_tensors(config))
    (tmp_path / "config.json").write_text(json.dumps(config))
    stored, read = stored_ends(tmp_path), read_ends(load_target(tmp_path, dtype="fp32"))
    assert torch.equal(stored.embeddings, read.embeddings) and torch.equal(stored.head, read.head)


def test_of_a_folder_a_bias_is_refused_too(tmp_path: Path) -> None:
    model_of("phi").save_pretrained(tmp_path)
    with pytest.raises(UnsupportedError, match=f"the head of the target '{tmp_path}' adds a bias; allowed: a head of"):
        stored_ends(tmp_path)
