"""12: the draft model's context is shorter than the text, and it drafts on."""

import pytest

from outpace.decoding.loop import Request
from outpace.drafters.small import Small
from outpace.errors import OutpaceError
from outpace.models.transformer import Transformer
from toys import Watched, lively, must_fail, reference, run

PROMPT = tuple((7 * place) % 64 for place in range(15))


def case(target: Transformer) -> None:
    """Target 64, draft 24, prompt 15, 40 new tokens: the drafter reads no position it does not have, and says so."""
    watched = Watched(lively(max_position_embeddings=24))
    with pytest.warns(UserWarning, match="has a context of 24 tokens; longer texts are decoded without drafts"):
        try:
            [row] = run(target, Small(watched, target), [Request(PROMPT, max_new_tokens=40)])
        except OutpaceError as error:
            raise AssertionError("the drafter's limit became the target's") from error
    assert row.ids == reference(target, PROMPT, 40)
    assert watched.furthest < 24
    assert row.stats.acceptance == 1.0 and 0 < row.stats.drafted < 24 - 15 + 1
    assert row.stats.plain_turns > 0


def test_case() -> None:
    case(lively(max_position_embeddings=64))


def test_planted_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = Small._room

    def only_warns(self: Small, known: list[int], limit: int) -> int:
        honest(self, known, limit)
        return limit

    monkeypatch.setattr(Small, "_room", only_warns)
    with must_fail():
        case(lively(max_position_embeddings=64))
