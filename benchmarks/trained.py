"""What the scripts about trained heads share: the flag that names one, its weights, and the ways in which it drafts.

Knows nothing of what is measured.
"""

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path

from outpace.decoding.options import Options
from outpace.drafters.card import read_card
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
