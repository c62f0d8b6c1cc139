"""A tiny chat model on disk, its own answers, and recipes for it, that tests of whole trainings share.

Knows nothing of what is tested. Import it as ``pupils``: ``conftest.py`` puts this folder on the path.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from chats import CHAT_VOCAB, EOS, chat_tokenizer
from lessons import target_folder
from outpace.decoding.text import text_of
from outpace.models.load import load_target
from outpace.models.target import Target
from outpace.training.recipe import Recipe
from toys import reference

TINY = Path(__file__).parents[1] / "recipes" / "tiny.toml"
ASKED = ("Why?", "2+3=", "Tell me of the sea.", "ok, go", "Once upon a time", "Name a river.")
NEW = 24


def model_folder(folder: Path) -> Path:
    """A tiny model with a tokenizer of single characters and a chat template."""
    return chat_tokenizer(target_folder(folder, vocab_size=CHAT_VOCAB, eos_id=EOS))


def opened(folder: Path) -> Target:
    return load_target(folder, dtype="fp32")


def answers_of(target: Target, path: Path, asked: Sequence[str] = ASKED) -> Path:
    """The target's greedy answers to some prompts, in a file."""
    assert target.folder is not None
    text = text_of(target.folder)
    said = [reference(target, tuple(text.encode(one)), NEW, target.eos_ids) for one in asked]
    assert len({tuple(ids) for ids in said}) == len(asked) and len({token for ids in said for token in ids}) > 12
    return lines_of(path, *({"user": one, "answer_ids": ids} for one, ids in zip(asked, said, strict=True)))


def lines_of(path: Path, *lines: Any) -> Path:
    """A file of JSON lines."""
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
    return path


def recipe_of(data: dict[str, Any] | None = None, **train: Any) -> Recipe:
    """The tiny recipe with other values."""
    return Recipe.read(TINY).with_changes("data", **(data or {})).with_changes("train", **train)


def recipe_file(path: Path, data: dict[str, Any] | None = None, **train: Any) -> Path:
    """The same in a file."""
    path.write_text(recipe_of(data, **train).to_toml(), "utf-8")
    return path
