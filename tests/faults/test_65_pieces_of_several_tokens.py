"""65: a piece of the stream holds several tokens, or half a character, and its reader expects one whole one."""

from pathlib import Path

import pytest

from outpace.decoding.generate import Piece, Result, stream
from outpace.decoding.text import BROKEN, TextStream, text_of
from toys import BYTE_VOCAB, Scripted, must_fail, right_then_wrong, spelling

WORDS = "<t>😀</t>é<a></a>✓ 😀😀."


def case(folder: Path) -> None:
    """Characters of up to four tokens lie over the borders of runs; markers open and close in one run."""
    ids = text_of(folder).encode(WORDS, raw=True)
    target = spelling([*ids, 256], prompt=1, vocab=BYTE_VOCAB, folder=folder, eos_ids=(256,))
    for depth in (0, 1, 2, 3, 5, 8):
        guesser = Scripted(right_then_wrong([[0, *ids, 256]], [depth, depth // 2], BYTE_VOCAB), vocab=BYTE_VOCAB)
        *pieces, result = stream(target, guesser, [0], num_draft_tokens=depth)
        assert isinstance(result, Result) and result.finish_reason == "stop"
        shown: list[int] = []
        for piece in pieces:
            assert isinstance(piece, Piece), "only the last event ends the stream"
            assert BROKEN not in piece.text, "half a character was shown"
            shown += piece.ids
            assert shown == result.token_ids[: len(shown)], "the order is the text's"
            assert depth or len(piece.ids) == 1
        assert "".join(piece.text for piece in pieces if isinstance(piece, Piece)) == result.text == WORDS
        assert shown == [*ids, 256]


def test_pieces_are_whole_characters_in_order(octets: Path) -> None:
    case(octets)


def test_planted_fault(octets: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All that decodes is taken for certain."""
    monkeypatch.setattr(TextStream, "_certain", TextStream._whole)
    with must_fail():
        case(octets)
