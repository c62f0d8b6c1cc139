"""The pair that a verb works with: who decides, and who drafts, how much and how, by the flags or by a plan.

Knows nothing of verbs. Flags that contradict each other are refused before a model is opened.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from outpace.decoding.plan import ALL, NONE, Choice, Plan
from outpace.decoding.prompts import Entry
from outpace.drafters.drafter import Drafter
from outpace.drafters.load import AUTO, load_drafter
from outpace.errors import UsageError
from outpace.models.load import load_target
from outpace.models.staging import Progress
from outpace.models.target import Target

DRAFTERS = (
    "lookup, the folder or id of a head or of a smaller model, eagle3 for the head that comes with outpace for this "
    "target, or lookup+NAME for both: copies where the text repeats itself, NAME elsewhere; by default lookup+eagle3 "
    "where there is such a head, else lookup"
)
"""What may draft, in the words of every verb's help."""


@dataclass(frozen=True)
class Models:
    """How models are opened; every field is the flag of the same name."""

    target: str
    dtype: str
    device: str
    lane: str
    trust_remote_code: bool

    def decider(self, progress: Progress, plan: Plan | None = None) -> Target:
        """The target, which is the plan's where there is one; Raises: as for ``load_target`` and ``Plan.require``."""
        target = load_target(
            self.target,
            dtype=self.dtype,
            device=self.device,
            lane=self.lane,
            trust_remote_code=self.trust_remote_code,
            progress=progress,
        )
        if plan is not None:
            plan.require(target)
        return target

    def guesser(self, name: str | None, target: Target) -> Drafter:
        """The drafter of this name, or the one that drafts where none was named; Raises: as for ``load_drafter``."""
        return load_drafter(
            AUTO if name is None else name, target, dtype=self.dtype, trust_remote_code=self.trust_remote_code
        )


def chosen(
    path: Path | None,
    given: Mapping[str, Any],
    categories: Sequence[str] | None,
    batch: int,
    temperature: float = 0.0,
) -> tuple[Choice, Plan | None]:
    """What to do, and the plan that says so, if one does.

    Args:
        path: of the plan.
        given: the flags of drafting by name, None where one was left out.
        categories: what ``--category`` names; one alone has the plan's choice for it, several have that for all.
        batch: prompts at once.
        temperature: of the texts.

    Raises:
        UsageError: a flag and a plan, or a flag that shapes drafts and ``--draft none``; or as for ``Plan``.
    """
    if path is None:
        return _said(given), None
    said = [name for name, value in given.items() if value is not None]
    if said:
        raise UsageError(f"--plan and --{said[0]} were given; allowed: one of them")
    plan = Plan.read(path)
    return plan.choice(categories[0] if categories and len(categories) == 1 else ALL, batch, temperature), plan


def parted(plan: Plan, entries: Sequence[Entry], batch: int, temperature: float) -> list[tuple[Choice, list[Entry]]]:
    """Prompts by what the plan does with them, those of one way together.

    Args:
        plan: what says so, by category, by how many are decoded at once, and by temperature.
        entries: the prompts; one without a category is one of all.
        batch: how many are decoded at once, where there are as many of a kind.
        temperature: of the texts.
    """
    kinds: dict[str, list[Entry]] = {}
    for entry in entries:
        kinds.setdefault(entry.category or ALL, []).append(entry)
    ways: dict[Choice, list[Entry]] = {}
    for name, own in kinds.items():
        choice = plan.choice(name, min(batch, len(own)), temperature)
        way = Choice(drafter=choice.drafter, **choice.options)
        ways.setdefault(way, []).extend(own)
    return list(ways.items())


def passed_over(plan: Plan | None, choice: Choice | None, categories: Iterable[str | None]) -> list[str]:
    """A note for every category whose prompts have the choice for all, though the plan has one of their own."""
    if plan is None or choice is None or choice.category != ALL:
        return []
    own = {one.category for one in plan.choices} - {ALL}
    return [
        f"the plan has a choice of its own for {name!r}; the one for {ALL!r} is used: name the category alone"
        for name in sorted(own.intersection(categories))
    ]


def draft_tokens(given: str | None) -> int | Literal["auto"]:
    """The number of drafts as the flag has it.

    Raises:
        UsageError: it is neither a number nor ``auto``.
    """
    if given is None or given == "auto":
        return "auto"
    try:
        return int(given)
    except ValueError:
        raise UsageError(f"num_draft_tokens is {given!r}; allowed: auto, or a number from 0 on") from None


def seconds(name: str, given: str) -> float:
    """A time as a flag has it.

    Raises:
        UsageError: it is none.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", given)
    if match is None:
        raise UsageError(f"{name} is {given!r}; allowed: a number of seconds, or one with s, m or h, such as 3m")
    return float(match[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[match[2]]


def _said(given: Mapping[str, Any]) -> Choice:
    drafter = AUTO if given["draft"] is None else given["draft"]
    number = draft_tokens(given["num-draft-tokens"])
    if drafter == NONE:
        shapes = {name: given[name] for name in ("num-draft-tokens", "tree", "depth")}
        wrong = [name for name, value in shapes.items() if value is not None and value != "0"]
        if wrong:
            raise UsageError(f"--{wrong[0]} was given with --draft {NONE}; allowed: with a drafter")
    return Choice(
        drafter=drafter,
        num_draft_tokens=number,
        tree=given["tree"] or "chain",
        depth=given["depth"],
        rule=given["rule"],
    )
