"""Strings in and out: chat template, stop strings over token borders, streamed characters.

Knows nothing of drafts. The loop works on ids alone; this file is the only one that turns strings into ids and back.
"""

from collections.abc import Sequence
from functools import lru_cache
from itertools import groupby, islice
from pathlib import Path
from typing import Any

from outpace.decoding.loop import StopRule
from outpace.errors import UsageError, WeightsError

Message = dict[str, str]
Prompt = str | list[int] | list[Message]

BROKEN = "\ufffd"  # what a tokenizer shows for bytes that do not make a character (yet)
SLACK = 8  # ids read before those that matter: a text may begin with half a character, or lose a space at its begin


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
        self.silent = self._silent()
        self.octets = self._octets()

    def _silent(self) -> frozenset[int]:
        """The ids that no text shows."""
        if self.backend is None:
            return frozenset(self.tokenizer.all_special_ids)
        added = self.backend.get_added_tokens_decoder()
        return frozenset(token for token, what in added.items() if what.special)

    def _octets(self) -> dict[int, int]:
        """Ids that stand for a byte each, where the tokenizer spells what it has no word for so; else nothing."""
        if self.backend is None:
            return {}
        ids = [self.backend.token_to_id(f"<0x{byte:02X}>") for byte in range(256)]
        if None in ids or self.backend.decode([ids[0x41]]) != "A":
            return {}
        return {token: byte for byte, token in enumerate(ids)}

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
        """The text of these ids, special tokens left out.

        What more ids add changes nothing of it but bytes at its end that make no character yet. So of a run of bytes
        only those that make none are broken, where tokenizers that spell byte by byte give up the whole run.
        """
        if self.backend is not None:  # the same text, and decoding asks for it after every turn
            shown = [token for token in ids if token not in self.silent]
            return str(self.backend.decode(self._mended(shown), skip_special_tokens=True))
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False))

    def _mended(self, ids: list[int]) -> list[int]:
        """The same ids, with broken bytes replaced by those of the character that says so."""
        if self.octets.keys().isdisjoint(ids):
            return ids
        spelled = list(self.octets)  # in order of their bytes
        mended: list[int] = []
        for bytewise, run in groupby(ids, self.octets.__contains__):
            if bytewise:
                characters = bytes(self.octets[token] for token in run).decode("utf-8", "replace")
                mended += [spelled[byte] for byte in characters.encode()]
            else:
                mended += run
        return mended

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
            # Every token that is shown is a byte or more: a match cannot begin further back than this.
            shown = islice((token for token in reversed(new_ids) if token not in self.silent), longest + SLACK)
            tail = self.decode([*shown][::-1])
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

    The pieces joined are exactly the final text. Only the last ids are decoded again: as many as a stop string may
    reach back, and some before them, as the first one may lose its space where a text begins with it.
    """

    def __init__(self, text: Text, stop_strings: Sequence[str] = ()) -> None:
        self.text, self.stop_strings = text, stop_strings
        self.kept = SLACK + max((len(string.encode()) for string in stop_strings), default=0)
        self.ids: list[int] = []
        self.sent = 0  # characters of the text of these ids that were handed out

    def push(self, ids: Sequence[int]) -> str:
        """The characters that these ids make certain."""
        self.ids += [token for token in ids if token not in self.text.silent]
        piece = self._send(self._certain())
        if len(self.ids) >= 3 * self.kept:
            self._settle()
        return piece

    def finish(self) -> str:
        """What is left, once no more ids can come."""
        return self._send(cut_at(self._whole(), self.stop_strings))

    def _whole(self) -> str:
        """All that was not sent, certain or not."""
        return self.text.decode(self.ids)[self.sent :]

    def _certain(self) -> str:
        whole = self._whole()
        found = cut_at(whole, self.stop_strings)
        if found != whole:
            return found
        certain = len(whole.rstrip(BROKEN))
        for string in self.stop_strings:  # hold back what may become a stop string
            for size in range(min(len(string) - 1, certain), 0, -1):
                if whole[:certain].endswith(string[:size]):
                    certain -= size
                    break
        return whole[:certain]

    def _settle(self) -> None:
        """Decode from further on next time, where the text ends the same; what is not sent lies behind that."""
        tail, whole = self.text.decode(self.ids[-self.kept :]), self.text.decode(self.ids)
        same = tail.lstrip(BROKEN)  # the first character may be cut in two
        unsent = len(whole) - self.sent
        if whole.endswith(same) and len(same) > unsent:
            self.ids, self.sent = self.ids[-self.kept :], len(tail) - unsent

    def _send(self, certain: str) -> str:
        self.sent += len(certain)
        return certain
