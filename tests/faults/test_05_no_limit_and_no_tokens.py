"""05: "no limit" makes the draft length negative, or a limit of zero still emits a token."""

from typing import Any

import pytest

from outpace.decoding import loop
from outpace.decoding.loop import Request
from outpace.drafters.lookup import Lookup
from outpace.drafters.small import Small
from outpace.errors import OutpaceError, UsageError
from outpace.models.toy import random_table, table_target
from outpace.models.transformer import Transformer
from toys import lively, must_fail, reference, run

PROMPT = (1, 2, 3)


def case(target: Transformer) -> None:
    """Without a limit a text runs to its end of text, or to the end of the context; with none it is empty."""
    whole = reference(target, PROMPT, target.max_positions - len(PROMPT))
    eos = whole[11]
    for drafter in (None, Lookup(), Small(target, target)):
        requests = [Request(PROMPT, eos_ids=(eos,)), Request(PROMPT), Request(PROMPT, max_new_tokens=0)]
        try:
            stopped, full, none = run(target, drafter, requests, num_draft_tokens=5)
        except (OutpaceError, RuntimeError) as error:
            raise AssertionError("no limit, or nothing to do, is no error") from error
        assert stopped.ids == reference(target, PROMPT, 30, (eos,)) and stopped.finish == "stop"
        assert full.ids == whole and full.finish == "length"
        assert none.ids == [] and none.finish == "length" and none.stats.turns == 0


def short() -> Transformer:
    return lively(max_position_embeddings=48)


def test_case() -> None:
    case(short())


def test_a_function_without_an_end_of_context() -> None:
    table = random_table(6, seed=1)
    target = table_target(table, eos_ids=(int(table[2].argmax()),))
    [row] = run(target, Lookup(), [Request([2], eos_ids=target.eos_ids)])
    assert row.ids == list(target.eos_ids) and row.finish == "stop"


def test_less_than_nothing_is_refused(tiny: Transformer) -> None:
    with pytest.raises(UsageError, match="max_new_tokens is -1; allowed: 0 or more, or None for no limit"):
        run(tiny, None, [Request(PROMPT, max_new_tokens=-1)])


def sentinel(target: Any, request: Request) -> int:
    return -1 if request.max_new_tokens is None else request.max_new_tokens


def test_planted_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "_limit", sentinel)
    with must_fail():
        case(short())
