"""What became of drafts, older ones counting less, and the acceptance to expect of the next one.

Knows nothing of costs or of what is drafted next.
"""

from dataclasses import dataclass

from outpace.decoding.turn import Turn

Step = tuple[int, int]
"""How many children a node on the path had, and which of them was accepted: its rank, or -1."""

GUESS, STRENGTH, TIE = 0.5, 2.0, 8.0
"""The acceptance supposed before anything was seen, how many observations a supposition is worth, and how many it is
worth that a depth is like the one above: without it a few unlucky deep drafts would be the last for a long time."""
_RANK_FALL = 3.0  # a further sibling is supposed to be right so many times less often


@dataclass
class Record:
    """Counts by depth and rank: how often a child was offered, and how often accepted.

    A child counts as offered where the path reached its parent, so that the rates are conditional. ``asked`` and
    ``found`` count whole drafts: a drafter may have none.
    """

    offered: list[list[float]]
    accepted: list[list[float]]
    asked: float = 0.0
    found: float = 0.0

    @classmethod
    def empty(cls, depth: int, ranks: int) -> "Record":
        """Nothing seen, of so many depths and siblings."""
        return cls([[0.0] * ranks for _ in range(depth)], [[0.0] * ranks for _ in range(depth)])

    def fade(self, memory: float) -> None:
        """Count what was seen less."""
        for table in (self.offered, self.accepted):
            table[:] = [[count * memory for count in ranks] for ranks in table]

    def learn(self, drafts: list[list[Step]], memory: float) -> None:
        """Drafts of one turn as ``outcomes`` tells them; empty ones say nothing about acceptance."""
        self.asked = self.asked * memory + len(drafts)
        self.found = self.found * memory + sum(map(bool, drafts))
        if not any(drafts):
            return
        self.fade(memory)
        for steps in drafts:
            for offered, accepted, (children, chosen) in zip(self.offered, self.accepted, steps, strict=False):
                for rank in range(min(children, len(offered))):
                    offered[rank] += 1
                if 0 <= chosen < len(accepted):
                    accepted[chosen] += 1

    def usual(self) -> list[list[float]]:
        """Rates by depth and rank as a pool gives them; a depth that it knows little of is like the one above."""
        above, strength, found = [GUESS / _RANK_FALL**rank for rank in range(len(self.offered[0]))], STRENGTH, []
        for accepted, offered in zip(self.accepted, self.offered, strict=True):
            above = [_leaning(*one, strength) for one in zip(accepted, offered, above, strict=True)]
            strength = TIE
            found.append(above)
        return found

    def rates(self, usual: list[list[float]]) -> list[list[float]]:
        """Rates by depth and rank, leaning on what is usual."""
        return [
            [_leaning(*one, STRENGTH) for one in zip(accepted, offered, guess, strict=True)]
            for accepted, offered, guess in zip(self.accepted, self.offered, usual, strict=True)
        ]

    def finds(self, pool: "Record") -> float:
        """The share of turns in which the drafter has a draft at all, leaning on the pool's."""
        return _leaning(self.found, self.asked, _leaning(pool.found, pool.asked, 1.0, STRENGTH), STRENGTH)


def _leaning(hits: float, tries: float, guess: float, strength: float) -> float:
    """The mean of a Beta law that began as so many observations with this mean."""
    return (hits + strength * guess) / (tries + strength)


def outcomes(turn: Turn) -> list[list[Step]]:
    """For each row, the steps that were decided: those of the accepted path, and the one at which it ended."""
    tree = turn.proposal.tree
    if tree.is_chain:
        counts = tree.num_nodes.tolist()
        return [
            [(1, 0)] * len(path) + [(1, -1)] * (len(path) < count)
            for path, count in zip(turn.paths, counts, strict=True)
        ]
    return [_walk(parents, path) for (_, parents), path in zip(tree.to_lists(), turn.paths, strict=True)]


def _walk(parents: list[int], path: list[int]) -> list[Step]:
    children: dict[int, list[int]] = {}
    for node, parent in enumerate(parents):
        children.setdefault(parent, []).append(node)
    steps = [
        (len(children[parent]), children[parent].index(node)) for parent, node in zip([-1, *path], path, strict=False)
    ]
    last = path[-1] if path else -1
    return [*steps, (len(children[last]), -1)] if last in children else steps
