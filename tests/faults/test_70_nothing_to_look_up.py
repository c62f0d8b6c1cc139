"""70: a prompt is too short or nothing in it repeats, and a lookup makes a token up or matches the tail itself."""

import itertools

import pytest

from outpace.decoding.generate import generate
from outpace.decoding.loop import Request, decode
from outpace.decoding.turn import Turn
from outpace.drafters.lookup import History, Lookup
from outpace.errors import UsageError
from outpace.models.transformer import Transformer
from toys import must_fail, reference

LIMIT = 4


def by_definition(text: list[int], min_match: int) -> list[int]:
    """The longest earlier match of the tail, of equally long ones the latest; found by trying them all."""
    best, source = 0, -1
    for end in range(1, len(text)):
        size = max((n for n in range(end + 1) if text[end - n : end] == text[len(text) - n :]), default=0)
        if size >= max(best, min_match):
            best, source = size, end
    return (text[source:] * LIMIT)[:LIMIT] if best else []


def drafted(text: list[int], min_match: int) -> list[int]:
    lookup = Lookup(min_match=min_match)
    state = lookup.open(1, 64)
    lookup.admit(state, [text], None)
    return lookup._copy(state.rows[0], LIMIT)


def case(target: Transformer) -> None:
    """All texts of one to six tokens over three; nothing found is a plain turn; an empty prompt an error in words."""
    for size, min_match in itertools.product(range(1, 7), (1, 2, 3)):
        for text in itertools.product(range(1, 4), repeat=size):
            assert drafted(list(text), min_match) == by_definition(list(text), min_match), (text, min_match)
    assert drafted([5, 5, 5, 5], 3) == [5] * LIMIT
    assert drafted([5, 5, 5], 3) == drafted([1, 2, 3, 4], 1) == drafted([], 1) == []
    for prompt in ((9,), (9, 8), (5, 5, 5, 5), (1, 2, 3, 4)):
        sizes: list[int] = []

        def look(turn: Turn, rows: list[int], sizes: list[int] = sizes) -> None:
            sizes.append(int(turn.proposal.tree.num_nodes))

        emissions = list(decode(target, Lookup(min_match=2), [Request(prompt, max_new_tokens=30)], observer=look))
        assert [token for one in emissions for token in one.ids] == reference(target, prompt, 30)
        stats = emissions[-1].speculation
        assert stats is not None and stats.drafted == sum(sizes)
        assert stats.plain_turns == sizes[1:].count(0) > 0
    for drafter in (None, Lookup()):
        with pytest.raises(UsageError, match="prompt 0 is empty; allowed: at least one token"):
            generate(target, drafter, [[]])


def test_nothing_found_is_nothing_drafted(tiny: Transformer) -> None:
    case(tiny)


@pytest.mark.parametrize("fault", ["a token is made up", "too short a match", "the earliest match"])
def test_planted_fault(fault: str, tiny: Transformer, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = Lookup._copy

    def copy(self: Lookup, row: History, limit: int) -> list[int]:
        if fault == "too short a match":
            self.min_match = 1
        draft = honest(self, row, limit)
        if fault == "the earliest match" and draft:
            return (row.ids[int(row.agree[: row.size - 1].argmax()) + 1 : row.size].tolist() * limit)[:limit]
        return draft or ([0] if fault == "a token is made up" else [])

    monkeypatch.setattr(Lookup, "_copy", copy)
    with must_fail():
        case(tiny)
