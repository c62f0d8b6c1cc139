"""31: penalties have no effect on drafted tokens, or on the first token alone, and nobody is told."""

from collections.abc import Iterator
from typing import Any

import pytest

from changed import changed_reference, one_text_for_all, penalising, root_only
from outpace.decoding import processors
from outpace.decoding.generate import generate
from outpace.drafters.drafter import Drafter
from outpace.drafters.lookup import Lookup
from outpace.drafters.small import Small
from outpace.errors import UsageError
from outpace.models.transformer import Transformer
from outpace.verification.probabilities import Sampling
from toys import Scripted, lively, must_fail, reference, right_then_wrong

PROMPT, NEW = (5, 6, 7, 5, 6), 16
PENALTIES: list[dict[str, float]] = [
    {"repetition": 1.3},
    {"presence": 1.0},
    {"frequency": 0.5},
    {"repetition": 1.3, "presence": 1.0, "frequency": 0.5},
]
TREES: list[dict[str, Any]] = [
    {"num_draft_tokens": 4},
    {"num_draft_tokens": 9, "tree": "top-k:2"},
    {"num_draft_tokens": 9, "tree": "sampled:2"},
]


def eager() -> Transformer:
    """Prefers a few tokens so much that without penalties it says them again and again."""
    return lively(seed=11)


def drafters(target: Transformer, said: list[int]) -> Iterator[tuple[Drafter, dict[str, Any]]]:
    """Who drafts, and how: the target itself, with no idea of penalties, lookups, and the right text."""
    yield from ((Small(target, target), shape) for shape in TREES)
    yield Lookup(), {"num_draft_tokens": 4}
    for counts in ([4], [3, 0, 1]):
        yield Scripted(right_then_wrong([[*PROMPT, *said, *[0] * 9]], counts)), {"num_draft_tokens": 4}


def case() -> None:
    """Greedy and seeded text is the plain text with the same penalties; each changes it."""
    target = eager()
    bare = reference(target, PROMPT, NEW)
    for wanted in PENALTIES:
        change = penalising(len(PROMPT), **wanted)
        options: dict[str, Any] = {f"{name}_penalty": value for name, value in wanted.items()}
        said = changed_reference(target, PROMPT, NEW, change)
        assert said != bare
        for drafter, shape in drafters(target, said):
            found = generate(target, drafter, list(PROMPT), max_new_tokens=NEW, **options, **shape)
            assert found.token_ids == said
        seeded = changed_reference(target, PROMPT, NEW, change, sampling=Sampling(0.8, top_p=0.9), seed=4)
        options |= {"temperature": 0.8, "top_p": 0.9, "seed": 4}
        for drafter, shape in drafters(target, seeded):
            found = generate(target, drafter, list(PROMPT), max_new_tokens=NEW, **options, **shape)
            assert found.token_ids == seeded


def test_case() -> None:
    case()


def test_a_batch_has_its_own_counts(tiny: Transformer) -> None:
    """Rows of one batch are penalised for their own words."""
    prompts = [[3], [9, 8, 7, 6], [1, 2, 1, 2]]
    options: dict[str, Any] = {"repetition_penalty": 1.3, "frequency_penalty": 0.7}
    results = generate(tiny, Lookup(), prompts, max_new_tokens=NEW, batch_size=2, num_draft_tokens=3, **options)
    for prompt, result in zip(prompts, results, strict=True):
        change = penalising(len(prompt), repetition=1.3, frequency=0.7)
        assert result.token_ids == changed_reference(tiny, prompt, NEW, change)


@pytest.mark.parametrize("penalty", [0.0, -1.3])
def test_what_would_divide_by_nothing_is_refused(penalty: float, tiny: Transformer) -> None:
    with pytest.raises(UsageError, match=rf"repetition_penalty is {penalty}; allowed: any number above 0, 1 is off"):
        generate(tiny, None, [1], repetition_penalty=penalty)


@pytest.mark.parametrize("fault", [root_only, one_text_for_all])
def test_planted_fault(fault: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processors, "_process_entry", fault)
    with must_fail():
        case()
