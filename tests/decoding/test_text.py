"""Prompts become the ids they should be, by template or as they are; stop rules count characters, not tokens."""

from pathlib import Path
from typing import Any

import pytest

from outpace.decoding.generate import generate
from outpace.decoding.text import Text, cut_at, text_of
from outpace.drafters.lookup import Lookup
from outpace.errors import UsageError, WeightsError
from toys import LETTER_VOCAB, Watched, spelling


def test_a_string_is_plain_text_without_a_template(letters: Path) -> None:
    text = text_of(letters)
    assert text.decode(text.encode("the END.")) == "the END."
    assert text.encode("ab") == text.encode("ab", raw=True) == text.encode([0, 1]) == [0, 1]


def test_a_string_is_a_user_turn_through_the_template(chat_letters: Path) -> None:
    text = text_of(chat_letters)
    turn = text.encode([{"role": "user", "content": "ab"}])
    assert text.decode(turn) == "[user]ab\n[assistant]"
    assert text.encode("ab") == turn != text.encode("ab", raw=True)
    chat = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}]
    assert text.decode(text.encode(chat)) == "[user]a\n[assistant]b\n[user]c\n[assistant]"


def test_what_is_no_prompt(letters: Path, chat_letters: Path) -> None:
    plain, chat = text_of(letters), text_of(chat_letters)
    cases: list[tuple[Text, Any, str]] = [
        (plain, "", "the prompt is empty; allowed: one character or more"),
        (plain, [], "the prompt is empty"),
        (chat, " \n", "the prompt is empty"),
        (plain, [{"role": "user", "content": "a"}], "the tokenizer has no chat template\nhint: give a plain string"),
        (chat, [{"role": "user"}], r"message 0 has the keys \['role'\]; allowed: role and content"),
        (chat, [{"role": "user", "content": "a"}, {"content": "b"}], r"message 1 has the keys \['content'\]"),
    ]
    for text, prompt, words in cases:
        with pytest.raises(UsageError, match=words):
            text.encode(prompt)
    assert plain.encode("\n", raw=True) == [plain.tokenizer.convert_tokens_to_ids("\n")]


def test_a_folder_without_a_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match=r"no tokenizer can be read from .*\nhint: put tokenizer.json beside"):
        Text(tmp_path)


def test_ids_need_no_tokenizer(tmp_path: Path) -> None:
    """A folder of weights alone takes ids and gives ids; only strings and stop strings need a tokenizer."""
    target = spelling([1, 2, 3], prompt=1, vocab=4, folder=tmp_path)
    result = generate(target, None, [0], max_new_tokens=3)
    assert (result.token_ids, result.text) == ([1, 2, 3], "")
    for prompt, options in (("text", {}), ([0], {"stop": "END"})):
        with pytest.raises(WeightsError, match="no tokenizer can be read from"):
            generate(target, None, prompt, **options)


@pytest.mark.parametrize("raw", [False, True])
def test_plain_and_drafted_decoding_read_the_same_ids(raw: bool, chat_letters: Path) -> None:
    read = []
    for guesser in (None, Lookup()):
        watched = Watched(spelling([0, 1, 0, 1, 0, 1], prompt=1, vocab=LETTER_VOCAB, folder=chat_letters))
        result = generate(watched, guesser, "abab", raw=raw, max_new_tokens=4, num_draft_tokens=4)
        assert watched.prefills == [[result.prompt_tokens]]
        read.append(result.prompt_tokens)
    assert read == [4, 4] if raw else [len("[user]abab\n[assistant]")] * 2


def test_prompts_of_a_batch_may_be_of_any_kind(chat_letters: Path) -> None:
    target = spelling([0, 1, 2], prompt=1, vocab=LETTER_VOCAB, folder=chat_letters)
    one, two, three = generate(
        target, None, ["ab", [0, 1], [{"role": "user", "content": "ab"}]], max_new_tokens=2, raw=True
    )
    assert [one.prompt_tokens, two.prompt_tokens, three.prompt_tokens] == [2, 2, len("[user]ab\n[assistant]")]


def test_cut_at_the_first_of_several() -> None:
    assert cut_at("abcabc", ["ca", "b"]) == "a"
    assert cut_at("abcabc", ["x"]) == cut_at("abcabc", []) == "abcabc"


def test_a_stop_rule_looks_back_as_far_as_it_must(letters: Path) -> None:
    text = text_of(letters)
    ends = text.stop_rule(["END", "stop"])
    for words, stops in (("xxEND", True), ("xxEN", False), ("stop", True), ("s" * 90 + "top", True), ("ENDx", True)):
        assert ends(text.encode(words, raw=True)) is stops
    assert not ends(text.encode("END" + "x" * 40, raw=True))  # asked after every token, it was true long ago
    with pytest.raises(UsageError, match="a stop string is empty; allowed: one character or more"):
        text.stop_rule(["END", ""])
