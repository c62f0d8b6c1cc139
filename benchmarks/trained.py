"""What the scripts about drafters share: the flag that names a head, its weights, ways to draft, and what came of them.

Knows nothing of what is measured.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common import Estimate, Question, ratio_of_sums

from outpace.decoding.generate import generate
from outpace.decoding.options import Options
from outpace.decoding.stats import Speculation
from outpace.drafters.card import read_card
from outpace.drafters.drafter import Drafter
from outpace.drafters.head import Head
from outpace.drafters.layouts import read_layout
from outpace.drafters.load import shipped_drafter
from outpace.drafters.record import TargetRecord, is_card
from outpace.models.target import Target
from outpace.models.weights import find_weights


@dataclass(frozen=True)
class Way:
    """How a head drafts.

    Args:
        tree: how drafts branch, as ``--tree`` has it.
        nodes, depth: tokens a draft, and the longest path.
        temperature: of the text; 0 is greedy.
        rule: what judges drafts, by name; None takes the best one that fits.
    """

    tree: str
    nodes: int
    depth: int
    temperature: float = 0.0
    rule: str | None = None

    def __str__(self) -> str:
        branches = f"{self.tree}, {self.nodes} nodes, {self.depth} deep"
        return f"{f'chain of {self.depth}' if self.tree == 'chain' else branches}, T {self.temperature:g}"

    @property
    def options(self) -> Options:
        """The same as options of ``generate``."""
        return {
            "tree": self.tree,
            "num_draft_tokens": self.nodes,
            "depth": self.depth,
            "temperature": self.temperature,
            "rule": self.rule,
        }


def draft_argument(parser: argparse.ArgumentParser) -> None:
    """The flag that names a trained head."""
    parser.add_argument("--draft", metavar="FOLDER", help="a trained head; the one that comes along by default")


def folder_of(draft: str | None, target: Target) -> Path | None:
    """Where the head is that the flag names, or that comes along for the target; None where there is none."""
    return shipped_drafter(target) if draft is None else find_weights(draft)


def required(draft: str | None, target: Target) -> Path:
    """The same; without a head the script ends here."""
    folder = folder_of(draft, target)
    if folder is None:
        sys.exit(f"no head comes with outpace for {target.name}: name one with --draft")
    return folder


def read_head(folder: Path, target: Target) -> Head:
    """The weights of a head in any layout, fp32."""
    head = read_card(folder)[0] if is_card(folder) else read_layout(folder, TargetRecord.of(target).layers).head
    return head.float()


# ---- what becomes of drafts ----------------------------------------------------------------------------------------


def spoken(target: Target, drafter: Drafter, question: Question, way: Way, max_new_tokens: int) -> Speculation:
    """How the drafting of a prompt went; what is left to chance follows from the number of the question."""
    seed = None if way.temperature == 0 else question.question_id
    result = generate(target, drafter, question.ids, max_new_tokens=max_new_tokens, seed=seed, **way.options)
    return result.stats.speculation


def figures(way: Way, category: str, found: Sequence[Speculation]) -> dict[str, Any]:
    """tau and acceptance by position of some prompts, with their intervals."""
    turns = [one.turns for one in found]
    return {
        "way": str(way),
        "category": category,
        "prompts": len(found),
        "rule": "+".join(sorted({one.rule for one in found} - {"none"})),
        "tau": ratio_of_sums([one.emitted for one in found], turns),
        "acceptance_by_position": [_acceptance(found, place) for place in range(way.depth)],
        "drafted_per_turn": sum(one.drafted for one in found) / max(1, sum(turns)),
    }


def _acceptance(found: Sequence[Speculation], place: int) -> Estimate | None:
    """At one position; None where no draft came so far."""
    tried, passed = (
        [counts[place] if place < len(counts) else 0 for counts in part]
        for part in ([one.tried for one in found], [one.passed for one in found])
    )
    return ratio_of_sums(passed, tried) if any(tried) else None
