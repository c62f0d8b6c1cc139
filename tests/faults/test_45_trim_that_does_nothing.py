"""45: a draft model's cache is of another kind, a quantised one say, and its trim quietly does nothing."""

from typing import Any

import pytest

from outpace.decoding.generate import generate
from outpace.drafters.small import Small
from outpace.errors import UnsupportedError, UsageError
from outpace.models.shape import Shape
from outpace.models.toy import tiny_config
from outpace.models.transformer import Transformer
from toys import Watched, must_fail


class Stub(Watched):
    """Its rewind returns without a word."""

    says = False

    def __init__(self, target: Transformer) -> None:
        super().__init__(target)
        self.can_rewind = self.says

    def open(self, slots: int, positions: int) -> Any:
        return super().open(slots, 4 * positions)

    def rewind(self, state: Any, lengths: list[int]) -> None:
        pass


def case(target: Transformer) -> None:
    """Refused by name when the drafter is made, or the same drafter as with a cache that trims."""
    try:
        guesser = Small(Stub(target), target)
    except UsageError as error:
        assert str(error) == "the draft model 'tiny-llama' cannot rewind its cache, so it cannot draft"
    else:
        with_stub, wanted = (
            generate(
                target,
                drafter,
                [5, 6, 7],
                num_draft_tokens=4,
                max_new_tokens=30,
                temperature=1.0,
                rule="match",
                seed=1,
            )
            for drafter in (guesser, Small(target, target))
        )
        assert with_stub.token_ids == wanted.token_ids
        assert with_stub.stats.speculation == wanted.stats.speculation
    with pytest.raises(UnsupportedError, match=r"the weights are quantised \(int8\); the fast lane knows floating"):
        Shape.from_config(tiny_config(quantization_config={"quant_method": "int8"}))


def test_a_draft_model_that_cannot_rewind_is_refused(tiny: Transformer) -> None:
    case(tiny)


def test_planted_fault(tiny: Transformer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Stub, "says", True)
    with must_fail():
        case(tiny)
