"""35: target and drafter get different lists, and a processor of the user's counts drafts that were refused."""

from typing import Any

import pytest
import torch
from torch import Tensor

from changed import one_text_for_all
from outpace.decoding import processors
from outpace.decoding.generate import generate
from outpace.decoding.processors import UserProcessor
from outpace.drafters import small
from outpace.drafters.budget import Budget
from outpace.drafters.drafter import Proposal
from outpace.drafters.small import Small
from outpace.errors import UsageError
from outpace.models.transformer import Transformer
from outpace.verification.coins import Keys
from outpace.verification.probabilities import Sampling, batch_probability_rows
from toys import must_fail, next_logits, reference

PROMPT, NEW, DEPTH = (1, 2, 3), 26, 3


class Counter:
    """A processor with a state: a token for every place, counted by itself; it notes what it was asked."""

    asked: list[list[int]]

    def __init__(self) -> None:
        self.count = 0
        self.asked = NOTES

    def __deepcopy__(self, memo: Any) -> "Counter":
        return Counter()

    def rewind(self, length: int) -> None:
        self.count = length

    def __call__(self, prefix_ids: Tensor, logits: Tensor) -> Tensor:
        self.count = prefix_ids.shape[1] if self.count == 0 else self.count + 1
        self.asked.append(prefix_ids[0].tolist())
        changed = logits.clone()
        changed[:, self.count % 7] += 4.0
        return changed


NOTES: list[list[int]] = []


class Noted(Small):
    """Notes what it is asked for, and by what law it drafts."""

    def propose(self, state: Any, budget: Budget, sampling: list[Sampling], keys: Keys) -> Proposal:
        proposal = super().propose(state, budget, sampling, keys)
        self.noted.append((list(state.known[0]), proposal, sampling[0]))
        return proposal

    noted: list[tuple[list[int], Proposal, Sampling]]


def case(target: Transformer, model: Transformer) -> None:
    """Every place is asked about once a turn, in order; the text is the plain one; the drafter's law is its own."""
    sampling = Sampling(0.3, top_k=5)
    options: dict[str, Any] = {"temperature": 0.3, "top_k": 5, "seed": 3, "max_new_tokens": NEW, "min_new_tokens": 20}
    eos = reference(target, PROMPT, 4)[3]
    options |= {"processors": [Counter()], "eos_ids": (eos,)}
    plain = generate(target, None, list(PROMPT), **options)
    assert len(plain.token_ids) >= 20
    for drafter in (Noted(model, target), Noted(target, target)):
        drafter.noted = []
        NOTES.clear()
        found = generate(target, drafter, list(PROMPT), num_draft_tokens=DEPTH, **options)
        assert found.token_ids == plain.token_ids
        text = [*PROMPT, *found.token_ids]
        drafts = {len(known): proposal.tree.tokens[0].tolist() for known, proposal, _ in drafter.noted}
        place = 0
        while place < len(NOTES):
            known = NOTES[place]
            assert known == text[: len(known)]
            path = drafts.get(len(known), [])  # asked about as far as nothing in it is forbidden
            steps = next(
                (k for k in range(len(path)) if NOTES[place + 1 + k : place + 2 + k] != [known + path[: k + 1]]), None
            )
            place += 1 + (len(path) if steps is None else steps)
        drafter.noted = []
        generate(target, drafter, list(PROMPT), num_draft_tokens=DEPTH, rule="rejection", **options)
        for known, proposal, given in drafter.noted:
            assert given == sampling and proposal.draft_probs is not None
            law = batch_probability_rows(next_logits(drafter.model, known)[None, None], [sampling])[0, 0]
            torch.testing.assert_close(proposal.draft_probs[0, 0], law, atol=1e-5, rtol=0)


def test_case(tiny: Transformer, tiny_draft: Transformer) -> None:
    case(tiny, tiny_draft)


def forgetful(self: UserProcessor, prefix_ids: Tensor, logits: Tensor) -> Tensor:
    """The state is never rewound."""
    return self.processor(prefix_ids, logits)


def hotter(logits: Tensor, samplings: list[Sampling]) -> Tensor:
    """The drafter runs at a temperature of its own."""
    return batch_probability_rows(logits, [Sampling(2 * one.temperature, one.top_k) for one in samplings])


FAULTS: dict[str, tuple[Any, str, Any]] = {
    "the drafter runs hotter": (small, "batch_probability_rows", hotter),
    "refused drafts are counted": (UserProcessor, "_ask", forgetful),
    "one text for all": (processors, "_process_entry", one_text_for_all),
}


@pytest.mark.parametrize("name", FAULTS)
def test_planted_fault(name: str, tiny: Transformer, tiny_draft: Transformer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(*FAULTS[name])
    with must_fail():
        try:
            case(tiny, tiny_draft)
        except UsageError as error:
            raise AssertionError("a processor with a state was asked about several texts") from error
