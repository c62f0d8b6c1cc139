"""Cost tables that are given: a file that was measured somewhere, or numbers of a machine that is not at hand.

Knows nothing of how costs are measured or computed.
"""

import json
from pathlib import Path

from outpace.decoding.assumed import EXAMPLE, Machine, assumed_table, is_parallel
from outpace.decoding.costs import CostTable, keep
from outpace.drafters.drafter import Drafter
from outpace.drafters.either import computing
from outpace.errors import UsageError
from outpace.models.target import Target

COSTS = f"a file that outpace wrote, or {EXAMPLE}"


def read_costs(spec: str, target: Target, drafter: Drafter | None) -> CostTable:
    """The costs that ``--costs`` names.

    Args:
        spec: the path of a file from ``write_costs``, or ``assumed:bandwidth=B,flops=F`` in bytes and operations a
            second; see ``assumed.Machine`` for what else may be named.
        target, drafter: the pair, whose bytes count where none are given; None for no drafter.

    Raises:
        UsageError: the file cannot be read or is no cost table, or as ``Machine.parse``.
    """
    if spec.startswith("assumed:"):
        drafter = computing(drafter)
        return assumed_table(Machine.parse(spec, target, drafter), parallel=is_parallel(drafter))
    try:
        document = json.loads(Path(spec).read_text("utf-8"))
    except OSError as error:
        raise UsageError(f"the costs {spec} cannot be read: {error.strerror}; allowed: {COSTS}") from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"the costs {spec} are no JSON; allowed: {COSTS}") from error
    try:
        return CostTable.from_json(document)
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise UsageError(f"{spec} is no cost table; allowed: {COSTS}") from error
    except UsageError as error:
        raise UsageError(f"the costs {spec}: {error.message}", hint=error.hint) from error


def write_costs(path: Path, table: CostTable) -> None:
    """Write a table for another machine or another day, whole or not at all.

    Raises:
        UsageError: the file cannot be written.
    """
    try:
        keep(path, table.to_json())
    except OSError as error:
        raise UsageError(f"the costs cannot be written to {path}: {error.strerror}") from error
