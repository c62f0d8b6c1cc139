"""A target of two layers, what it says, and a recipe that distils it: the exercise in a minute, for CI.

Knows nothing of what is measured. The tiny model speaks sixty made-up words.
"""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, models, pre_tokenizers

from outpace.decoding.generate import generate
from outpace.models.load import load_target
from outpace.models.target import Target
from outpace.models.toy import tiny_config, tiny_tensors
from outpace.training.recipe import Recipe

WORDS, TEXTS, NEW, SURE = 60, 96, 24, 1.5
RECIPE = """
format_version = 1
method = "distil"
dtype = "fp32"
[data]
limit = 64
held_out = 0.2
[head]
depth = 1
width = 32
heads = 2
feed_forward = 64
tied = false
[train]
epochs = 8
tokens_per_batch = 256
batches_per_step = 1
learning_rate = 2e-2
precision = "fp32"
[walk]
prompts = 4
new_tokens = 16
"""


def setting(work: Path) -> tuple[Recipe, Target, list[Path]]:
    """The recipe, the target and its answers, all made here."""
    target = load_target(str(model(work / "tiny")), dtype="fp32")
    return Recipe.from_toml(RECIPE), target, [answers(target, work / "answers.jsonl")]


def model(folder: Path) -> Path:
    """A random model that is surer of its words than random ones are, with a tokenizer of words."""
    folder.mkdir(parents=True, exist_ok=True)
    config = tiny_config(eos_token_id=63)
    tensors = tiny_tensors(config, seed=3)
    tensors["lm_head.weight"] *= SURE
    (folder / "config.json").write_text(json.dumps(config), "utf-8")
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    vocab = {
        word: place for place, word in enumerate([*(f"w{n}" for n in range(WORDS)), "<a>", "<b>", "<unk>", "<end>"])
    }
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<end>", "unk_token": "<unk>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), "utf-8")
    return folder


def answers(target: Target, path: Path) -> Path:
    """What the target says behind random words, at temperature 1."""
    prompts = torch.randint(WORDS, (TEXTS, 4), generator=torch.Generator().manual_seed(0)).tolist()
    said = generate(target, None, prompts, temperature=1.0, seed=0, max_new_tokens=NEW, eos_ids=None)
    lines = [
        {"prompt_ids": ids, "answer_ids": one.token_ids, "temperature": 1.0}
        for ids, one in zip(prompts, said, strict=True)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
    return path
