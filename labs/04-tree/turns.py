"""Texts decoded with drafts of one shape, turn by turn, and what the target would have said at every turn.

Knows nothing of figures.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from outpace.decoding.acceptance import outcomes
from outpace.decoding.control import Fixed
from outpace.decoding.loop import Request, decode
from outpace.decoding.turn import Turn
from outpace.drafters.budget import Branching
from outpace.drafters.drafter import Drafter
from outpace.models.target import Target
from outpace.verification.probabilities import Sampling

SEED = 1
"""With a seed and no named rule the text at any temperature is the plain seeded text: shared noise."""


@dataclass(frozen=True)
class Shape:
    """How drafts branch, how deep, and with how many nodes at most."""

    name: str
    tree: str
    depth: int
    nodes: int


@dataclass(frozen=True)
class Seen:
    """One turn of one text: where it began, its draft, and the path that was accepted."""

    start: int
    tokens: list[int]
    parents: list[int]
    path: list[int]
    ranks: list[int]
    next_token: int


@dataclass
class Decoded:
    """One text: its new tokens, what its turns emitted within it, and the turns."""

    ids: list[int] = field(default_factory=list)
    emitted: int = 0
    turns: int = 0
    seen: list[Seen] = field(default_factory=list)


def decoded(
    target: Target, drafter: Drafter | None, prompts: Sequence[list[int]], tokens: int, temperature: float, shape: Shape
) -> list[Decoded]:
    """Every prompt continued, all at once, with each turn as it went; without a drafter, plainly."""
    texts = [Decoded() for _ in prompts]
    lengths = [0] * len(prompts)

    def watch(turn: Turn, indices: list[int]) -> None:
        ranks = outcomes(turn)
        for row, index in enumerate(indices):
            (drafted, parents), path = turn.proposal.tree.to_lists()[row], turn.paths[row]
            chosen = [rank for _, rank in ranks[row][: len(path)]]
            if lengths[index]:  # the prompt's own forward drafts nothing
                seen = Seen(lengths[index], drafted, parents, path, chosen, turn.emitted[row][-1])
                texts[index].seen.append(seen)
            lengths[index] += len(turn.emitted[row])

    requests = [
        Request(prompt, Sampling(temperature), tokens, target.eos_ids, seed=SEED if temperature else None)
        for prompt in prompts
    ]
    control = Fixed(Branching.parse(shape.tree), shape.depth, shape.nodes) if drafter is not None else None
    for emission in decode(target, drafter, requests, control=control, observer=watch):
        text = texts[emission.index]
        text.ids += emission.ids
        if emission.speculation is not None:
            text.emitted, text.turns = emission.speculation.emitted, emission.speculation.turns
    return texts


def longest_right(turn: Seen, text: Sequence[int]) -> int:
    """The longest path of a draft that says what the plain text says there."""
    node, depth = -1, 0
    for token in text[turn.start :]:
        below = [child for child, parent in enumerate(turn.parents) if parent == node and turn.tokens[child] == token]
        if not below:
            break
        node, depth = below[0], depth + 1
    return depth


def paths_checked(texts: Sequence[Decoded], plain: Sequence[Decoded]) -> tuple[int, int]:
    """Of how many turns the accepted path is the longest right one, and of how many that can be said.

    It cannot be said of a path that goes on behind the end of the text: nobody knows what plain decoding would say.
    """
    right = total = 0
    for text, reference in zip(texts, plain, strict=True):
        for turn in text.seen:
            if turn.start + len(turn.path) < len(reference.ids):
                total += 1
                right += longest_right(turn, reference.ids) == len(turn.path)
    return right, total


def by_rank(texts: Sequence[Decoded]) -> list[int]:
    """How many accepted tokens were the drafter's first choice, its second, and its third."""
    counts = Counter(rank for text in texts for turn in text.seen for rank in turn.ranks)
    return [counts[rank] for rank in range(max(counts, default=0) + 1)]
