"""Drafters are opened by name, and refused by name."""

import json
from pathlib import Path

import pytest
from safetensors.torch import save_file

from outpace.decoding.generate import generate
from outpace.drafters import load
from outpace.drafters.load import load_drafter
from outpace.drafters.lookup import Lookup
from outpace.drafters.small import Small
from outpace.errors import UsageError, WeightsError
from outpace.models.load import load_target
from outpace.models.toy import tiny_config, tiny_tensors
from outpace.models.transformer import Transformer
from toys import spelling

WORDS = 40


def folder_of(folder: Path, vocab: int, seed: int, **changed: int) -> Path:
    """A model folder of forty words, its vocabulary padded; ``changed`` words stand at the ids of others."""
    folder.mkdir()
    config = tiny_config(vocab_size=vocab)
    words = {f"w{place}": place for place in range(WORDS)}
    for word, place in changed.items():
        words = {old: other for old, other in words.items() if other != place} | {word: place}
    (folder / "config.json").write_text(json.dumps(config), "utf-8")
    (folder / "tokenizer.json").write_text(json.dumps({"model": {"type": "WordLevel", "vocab": words}}), "utf-8")
    save_file(tiny_tensors(config, seed=seed), folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def test_lookup_takes_the_targets_ends() -> None:
    drafter = load_drafter("lookup", spelling([1], prompt=1, vocab=4, eos_ids=(2, 3)))
    assert isinstance(drafter, Lookup) and drafter.eos_ids == {2, 3}


@pytest.mark.parametrize("name", ["", "small"])
def test_a_small_drafter_needs_a_name(name: str, tiny: Transformer) -> None:
    with pytest.raises(UsageError, match=f"the drafter is {name!r}; allowed: auto, eagle3, lookup, or the"):
        load_drafter(name, tiny)


def test_a_name_that_is_nothing(tiny: Transformer) -> None:
    with pytest.raises(WeightsError, match="nowhere"):
        load_drafter("./nowhere/at-all", tiny)


def test_another_tokenizer_is_refused(tmp_path: Path) -> None:
    target = load_target(folder_of(tmp_path / "target", 64, 1), dtype="fp32")
    other = folder_of(tmp_path / "other", 64, 2, x30=30, x7=7)
    with pytest.raises(
        UsageError, match=r"another tokenizer than the target .*: id 7 is 'x7' in the draft and 'w7' in"
    ):
        load_drafter(str(other), target)


@pytest.mark.parametrize("trusted", [False, True])
def test_code_of_a_drafter_runs_only_when_trusted(
    trusted: bool, tiny: Transformer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The word goes to whoever opens the draft model, along with dtype and device; nothing is trusted unsaid."""
    heard: list[dict[str, object]] = []
    monkeypatch.setattr(load, "load_target", lambda name, **options: heard.append(options) or tiny)
    draft = str(folder_of(tmp_path / "draft", 64, 1))
    load_drafter(draft, tiny, dtype="fp32", **({"trust_remote_code": True} if trusted else {}))
    assert heard == [{"dtype": "fp32", "device": "cpu", "trust_remote_code": trusted}]


@pytest.mark.parametrize("tree", ["chain", "top-k:2", "sampled:2"])
@pytest.mark.parametrize("sizes", [(48, 64), (64, 48)])
def test_one_family_with_two_paddings(sizes: tuple[int, int], tree: str, tmp_path: Path) -> None:
    """The pair works as it stands: real models, real files; the text is the target's, in fp32 and with a seed too."""
    target = load_target(folder_of(tmp_path / "target", sizes[1], 1), dtype="fp32")
    drafter = load_drafter(str(folder_of(tmp_path / "draft", sizes[0], 2)), target, dtype="fp32")
    assert isinstance(drafter, Small) and drafter.vocab_size == sizes[1]
    bias = {token: -100.0 for token in range(WORDS, sizes[1])}  # a trained model never says its padding
    for seed, temperature in ((None, 0.0), (5, 1.0)):
        options = {"max_new_tokens": 24, "seed": seed, "temperature": temperature, "logit_bias": bias, "raw": True}
        plain = generate(target, None, [1, 2, 3], **options)  # type: ignore[arg-type]
        fast = generate(target, drafter, [1, 2, 3], num_draft_tokens=4, depth=4, tree=tree, **options)  # type: ignore[arg-type]
        assert fast.token_ids == plain.token_ids
        assert fast.stats.speculation.drafted > 10
