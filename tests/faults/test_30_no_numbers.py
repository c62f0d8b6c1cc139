"""30: NaN or infinite logits: a token is accepted in silence, or token 0 comes for ever."""

from typing import Any

import pytest
import torch
from torch import Tensor

from outpace.decoding import judging
from outpace.decoding.loop import Request
from outpace.drafters import small
from outpace.drafters.small import Small
from outpace.errors import NumericsError
from outpace.models.function import FunctionTarget
from outpace.models.toy import random_table, table_target
from toys import Watched, must_fail, reference, run

TABLE = random_table(8, seed=1)
WALK = reference(table_target(TABLE), (1,), 6)
BAD = [float("nan"), float("inf"), float("-inf")]


def spoiled(at: int, value: float) -> FunctionTarget:
    """The table, its rows at one position of the text no law."""

    def logits_of(ids: Tensor) -> Tensor:
        rows = TABLE[ids].clone()
        wrong = rows[:, at : at + 1]
        (wrong if value == -torch.inf else wrong[..., 3])[:] = value
        return rows

    return FunctionTarget(logits_of, 8)


def case(value: float) -> None:
    """A bad draft row is no draft; a bad target row is an error that names its position."""
    target = table_target(TABLE)
    for at in (2, 3):
        watched = Watched(target)
        [row] = run(watched, Small(spoiled(at, value), target), [Request((1,), max_new_tokens=6)], num_draft_tokens=3)
        assert row.ids == WALK
        assert watched.scored[0] == [at - 1] and row.stats.acceptance == 1.0  # the first draft ends before the bad row
        bad = spoiled(at, value)
        with pytest.raises(NumericsError, match=f"for position {at + 1} are no distribution"):
            run(bad, Small(target, bad), [Request((1,), max_new_tokens=6)], num_draft_tokens=3)


@pytest.mark.parametrize("value", BAD)
def test_case(value: float) -> None:
    case(value)


@pytest.mark.parametrize("value", BAD)
@pytest.mark.parametrize("where", ["draft", "target"])
def test_planted_fault(where: str, value: float, monkeypatch: pytest.MonkeyPatch) -> None:
    def blind(logits: Any, *more: Any) -> Tensor:
        return torch.zeros(logits.shape[:-1], dtype=torch.bool)

    if where == "draft":
        monkeypatch.setattr(small, "unusable_rows", blind)
    else:
        monkeypatch.setattr(judging.math, "isfinite", lambda value: True)
    with must_fail():
        case(value)
