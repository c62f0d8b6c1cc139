"""09: the drafter guesses an end of text, and the text ends; or it goes on drafting behind its own end."""

from collections.abc import Callable

import pytest
import torch

from outpace.decoding import loop
from outpace.decoding.loop import Request
from outpace.drafters.budget import Budget
from outpace.drafters.small import Small
from outpace.models.toy import table_target
from toys import Watched, must_fail, reference, run

END = 3


def leads(to: list[int]) -> torch.Tensor:
    return torch.full((5, 5), -9.0).scatter_(1, torch.tensor(to)[:, None], 9.0)


def case(spoil: Callable[[Small], None] = lambda drafter: None) -> None:
    """The target goes round 0 1 2 4; the drafter believes that 1 is followed by the end."""
    target = table_target(leads([1, 2, 4, 0, 0]), eos_ids=(END,))
    drafter = Small(table_target(leads([1, END, 4, 0, 0])), target)
    spoil(drafter)
    watched = Watched(target)
    [row] = run(watched, drafter, [Request([0, 1, 2, 4], max_new_tokens=17, eos_ids=(END,))], num_draft_tokens=4)
    assert row.ids == reference(target, (0, 1, 2, 4), 17) and row.finish == "length"
    # Turn by turn: 4 0 1 END, 1 and what follows is the target's own; never a draft behind the end.
    assert row.stats.matched > 0 and max(counts[0] for counts in watched.scored) <= 4
    assert row.stats.drafted - row.stats.matched <= row.stats.turns


def test_case() -> None:
    case()


def never_ends(drafter: Small) -> None:
    drafter.eos_ids = frozenset()


def test_planted_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    with must_fail():
        case(never_ends)
    original = loop.take_turn

    def ends_for_both(batch: loop.Batch, budget: Budget) -> loop.Turn:
        turn = original(batch, budget)
        if END in turn.proposal.tree.tokens:
            turn.emitted[0][-1] = END
        return turn

    monkeypatch.setattr(loop, "take_turn", ends_for_both)
    with must_fail():
        case()
