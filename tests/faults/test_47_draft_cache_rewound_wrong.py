"""47: the drafter's cache is rewound by the wrong amount; the text stays right and acceptance decays."""

from typing import Any

import pytest
import torch
from torch import Tensor

from outpace.decoding.loop import Request, decode
from outpace.decoding.turn import Turn
from outpace.drafters.small import Small
from outpace.models.target import Scores
from outpace.models.transformer import Transformer
from outpace.verification.tree import DraftTree
from toys import Watched, must_fail, reference

PROMPT, NEW, EVERY = (5, 6, 7), 40, 7


class Erring(Watched):
    """Every seventh answer is turned upside down: a wrong draft, and more drafts behind it."""

    def score(self, state: Any, last: Tensor, tree: DraftTree, taps: Any = ()) -> Scores:
        scores = super().score(state, last, tree, taps)
        return Scores(-scores.logits) if len(self.scored) % EVERY == 0 else scores


def case(target: Transformer) -> None:
    """A target drafts for itself: all is accepted up to a forced error, and its logits are the target's own."""
    for depth in (1, 3, 4, 8):
        drafted = [0]

        def look(turn: Turn, rows: list[int], drafted: list[int] = drafted) -> None:
            count = int(turn.proposal.tree.num_nodes)
            wrong = [place for place in range(count) if (drafted[0] + place + 1) % EVERY == 0]
            drafted[0] += count
            right = wrong[0] if wrong else count
            assert len(turn.paths[0]) == right, "a draft was refused that nobody had spoiled"
            own = turn.proposal.draft_logits
            if own is not None and right:
                torch.testing.assert_close(own[0, :right], turn.scores.logits[0, :right], atol=1e-4, rtol=0)

        said: list[int] = []
        request = Request(PROMPT, max_new_tokens=NEW)
        for emission in decode(target, Small(Erring(target), target), [request], num_draft_tokens=depth, observer=look):
            said += emission.ids
        assert said == reference(target, PROMPT, NEW) and drafted[0] > EVERY


def test_a_self_draft_is_accepted_after_rejections(tiny: Transformer) -> None:
    case(tiny)


@pytest.mark.parametrize("fault", ["one too many", "rejected rows stay"])
def test_planted_fault(fault: str, tiny: Transformer, monkeypatch: pytest.MonkeyPatch) -> None:
    def rewind(self: Erring, state: Any, lengths: list[int]) -> None:
        if fault == "one too many":
            state.lengths[:] = [length - 1 for length in lengths]

    monkeypatch.setattr(Erring, "rewind", rewind)
    with must_fail():
        case(tiny)
