"""A tokenizer of single characters with chat templates of several habits, and targets that speak through it.

Knows nothing of what is tested. Import it as ``chats``: ``conftest.py`` puts this folder on the path.
"""

import string
from pathlib import Path
from typing import Any

import torch

from outpace.decoding.text import Text, text_of
from outpace.models.function import FunctionTarget
from outpace.models.toy import random_table, table_target, tiny_transformer
from outpace.models.transformer import Transformer

LETTERS = string.digits + string.ascii_letters + string.punctuation + " \n"
EOS, EOT, START = (len(LETTERS) + place for place in range(3))
CHAT_VOCAB = len(LETTERS) + 4

TURN = "<start>{{ m.role }}\n{{ m.content }}<eot>\n"
PLAIN = "{% for m in messages %}" + TURN + "{% endfor %}{% if add_generation_prompt %}<start>assistant\n{% endif %}"
"""Turns end with a token that is not the one that ends texts."""
ENDED = PLAIN.replace("<eot>", "<eos>")
"""Turns end with the token that ends texts."""
BARE = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)
"""No special token at all."""
THINKS = PLAIN.replace("{{ m.content }}", "{{ '<t></t>' if m.role == 'assistant' else '' }}{{ m.content }}").replace(
    "<start>assistant\n{% endif %}", "<start>assistant\n<t></t>{% endif %}"
)
"""Writes a block before every answer, in a dialogue as well as when it is served."""
FORGETS = PLAIN.replace("<start>assistant\n{% endif %}", "<start>assistant\n<t></t>{% endif %}")
"""Writes the block when it is served, and leaves it out of the dialogue."""
REWRITES = PLAIN.replace("{{ m.content }}", "{{ m.content if loop.last or m.role == 'user' else m.content | upper }}")
"""Shows answers otherwise once something stands behind them."""
HIDES_BEHIND_A_HEADER = PLAIN.replace("{% for m in messages %}", "{% for m in messages if m.role != 'assistant' %}")
"""Leaves answers out of a dialogue, and asks for them all the same."""
HIDES = HIDES_BEHIND_A_HEADER.replace("<start>assistant\n{% endif %}", "{% endif %}")
"""Leaves answers out, and asks for none."""
SAYS_NOTHING = "{% for m in messages if m.role == 'assistant' %}{{ m.content }}{% endfor %}"
"""Shows nothing but answers."""


def chat_tokenizer(folder: Path, template: str | None = PLAIN) -> Path:
    """One token a character, then ``<eos>``, ``<eot>``, ``<start>`` and ``<unk>``."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    special = ["<eos>", "<eot>", "<start>", "<unk>"]
    vocabulary = {letter: number for number, letter in enumerate([*LETTERS, *special])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens(special)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>")
    if template is not None:
        fast.chat_template = template
    fast.save_pretrained(str(folder))
    return folder


def chat_text(folder: Path, template: str | None = PLAIN) -> Text:
    """The same, opened."""
    return text_of(chat_tokenizer(folder, template))


def chatter(*, seed: int = 1, end: float = 2.0, eos_ids: tuple[int, ...] = (EOS,), **shown: Any) -> FunctionTarget:
    """A table that says letters, and ends its turn now and then; special tokens but the end are never said."""
    table = random_table(CHAT_VOCAB, seed=seed, spread=1.5).float()
    table[:, len(LETTERS) :] = -30.0
    table[:, [EOS, EOT]] = end
    return table_target(table, name="chatter", eos_ids=eos_ids, **shown)


def chat_model(*, seed: int = 3, **changes: Any) -> Transformer:
    """A tiny transformer of this vocabulary, which shows features."""
    return tiny_transformer(seed=seed, vocab_size=CHAT_VOCAB, eos_ids=(EOS,), **changes)


def words_of(text: Text, ids: torch.Tensor | list[int]) -> str:
    """What stands there, special tokens and all."""
    return str(text.tokenizer.decode(ids))
