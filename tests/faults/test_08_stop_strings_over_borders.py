"""08: a stop string that lies in two runs, or ends within one, is missed, or its beginning is shown."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from outpace.decoding.generate import Result, stream
from outpace.decoding.text import Text, TextStream, text_of
from toys import LETTER_VOCAB, Scripted, must_fail, right_then_wrong, spelling


def case(letters: Path) -> None:
    """xEND and ENxEND, a border of runs at every place: the ids end with the D, the text before the E."""
    for words, shown in (("abENDcd", "ab"), ("aENxENDcd", "aENx")):
        ids = text_of(letters).encode(words, raw=True)
        kept = words.index("END") + 3
        for border in range(len(words)):
            target = spelling(ids, prompt=1, vocab=LETTER_VOCAB, folder=letters)
            drafter = Scripted(right_then_wrong([[0, *ids]], [border, 9], LETTER_VOCAB))
            *pieces, result = stream(target, drafter, [0], stop="END", num_draft_tokens=9, max_new_tokens=len(ids))
            assert isinstance(result, Result)
            assert (result.token_ids, result.text, result.finish_reason) == (ids[:kept], shown, "stop")
            assert "".join(piece.text for piece in pieces) == shown
            assert result.stats.speculation.accepted + result.stats.speculation.turns >= kept - 1


def test_case(letters: Path) -> None:
    case(letters)


def looks_at_the_last_token(self: Text, strings: Sequence[str]) -> Any:
    return lambda ids: any(string in self.decode(ids[-1:]) for string in strings)


def shows_what_it_has(self: TextStream, ids: Sequence[int]) -> str:
    self.ids += ids
    return self._send(self._whole())


def test_planted_fault(letters: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(Text, "stop_rule", looks_at_the_last_token)
        with must_fail():
            case(letters)
    monkeypatch.setattr(TextStream, "push", shows_what_it_has)
    with must_fail():
        case(letters)
