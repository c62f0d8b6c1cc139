"""A tokenizer of sixty words with a chat template, for tiny model folders; its end of text is the last of 64 ids."""

import json
from pathlib import Path

from tokenizers import Tokenizer, models, pre_tokenizers

WORDS = [f"w{place}" for place in range(60)]


def word_tokenizer(folder: Path) -> None:
    """Write its files into a model's folder."""
    vocab = {word: place for place, word in enumerate([*WORDS, "user", "assistant", "<unk>", "<end>"])}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<end>",
        "unk_token": "<unk>",
        "chat_template": "{% for m in messages %}{{ m['role'] }} {{ m['content'] }} {% endfor %}assistant",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), "utf-8")
