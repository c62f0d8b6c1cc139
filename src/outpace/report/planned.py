"""A plan as the page shows it: its choices with their evidence, and the reasons behind them.

Knows nothing of how a plan was found. It comes as the TOML file that ``tune --out`` writes, with one sentence a choice,
or as the document that ``tune --json`` prints, with all of them.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from outpace.decoding.plan import Choice, Evidence, Plan
from outpace.errors import UsageError

TUNE_VERSION = 1


@dataclass(frozen=True)
class Shown:
    """What the page says of a plan.

    Args:
        name: what the page calls it.
        target, goal: of the plan; no goal where nobody says.
        choices: fields of ``Choice``, its evidence as a table of its own.
        reasons: sentences, each under what it is about: a category, a load, or nothing.
    """

    name: str
    target: str
    goal: str | None
    choices: list[dict[str, Any]]
    reasons: list[tuple[str, list[str]]]


def read_plan(path: Path) -> Shown:
    """Read a plan, or the document of ``tune --json`` that holds one.

    Raises:
        UsageError: the file cannot be read or is neither; the message names what is wrong.
    """
    if path.suffix != ".json":
        plan = Plan.read(path)
        reasons = [(_about(asdict(choice)), [choice.reason]) for choice in plan.choices if choice.reason]
        return Shown(path.name, plan.target, plan.goal, [asdict(choice) for choice in plan.choices], reasons)
    allowed = "allowed: what tune --json printed, or the plan that it wrote"
    try:
        document = json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise UsageError(f"the plan {path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"the plan {path} is no JSON; {allowed}") from error
    try:
        if document["format_version"] != TUNE_VERSION:
            raise ValueError("another version")
        plan = _plan(document["plan"])
        reasons = [(_about(one), [str(words) for words in one["sentences"]]) for one in document["reasons"]]
        reasons += [("", [str(words)]) for words in document.get("loads", ())]
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise UsageError(f"{path} is no document of tune of version {TUNE_VERSION}; {allowed}") from error
    return Shown(path.name, plan.target, plan.goal, [asdict(choice) for choice in plan.choices], reasons)


def _plan(found: Mapping[str, Any]) -> Plan:
    """The inverse of ``asdict``: what a plan refuses, this refuses."""
    choices = []
    for choice in found["choices"]:
        evidence = choice.get("evidence")
        choices.append(Choice(**{**choice, "evidence": None if evidence is None else Evidence(**evidence)}))
    return Plan(**{**found, "choices": tuple(choices)})


def _about(one: Mapping[str, Any]) -> str:
    return f"{one['category']}, {one['batch']} at a time, T {one.get('temperature', 0):g}"
