"""A choice of drafter, K, tree, rule and bounds, read from and written to TOML.

Knows nothing of how a plan was found or of how engines spell it.

A plan is made for one target. It holds one table a choice, each for a category of prompts, from a batch size and from a
temperature on::

    format_version = 1
    target = "smollm2"
    fingerprint = "..."
    goal = "latency"             # what was chosen for; left out of a plan that was written by hand

    [[choices]]
    category = "all"             # whatever has no choice of its own
    batch = 1                    # for this batch and larger ones, up to the next choice of the category
    temperature = 0.0            # and for this temperature and hotter ones
    drafter = "lookup"           # as load_drafter takes it; "none" decodes plainly
    num_draft_tokens = "auto"    # or a number of nodes; 0 decodes plainly
    tree = "chain"
    depth = 8                    # the longest path; of "auto" the bound that it keeps to
    rule = "match"               # left out: the best one that fits
    reason = "faster"            # one sentence; left out where nobody gave one

    [choices.evidence]           # what was measured, see Evidence; left out where nothing was
    prompts = 30
    speedup = 1.31
"""

import json
import math
import os
import tomllib
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal, TypedDict

from outpace.decoding.control import Fixed
from outpace.drafters.budget import Branching
from outpace.errors import UsageError
from outpace.models.target import Target
from outpace.verification.rules import CHAIN_ONLY, rule_named

FORMAT_VERSION = 1
ALL = "all"
NONE = "none"
GOALS = ("latency", "throughput", "goodput")
"""Time a token of one sequence, tokens a second of all, and tokens a second within a bound on the former."""


class PlanOptions(TypedDict):
    """The options of ``generate`` that a plan decides."""

    num_draft_tokens: int | Literal["auto"]
    tree: str
    depth: int | None
    rule: str | None


@dataclass(frozen=True)
class Evidence:
    """What a choice was made by; None where a figure was not taken.

    Args:
        prompts: how many were measured; 0 where the choice rests on a prediction.
        speedup, low, high: over plain decoding, and the 95 % interval; 1 for plain decoding itself. One prompt, or one
            group of prompts decoded at once, has no interval.
        predicted: the speed-up that a replay of traces promised.
        tokens_per_second: of all sequences together.
        ms_per_token: what one sequence waits for a token, reading its prompt included.
        tau, acceptance: as in ``decoding/stats.py``.

    Raises:
        UsageError: a figure is negative or no finite number.
    """

    prompts: int = 0
    speedup: float | None = None
    low: float | None = None
    high: float | None = None
    predicted: float | None = None
    tokens_per_second: float | None = None
    ms_per_token: float | None = None
    tau: float | None = None
    acceptance: float | None = None

    def __post_init__(self) -> None:
        for name in _EVIDENCE:
            if not 0 <= (getattr(self, name) or 0) < math.inf:
                raise UsageError(f"{name} is {getattr(self, name)}; allowed: 0 or more")


@dataclass(frozen=True)
class Choice:
    """What to do with one category of prompts from one batch size and one temperature on.

    Args:
        category: the category, or ``all`` for every one without a choice of its own.
        batch: sequences at once, from 1 on.
        drafter: as ``load_drafter`` takes it, or ``none``.
        num_draft_tokens: nodes of a draft, 0 or more, or ``auto``.
        tree: how drafts branch, see ``Branching``.
        depth: the longest path, 1 or more; None leaves it to the nodes.
        rule: an acceptance rule by name; None takes the best one that fits.
        temperature: from 0, which is greedy, on.
        reason: why, in one sentence.
        evidence: the figures behind it.

    Raises:
        UsageError: a value is outside of these, or two of them contradict each other.
    """

    category: str = ALL
    batch: int = 1
    drafter: str = "lookup"
    num_draft_tokens: int | Literal["auto"] = "auto"
    tree: str = "chain"
    depth: int | None = None
    rule: str | None = None
    temperature: float = 0.0
    reason: str | None = None
    evidence: Evidence | None = None

    def __post_init__(self) -> None:
        for name in ("category", "drafter"):
            if not getattr(self, name):
                raise UsageError(f"{name} is empty; allowed: a name")
        if self.batch < 1:
            raise UsageError(f"batch is {self.batch}; allowed: 1 or more")
        if not 0 <= self.temperature < math.inf:
            raise UsageError(f"temperature is {self.temperature}; allowed: 0 (greedy) or more")
        nodes, depth, branching = self.num_draft_tokens, self.depth, Branching.parse(self.tree)
        if nodes != "auto" and nodes < 0:
            raise UsageError(f"num_draft_tokens is {nodes}; allowed: auto, 0 (plain decoding) or more")
        if depth is not None and depth < 1:
            raise UsageError(f"depth is {depth}; allowed: 1 or more, or left out")
        if nodes != "auto" and depth is not None:
            Fixed(branching, depth, nodes)  # refuses what contradicts itself
        if self.rule is not None:
            rule_named(self.rule)
        if self.rule in CHAIN_ONLY and not branching.is_chain:
            raise UsageError(f"rule is {self.rule!r} and tree {self.tree}; allowed: a chain, or another rule")

    @property
    def options(self) -> PlanOptions:
        """The same as options of ``generate``; without a drafter they say plain decoding."""
        if self.drafter == NONE or self.num_draft_tokens == 0:
            return PlanOptions(num_draft_tokens=0, tree="chain", depth=None, rule=self.rule)
        return PlanOptions(num_draft_tokens=self.num_draft_tokens, tree=self.tree, depth=self.depth, rule=self.rule)


@dataclass(frozen=True)
class Plan:
    """What to do with one target.

    Args:
        target: its name, as ``load_target`` takes it.
        fingerprint: what tells that it is the same target.
        choices: at least one for all categories at batch 1 and temperature 0, and no two for the same category, batch
            and temperature.
        goal: what it was chosen for, see ``GOALS``; None where nobody says.
        latency_bound_ms: what a token may take, for goodput; above 0.

    Raises:
        UsageError: that one is missing, two are for the same, or the goal is none.
    """

    target: str
    fingerprint: str
    choices: tuple[Choice, ...]
    goal: str | None = None
    latency_bound_ms: float | None = None

    def __post_init__(self) -> None:
        places = [(choice.category, choice.batch, choice.temperature) for choice in self.choices]
        for category, batch, temperature in places:
            if places.count((category, batch, temperature)) > 1:
                hot = f" and temperature {temperature:g}" if temperature else ""
                raise UsageError(
                    f"category {category!r} has several choices from batch {batch}{hot} on; allowed: one for each batch"
                    " and temperature"
                )
        if (ALL, 1, 0.0) not in places:
            raise UsageError(
                f"no choice has category {ALL!r} and batch 1; allowed: one that holds where no other does, from "
                "temperature 0 on"
            )
        if self.goal not in (None, *GOALS):
            raise UsageError(f"goal is {self.goal!r}; allowed: {', '.join(GOALS)}")
        if self.latency_bound_ms is not None and not 0 < self.latency_bound_ms < math.inf:
            raise UsageError(f"latency_bound_ms is {self.latency_bound_ms}; allowed: above 0")

    def choice(self, category: str = ALL, batch: int = 1, temperature: float = 0.0) -> Choice:
        """The choice for these prompts.

        Of the category, else of all; of these from the largest batch that is not larger, and of these from the highest
        temperature that is not higher.

        Raises:
            UsageError: batch is below 1, or the temperature below 0.
        """
        if batch < 1:
            raise UsageError(f"batch is {batch}; allowed: 1 or more")
        if not temperature >= 0:
            raise UsageError(f"temperature is {temperature}; allowed: 0 (greedy) or more")
        fitting = [
            one
            for one in self.choices
            if one.category in (category, ALL) and one.batch <= batch and one.temperature <= temperature
        ]
        return max(fitting, key=lambda one: (one.category == category, one.batch, one.temperature))

    def require(self, target: Target) -> None:
        """Refuse a target that the plan was not made for.

        Raises:
            UsageError: the fingerprints differ.
        """
        if target.fingerprint != self.fingerprint:
            raise UsageError(
                f"fingerprint is {self.fingerprint!r} in the plan, made for {self.target!r}; allowed: "
                f"{target.fingerprint!r}, that of the target {target.name!r}",
                hint="name the plan's target, or make a plan for this one",
            )

    def write(self, path: str | Path) -> None:
        """Write the plan, whole or not at all.

        Raises:
            UsageError: the file cannot be written.
        """
        path = Path(path)
        growing = path.with_name(f".{path.name}.{uuid.uuid4().hex[:12]}")
        try:
            growing.write_text(self.to_toml(), "utf-8")
            os.replace(growing, path)
        except OSError as error:
            growing.unlink(missing_ok=True)
            raise UsageError(f"the plan cannot be written to {path}: {error.strerror}") from error

    def to_toml(self) -> str:
        """The plan as text; what is None is left out."""
        own = [name for name in _PLAN if name not in ("format_version", "choices")]
        lines = [f"format_version = {FORMAT_VERSION}", *_lines(self, own)]
        for choice in self.choices:
            lines += ["", "[[choices]]", *_lines(choice, [name for name in _CHOICE if name != "evidence"])]
            if choice.evidence is not None:
                lines += ["", "[choices.evidence]", *_lines(choice.evidence, list(_EVIDENCE))]
        return "\n".join(lines) + "\n"

    @classmethod
    def from_toml(cls, text: str, source: str = "the plan") -> "Plan":
        """Read a plan.

        Args:
            text: the document.
            source: what an error calls it.

        Raises:
            UsageError: it is no TOML, a key is unknown, missing or of a wrong type, or a value is not allowed; the
                message names it.
        """
        try:
            document = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise UsageError(f"{source} is not TOML: {error}") from error
        if document.get("format_version", FORMAT_VERSION) != FORMAT_VERSION:
            raise UsageError(f"{source}: format_version is {document['format_version']!r}; allowed: {FORMAT_VERSION}")
        _check_keys(document, _PLAN, source)
        for name in ("target", "fingerprint", "format_version", "choices"):
            if name not in document:
                raise UsageError(f"{source}: {name} is missing; allowed: {_PLAN[name]}")
        choices = []
        for place, table in enumerate(document["choices"], 1):
            where = f"{source}, choice {place}"
            if not isinstance(table, dict):
                raise UsageError(f"{where} is {table!r}; allowed: a table")
            choices.append(_choice(table, where))
        try:
            own = {name: document[name] for name in _PLAN if name in document and name != "format_version"}
            return cls(**_numbers(own, _PLAN) | {"choices": tuple(choices)})
        except UsageError as error:
            raise UsageError(f"{source}: {error.message}", hint=error.hint) from error

    @classmethod
    def read(cls, path: str | Path) -> "Plan":
        """Read a plan from a file.

        Raises:
            UsageError: the file cannot be read, or as ``from_toml``.
        """
        try:
            text = Path(path).read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
            raise UsageError(f"the plan {path} cannot be read: {reason}") from error
        return cls.from_toml(text, f"the plan {path}")


# ---- TOML ------------------------------------------------------------------------------------------------------------

_WHOLE, _STRING, _AUTO, _TABLES = "a whole number", "a string", 'a whole number or "auto"', "a list of tables"
_NUMBER, _TABLE = "a number", "a table"
_PLAN = {
    "format_version": _WHOLE,
    "target": _STRING,
    "fingerprint": _STRING,
    "goal": _STRING,
    "latency_bound_ms": _NUMBER,
    "choices": _TABLES,
}
_CHOICE = {
    "category": _STRING,
    "batch": _WHOLE,
    "temperature": _NUMBER,
    "drafter": _STRING,
    "num_draft_tokens": _AUTO,
    "tree": _STRING,
    "depth": _WHOLE,
    "rule": _STRING,
    "reason": _STRING,
    "evidence": _TABLE,
}
_EVIDENCE = {one.name: _WHOLE if one.name == "prompts" else _NUMBER for one in fields(Evidence)}


def _is(value: object, kind: str) -> bool:
    whole = isinstance(value, int) and not isinstance(value, bool)
    found = {
        _WHOLE: whole,
        _NUMBER: whole or isinstance(value, float),
        _STRING: isinstance(value, str),
        _TABLE: isinstance(value, dict),
        _TABLES: isinstance(value, list),
    }
    return found.get(kind, whole or value == "auto")


def _numbers(table: Mapping[str, Any], kinds: Mapping[str, str]) -> dict[str, Any]:
    """The same with every number a float: TOML tells 1 from 1.0."""
    return {name: float(value) if kinds[name] == _NUMBER else value for name, value in table.items()}


def _choice(table: dict[str, Any], where: str) -> Choice:
    _check_keys(table, _CHOICE, where)
    evidence = table.get("evidence", {})
    _check_keys(evidence, _EVIDENCE, f"{where}, evidence")
    try:
        found = None if "evidence" not in table else Evidence(**_numbers(evidence, _EVIDENCE))
        return Choice(**_numbers(table, _CHOICE) | {"evidence": found})
    except UsageError as error:
        raise UsageError(f"{where}: {error.message}", hint=error.hint) from error


def _check_keys(table: Mapping[str, Any], kinds: Mapping[str, str], where: str) -> None:
    for name, value in table.items():
        if name not in kinds:
            raise UsageError(f"{where}: unknown key {name!r} with value {value!r}; allowed: {', '.join(kinds)}")
        if not _is(value, kinds[name]):
            raise UsageError(f"{where}: {name} is {value!r}; allowed: {kinds[name]}")


def _lines(record: object, names: Sequence[str]) -> list[str]:
    """One line a field; a JSON string is a TOML string once DEL is escaped too."""
    values = [(name, getattr(record, name)) for name in names]
    return [
        f"{name} = {json.dumps(value, ensure_ascii=False)}".replace("\x7f", "\\u007f")
        for name, value in values
        if value is not None
    ]
