"""One request whose logits are no distribution ends with an error; its batch mates never notice."""

from typing import Any

import pytest
import torch
from torch import Tensor

from outpace.decoding import loop
from outpace.decoding.generate import Result, generate, speculative_decode
from outpace.drafters.drafter import Drafter
from outpace.drafters.lookup import Lookup
from outpace.drafters.small import Small
from outpace.errors import NumericsError
from outpace.models.function import FunctionTarget
from outpace.models.target import Target
from outpace.models.toy import random_table, table_target
from toys import must_fail

TABLE = random_table(12, seed=4)
PROMPTS = [[1], [2, 3], [4], [5, 6, 5, 6], [7]]
NEW = 10


def breaks_after(prompt: list[int], new: int) -> FunctionTarget:
    """The table; a text that begins with this prompt has NaN for its logits from the ``new``-th new token on."""

    def logits_of(ids: Tensor) -> Tensor:
        rows = TABLE[ids].clone()
        if ids.shape[1] >= len(prompt):
            ours = (ids[:, : len(prompt)] == torch.tensor(prompt)).all(1)
            rows[ours, len(prompt) - 1 + new :] = torch.nan
        return rows

    return FunctionTarget(logits_of, 12)


def drafters(target: Target) -> list[Drafter | None]:
    return [None, Lookup(), Small(table_target(TABLE), target)]


def case(new: int, slots: int | None, temperature: float) -> None:
    target = breaks_after(PROMPTS[1], new)
    for drafter in drafters(target):
        options: dict[str, Any] = {"max_new_tokens": NEW, "temperature": temperature, "seed": 3}
        alone = [generate(table_target(TABLE), None, prompt, **options) for prompt in PROMPTS]
        results = generate(target, drafter, PROMPTS, num_draft_tokens=3, batch_size=slots, **options)
        for place, (one, other) in enumerate(zip(results, alone, strict=True)):
            if place != 1:
                assert (one.token_ids, one.finish_reason, one.error) == (other.token_ids, "length", None)
        failed = results[1]
        assert failed.finish_reason == "error"
        assert failed.token_ids == alone[1].token_ids[: len(failed.token_ids)]
        assert failed.error is not None
        assert "no distribution: their largest is nan" in failed.error
        if drafter is None:
            assert len(failed.token_ids) == new
            assert f"for position {len(PROMPTS[1]) + new} are" in failed.error


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("slots", [None, 2])
@pytest.mark.parametrize("new", [0, 1, 4])
def test_the_others_finish(new: int, slots: int | None, temperature: float) -> None:
    case(new, slots, temperature)


def test_a_single_prompt_raises() -> None:
    target = breaks_after(PROMPTS[1], 4)
    with pytest.raises(NumericsError, match="for position 6 are no distribution"):
        generate(target, None, PROMPTS[1], max_new_tokens=NEW)
    with pytest.raises(NumericsError, match="no distribution"):
        speculative_decode(target, table_target(TABLE), PROMPTS[1], 2, 1.0, num_samples=3)


def test_planted_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """A failing row that is left where it is, or that takes another one's place."""
    original = loop._emit

    def shifted(turn: Any, rows: Any, *more: Any) -> Any:
        errors = turn.errors
        object.__setattr__(turn, "errors", (*errors[1:], errors[0]))
        return original(turn, rows, *more)

    monkeypatch.setattr(loop, "_emit", shifted)
    with must_fail():
        case(4, None, 0.0)


def test_the_result_says_error() -> None:
    result = generate(breaks_after([1], 2), None, [[1]], max_new_tokens=NEW)[0]
    assert isinstance(result, Result)
    assert result.stats.speculation.method == "plain"
    assert len(result.token_ids) == 2
