"""Lookup where the text repeats itself, a model elsewhere; the mixture drafts what its parts would draft."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from outpace.decoding.generate import generate
from outpace.drafters.budget import Branching, Budget
from outpace.drafters.drafter import Proposal
from outpace.drafters.either import LEAST, MODEL, Either, computing
from outpace.drafters.load import load_drafter
from outpace.drafters.lookup import GRADES, Lookup
from outpace.drafters.small import Small
from outpace.errors import UsageError
from outpace.models.transformer import Transformer
from outpace.verification.coins import Keys
from outpace.verification.probabilities import Sampling
from toys import must_fail, reference, seeded_reference

FRESH = [1, 2, 3, 4, 5, 6]
REPEATING = [7, 8, 9, 10, 11, 7, 8, 9, 10, 11, 7, 8]


def pair(tiny: Transformer, tiny_draft: Transformer) -> Either:
    return Either(Lookup(eos_ids=tiny.eos_ids), Small(tiny_draft, tiny))


def proposed(drafter: Any, prompts: Sequence[list[int]], tree: str, depth: int, temperature: float) -> Proposal:
    """What is drafted right behind these prompts, whose last token is the target's."""
    state = drafter.open(len(prompts), 64)
    drafter.admit(state, [prompt[:-1] for prompt in prompts], None)
    drafter.commit(state, [prompt[-1:] for prompt in prompts], None)
    branching, rows = Branching.parse(tree), len(prompts)
    nodes = depth if branching.is_chain else 3 * depth
    keys = Keys((5,) * rows, tuple(range(rows)), tuple(map(len, prompts)), (False,) * rows)
    budget = Budget([depth] * rows, [nodes] * rows, branching)
    drawn: Proposal = drafter.propose(state, budget, [Sampling(temperature)] * rows, keys)
    drawn.tree.validate()
    return drawn


# ---- grades ----------------------------------------------------------------------------------------------------------


def graded(text: list[int], **options: Any) -> int:
    drafter = Lookup(**options)
    state = drafter.open(1, 8)
    drafter.admit(state, [text], None)
    return drafter.grades(state)[0]


@pytest.mark.parametrize(("grade", "least"), list(enumerate(GRADES, 1)))
def test_a_longer_match_has_a_higher_grade(grade: int, least: int) -> None:
    once = list(range(10, 10 + least))
    assert graded([1, *once, 2, *once]) == grade
    assert graded([1, *once[1:], 2, *once]) == grade - 1


def test_nothing_agrees_and_nothing_is_drafted() -> None:
    assert graded([]) == graded([1]) == graded([1, 2]) == 0
    assert graded([1, 2, 1]) == 1 and graded([1, 2, 1], min_match=2) == 0
    assert graded([1, 2, 0, 1, 2], eos_ids=(0,)) == 2 and graded([1, 0, 0], eos_ids=(0,)) == 0


def test_a_model_drafts_where_the_text_does_not_repeat(tiny: Transformer, tiny_draft: Transformer) -> None:
    drafter = pair(tiny, tiny_draft)
    state = drafter.open(2, 64)
    drafter.admit(state, [FRESH, REPEATING], None)
    assert drafter.grades(state)[0] == MODEL and drafter.grades(state)[1] >= LEAST
    assert drafter.unasked == {2, 3, 4}
    drafter.select(state, [1])
    assert drafter.grades(state) == [3]


# ---- drafts ----------------------------------------------------------------------------------------------------------


def drafts_are_those_of_its_parts(tiny: Transformer, tiny_draft: Transformer, tree: str, temperature: float) -> None:
    prompts, drafter = [FRESH, REPEATING, FRESH[::-1]], pair(tiny, tiny_draft)
    both = proposed(drafter, prompts, tree, 4, temperature)
    copies, model = (
        proposed(one, prompts, "chain" if one is drafter.copies else tree, 4, temperature)
        for one in (drafter.copies, drafter.model)
    )
    for row, part in enumerate((model, copies, model)):
        assert both.tree.to_lists()[row] == part.tree.to_lists()[row]
    if model.draft_probs is None:
        assert both.draft_probs is None
        return
    assert both.draft_probs is not None
    rows = model.draft_probs.shape[1]
    for row in (0, 2):
        torch.testing.assert_close(both.draft_probs[row, :rows], model.draft_probs[row], rtol=1e-4, atol=1e-6)
    copied = copies.tree.tokens[1]
    assert both.draft_probs[1].sum() == len(copied)
    assert (both.draft_probs[1][torch.arange(len(copied)), copied] == 1).all()


SHAPES = [("chain", 0.0), ("chain", 1.0), ("top-k:2", 0.0), ("top-k:2", 1.0), ("sampled:2", 1.0)]


@pytest.mark.parametrize(("tree", "temperature"), SHAPES)
def test_drafts_are_those_of_its_parts(
    tree: str, temperature: float, tiny: Transformer, tiny_draft: Transformer
) -> None:
    drafts_are_those_of_its_parts(tiny, tiny_draft, tree, temperature)


def test_another_choice_is_noticed(tiny: Transformer, tiny_draft: Transformer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Either, "grades", lambda self, state: [LEAST] * 3)
    with must_fail():
        drafts_are_those_of_its_parts(tiny, tiny_draft, "chain", 0.0)


def test_the_model_is_not_asked_for_a_copy(tiny: Transformer, tiny_draft: Transformer) -> None:
    drafter = pair(tiny, tiny_draft)
    drafter.model.propose = lambda *given: pytest.fail("the model was asked")  # type: ignore[method-assign]
    assert proposed(drafter, [REPEATING], "top-k:2", 4, 1.0).tree.to_lists() == [([9, 10, 11, 7], [-1, 0, 1, 2])]


# ---- texts -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tree", ["chain", "top-k:2", "static:0.6,0.2"])
@pytest.mark.parametrize("auto", [True, False])
def test_texts_are_the_plain_texts(tree: str, auto: bool, tiny: Transformer, tiny_draft: Transformer) -> None:
    prompts = [FRESH, REPEATING, [3, 3, 3], [9]]
    nodes: Any = "auto" if auto else 5 if tree == "chain" else 8
    drafter = pair(tiny, tiny_draft)
    results = generate(tiny, drafter, prompts, num_draft_tokens=nodes, tree=tree, max_new_tokens=24, batch_size=3)
    assert [one.token_ids for one in results] == [reference(tiny, tuple(prompt), 24) for prompt in prompts]
    assert {one.stats.speculation.method for one in results} == {"lookup+small:tiny-llama"}


def test_seeded_texts_are_the_plain_seeded_texts(tiny: Transformer, tiny_draft: Transformer) -> None:
    prompts, law = [FRESH, REPEATING], Sampling(1.3)
    results = generate(tiny, pair(tiny, tiny_draft), prompts, temperature=1.3, seed=11, max_new_tokens=20)
    assert [one.token_ids for one in results] == [
        seeded_reference(tiny, tuple(prompt), 20, law, 11) for prompt in prompts
    ]


# ---- names -----------------------------------------------------------------------------------------------------------


def test_it_is_opened_by_both_names(tiny: Transformer, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="lookup is joined with 'lookup'; allowed: a head or a smaller model"):
        load_drafter("lookup+lookup", tiny)
    with pytest.raises(UsageError, match="the drafter is ''; allowed"):
        load_drafter("lookup+", tiny)


def test_what_costs_something_is_the_model(tiny: Transformer, tiny_draft: Transformer) -> None:
    drafter = pair(tiny, tiny_draft)
    assert computing(drafter) is drafter.model and computing(drafter.model) is drafter.model
    assert computing(None) is None
