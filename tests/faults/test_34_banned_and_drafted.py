"""34: biases, bans and min-p reach the bonus token only: a banned token appears because it was drafted and accepted."""

from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor

from changed import adding, changed_reference, last_row_only, root_only
from outpace.decoding import processors
from outpace.decoding.generate import generate
from outpace.drafters.drafter import Drafter
from outpace.drafters.small import Small
from outpace.models.transformer import Transformer
from outpace.verification.probabilities import Sampling
from toys import VOCAB, Scripted, must_fail, reference, right_then_wrong

PROMPT, NEW, RARE = (1, 2, 3), 20, 61


def allow_all_but(banned: int) -> Any:
    """An allow-list, as a processor of the user's."""

    def allowed(prefix_ids: Tensor, logits: Tensor) -> Tensor:
        return logits.index_fill(1, torch.tensor([banned]), -torch.inf)

    return allowed


def case(target: Transformer) -> None:
    """The token that the target says most often is drafted at every place, and stands nowhere."""
    bare = reference(target, PROMPT, NEW)
    banned = Counter(bare).most_common(1)[0][0]
    bans: list[tuple[dict[str, Any], dict[int, float]]] = [
        ({"logit_bias": {banned: -100.0}}, {banned: -100.0}),
        ({"bad_words": [[banned]]}, {banned: -torch.inf}),
        ({"processors": [allow_all_but(banned)]}, {banned: -torch.inf}),
        ({"logit_bias": {banned: -100.0, RARE: 100.0}}, {banned: -100.0, RARE: 100.0}),
    ]
    for options, biases in bans:
        for sampling, chosen in ((None, {}), (Sampling(1.0, min_p=0.9), {"temperature": 1.0, "min_p": 0.9, "seed": 2})):
            said = changed_reference(target, PROMPT, NEW, adding(biases), sampling=sampling, seed=2)
            assert banned not in said and said != bare
            drafters: list[Drafter] = [
                Scripted(lambda row, limit: [banned] * limit),
                Scripted(right_then_wrong([[*PROMPT, *said, *[0] * 9]], [5, 1, 3])),
                Small(target, target),
            ]
            for drafter in drafters:
                every: dict[str, Any] = options | chosen
                found = generate(target, drafter, list(PROMPT), max_new_tokens=NEW, num_draft_tokens=5, **every)
                assert found.token_ids == said
    assert said == [RARE] * NEW


def test_case(tiny: Transformer) -> None:
    case(tiny)


def test_a_word_of_several_ids_is_banned_across_a_turn(tiny: Transformer) -> None:
    """Its last id is forbidden where the rest stands before it, in the text, in the draft, or over the border."""
    bare = reference(tiny, PROMPT, NEW)
    words = [tuple(bare[place : place + 3]) for place in (2, 7, 11)]

    def change(text: list[int], logits: Tensor) -> Tensor:
        for *start, last in words:
            if text[-len(start) :] == start:
                logits[last] = -torch.inf
        return logits

    said = changed_reference(tiny, PROMPT, NEW, change)
    assert said != bare
    for depth in (1, 2, 3, 5):
        for counts in ([8], [1, 2], [0, 3, 1]):
            drafter = Scripted(right_then_wrong([[*PROMPT, *bare, *bare]], counts))
            found = generate(
                tiny, drafter, list(PROMPT), max_new_tokens=NEW, num_draft_tokens=depth, bad_words=[*map(list, words)]
            )
            assert found.token_ids == said


@pytest.mark.parametrize("fault", [root_only, last_row_only])
def test_planted_fault(fault: Any, tiny: Transformer, monkeypatch: pytest.MonkeyPatch) -> None:
    assert VOCAB > RARE
    monkeypatch.setattr(processors, "_process_entry", fault)
    with must_fail():
        case(tiny)
