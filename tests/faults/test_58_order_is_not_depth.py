"""58: a node's place in the flat order is taken for its position, and an accepted branch is not put in order."""

from typing import Any

import pytest
import torch
from torch import Tensor

from outpace.decoding.generate import generate
from outpace.drafters.budget import Budget
from outpace.drafters.drafter import Proposal
from outpace.models.cache import Cache
from outpace.models.transformer import Transformer
from outpace.verification.tree import DraftTree
from toys import Scripted, dense_logits, must_fail, reference

PROMPT, NEW = (5, 6, 7), 24
A, B, C, D = 11, 12, 13, 14


class Bushy(Scripted):
    """Four children a level, three levels, below the right one, which stands at another place every time."""

    def __init__(self, text: list[int]) -> None:
        super().__init__(lambda row, limit: [])
        self.text = text

    def propose(self, state: Any, budget: Budget, sampling: Any, keys: Any) -> Proposal:
        [row], tokens, parents, parent = state, [], [], -1
        for level in range(3 if budget.depths[0] >= 3 else 0):
            right, place = self.text[len(row.known) + level], (row.turns + level) % 4
            tokens += [(right + other - place) % 64 for other in range(4)]
            parents += [parent] * 4
            parent = 4 * level + place
        row.turns += 1
        return Proposal(DraftTree.from_lists([(tokens, parents)]))


def case(target: Transformer) -> None:
    """Every node's logits are those of its path; the cache holds the accepted one; wide trees change no text."""
    root, text = 20, list(PROMPT)
    cache = target.open(1, 16)
    target.prefill(cache, torch.tensor([text]), [len(text)])
    tree = DraftTree.from_lists([([A, B, C, D], [-1, -1, 0, 1])])
    logits = target.score(cache, torch.tensor([root]), tree).logits[0]
    for row, path in enumerate(([], [A], [B], [A, C], [B, D])):
        wanted = dense_logits(target, [*text, root, *path])[-1]
        torch.testing.assert_close(logits[row], wanted, atol=1e-4, rtol=1e-5)
    target.keep(cache, torch.tensor([[1, 3]]), [2])
    after = target.score(cache, torch.tensor([30]), DraftTree.empty(1)).logits[0, 0]
    torch.testing.assert_close(after, dense_logits(target, [*text, root, B, D, 30])[-1], atol=1e-4, rtol=1e-5)
    said = reference(target, PROMPT, NEW + 3)
    result = generate(target, Bushy([*text, *said]), text, max_new_tokens=NEW, num_draft_tokens=12)
    assert result.token_ids == said[:NEW]
    assert result.stats.speculation.accepted >= 9


def test_trees_are_their_paths(tiny: Transformer) -> None:
    case(tiny)


def _flat(self: DraftTree, lengths: Tensor) -> Tensor:
    return lengths[:, None] + torch.arange(1 + self.tokens.shape[1])


def _lengths_only(self: Cache, path: Tensor, num_accepted: list[int]) -> None:
    self.lengths = [length + 1 + count for length, count in zip(self.lengths, num_accepted, strict=True)]


FAULTS: dict[str, tuple[type, Any]] = {"positions": (DraftTree, _flat), "keep": (Cache, _lengths_only)}


@pytest.mark.parametrize("name", FAULTS)
def test_planted_fault(name: str, tiny: Transformer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FAULTS[name][0], name, FAULTS[name][1])
    with must_fail():
        case(tiny)
