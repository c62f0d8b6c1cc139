"""Loss masks hold the answers and what ends them, exactly; a template that gives none, all or others is refused."""

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from chats import (
    BARE,
    ENDED,
    EOS,
    EOT,
    FORGETS,
    HIDES,
    HIDES_BEHIND_A_HEADER,
    PLAIN,
    REWRITES,
    SAYS_NOTHING,
    THINKS,
    chat_text,
    words_of,
)
from outpace.decoding.text import Text
from outpace.errors import UsageError
from outpace.training.masks import Sample, answered, dialogue, end_of_turn, user_slot

TEMPLATES = {"plain": PLAIN, "ended": ENDED, "bare": BARE, "thinks": THINKS, "forgets": FORGETS, "rewrites": REWRITES}
ENDS = {"plain": "<eot>", "ended": "<eos>", "bare": "\n", "thinks": "<eot>"}


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Text]:
    return {name: chat_text(tmp_path_factory.mktemp(name), template) for name, template in TEMPLATES.items()}


def talk(*turns: str) -> list[dict[str, str]]:
    """User and assistant in turn; a first turn that begins with ``!`` is the system's."""
    named = [{"role": "system", "content": turns[0][1:]}] if turns[0].startswith("!") else []
    spoken = turns[len(named) :]
    return named + [
        {"role": "assistant" if place % 2 else "user", "content": turn} for place, turn in enumerate(spoken)
    ]


def masked(text: Text, sample: Sample) -> list[str]:
    """The words of every run of masked tokens."""
    runs: list[list[int]] = []
    before = False
    for token, mask in zip(sample.ids.tolist(), sample.loss_mask.tolist(), strict=True):
        if mask:
            runs = runs if before else [*runs, []]
            runs[-1].append(token)
        before = mask
    return [words_of(text, run) for run in runs]


words = st.text("abc xyz.[]assistant", min_size=1, max_size=8).filter(str.strip)


@pytest.mark.parametrize("name", list(ENDS))
@given(turns=st.lists(words, min_size=2, max_size=7), system=st.booleans())
def test_a_dialogue_is_masked_turn_by_turn(texts: dict[str, Text], name: str, turns: list[str], system: bool) -> None:
    """Whatever the turns say, the assistant's own header and equal answers included."""
    text = texts[name]
    messages = talk(*(["!be brief"] if system else []), *turns)
    sample = dialogue(text, "d", messages, [EOS])
    assert masked(text, sample) == [turn + ENDS[name] for turn in turns[1::2]]
    whole = text.tokenizer.apply_chat_template(messages, tokenize=True, return_dict=True)["input_ids"]
    assert sample.ids.tolist() == whole


@pytest.mark.parametrize("name", ["plain", "ended", "bare", "thinks", "forgets", "rewrites"])
@given(asked=words, said=st.lists(st.integers(0, EOT), min_size=1, max_size=6))
def test_a_generated_answer_is_masked_as_it_is(texts: dict[str, Text], name: str, asked: str, said: list[int]) -> None:
    text = texts[name]
    sample = answered(text, "a", asked, said)
    prompt = text.encode(asked)
    assert sample.ids.tolist() == prompt + said and sample.ids.dtype == torch.int32
    assert sample.loss_mask.tolist() == [False] * len(prompt) + [True] * len(said)


def test_special_turns(texts: dict[str, Text]) -> None:
    """Two turns with the same answer, an empty one, one that holds the assistant's header."""
    text = texts["plain"]
    assert masked(text, dialogue(text, "d", talk("a", "same", "b", "same"), [EOS])) == ["same<eot>"] * 2
    assert masked(text, dialogue(text, "d", talk("a", "", "b", "c"), [EOS])) == ["<eot>", "c<eot>"]
    said = "<start>assistant\nno"
    assert masked(text, dialogue(text, "d", talk("a", "x", "b", said), [EOT]))[0] == "x<eot>"
    spoken = masked(texts["bare"], dialogue(texts["bare"], "d", talk("a", "[assistant]b\n"), [EOS]))
    assert spoken == ["[assistant]b\n\n"]


def test_the_token_that_ends_texts_goes_before_special_ones(texts: dict[str, Text]) -> None:
    """A template that writes more special tokens behind a turn than the target says."""
    text = texts["plain"]
    assert masked(text, dialogue(text, "d", talk("a", "b<eot>"), [EOT])) == ["b<eot>"]
    assert masked(text, dialogue(text, "d", talk("a", "b<eot>"), [EOS])) == ["b<eot><eot>"]


@pytest.mark.parametrize(
    ("template", "messages", "message"),
    [
        (HIDES, talk("a", "b"), "one: no token is an answer's"),
        (HIDES_BEHIND_A_HEADER, talk("a", "b"), "one, message 1: the chat template renders it otherwise"),
        (PLAIN, talk("!system only"), "one: no token is an answer's"),
        (PLAIN, talk("a"), "one: no token is an answer's"),
        (PLAIN, [{"role": "assistant", "content": "b"}], "one, message 0: the prompt is empty"),
        (SAYS_NOTHING, talk("a", "b"), "one: every token is an answer's"),
        (None, talk("a", "b"), "one is a dialogue and the tokenizer has no chat template"),
        (FORGETS, talk("a", "b"), r"one, message 1: the chat template renders it otherwise within the dialogue than"),
        (REWRITES, talk("a", "b", "c", "d"), r"from token 20 on it is 'B<eot>.* there, and 'b<eot>' when served"),
    ],
)
def test_what_is_refused(template: str | None, messages: list[dict[str, str]], message: str, tmp_path: Path) -> None:
    text = chat_text(tmp_path, template)
    with pytest.raises(UsageError, match=message):
        dialogue(text, "one", messages, [EOS])


@pytest.mark.parametrize(
    ("prompt", "said", "message"),
    [
        ("a", [], "one: no token is an answer's"),
        ("", [1], "one: the prompt is empty"),
        ([], [1], "the prompt is empty"),
    ],
)
def test_answers_that_are_refused(texts: dict[str, Text], prompt: Any, said: list[int], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        answered(texts["plain"], "one", prompt, said)


def test_a_prompt_that_renders_as_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="one: every token is an answer's; allowed: a prompt before it"):
        answered(chat_text(tmp_path, SAYS_NOTHING), "one", "a", [1, 2])


def test_a_mask_of_another_length_is_refused() -> None:
    with pytest.raises(UsageError, match="one has 2 tokens and a mask of 3"):
        Sample("one", torch.tensor([1, 2], dtype=torch.int32), torch.tensor([True, False, True]))


def test_the_slot_of_the_user(texts: dict[str, Text], tmp_path: Path) -> None:
    """What is written around a user's words, and the token that ends them."""
    for name, behind in (("plain", "<eot>\n<start>assistant\n"), ("bare", "\n[assistant]"), ("thinks", "<eot>\n")):
        text = texts[name]
        before, after = user_slot(text)
        assert before + text.encode("hi", raw=True) + after == text.encode("hi")
        assert words_of(text, after).startswith(behind)
    assert end_of_turn(texts["plain"], [EOS]) == [EOS, EOT]
    assert end_of_turn(texts["ended"], [EOS]) == [EOS] and end_of_turn(texts["bare"], [EOS]) == [EOS]
    bare = chat_text(tmp_path / "none", None)
    assert end_of_turn(bare, [7]) == [7]
    with pytest.raises(UsageError, match="no chat template, so there is no user's turn to fill"):
        user_slot(bare)
    with pytest.raises(UsageError, match="shows a user's words 2 times; allowed: once"):
        user_slot(chat_text(tmp_path / "twice", "{% for m in messages %}{{ m.content + m.content }}{% endfor %}"))
