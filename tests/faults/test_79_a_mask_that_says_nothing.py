"""79: a chat template gives an empty loss mask, or masks prompts: the run looks healthy, and nothing is learnt."""

from pathlib import Path
from typing import Any

import pytest

from chats import ENDED, EOS, HIDES, PLAIN, chat_text, words_of
from outpace.decoding.text import Text
from outpace.errors import UsageError
from outpace.training import masks
from outpace.training.masks import Sample, dialogue
from toys import must_fail

SYSTEM = {"role": "system", "content": "be brief"}
TALK = [
    SYSTEM,
    {"role": "user", "content": "a"},
    {"role": "assistant", "content": "same"},
    {"role": "user", "content": "<start>assistant\nb"},
    {"role": "assistant", "content": "same"},
    {"role": "user", "content": "c"},
    {"role": "assistant", "content": ""},
]


def masked(text: Text, messages: list[dict[str, str]]) -> str:
    sample = dialogue(text, "one", messages, [EOS])
    return words_of(text, sample.ids[sample.loss_mask].tolist())


def case(folder: Path) -> None:
    """No template has marks for answers. What is masked reads as the assistant's turns and their ends, token by token;
    where there is none, the sample is named."""
    assert masked(chat_text(folder / "plain", PLAIN), TALK) == "same<eot>same<eot><eot>"
    assert masked(chat_text(folder / "ended", ENDED), TALK) == "same<eos>same<eos><eos>"
    for name, template, messages in (("hides", HIDES, TALK[:3]), ("system", PLAIN, [SYSTEM])):
        with pytest.raises(UsageError, match="one: no token is an answer's"):
            dialogue(chat_text(folder / name, template), "one", messages, [EOS])


def test_case(tmp_path: Path) -> None:
    case(tmp_path)


def trusting(key: str, ids: list[int], mask: list[bool]) -> Sample:
    """An empty mask is as good as any."""
    import torch

    return Sample(key, torch.tensor(ids, dtype=torch.int32), torch.tensor(mask))


def to_the_end_of_texts_only(text: Text, ids: list[int], start: int, eos_ids: Any) -> int:
    """Turns are thought to end with the token that ends texts, or not at all."""
    return next((place + 1 for place in range(start, len(ids)) if ids[place] in eos_ids), len(ids))


def without_an_end(text: Text, ids: list[int], start: int, eos_ids: Any) -> int:
    """What ends a turn is thought to be the template's."""
    return honest_end(text, ids, start, eos_ids) - 1


honest_end = masks._end


@pytest.mark.parametrize(
    ("name", "fault"), [("_checked", trusting), ("_end", to_the_end_of_texts_only), ("_end", without_an_end)]
)
def test_planted_fault(name: str, fault: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(masks, name, fault)
    with must_fail():
        case(tmp_path)


def test_planted_header(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer is looked for behind every header, and a user who writes one is taken for the assistant."""

    def by_header(text: Text, key: str, messages: list[dict[str, str]], eos_ids: Any) -> Sample:
        ids = text.tokenizer.apply_chat_template(messages, tokenize=True, return_dict=True)["input_ids"]
        mask, answering = [], False
        for place, token in enumerate(ids):
            mask.append(answering)
            answering = (answering or words_of(text, ids[: place + 1]).endswith("<start>assistant\n")) and (
                text.tokenizer.decode([token]) not in ("<eot>", "<eos>")
            )
        return trusting(key, ids, mask)

    monkeypatch.setitem(globals(), "dialogue", by_header)
    with must_fail():
        case(tmp_path)
