"""Texts to train on, and which of their tokens are the assistant's: an answer and the token that ends it.

Knows nothing of models. A prompt is rendered as serving renders it, so that training and serving read the same ids.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from outpace.decoding.text import Message, Prompt, Text
from outpace.errors import UsageError


@dataclass(frozen=True)
class Sample:
    """One text to train on.

    Args:
        key: how messages name it.
        ids: its tokens, int32.
        loss_mask: True where the token at that place is one of an answer.

    Raises:
        UsageError: ids and mask differ in length.
    """

    key: str
    ids: Int[Tensor, " time"]
    loss_mask: Bool[Tensor, " mask"]

    def __post_init__(self) -> None:
        if len(self.ids) != len(self.loss_mask):
            raise UsageError(
                f"{self.key} has {len(self.ids)} tokens and a mask of {len(self.loss_mask)}; allowed: equal lengths"
            )

    def __len__(self) -> int:
        return len(self.ids)


def answered(text: Text, key: str, prompt: Prompt, answer_ids: Sequence[int]) -> Sample:
    """A prompt as serving renders it, and behind it the tokens that were generated there; these are the answer.

    Args:
        text: the target's tokenizer and chat template.
        key: how messages name the sample.
        prompt: a user's turn, chat messages, or ids, as for ``Text.encode``.
        answer_ids: what was generated, the token that ended it included where one did.

    Raises:
        UsageError: the answer is empty, or the prompt is or renders as nothing; the sample is named.
    """
    before = _served(text, key, prompt)
    return _checked(key, [*before, *answer_ids], [False] * len(before) + [True] * len(answer_ids))


def dialogue(text: Text, key: str, messages: Sequence[Message], eos_ids: Sequence[int]) -> Sample:
    """A whole dialogue through the chat template; the mask holds every turn of the assistant and what ends it.

    No mark in the template is needed: a turn is what the whole text has behind the text that serving would have
    answered, which is the dialogue up to there, rendered with the generation prompt. Its end is its first token of
    ``eos_ids``; where it has none, its last special token; where it has none either, all that the template wrote.

    Args:
        text: the target's tokenizer and chat template.
        key: how messages name the sample.
        messages: with one turn of the assistant or more.
        eos_ids: the ids that end a text of the target.

    Raises:
        UsageError: no token is the assistant's, or every one is; or the template renders a turn within the dialogue
            otherwise than it is served: serving would read other ids than training. Sample and turn are named.
    """
    whole = _rendered(text, key, messages)
    mask = [False] * len(whole)
    for turn, message in enumerate(messages):
        if message.get("role") != "assistant":
            continue
        where = f"{key}, message {turn}"
        before = _served(text, where, list(messages[:turn]))
        through = _rendered(text, key, messages[: turn + 1])
        _require_within(text, where, before, through)
        stop = _end(text, through, len(before), eos_ids)
        _require_within(text, where, through[:stop], whole)
        mask[len(before) : stop] = [True] * (stop - len(before))
    return _checked(key, whole, mask)


def user_slot(text: Text) -> tuple[list[int], list[int]]:
    """The ids that the chat template writes before a user's first word, and those behind the last one.

    Raises:
        UsageError: there is no chat template, or it does not show what the user says exactly once.
    """
    if not text.tokenizer.chat_template:
        raise UsageError("the tokenizer has no chat template, so there is no user's turn to fill")
    slot = "what the user says"
    rendered = text.tokenizer.apply_chat_template(
        [{"role": "user", "content": slot}], add_generation_prompt=True, tokenize=False
    )
    around = rendered.split(slot)
    if len(around) != 2:
        raise UsageError(f"the chat template shows a user's words {len(around) - 1} times; allowed: once")
    before, behind = (list(text.tokenizer.encode(part, add_special_tokens=False)) for part in around)
    return before, behind


def end_of_turn(text: Text, eos_ids: Sequence[int]) -> list[int]:
    """The ids that end a turn: the target's own, and the first special one that the template writes behind a turn.

    A template may end turns with another token than the one that ends texts.
    """
    behind = user_slot(text)[1] if text.tokenizer.chat_template else []
    return list(dict.fromkeys([*eos_ids, *[token for token in behind if token in text.silent][:1]]))


def _served(text: Text, key: str, prompt: Prompt) -> list[int]:
    """The ids that a prompt is answered behind."""
    try:
        ids = text.encode(prompt)
    except UsageError as error:
        raise UsageError(f"{key}: {error.message}", hint=error.hint) from error
    return ids


def _rendered(text: Text, key: str, messages: Sequence[Message]) -> list[int]:
    if not text.tokenizer.chat_template:
        raise UsageError(f"{key} is a dialogue and the tokenizer has no chat template; allowed: prompts with answers")
    ids = text.tokenizer.apply_chat_template(
        list(messages), add_generation_prompt=False, tokenize=True, return_dict=True
    )["input_ids"]
    return [int(token) for token in ids]


def _require_within(text: Text, where: str, served: list[int], whole: list[int]) -> None:
    """Refuse a dialogue that serving would read otherwise: what is learnt there is never asked for."""
    if whole[: len(served)] == served:
        return
    shortest = min(len(served), len(whole))
    agreed = next((place for place in range(shortest) if served[place] != whole[place]), shortest)
    trained, asked = (text.tokenizer.decode(ids[agreed : agreed + 8]) for ids in (whole, served))
    raise UsageError(
        f"{where}: the chat template renders it otherwise within the dialogue than when it is served: from token "
        f"{agreed} on it is {trained!r} there, and {asked!r} when served",
        hint="train on prompts with the target's own answers, which are rendered as they are served",
    )


def _end(text: Text, ids: list[int], start: int, eos_ids: Sequence[int]) -> int:
    """Where the turn that begins at ``start`` ends."""
    if found := [place for place in range(start, len(ids)) if ids[place] in eos_ids]:
        return found[0] + 1
    found = [place for place in range(start, len(ids)) if ids[place] in text.silent]
    return found[-1] + 1 if found else len(ids)


def _checked(key: str, ids: list[int], mask: list[bool]) -> Sample:
    """Refuse a mask that says nothing: a template that hides its answers would otherwise train nothing, or prompts."""
    if not any(mask):
        raise UsageError(f"{key}: no token is an answer's; allowed: one answer or more", hint=_TEMPLATE)
    if all(mask):
        raise UsageError(f"{key}: every token is an answer's; allowed: a prompt before it", hint=_TEMPLATE)
    return Sample(key, torch.tensor(ids, dtype=torch.int32), torch.tensor(mask))


_TEMPLATE = "does the chat template write prompts and answers?"
