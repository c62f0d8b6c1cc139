"""What the tests of ``outpace bench`` share: the verb, a model folder, a file of prompts, and what a result must have.

Knows nothing of what is measured.
"""

import json
from pathlib import Path
from typing import Any

import typer
from safetensors.torch import save_file
from tokenizers import Tokenizer, models, pre_tokenizers
from typer.testing import CliRunner

from outpace.cli import guarded
from outpace.cli.bench import bench
from outpace.models.toy import tiny_config, tiny_tensors

WORDS = [f"w{place}" for place in range(60)]
FIELDS = {
    *("category", "method", "rule", "tree", "temperature", "batch", "tau", "acceptance", "acceptance_by_position"),
    *("plain_turn_share", "tokens_per_second", "baseline_tokens_per_second", "speedup", "speedup_ci"),
    *("near_ties_per_1000", "peak_rss_mb"),
}
"""What every result is promised to have; more may stand beside it."""


def tiny_folder(folder: Path) -> Path:
    """A model folder with a tokenizer of sixty words."""
    (folder / "config.json").write_text(json.dumps(tiny_config(max_position_embeddings=512)), "utf-8")
    save_file(tiny_tensors(tiny_config(), seed=3), folder / "model.safetensors", metadata={"format": "pt"})
    vocabulary = {word: place for place, word in enumerate([*WORDS, "a", "b", "<unk>", "<end>"])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<end>", "unk_token": "<unk>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), "utf-8")
    return folder


def six_prompts(folder: Path) -> Path:
    """Six prompts in two categories."""
    path = folder / "mine.jsonl"
    lines = [
        {"id": f"p{place}", "category": "xy"[place % 2], "prompt": " ".join(WORDS[place : place + 8] * 2)}
        for place in range(6)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
    return path


def call(*arguments: object) -> Any:
    app = typer.Typer()
    app.command()(guarded(bench))
    return CliRunner().invoke(app, [str(one) for one in arguments])
