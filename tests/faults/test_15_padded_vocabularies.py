"""15: one tokenizer, but logits padded to different widths: a refusal, a shape error, or padding that is drafted."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from outpace.decoding.generate import generate
from outpace.drafters import small
from outpace.drafters.budget import Budget
from outpace.drafters.drafter import Proposal
from outpace.drafters.small import Small
from outpace.models.function import FunctionTarget
from outpace.models.toy import random_table, table_target
from outpace.verification.probabilities import Sampling
from toys import must_fail, reference, seeded_reference

WORDS, TARGET, PROMPT, NEW = 50, 64, (3, 4), 14
SHAPES = ({}, {"tree": "top-k:2"}, {"tree": "sampled:2"})


def model(folder: Path, size: int, seed: int) -> FunctionTarget:
    """A table of this width whose tokenizer has fifty words; what lies behind them is never said."""
    folder.mkdir()
    words = {f"w{place}": place for place in range(WORDS)}
    (folder / "tokenizer.json").write_text(json.dumps({"model": {"vocab": words}, "added_tokens": []}), "utf-8")
    table = random_table(size, seed=seed).float()
    table[:, WORDS:] -= 30.0
    target = table_target(table, name=folder.name)
    target.folder = folder
    return target


class Noted(Small):
    """Notes every token that it drafts."""

    drafted: list[int]

    def propose(self, state: Any, budget: Budget, sampling: list[Sampling], keys: Any) -> Proposal:
        proposal = super().propose(state, budget, sampling, keys)
        self.drafted += [token for tokens, _ in proposal.tree.to_lists() for token in tokens]
        return proposal


def said(target: FunctionTarget, drafter: Small | None, **options: Any) -> list[int]:
    try:
        result = generate(target, drafter, list(PROMPT), max_new_tokens=NEW, eos_ids=None, **options)
    except (RuntimeError, IndexError, TypeError) as error:
        raise AssertionError("a pair of one tokenizer fits, whatever the widths") from error
    return result.token_ids


def case(folder: Path) -> None:
    """Greedy, seeded and sampled, chains and trees: the target's text, and no draft that one of the two cannot read."""
    target = model(folder / "target", TARGET, 1)
    sampling = Sampling(1.2)
    options = {"temperature": 1.2}
    for size in (50, 56, 80):
        try:
            drafter = Noted(model(folder / f"draft-{size}", size, 2), target)
        except ValueError as error:
            raise AssertionError("refused") from error
        drafter.drafted = []
        target.folder, folder_of_target = None, target.folder  # words were compared; now there are ids alone
        for shape in SHAPES:
            assert said(target, drafter, num_draft_tokens=4, **shape) == reference(target, PROMPT, NEW)
            seeded = said(target, drafter, num_draft_tokens=4, seed=6, **options, **shape)
            assert seeded == seeded_reference(target, PROMPT, NEW, sampling, 6)
            said(target, drafter, num_draft_tokens=4, **options, **shape)
        target.folder = folder_of_target
        assert drafter.drafted and max(drafter.drafted) < min(size, TARGET)


def test_case(tmp_path: Path) -> None:
    case(tmp_path)


def zeros(logits: Tensor, vocab_size: int) -> Tensor:
    """Padding gets a logit of zero, and so a share of the draft's law."""
    return torch.nn.functional.pad(logits, (0, vocab_size - logits.shape[-1]))


def as_they_come(logits: Tensor, vocab_size: int) -> Tensor:
    return logits


@pytest.mark.parametrize("fault", [zeros, as_they_come])
def test_planted_fault(fault: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(small, "in_target_ids", fault)
    with must_fail():
        case(tmp_path)
