"""Plans for tests of what is handed to engines: for a target and drafters that are not on this machine."""

from typing import Any

from outpace.decoding.plan import Choice, Plan
from outpace.engines.emission import Emission
from outpace.engines.emit import emit

TARGET, DRAFT = "org/target", "org/draft"
KINDS = {"lookup": "lookup", "model": DRAFT, "eagle3": DRAFT, "eagle1": DRAFT, "medusa": DRAFT, "none": "none"}
"""The drafter of a plan by its kind."""


def plan_of(*choices: Choice, target: str = TARGET) -> Plan:
    return Plan(target, "made-for-nothing", choices)


def emitted(engine: str, kind: str, version: str | None = None, **said: Any) -> Emission:
    """What one choice becomes; ``temperature`` is that of the plan and of the question."""
    temperature = said.get("temperature", 0.0)
    choices = [Choice(drafter=KINDS[kind], **said | {"temperature": 0.0})]
    given = None if kind in ("lookup", "none") else kind
    return emit(plan_of(*choices), engine, version, temperature=temperature, kind=given)
