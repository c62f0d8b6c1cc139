"""A choice of drafter, K, tree, rule and bounds, read from and written to TOML.

Knows nothing of how a plan was found or of how engines spell it.

A plan is made for one target. It holds one table a choice, each for a category of prompts and from a batch size on::

    format_version = 1
    target = "smollm2"
    fingerprint = "..."

    [[choices]]
    category = "all"             # whatever has no choice of its own
    batch = 1                    # for this batch and larger ones, up to the next choice of the category
    drafter = "lookup"           # as load_drafter takes it; "none" decodes plainly
    num_draft_tokens = "auto"    # or a number of nodes; 0 decodes plainly
    tree = "chain"
    depth = 8                    # the longest path; of "auto" the bound that it keeps to
    rule = "match"               # left out: the best one that fits
"""

import json
import os
import tomllib
import uuid
from collections.abc import Mapping
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


class PlanOptions(TypedDict):
    """The options of ``generate`` that a plan decides."""

    num_draft_tokens: int | Literal["auto"]
    tree: str
    depth: int | None
    rule: str | None


@dataclass(frozen=True)
class Choice:
    """What to do with one category of prompts from one batch size on.

    Args:
        category: the category, or ``all`` for every one without a choice of its own.
        batch: sequences at once, from 1 on.
        drafter: as ``load_drafter`` takes it, or ``none``.
        num_draft_tokens: nodes of a draft, 0 or more, or ``auto``.
        tree: how drafts branch, see ``Branching``.
        depth: the longest path, 1 or more; None leaves it to the nodes.
        rule: an acceptance rule by name; None takes the best one that fits.

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

    def __post_init__(self) -> None:
        for name in ("category", "drafter"):
            if not getattr(self, name):
                raise UsageError(f"{name} is empty; allowed: a name")
        if self.batch < 1:
            raise UsageError(f"batch is {self.batch}; allowed: 1 or more")
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
        choices: at least one for all categories at batch 1, and no two for the same category and batch.

    Raises:
        UsageError: that one is missing, or two are for the same.
    """

    target: str
    fingerprint: str
    choices: tuple[Choice, ...]

    def __post_init__(self) -> None:
        places = [(choice.category, choice.batch) for choice in self.choices]
        for category, batch in places:
            if places.count((category, batch)) > 1:
                raise UsageError(
                    f"category {category!r} has several choices from batch {batch} on; allowed: one for each batch"
                )
        if (ALL, 1) not in places:
            raise UsageError(f"no choice has category {ALL!r} and batch 1; allowed: one that holds where no other does")

    def choice(self, category: str = ALL, batch: int = 1) -> Choice:
        """The choice for these prompts: of the category, else of all; from the largest batch that is not larger.

        Raises:
            UsageError: batch is below 1.
        """
        if batch < 1:
            raise UsageError(f"batch is {batch}; allowed: 1 or more")
        fitting = [one for one in self.choices if one.category in (category, ALL) and one.batch <= batch]
        return max(fitting, key=lambda one: (one.category == category, one.batch))

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
        lines = [f"format_version = {FORMAT_VERSION}", *_lines(self, ("target", "fingerprint"))]
        for choice in self.choices:
            lines += ["", "[[choices]]", *_lines(choice, tuple(one.name for one in fields(Choice)))]
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
        for name, words in _PLAN.items():
            if name not in document:
                raise UsageError(f"{source}: {name} is missing; allowed: {words}")
        choices = []
        for place, table in enumerate(document["choices"], 1):
            where = f"{source}, choice {place}"
            if not isinstance(table, dict):
                raise UsageError(f"{where} is {table!r}; allowed: a table")
            _check_keys(table, _CHOICE, where)
            try:
                choices.append(Choice(**table))
            except UsageError as error:
                raise UsageError(f"{where}: {error.message}", hint=error.hint) from error
        try:
            return cls(document["target"], document["fingerprint"], tuple(choices))
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
_PLAN = {"format_version": _WHOLE, "target": _STRING, "fingerprint": _STRING, "choices": _TABLES}
_CHOICE = {
    "category": _STRING,
    "batch": _WHOLE,
    "drafter": _STRING,
    "num_draft_tokens": _AUTO,
    "tree": _STRING,
    "depth": _WHOLE,
    "rule": _STRING,
}


def _is(value: object, kind: str) -> bool:
    whole = isinstance(value, int) and not isinstance(value, bool)
    found = {_WHOLE: whole, _STRING: isinstance(value, str), _TABLES: isinstance(value, list)}
    return found.get(kind, whole or value == "auto")


def _check_keys(table: Mapping[str, Any], kinds: Mapping[str, str], where: str) -> None:
    for name, value in table.items():
        if name not in kinds:
            raise UsageError(f"{where}: unknown key {name!r} with value {value!r}; allowed: {', '.join(kinds)}")
        if not _is(value, kinds[name]):
            raise UsageError(f"{where}: {name} is {value!r}; allowed: {kinds[name]}")


def _lines(record: object, names: tuple[str, ...]) -> list[str]:
    """One line a field; a JSON string is a TOML string once DEL is escaped too."""
    values = [(name, getattr(record, name)) for name in names]
    return [
        f"{name} = {json.dumps(value, ensure_ascii=False)}".replace("\x7f", "\\u007f")
        for name, value in values
        if value is not None
    ]
