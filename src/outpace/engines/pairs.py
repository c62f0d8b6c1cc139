"""Drafters that are published for a target: a small table with its sources, ``pairs.toml``.

Knows nothing of engines; nothing of it was measured here.
"""

import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path


@dataclass(frozen=True)
class Pair:
    """A target and who drafts for it.

    Args:
        target, drafter: Hugging Face ids.
        kind: of the drafter, one of ``guesser.KINDS``.
        source: who says so.
    """

    target: str
    drafter: str
    kind: str
    source: str


@cache
def pairs() -> tuple[Pair, ...]:
    """All of them; of one target the one to try first stands first."""
    said = tomllib.loads(Path(__file__).with_name("pairs.toml").read_text("utf-8"))
    return tuple(Pair(**one) for one in said["pairs"])
