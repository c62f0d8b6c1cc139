"""11: the block that is verified runs past the end of the context."""

import pytest

from outpace.decoding import loop
from outpace.decoding.loop import Request
from outpace.drafters.small import Small
from outpace.errors import OutpaceError
from outpace.models.transformer import Transformer
from toys import Scripted, Watched, lively, must_fail, reference, right_then_wrong, run


def case(target: Transformer, num_draft_tokens: int) -> None:
    for length, new in ((28, 4), (31, 1), (32, 0), (5, 27)):
        prompt = tuple((7 * place) % 64 for place in range(length))
        said = reference(target, prompt, new)
        for drafter in (Scripted(right_then_wrong([[*prompt, *said]], [9, 0, 1])), Small(target, target)):
            watched = Watched(target)
            try:
                [row] = run(watched, drafter, [Request(prompt, max_new_tokens=new)], num_draft_tokens=num_draft_tokens)
            except OutpaceError as error:
                raise AssertionError("what plain decoding can do was refused") from error
            assert row.ids == said
            assert watched.furthest < target.max_positions


@pytest.mark.parametrize("num_draft_tokens", [2, 4, 8, 20])
def test_case(num_draft_tokens: int) -> None:
    case(lively(max_position_embeddings=32), num_draft_tokens)


def test_planted_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "_room", lambda row: 99)
    with must_fail():
        case(lively(max_position_embeddings=32), 8)
