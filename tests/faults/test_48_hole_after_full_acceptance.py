"""48: after a fully accepted block the last draft was never run through the drafter, and its cache has a hole."""

import pytest
import torch

from outpace.decoding.loop import Request, decode
from outpace.decoding.turn import Turn
from outpace.drafters.small import Small, SmallState
from outpace.models.transformer import Transformer
from toys import must_fail, reference

PROMPTS = [(5, 6, 7), (9,)]
NEW = 25


class Opened(Small):
    """Shows its state."""

    def open(self, slots: int, positions: int) -> SmallState:
        self.state = super().open(slots, positions)
        return self.state


def case(target: Transformer) -> None:
    """All is accepted, turn after turn; the drafter has read a prefix of the text, no token left out."""
    for depth in (1, 2, 5):
        guesser = Opened(target, target)

        def look(turn: Turn, rows: list[int], guesser: Opened = guesser) -> None:
            state, counts = guesser.state, turn.proposal.tree.num_nodes.tolist()
            assert [len(path) for path in turn.paths] == counts
            assert state.cache.lengths == [len(read) for read in state.read], "the cache has a hole"
            for known, read in zip(state.known, state.read, strict=True):
                assert read == known[: len(read)] and 1 <= len(known) - len(read) <= 2
            own = turn.proposal.draft_logits
            if own is not None:
                for row, count in enumerate(counts):
                    torch.testing.assert_close(own[row, :count], turn.scores.logits[row, :count], atol=1e-4, rtol=0)

        texts: list[list[int]] = [[] for _ in PROMPTS]
        requests = [Request(prompt, max_new_tokens=NEW) for prompt in PROMPTS]
        for emission in decode(target, guesser, requests, num_draft_tokens=depth, observer=look):
            texts[emission.index] += emission.ids
        assert texts == [reference(target, prompt, NEW) for prompt in PROMPTS]


def test_every_block_is_read(tiny: Transformer) -> None:
    case(tiny)


@pytest.mark.parametrize("fault", ["skipped", "counted as read"])
def test_planted_fault(fault: str, tiny: Transformer, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = Small.commit

    def commit(self: Small, state: SmallState, emitted: list[list[int]], features: None) -> None:
        honest(self, state, emitted, features)
        for row, known in enumerate(state.known):
            if len(known) - len(state.read[row]) == 2:
                if fault == "skipped":  # the token is taken for read, and the cache's length for right
                    state.cache.lengths[row] += 1
                state.read[row] = known[:-1]

    monkeypatch.setattr(Small, "commit", commit)
    with must_fail():
        case(tiny)
