"""What tests of measuring scripts share: the scripts as modules, a tiny model, a head for it, and prompts."""

import importlib
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest
from safetensors.torch import save_file

from cards import card_for
from heads import random_head, says, shape_of
from outpace.drafters.card import write_card
from outpace.models.load import load_target
from outpace.models.toy import tiny_config, tiny_tensors
from wordlevel import WORDS, word_tokenizer

REPOSITORY = Path(__file__).parents[2]
CATEGORIES = ("writing", "summarization", "rag", "qa")
Script = Callable[[str], ModuleType]


@pytest.fixture(scope="module")
def script() -> Iterator[Script]:
    """A script as a module, its folder on the path while this file is tested."""
    before, folders = set(sys.modules), [str(REPOSITORY / name) for name in ("benchmarks", "examples")]
    sys.path[:0] = folders
    yield importlib.import_module
    for folder in folders:
        sys.path.remove(folder)
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(tuple(folders)):
            del sys.modules[name]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder with a tokenizer of sixty words and a chat template."""
    folder = tmp_path_factory.mktemp("tiny")
    config = tiny_config(max_position_embeddings=512, eos_token_id=63)
    (folder / "config.json").write_text(json.dumps(config), "utf-8")
    save_file(tiny_tensors(config, seed=3), folder / "model.safetensors", metadata={"format": "pt"})
    word_tokenizer(folder)
    return folder


@pytest.fixture(scope="module")
def head(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The card of a random head for that model, which can say its end of text."""
    folder, made = tmp_path_factory.mktemp("heads") / "random", random_head(shape_of())
    says(made, range(24, 64))
    write_card(folder, made, card_for(made, load_target(str(tiny), dtype="fp32")))
    return folder


@pytest.fixture
def questions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file in the shape of specbench-dev, where the scripts look for it: two prompts a category."""
    lines = [
        {"question_id": place, "category": CATEGORIES[place % 4], "turns": [" ".join(WORDS[place : place + 12] * 2)]}
        for place in range(8)
    ]
    path = tmp_path / "specbench-dev.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
    monkeypatch.setenv("OUTPACE_DATA", str(tmp_path))
    return path
