"""73: agreements behind the first rejection are counted as accepted, or a bonus token as a draft."""

from typing import Any

import pytest
import torch
from torch import Tensor

from outpace.decoding.generate import generate
from outpace.decoding.stats import Tally
from outpace.models.transformer import Transformer
from outpace.verification import matching
from outpace.verification.tree import DraftTree
from outpace.verification.verdict import Verdict
from toys import Scripted, must_fail, reference, right_then_wrong


def accepted(flags: list[list[int]]) -> list[int]:
    """Of chains whose tokens the target agrees with, or not, as the flags say."""
    choice = torch.ones(len(flags), len(flags[0]) + 1, dtype=torch.int64)
    return matching.follow(choice, DraftTree.chain(torch.tensor(flags)), "match").num_accepted.tolist()


def case(target: Transformer) -> None:
    """The leading run alone counts; accepted drafts and one token a turn are what was emitted after the first."""
    assert accepted([[1, 0, 1, 1]]) == [1]
    assert accepted([[1, 0, 1], [1, 1, 1]]) == [1, 3]
    assert accepted([[0, 1, 1]]) == [0]
    prompt = (5, 6, 7)
    said = reference(target, prompt, 30)
    for counts in ([0], [1, 3, 0], [5]):
        for new in (1, 2, 17, 30):
            guesser = Scripted(right_then_wrong([[*prompt, *said]], counts))
            result = generate(target, guesser, list(prompt), max_new_tokens=new, num_draft_tokens=5)
            stats = result.stats.speculation
            assert result.token_ids == said[:new]
            assert stats.accepted + stats.turns == new - 1 == round((stats.tau or 0) * stats.turns)
            assert stats.accepted == stats.matched <= stats.drafted


def test_the_leading_run_counts(tiny: Transformer) -> None:
    case(tiny)


@pytest.mark.parametrize("fault", ["all agreements", "the bonus too"])
def test_planted_fault(fault: str, tiny: Transformer, monkeypatch: pytest.MonkeyPatch) -> None:
    add = Tally.add

    def raw(choice: Tensor, tree: DraftTree, rule: str) -> Verdict:
        counts = (tree.tokens == choice.gather(1, tree.parents + 1)).sum(1)
        path = torch.arange(tree.tokens.shape[1]).expand_as(tree.tokens)
        return Verdict(path, counts, choice[:, -1], rule, True)

    def bonus(self: Tally, *, matched: int, **rest: Any) -> None:
        add(self, matched=matched + (rest["emitted"] > matched), **rest)

    if fault == "all agreements":
        monkeypatch.setattr(matching, "follow", raw)
    else:
        monkeypatch.setattr(Tally, "add", bonus)
    with must_fail():
        case(tiny)
