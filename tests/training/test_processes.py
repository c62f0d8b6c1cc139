"""What is made once is made by the first process; the others are given the same, or the same error."""

from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import create_autospec

import pytest
from accelerate import Accelerator
from accelerate.utils import DistributedType

from lessons import trainer_of
from outpace.errors import UsageError, WeightsError
from outpace.training import processes as module
from outpace.training.processes import PATIENCE, SHARDED, made_once, processes, require_whole
from toys import must_fail


def both(
    make: Callable[[], Any], monkeypatch: pytest.MonkeyPatch, firsts: tuple[bool, bool] = (True, False)
) -> list[Any]:
    """What each of two processes gets, a value or an error: by turns here, and what one sends the other finds."""
    found: list[Any] = []
    sent: list[Any] = []

    def broadcast(held: list[Any]) -> list[Any]:
        if not found:
            sent[:] = held
        return list(sent)

    monkeypatch.setattr(module, "broadcast_object_list", broadcast)
    for first in firsts:
        process = create_autospec(Accelerator, instance=True, is_main_process=first)
        try:
            found.append(made_once(process, make))
        except (UsageError, WeightsError) as error:
            found.append(error)
    return found


def case(monkeypatch: pytest.MonkeyPatch, firsts: tuple[bool, bool] = (True, False)) -> None:
    calls: list[int] = []

    def make() -> int:
        calls.append(1)
        return len(calls)

    assert both(make, monkeypatch, firsts) == [1, 1] and calls == [1]


def test_it_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    case(monkeypatch)


def test_planted_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both processes take themselves for the first one."""
    with must_fail():
        case(monkeypatch, (True, True))


@pytest.mark.parametrize("kind", [UsageError, WeightsError])
def test_an_error_ends_them_all(kind: type[UsageError], monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for what never comes."""
    refused = kind("no prompt is left", hint="name others")

    def make() -> None:
        raise refused

    assert both(make, monkeypatch) == [refused, refused]


def test_one_process_alone() -> None:
    alone = processes()
    assert alone.is_main_process and alone.num_processes == 1
    assert made_once(alone, lambda: ["as it is"]) == ["as it is"]
    with pytest.raises(UsageError, match="never"):
        made_once(alone, lambda: (_ for _ in ()).throw(UsageError("never")))


def test_they_are_patient() -> None:
    """Answers may take days; the usual ten minutes would end the others."""
    assert PATIENCE.days >= 7


def divided(kind: DistributedType) -> Any:
    return create_autospec(Accelerator, instance=True, distributed_type=kind)


@pytest.mark.parametrize("kind", sorted(SHARDED), ids=lambda kind: kind.value)
def test_a_pupil_in_parts_is_refused(kind: DistributedType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the trainer and before any data is read: Muon needs whole matrices, checkpoints whole pupils."""
    message = rf"the processes divide the weights among them \({kind.value}\); allowed: the whole pupil in each \(DDP\)"
    with pytest.raises(UsageError, match=message):
        trainer_of(tmp_path, accelerator=divided(kind), optimiser="muon")
    monkeypatch.setattr(module, "Accelerator", lambda **told: divided(kind))
    with pytest.raises(UsageError, match=message):
        processes()


@pytest.mark.parametrize("kind", sorted(set(DistributedType) - SHARDED), ids=lambda kind: kind.value)
def test_a_whole_pupil_in_each_is_not(kind: DistributedType) -> None:
    require_whole(divided(kind))
