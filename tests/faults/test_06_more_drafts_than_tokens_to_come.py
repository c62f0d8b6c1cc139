"""06: more is drafted than can be used, or the answer depends on K."""

import pytest

from outpace.decoding import loop
from outpace.decoding.loop import Request
from outpace.models.transformer import Transformer
from toys import Scripted, must_fail, reference, right_then_wrong, run

PROMPT = (1, 2, 3)


def case(target: Transformer, num_draft_tokens: int) -> None:
    said = reference(target, PROMPT, 60)
    for new in (1, 3, 7):
        drafter = Scripted(right_then_wrong([[*PROMPT, *said]], [1, 0, 9]))
        [row] = run(target, drafter, [Request(PROMPT, max_new_tokens=new)], num_draft_tokens=num_draft_tokens)
        assert row.ids == said[:new]
        emitted = 1
        for known, limit, draft in ((len(r.prompt), limit, draft) for r, limit, draft in drafter.drafts):
            assert len(draft) == limit <= new - emitted - 1 and known == len(PROMPT)
            emitted += 1  # at least
        assert row.stats.drafted == sum(len(draft) for _, _, draft in drafter.drafts)


@pytest.mark.parametrize("num_draft_tokens", [1, 2, 3, 8, 50])
def test_case(num_draft_tokens: int, tiny: Transformer) -> None:
    case(tiny, num_draft_tokens)


def test_planted_fault(tiny: Transformer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "_room", lambda row: 99)
    with must_fail():
        case(tiny, 3)
