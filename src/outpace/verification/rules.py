"""The acceptance rules by name.

Knows nothing of when a rule is chosen.
"""

from collections.abc import Mapping
from types import MappingProxyType

from outpace.errors import UsageError
from outpace.verification.branching import TRAVERSAL, TREE_REJECTION
from outpace.verification.chain import BLOCK, REJECTION
from outpace.verification.matching import GREEDY, MATCH
from outpace.verification.typical import TYPICAL
from outpace.verification.verdict import Rule

RULES: Mapping[str, Rule] = MappingProxyType(
    {rule.name: rule for rule in (GREEDY, MATCH, REJECTION, BLOCK, TREE_REJECTION, TRAVERSAL, TYPICAL)}
)
"""Every rule that judges by coins. The coupling races instead: see ``matching.race`` and ``matching.follow``."""

LOSSLESS = tuple(name for name, rule in RULES.items() if rule.lossless)
"""The names of those that keep the target's law; a lossy rule is only ever chosen by its name."""

CHAIN_ONLY = frozenset({REJECTION.name, BLOCK.name})
"""Rules that refuse a draft in which a node has a sibling; all others judge chains and trees."""


def rule_named(name: str) -> Rule:
    """The rule of that name.

    Raises:
        UsageError: there is none; the message lists all names.
    """
    if name not in RULES:
        raise UsageError(f"rule is {name!r}; allowed: {', '.join(RULES)}")
    return RULES[name]
