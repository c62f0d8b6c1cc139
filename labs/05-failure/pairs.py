"""Who drafts in this lab, in which ways, and what is asked of them.

Knows nothing of what is measured.
"""

from dataclasses import dataclass
from pathlib import Path

import torch

from outpace.drafters.drafter import Drafter
from outpace.drafters.eagle import Eagle
from outpace.drafters.load import load_drafter
from outpace.drafters.lookup import Lookup
from outpace.drafters.small import Small
from outpace.evaluation.workloads import Question, questions, workload
from outpace.models.load import load_target
from outpace.models.target import Target
from outpace.models.toy import tiny_transformer
from outpace.training.anatomy import new_head, shape_for
from outpace.training.recipe import HeadSettings
from outpace.training.warm import warm_start

LOOKUP, HEAD, STUDENT, ITSELF = "lookup", "head", "student", "itself"


@dataclass(frozen=True)
class Way:
    """How a drafter drafts, and the rule that judges it where tokens are sampled.

    Args:
        drafter: who, by name.
        what: in words.
        tree, nodes, depth: as in ``generate``; without nodes the controller chooses.
        rule: at any temperature above 0; greedy texts are judged greedily.
        drawn: whether the draft is a sample of the drafter's law. Greedy texts have no such drafts.
    """

    drafter: str
    what: str
    tree: str = "chain"
    nodes: int | None = 5
    depth: int | None = 5
    rule: str | None = None
    drawn: bool = False

    def __str__(self) -> str:
        return f"{self.drafter}, {self.what}" + (f", {self.rule}" if self.rule else "")


WAYS = (
    Way(LOOKUP, "chain of 5", rule="match"),
    Way(HEAD, "likeliest chain of 5", "top-k:1", rule="match"),
    Way(HEAD, "top-3 tree of 24", "top-k:3", 24, rule="match"),
    Way(HEAD, "drawn chain of 5", rule="rejection", drawn=True),
    Way(HEAD, "drawn chain of 5", rule="block", drawn=True),
    Way(HEAD, "drawn tree of 24", "sampled:3", 24, rule="tree-rejection", drawn=True),
    Way(HEAD, "drawn tree of 24", "sampled:3", 24, rule="traversal", drawn=True),
    Way(STUDENT, "likeliest chain of 5", "top-k:1", rule="match"),
    Way(STUDENT, "drawn chain of 5", rule="block", drawn=True),
    Way(ITSELF, "likeliest chain of 5", "top-k:1", rule="match"),
    Way(ITSELF, "drawn chain of 5", rule="block", drawn=True),
)


@dataclass(frozen=True)
class Setting:
    """A target, those who draft for it, and prompts."""

    target: Target
    drafters: dict[str, Drafter]
    asked: list[Question]

    @property
    def ways(self) -> list[Way]:
        """The ways of those who are here."""
        return [way for way in WAYS if way.drafter in self.drafters]


def setting(target: str, head: Path, student: Path | None, per_category: int) -> Setting:
    """The default or another target, a trained head, a distilled model where there is one, and our own prompts."""
    opened = load_target(target)
    drafters: dict[str, Drafter] = {LOOKUP: Lookup(eos_ids=opened.eos_ids), HEAD: load_drafter(str(head), opened)}
    if student is not None:
        drafters[STUDENT] = load_drafter(str(student), opened)
    drafters[ITSELF] = Small(opened, opened)
    asked, _ = questions(workload(per_category=per_category), opened)
    return Setting(opened, drafters, asked)


def small_setting() -> Setting:
    """A tiny random target, a head that begins as its last layer, and prompts of random ids that repeat."""
    target = tiny_transformer(seed=3, spread=1.5, max_position_embeddings=256)
    settings = HeadSettings(norm_before_residual=False, norm_before_fc=False, fc_norm=False, norm_output=False)
    ids = torch.arange(target.vocab_size)
    head = new_head(shape_for(target, settings), ids, seed=0)
    warm_start(head, target, ids)
    drafters: dict[str, Drafter] = {LOOKUP: Lookup(), HEAD: Eagle(head, target), ITSELF: Small(target, target)}
    words = torch.randint(target.vocab_size, (2, 6), generator=torch.Generator().manual_seed(0)).tolist()
    asked = [Question(str(place), ("chat", "code")[place], row * 2) for place, row in enumerate(words)]
    return Setting(target, drafters, asked)
