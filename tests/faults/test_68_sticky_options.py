"""68: the number of drafts asked for is ignored, or that of an earlier call, or of another thread, is used."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from outpace.decoding import generate as public
from outpace.decoding.generate import AUTO_DRAFT_TOKENS, generate
from outpace.drafters.small import Small
from outpace.models.transformer import Transformer
from toys import Watched, must_fail, reference

PROMPT, NEW = [5, 6, 7], 25


def case(target: Transformer) -> None:
    """Calls with 2, 7 and none, in a row and at once: each drafts what it was told, and no model object changes."""
    guesser = Small(target, target)
    before = {name: repr(value) for one in (target, guesser) for name, value in vars(one).items()}

    def drafted(depth: int | None) -> int:
        """The most drafts of a turn."""
        watched = Watched(target)
        options: dict[str, Any] = {} if depth is None else {"num_draft_tokens": depth}
        result = generate(watched, guesser, PROMPT, max_new_tokens=NEW, **options)
        assert result.token_ids == reference(target, tuple(PROMPT), NEW)
        return max(max(counts) for counts in watched.scored)

    calls = (2, 7, None, 0, 3, None)
    wanted = [AUTO_DRAFT_TOKENS if depth is None else depth for depth in calls]
    assert [drafted(depth) for depth in calls] == wanted
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(drafted, calls)) == wanted
    assert {name: repr(value) for one in (target, guesser) for name, value in vars(one).items()} == before


def test_a_call_drafts_what_it_is_told(tiny: Transformer) -> None:
    case(tiny)


@pytest.mark.parametrize("fault", ["ignored", "sticky"])
def test_planted_fault(fault: str, tiny: Transformer, monkeypatch: pytest.MonkeyPatch) -> None:
    honest, kept = public.decode, [3] if fault == "ignored" else []

    def decode(*given: Any, num_draft_tokens: int, **more: Any) -> Any:
        kept.append(num_draft_tokens)
        return honest(*given, num_draft_tokens=kept[0], **more)

    monkeypatch.setattr(public, "decode", decode)
    with must_fail():
        case(tiny)
