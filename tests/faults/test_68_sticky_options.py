"""68: the number of drafts asked for is ignored, or that of an earlier call, or of another thread, is used."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from outpace.decoding import generate as public
from outpace.decoding.control import Fixed
from outpace.decoding.generate import generate
from outpace.drafters.budget import CHAIN
from outpace.drafters.small import Small
from outpace.models.transformer import Transformer
from toys import Watched, must_fail, reference

PROMPT, NEW = [5, 6, 7], 25


def case(target: Transformer) -> None:
    """Calls with 2, 7 and others, in a row and at once: each drafts what it was told, and no model object changes."""
    guesser = Small(target, target)
    before = {name: repr(value) for one in (target, guesser) for name, value in vars(one).items()}

    def drafted(depth: int) -> int:
        """The most drafts of a turn."""
        watched = Watched(target)
        result = generate(watched, guesser, PROMPT, max_new_tokens=NEW, num_draft_tokens=depth)
        assert result.token_ids == reference(target, tuple(PROMPT), NEW)
        return max(max(counts) for counts in watched.scored)

    calls = (2, 7, 4, 0, 3, 4)
    assert [drafted(depth) for depth in calls] == list(calls)
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(drafted, calls)) == list(calls)
    assert {name: repr(value) for one in (target, guesser) for name, value in vars(one).items()} == before


def test_a_call_drafts_what_it_is_told(tiny: Transformer) -> None:
    case(tiny)


@pytest.mark.parametrize("fault", ["ignored", "sticky"])
def test_planted_fault(fault: str, tiny: Transformer, monkeypatch: pytest.MonkeyPatch) -> None:
    honest, kept = public.decode, [Fixed(CHAIN, 3)] if fault == "ignored" else []

    def decode(*given: Any, control: Fixed, **more: Any) -> Any:
        kept.append(control)
        return honest(*given, control=kept[0], **more)

    monkeypatch.setattr(public, "decode", decode)
    with must_fail():
        case(tiny)
