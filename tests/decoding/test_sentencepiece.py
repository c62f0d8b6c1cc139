"""Tokenizers that mark words by their spaces and spell what they have no word for byte by byte: every text, streamed.

The oracle is written out by bytes: what ids say is the bytes of their words joined, less a space at the begin, or all
spaces of the first word, where the tokenizer takes them away.
"""

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

from outpace.decoding.generate import generate
from outpace.decoding.text import BROKEN, Text, TextStream, cut_at, text_of
from toys import must_fail, spelling

SPECIAL = ["<unk>", "<s>", "</s>"]
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
WORDS = ["▁", "▁▁", *"abDEN.,", "▁a", "▁the", "▁END", "é", "▁好", "好"]
VOCABULARY = [*SPECIAL, *BYTES, *WORDS]
KINDS = ("llama", "gemma", "unigram")
NEWS = {"words": " the a END the", "characters": "你们你们你们", "faces": "😀😀😀", "mixed": "你 the  好é a😀. "}


def built(kind: str) -> Any:
    """As the families have it: a space before the text that decoding takes away, none, or pieces of their own."""
    numbered = {word: place for place, word in enumerate(VOCABULARY)}
    if kind == "unigram":
        pieces = [(word, -1.0 - place / 99) for place, word in enumerate(VOCABULARY)]
        tokenizer = Tokenizer(models.Unigram(pieces, 0, byte_fallback=True))
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
        tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace(prepend_scheme="always")])
        return tokenizer
    tokenizer = Tokenizer(models.BPE(numbered, [("▁", "a"), ("▁", "▁")], unk_token="<unk>", byte_fallback=True))
    spaces, shown = normalizers.Replace(" ", "▁"), decoders.Replace("▁", " ")
    before = [normalizers.Prepend("▁")] if kind == "llama" else []
    tokenizer.normalizer = normalizers.Sequence([*before, spaces])
    stripped = [decoders.Strip(" ", 1, 0)] if kind == "llama" else []
    tokenizer.decoder = decoders.Sequence([shown, decoders.ByteFallback(), decoders.Fuse(), *stripped])
    return tokenizer


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    from transformers import PreTrainedTokenizerFast

    found = {}
    for kind in KINDS:
        tokenizer = built(kind)
        tokenizer.add_special_tokens(SPECIAL)
        found[kind] = tmp_path_factory.mktemp(kind)
        fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", bos_token="<s>", eos_token="</s>")
        fast.save_pretrained(str(found[kind]))
    return found


@cache
def raw(token: int) -> bytes:
    word = VOCABULARY[token]
    if word in SPECIAL:
        return b""
    return bytes([token - len(SPECIAL)]) if word in BYTES else word.replace("▁", " ").encode()


def said(kind: str, ids: Sequence[int]) -> str:
    shown = [token for token in ids if VOCABULARY[token] not in SPECIAL]
    parts = [raw(token) for token in shown]
    if kind == "unigram" and shown and VOCABULARY[shown[0]] not in BYTES:
        parts[0] = parts[0].replace(b" ", b"")
    whole = b"".join(parts).decode("utf-8", "replace")
    return whole.removeprefix(" ") if kind == "llama" else whole


def ids_of(words: str) -> list[int]:
    """The words one by one where they are in the vocabulary, else their bytes; spaces stand with what follows them."""
    ids, rest = [], words.replace(" ", "▁")
    while rest:
        word = max((one for one in WORDS if rest.startswith(one)), key=len, default=None)
        ids += [VOCABULARY.index(word)] if word else [len(SPECIAL) + byte for byte in rest[0].encode()]
        rest = rest[len(word or rest[0]) :]
    return ids


spelled = st.sampled_from("你😀é好a ").map(lambda one: [len(SPECIAL) + byte for byte in one.encode()])
any_ids = st.lists(
    st.integers(0, len(VOCABULARY) - 1).map(lambda token: [token])
    | st.integers(0, len(SPECIAL) - 1).map(lambda token: [token])
    | st.integers(len(SPECIAL) + 256, len(VOCABULARY) - 1).map(lambda token: [token])
    | spelled
    | spelled.map(lambda ids: ids[:-1]),
    max_size=30,
).map(lambda parts: [token for part in parts for token in part])
stops = st.lists(st.text("你😀é好aEND .", min_size=1, max_size=4), max_size=3)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=60)
@given(ids=any_ids)
def test_ids_say_what_their_bytes_say(kind: str, ids: list[int], folders: dict[str, Path]) -> None:
    assert text_of(folders[kind]).decode(ids) == said(kind, ids)


@pytest.mark.parametrize("kind", KINDS)
def test_words_come_back(kind: str, folders: dict[str, Path]) -> None:
    text = text_of(folders[kind])
    for words in NEWS.values():
        assert text.decode(text.encode(words, raw=True)).strip() == words.strip()
        assert text.decode(ids_of(words)) == said(kind, ids_of(words))


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=100)
@given(ids=any_ids, strings=stops, size=st.integers(1, 9))
def test_any_ids_are_streamed_as_they_are_said(
    kind: str, ids: list[int], strings: list[str], size: int, folders: dict[str, Path]
) -> None:
    """Pieces joined are the text before the first stop string; what is whole is sent at once where none can come."""
    text = text_of(folders[kind])
    stream, free, shown, at_once = TextStream(text, strings), TextStream(text), "", ""
    for start in range(0, len(ids), size):
        shown += stream.push(ids[start : start + size])
        at_once += free.push(ids[start : start + size])
        assert at_once == said(kind, ids[: start + size]).rstrip(BROKEN)
    assert shown + stream.finish() == cut_at(said(kind, ids), strings)
    assert at_once + free.finish() == said(kind, ids)


class Halved(TextStream):
    """Planted: settles only where the text is whole, and its two halves, each by itself, are the whole of it."""

    def _settle(self) -> None:
        whole, tail = self.text.decode(self.ids), self.text.decode(self.ids[-self.kept :])
        if not whole.endswith(BROKEN) and self.text.decode(self.ids[: -self.kept]) + tail == whole:
            self.ids, self.sent = self.ids[-self.kept :], len(tail) - len(whole) + self.sent


def window(kind: str, words: str, stream: TextStream) -> int:
    """The most ids that were decoded again, of a long text."""
    ids, most, shown = ids_of(words) * 60, 0, ""
    for token in ids:
        shown += stream.push([token])
        most = max(most, len(stream.ids))
    assert shown + stream.finish() == said(kind, ids)
    return most


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("words", NEWS)
def test_long_streams_settle(words: str, kind: str, folders: dict[str, Path]) -> None:
    """Whatever the text is made of: words behind spaces, characters of three bytes or four, or a false start of a stop
    string without an end."""
    text = text_of(folders[kind])
    for strings in ([], ["never"], [NEWS[words].strip() * 2 + "!"]):
        stream = TextStream(text, strings)
        assert window(kind, NEWS[words], stream) <= 3 * stream.kept + 4


@pytest.mark.parametrize("words", ["words", "characters"])
def test_a_stream_that_never_settles_is_noticed(words: str, folders: dict[str, Path]) -> None:
    with must_fail():
        stream = Halved(text_of(folders["llama"]))
        assert window("llama", NEWS[words], stream) <= 3 * stream.kept + 4


# ---- stop strings --------------------------------------------------------------------------------------------------


def case(folders: dict[str, Path]) -> None:
    """Behind many ids that no text shows, and at the end of long runs of bytes that begin in the middle of one."""
    for kind in KINDS:
        text = text_of(folders[kind])
        hidden = [2, 0, 1] * 20
        ids = [*ids_of("a EN"), *hidden, *ids_of("D"), *ids_of(" a")]
        target = spelling(ids, prompt=1, vocab=len(VOCABULARY), folder=folders[kind])
        result = generate(target, None, [1], stop="END", eos_ids=None, max_new_tokens=len(ids))
        assert (result.finish_reason, result.text) == ("stop", said(kind, ids_of("a ")))
        assert len(result.token_ids) == len(ids) - 1
        for before in range(9):
            run = ids_of("a" * before + "你们" * 20 + "😀")
            ends = text.stop_rule(["们😀"])
            assert ends(run) and not any(ends(run[:count]) for count in range(1, len(run)))


def test_a_stop_string_is_seen(folders: dict[str, Path]) -> None:
    case(folders)


@pytest.mark.parametrize("fault", ["silent ids count", "runs are given up"])
def test_planted_fault(fault: str, folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in folders.values():
        monkeypatch.setattr(text_of(folder), "silent" if fault == "silent ids count" else "octets", {})
    with must_fail():
        case(folders)


def test_a_tokenizer_without_bytes_has_none(letters: Path, octets: Path) -> None:
    """Byte-level tokenizers spell by letters of their own, and mend themselves."""
    assert text_of(letters).octets == text_of(octets).octets == {}
    assert Text(letters).silent == {text_of(letters).tokenizer.convert_tokens_to_ids(one) for one in ("<eos>", "<unk>")}
