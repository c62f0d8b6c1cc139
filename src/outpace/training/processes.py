"""The processes of a training: what cannot be shared the first one does, and the others are given what it made.

Knows nothing of what is made.
"""

from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

from accelerate import Accelerator
from accelerate.utils import DistributedType, InitProcessGroupKwargs, broadcast_object_list

from outpace.errors import OutpaceError, UsageError

PATIENCE = timedelta(days=30)
"""How long processes wait for one another: the first one may answer prompts for days. Launchers end them earlier."""

SHARDED = frozenset({DistributedType.FSDP, DistributedType.DEEPSPEED, DistributedType.MEGATRON_LM})
"""How launchers divide the weights themselves among processes."""

Made = TypeVar("Made")


def processes() -> Accelerator:
    """The processes that a launcher started, or this one alone, each with the device that is its own.

    Raises:
        UsageError: as for ``require_whole``.
    """
    found = Accelerator(mixed_precision="no", kwargs_handlers=[InitProcessGroupKwargs(timeout=PATIENCE)])
    require_whole(found)
    return found


def require_whole(accelerator: Accelerator) -> None:
    """Refuse processes that hold parts of a pupil: Muon turns whole matrices, and checkpoints hold whole ones.

    Raises:
        UsageError: a launcher was told to divide the weights, by FSDP, DeepSpeed or Megatron.
    """
    kind = accelerator.distributed_type
    if kind in SHARDED:
        raise UsageError(
            f"the processes divide the weights among them ({kind.value}); allowed: the whole pupil in each (DDP)",
            hint="leave FSDP, DeepSpeed and Megatron out of what the launcher is told: a pupil is small",
        )


def made_once(accelerator: Accelerator, make: Callable[[], Made]) -> Made:
    """What the first process makes; the others wait, and are given the same.

    Args:
        make: called in the first process alone; what it returns can be pickled.

    Raises:
        OutpaceError: one that ``make`` raised, in every process.
    """
    held: list[Any] = [None, None]
    if accelerator.is_main_process:
        try:
            held[0] = make()
        except OutpaceError as error:
            held[1] = error
    made, refused = broadcast_object_list(held)
    if refused is not None:
        accelerator.wait_for_everyone()  # nobody leaves before all have been told: their connections would break
        raise refused
    found: Made = made
    return found
