"""Pieces joined are the text; no character comes in halves; nothing of a stop string is shown; one finish, last."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outpace.decoding.generate import Piece, Result, generate, stream
from outpace.decoding.text import BROKEN, Text, TextStream, text_of
from outpace.models.transformer import Transformer
from toys import BYTE_VOCAB, LETTER_VOCAB, Scripted, lively, reference, right_then_wrong, spelling

ALPHABET = "aEND 😀é✓"


def said(folder: Path, words: str) -> list[int]:
    return text_of(folder).encode(words, raw=True) if words else []


def play(
    folder: Path, ids: list[int], counts: list[int], vocab: int, *, stop: list[str], new: int, depth: int
) -> tuple[list[Piece], Result]:
    """Stream a text that is known in advance, drafted with so many right tokens a turn."""
    target = spelling([*ids, 0], prompt=1, vocab=vocab, folder=folder)
    script = right_then_wrong([[0, *ids]], counts, vocab)
    *pieces, result = stream(
        target, Scripted(script, vocab=vocab), [0], stop=stop, max_new_tokens=new, num_draft_tokens=depth
    )
    assert isinstance(result, Result) and all(isinstance(piece, Piece) for piece in pieces)
    return pieces, result


def plain(text: Text, ids: list[int], stop: list[str]) -> tuple[list[int], str]:
    """Token by token: stop where a string is complete, and cut before the first of them."""
    for count in range(1, len(ids) + 1):
        shown = text.decode(ids[:count])
        places = [shown.find(string) for string in stop if string in shown]
        if places:
            return ids[:count], shown[: min(places)]
    return ids, text.decode(ids)


@settings(max_examples=60)
@given(
    words=st.text(ALPHABET, min_size=1, max_size=12),
    stop=st.lists(st.text(ALPHABET, min_size=1, max_size=4), max_size=3),
    counts=st.lists(st.integers(0, 5), min_size=1, max_size=3),
    depth=st.sampled_from((0, 1, 3, 5)),
    short=st.integers(0, 3),
)
def test_any_text_and_any_stop_string(
    words: str, stop: list[str], counts: list[int], depth: int, short: int, octets: Path
) -> None:
    ids = said(octets, words)
    new = max(1, len(ids) - short)
    pieces, result = play(octets, ids, counts, BYTE_VOCAB, stop=stop, new=new, depth=depth)
    wanted, shown = plain(text_of(octets), ids[:new], stop)
    assert (result.token_ids, result.text) == (wanted, shown)
    assert "".join(piece.text for piece in pieces) == shown
    assert [token for piece in pieces for token in piece.ids] == wanted
    assert not any(BROKEN in piece.text.rstrip(BROKEN) for piece in pieces)
    assert not any(BROKEN in piece.text for piece in pieces[:-1])
    assert sum(len(piece.ids) for piece in pieces if piece.drafted) == result.stats.speculation.accepted


@pytest.mark.parametrize("border", [0, 1, 2, 3])
def test_a_stop_string_over_a_turns_border(border: int, letters: Path) -> None:
    """E|ND, EN|D, END|: cut after the token that completes it, and its beginning is never shown."""
    ids = said(letters, "abENxENDcd")
    counts = [3 + border, 8] if border < 3 else [6, 8]  # the first turn ends within the second END
    pieces, result = play(letters, ids, counts, LETTER_VOCAB, stop=["END"], new=10, depth=8)
    assert (result.text, result.finish_reason, result.token_ids) == ("abENx", "stop", ids[:8])
    assert "".join(piece.text for piece in pieces) == "abENx"
    assert result.stats.speculation.accepted + result.stats.speculation.turns >= 7


def test_the_earlier_of_stop_and_limit_ends_the_text(letters: Path) -> None:
    ids = said(letters, "abEND")
    for new, finish, words in ((5, "stop", "ab"), (4, "length", "abEN"), (9, "stop", "ab")):
        _, result = play(letters, ids, [8], LETTER_VOCAB, stop=["END", "ND"], new=new, depth=8)
        assert (result.finish_reason, result.text) == (finish, words if new != 4 else "abEN")
    _, result = play(letters, ids, [8], LETTER_VOCAB, stop=["N"], new=9, depth=8)
    assert (result.text, len(result.token_ids)) == ("abE", 4)


def test_the_end_of_text_token_stands_in_the_ids_alone(letters: Path) -> None:
    """Whether the tokenizer calls it special or not."""
    for eos in (*said(letters, "x"), text_of(letters).tokenizer.eos_token_id):
        ids = [*said(letters, "ab"), eos, *said(letters, "cd")]
        target = spelling(ids, prompt=1, vocab=LETTER_VOCAB, folder=letters, eos_ids=(eos,))
        *pieces, result = stream(
            target,
            Scripted(right_then_wrong([[0, *ids]], [8], LETTER_VOCAB), vocab=LETTER_VOCAB),
            [0],
            num_draft_tokens=4,
        )
        assert isinstance(result, Result)
        assert (result.token_ids, result.text, result.finish_reason) == (ids[:3], "ab", "stop")
        assert "".join(piece.text for piece in pieces) == "ab"


def test_pieces_of_a_batch_come_in_order_and_say_whose_they_are(tiny: Transformer) -> None:
    prompts = [[9], [5, 6, 7], [1, 2, 3, 4]]
    texts = [[*prompt, *reference(tiny, tuple(prompt), 30)] for prompt in prompts]
    guesser = Scripted(right_then_wrong(texts, [[0], [2], [4]]))
    *pieces, results = stream(tiny, guesser, prompts, max_new_tokens=9, batch_size=2, num_draft_tokens=4)
    assert isinstance(results, list)
    for index, result in enumerate(results):
        own = [piece for piece in pieces if isinstance(piece, Piece) and piece.index == index]
        assert (
            [token for piece in own for token in piece.ids]
            == result.token_ids
            == reference(tiny, tuple(prompts[index]), 9)
        )
        assert sum(len(piece.ids) for piece in own if piece.drafted) == result.stats.speculation.accepted
        assert result.text == "" and all(piece.text == "" for piece in own)  # no tokenizer, no text
        assert not own[0].drafted and len(own[0].ids) == 1  # the prompt's own token is nobody's draft


def test_a_stream_is_as_long_as_it_is_read(tiny: Transformer) -> None:
    """Nothing is decoded ahead of the reader, and a stream that is dropped stops."""
    guesser = Scripted(lambda row, limit: [])
    pieces = stream(tiny, guesser, [1, 2], max_new_tokens=50, num_draft_tokens=4)
    assert isinstance(next(iter(pieces)), Piece) and guesser.drafts == []
    next(iter(pieces))
    assert len(guesser.drafts) == 1
    del pieces


def test_long_streams_settle(octets: Path) -> None:
    """What is certain is decoded no more: the same characters, and a bounded window."""
    text = text_of(octets)
    ids = text.encode("é✓😀 and plain words, " * 40, raw=True)
    shown = TextStream(text, ["never"])
    parts = [shown.push([token]) for token in ids] + [shown.finish()]
    assert "".join(parts) == text.decode(ids)
    assert len(shown.ids) < 3 * shown.kept


def test_generate_is_the_last_of_the_stream() -> None:
    model = lively()
    *_, last = stream(model, None, [1, 2, 3], max_new_tokens=5)
    assert isinstance(last, Result)
    assert generate(model, None, [1, 2, 3], max_new_tokens=5).token_ids == last.token_ids
    [one] = generate(model, None, [[1, 2, 3]], max_new_tokens=5)
    assert one.token_ids == last.token_ids and one.prompt_tokens == 3
