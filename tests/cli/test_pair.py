"""What the flags say of models reaches both of them, in every verb that opens a pair; and who drafts where none do."""

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from typer.testing import CliRunner, Result

from cards import card_for
from heads import random_head, shape_of
from outpace.cli import app
from outpace.drafters import load
from outpace.drafters.card import write_card
from outpace.drafters.eagle import Eagle
from outpace.drafters.either import Either
from outpace.drafters.lookup import Lookup
from outpace.errors import UsageError
from outpace.evaluation.pair import Check, Report
from outpace.models.load import load_target
from outpace.models.toy import tiny_config, tiny_tensors
from outpace.models.transformer import Transformer
from toys import CHAT, LETTER_VOCAB, character_tokenizer, must_fail

VERBS = {"generate": ["abc"], "bench": [], "check": []}
EVERY = pytest.mark.parametrize("verb", VERBS)


@EVERY
@pytest.mark.parametrize("trusted", [False, True])
def test_flags_reach_both_models(verb: str, trusted: bool, tiny: Transformer, monkeypatch: pytest.MonkeyPatch) -> None:
    heard: dict[str, dict[str, Any]] = {}

    def target(name: str, **options: Any) -> Transformer:
        heard[name] = options
        return tiny

    def drafter(name: str, target: Transformer, **options: Any) -> Lookup:
        heard[name] = options
        raise UsageError("heard")

    monkeypatch.setattr(sys.modules["outpace.cli.pair"], "load_target", target)
    monkeypatch.setattr(sys.modules["outpace.cli.pair"], "load_drafter", drafter)
    flags = ["--target", "big", "--draft", "little", "--dtype", "fp32", "--lane", "hosted"]
    result = CliRunner().invoke(app, [verb, *VERBS[verb], *flags, *(["--trust-remote-code"] if trusted else [])])
    assert result.exit_code == 2 and result.stderr == "outpace: heard\n"
    del heard["big"]["progress"]
    assert heard["big"] == {"dtype": "fp32", "device": "cpu", "lane": "hosted", "trust_remote_code": trusted}
    assert heard["little"] == {"dtype": "fp32", "trust_remote_code": trusted}


# ---- who drafts ------------------------------------------------------------------------------------------------------


PROMPTS = "prompts.jsonl"


def model_at(folder: Path, seed: int) -> Path:
    """A model with one token a character."""
    folder.mkdir(parents=True)
    character_tokenizer(folder, CHAT)
    config = tiny_config(vocab_size=LETTER_VOCAB, max_position_embeddings=128)
    (folder / "config.json").write_text(json.dumps(config), "utf-8")
    save_file(tiny_tensors(config, seed=seed), folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two models of one family, and a prompt for them."""
    folder = tmp_path_factory.mktemp("models")
    (folder / PROMPTS).write_text(json.dumps({"category": "letters", "prompt": "abc " * 9}) + "\n", "utf-8")
    return {name: model_at(folder / name, seed) for name, seed in (("mine", 3), ("other", 4))}


@pytest.fixture(scope="module")
def heads(models: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A head that comes along, made for one of them."""
    folder = tmp_path_factory.mktemp("heads")
    size = {"vocab_size": LETTER_VOCAB, "draft_vocab_size": LETTER_VOCAB, "max_positions": 128}
    head, target = random_head(shape_of(**size)), load_target(str(models["mine"]), dtype="fp32")
    write_card(folder / "for-mine", head, card_for(head, target), dtype=torch.float32)
    return folder


@pytest.fixture
def shipped(heads: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "HEADS", heads)


@pytest.fixture
def checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """A check that only says with whom it was asked."""
    command, fine = importlib.import_module("outpace.cli.check"), Check("a check", "law", True, 0.0, 1.0, 0.0, "")

    def answer(target: Any, drafter: Any, **options: Any) -> Report:
        return Report(target.name, drafter.name, "match", (fine,))

    monkeypatch.setattr(command, "check_pair", answer)


def run(verb: str, model: Path, *flags: str) -> Result:
    sizes = ["--num-draft-tokens", "2", "--max-new-tokens", "6"]
    said = {
        "generate": ["abcabcabc", *sizes],
        "bench": [*sizes, "--repeats", "1", "--prompts", str(model.parent / PROMPTS)],
        "check": [],
    }
    return CliRunner().invoke(app, [verb, *said[verb], "--target", str(model), "--dtype", "fp32", "--json", *flags])


def drafted_by(verb: str, model: Path, *flags: str) -> str:
    """Who drafted, as the verb's own document has it."""
    result = run(verb, model, *flags)
    assert result.exit_code in (0, 1) and result.stdout, result.exception  # a toy may well be slower with drafts
    found = json.loads(result.stdout)
    if verb == "bench":
        [method] = {row["method"] for row in found["results"]}
        assert found["protocol"]["drafter"] == method
        return str(method)
    return str(found["speculation"]["method"] if verb == "generate" else found["drafter"])


@EVERY
def test_the_head_that_comes_along_drafts(verb: str, models: dict[str, Path], shipped: None, checked: None) -> None:
    """Where nothing is said, or its name; other words win, and other models have none."""
    mine, other = models["mine"], models["other"]
    assert drafted_by(verb, mine) == drafted_by(verb, mine, "--draft", "auto") == "lookup+eagle3"
    assert drafted_by(verb, mine, "--draft", "eagle3") == "eagle3"
    assert drafted_by(verb, mine, "--draft", "lookup") == "lookup"
    assert drafted_by(verb, other) == drafted_by(verb, other, "--draft", "auto") == "lookup"


@EVERY
def test_a_head_by_name_where_none_comes_along(verb: str, models: dict[str, Path], shipped: None) -> None:
    result = run(verb, models["other"], "--draft", "eagle3")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "the drafter is 'eagle3', and no head comes with outpace for the target '" in result.stderr
    assert "allowed: lookup, or the folder or id of a smaller model or of a head" in result.stderr


def test_it_drafts_the_same_text(models: dict[str, Path], shipped: None) -> None:
    """The head's drafts are verified like any: in fp32 the text is that of lookup and of nobody."""
    flags = ["generate", "abcabcabc", "--target", str(models["mine"]), "--dtype", "fp32", "--max-new-tokens", "24"]
    texts = []
    for draft in (["--num-draft-tokens", "3"], ["--draft", "lookup", "--num-draft-tokens", "3"], ["--draft", "none"]):
        result = CliRunner().invoke(app, [*flags, *draft, "--json"])
        assert result.exit_code == 0, result.output
        texts.append(json.loads(result.stdout)["token_ids"])
    assert texts[0] == texts[1] == texts[2] and len(texts[0]) == 24


def test_a_head_for_everyone_is_found_out(
    models: dict[str, Path], shipped: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planted: the head that comes along is taken whatever it was made for."""
    monkeypatch.setattr(load, "shipped_drafter", lambda target: next(load.HEADS.iterdir()))
    with must_fail(), pytest.warns(UserWarning, match="has other weights"):
        assert drafted_by("generate", models["other"]) == "lookup"


def test_by_its_name_in_python(models: dict[str, Path], shipped: None) -> None:
    mine, other = (load_target(str(models[name]), dtype="fp32") for name in ("mine", "other"))
    head, both = load.load_drafter("eagle3", mine), load.load_drafter("auto", mine)
    assert isinstance(head, Eagle) and head.name == "eagle3"
    assert isinstance(both, Either) and isinstance(both.model, Eagle) and both.name == "lookup+eagle3"
    assert isinstance(load.load_drafter("auto", other), Lookup)
    with pytest.raises(UsageError, match="no head comes with outpace for the target"):
        load.load_drafter("eagle3", other)
