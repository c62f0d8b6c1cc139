"""Strings in and out: chat template, stop strings over token borders, streamed characters.

Knows nothing of drafts. The loop works on ids alone; this file is the only one that turns strings into ids and back.
"""

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from outpace.decoding.loop import StopRule
from outpace.errors import UsageError, WeightsError

Message = dict[str, str]
Prompt = str | list[int] | list[Message]

BROKEN = "\ufffd"  # what a tokenizer shows for bytes that do not make a character (yet)


class Text:
    """The tokenizer and chat template in a folder.

    Raises:
        WeightsError: the folder has no tokenizer that can be read.
    """

    def __init__(self, folder: Path) -> None:
        from transformers import AutoTokenizer
        from transformers.utils import logging

        logging.set_verbosity_error()
        try:
            self.tokenizer: Any = AutoTokenizer.from_pretrained(str(folder))
        except Exception as error:  # the tokenizers package raises the bare class for a malformed file
            reason = str(error).partition("\n")[0].rstrip(" :")
            raise WeightsError(
                f"no tokenizer can be read from {folder}: {reason}", hint="put tokenizer.json beside the weights"
            ) from error
        self.backend: Any = getattr(self.tokenizer, "backend_tokenizer", None)

    def encode(self, prompt: Prompt, *, raw: bool = False) -> list[int]:
        """The ids the target will read.

        Args:
            prompt: a string is one user turn through the chat template, or plain text when the tokenizer has none or
                ``raw`` is set; a list of ids is taken as it is; a list of messages goes through the template.
            raw: take a string as plain text, begun as the tokenizer begins any text.

        Raises:
            UsageError: an empty prompt, messages for a tokenizer without a chat template, or malformed messages.
        """
        if not prompt or (isinstance(prompt, str) and not raw and not prompt.strip()):
            raise UsageError("the prompt is empty; allowed: one character or more")
        if isinstance(prompt, list):
            if all(isinstance(part, int) for part in prompt):
                return [part for part in prompt if isinstance(part, int)]
            for place, part in enumerate(prompt):
                if not isinstance(part, dict):
                    raise UsageError(
                        f"part {place} of the prompt is a {type(part).__name__}; allowed: ids only, or messages only"
                    )
            return self._chat([part for part in prompt if isinstance(part, dict)])
        if raw or not self.tokenizer.chat_template:
            return list(self.tokenizer.encode(prompt))
        return self._chat([{"role": "user", "content": prompt}])

    def _chat(self, messages: list[Message]) -> list[int]:
        if not self.tokenizer.chat_template:
            raise UsageError(
                "chat messages were given and the tokenizer has no chat template", hint="give a plain string"
            )
        for place, message in enumerate(messages):
            if not {"role", "content"} <= message.keys():
                raise UsageError(f"message {place} has the keys {sorted(message)}; allowed: role and content")
        ids = self.tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=True, return_dict=True)
        return list(ids["input_ids"])

    def decode(self, ids: Sequence[int]) -> str:
        """The text of these ids, special tokens left out."""
        if self.backend is not None:  # the same text, and decoding asks for it after every turn
            return str(self.backend.decode(list(ids), skip_special_tokens=True))
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False))

    def spellings(self, word: str) -> list[list[int]]:
        """The ids of a word as it stands alone and behind a space."""
        both = [self.tokenizer.encode(start + word, add_special_tokens=False) for start in ("", " ")]
        return [list(ids) for place, ids in enumerate(both) if ids and ids not in both[:place]]

    def stop_rule(self, strings: Sequence[str]) -> StopRule:
        """A rule that ends a text at the token which completes the first occurrence of any of these strings.

        Raises:
            UsageError: a stop string is empty.
        """
        if not all(strings):
            raise UsageError("a stop string is empty; allowed: one character or more")
        longest = max(len(string.encode()) for string in strings)

        def ends(new_ids: Sequence[int]) -> bool:
            # Every token but a special one is a byte or more: a match cannot begin further back than this.
            tail = self.decode(new_ids[-(longest + 8) :])
            return any(string in tail for string in strings)

        return ends


@lru_cache(maxsize=4)
def text_of(folder: Path) -> Text:
    """The tokenizer of a folder, read once."""
    return Text(folder)


def cut_at(text: str, strings: Sequence[str]) -> str:
    """The text before the first occurrence of any of these strings."""
    places = [place for place in (text.find(string) for string in strings) if place >= 0]
    return text[: min(places)] if places else text


class TextStream:
    """Ids in, characters out, each as soon as it is certain: whole characters only, and nothing of a stop string.

    The pieces joined are exactly the final text.
    """

    def __init__(self, text: Text, stop_strings: Sequence[str] = ()) -> None:
        self.text, self.stop_strings = text, stop_strings
        self.ids: list[int] = []
        self.base = 0  # ids before this are settled: their text no longer changes
        self.settled = ""
        self.sent = 0

    def push(self, ids: Sequence[int]) -> str:
        """The characters that these ids make certain."""
        self.ids += ids
        return self._send(self._certain())

    def finish(self) -> str:
        """What is left, once no more ids can come."""
        return self._send(cut_at(self._whole(), self.stop_strings))

    def _whole(self) -> str:
        return self.settled + self.text.decode(self.ids[self.base :])

    def _certain(self) -> str:
        whole = self._whole()
        found = cut_at(whole, self.stop_strings)
        if found != whole:
            return found
        if not whole.endswith(BROKEN):
            self._settle(whole)
        certain = len(whole.rstrip(BROKEN))
        for string in self.stop_strings:  # hold back what may become a stop string
            for size in range(min(len(string) - 1, certain), 0, -1):
                if whole[:certain].endswith(string[:size]):
                    certain -= size
                    break
        return whole[:certain]

    def _settle(self, whole: str) -> None:
        """Decode from further on next time, where that gives the same text; keeps long streams linear."""
        if len(self.ids) - self.base < 32:
            return
        middle = len(self.ids) - 8
        head, tail = self.text.decode(self.ids[self.base : middle]), self.text.decode(self.ids[middle:])
        if self.settled + head + tail == whole:
            self.settled, self.base = self.settled + head, middle

    def _send(self, certain: str) -> str:
        piece = certain[self.sent :]
        self.sent = max(self.sent, len(certain))
        return piece
