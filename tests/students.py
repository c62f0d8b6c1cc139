"""A tiny target, its answers, and recipes that distil it into a tinier model, that tests of distillation share.

Knows nothing of what is tested. Import it as ``students``: ``conftest.py`` puts this folder on the path.
"""

from pathlib import Path
from typing import Any

import torch

from chats import CHAT_VOCAB, EOS, chat_tokenizer
from lessons import target_folder
from outpace.decoding.loop import Request
from outpace.decoding.text import text_of
from outpace.drafters.record import Card
from outpace.models.load import load_target
from outpace.models.target import Target
from outpace.models.weights import load_tensors, save_tensors
from outpace.training.course import Course, prepare, run
from outpace.training.masks import Sample
from outpace.training.recipe import Recipe
from toys import reference

ASKED = ("Why?", "2+3=", "Tell me of the sea.", "ok")
NEW, DEPTH, SURE = 24, 3, 4
SIZES = "depth = 1\nwidth = 32\nheads = 4\nkv_heads = 2\nfeed_forward = 48\ntied = false\n"
TINY = f"""
format_version = 1
method = "distil"
dtype = "fp32"
[data]
limit = 200
held_out = 0.0
features = "online"
[head]
{SIZES}
[train]
epochs = 70
tokens_per_batch = 256
batches_per_step = 1
learning_rate = 2e-2
warmup = 0.05
precision = "fp32"
[walk]
prompts = 8
new_tokens = 32
depth = {DEPTH}
"""


def target_at(folder: Path) -> Target:
    """As in ``test_course``: on disk, and surer of its words than a random one would be."""
    target_folder(folder, vocab_size=CHAT_VOCAB, eos_id=EOS)
    tensors = load_tensors(folder)
    save_tensors(folder, tensors | {"lm_head.weight": SURE * tensors["lm_head.weight"]})
    return load_target(chat_tokenizer(folder), dtype="fp32")


def requests(target: Target) -> list[Request]:
    assert target.folder is not None
    text = text_of(target.folder)
    return [Request(text.encode(asked), max_new_tokens=NEW, eos_ids=target.eos_ids) for asked in ASKED]


def recipe_of(answers: Path, head: str = SIZES, **train: Any) -> Recipe:
    read = Recipe.from_toml(TINY.replace(SIZES, head))
    return read.with_changes("data", answers=(str(answers),)).with_changes("train", **train)


def prepared(target: Target, recipe: Recipe, folder: Path) -> Course:
    return prepare(recipe, target, folder / "work", folder / "features")


def trained(target: Target, recipe: Recipe, folder: Path, **options: Any) -> tuple[Course, Card]:
    course = prepared(target, recipe, folder)
    return course, run(course, recipe, folder / "card", folder / "work", **options)[1]


def texts_of(target: Target) -> list[Sample]:
    """What is asked, and the target's greedy answers."""
    found = []
    for each in requests(target):
        ids = [*each.ids, *reference(target, tuple(each.ids), NEW, target.eos_ids)]
        found.append(Sample("a text", torch.tensor(ids, dtype=torch.int32), torch.arange(len(ids)) >= len(each.ids)))
    return found
