"""Walks over recorded texts: turn by turn by a controller, or all turns at once with their chances.

Knows nothing of how a draft is made up or of what a setting is called.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from outpace.decoding.control import Control
from outpace.decoding.costs import CostTable
from outpace.decoding.turn import Turn
from outpace.drafters.drafter import Proposal
from outpace.models.target import Scores
from outpace.tuning.drafts import NOTHING, Draft, Drafting
from outpace.tuning.recording import Text
from outpace.verification.coins import Keys
from outpace.verification.expectation import TurnCosts
from outpace.verification.tree import DraftTree
from outpace.verification.verdict import Verdict

CONTEXT = 64
"""Costs are looked up by context in steps of so many tokens."""


@dataclass
class Counts:
    """What decoding a text, or a group of texts at once, took: turns of each row, and milliseconds of all.

    ``tried`` and ``passed`` are by position, as in ``decoding/stats.py``; where chance decides, all are expectations.
    ``tosses`` counts how often a coin did, ``copied`` turns in which lookup drafted in place of a model.
    """

    tokens: int = 0
    emitted: float = 0.0
    turns: float = 0.0
    plain_turns: float = 0.0
    unsure: float = 0.0
    copied: float = 0.0
    tried: list[float] = field(default_factory=list)
    passed: list[float] = field(default_factory=list)
    ms: float = 0.0
    plain_ms: float = 0.0
    tosses: int = 0

    def add(self, draft: Draft, visited: float, matched: Sequence[float]) -> None:
        """Count a turn that began with chance ``visited`` and accepts i tokens or more with chance ``matched[i]``."""
        self.turns += visited
        self.plain_turns += visited * (not draft.parents)
        self.unsure += visited * (not draft.sure)
        self.copied += visited * (draft.copied and bool(draft.parents))
        for counts in (self.tried, self.passed):
            counts += [0.0] * (draft.depth - len(counts))
        for place in range(min(draft.depth, len(matched))):
            self.tried[place] += visited * matched[place]
            self.passed[place] += visited * (matched[place + 1] if place + 1 < len(matched) else 0.0)


class Prices:
    """What turns cost, looked up once for each batch and step of the context.

    Args:
        costs: the table; None where nobody asks for time.
        rows: the most rows a sequence.
    """

    def __init__(self, costs: CostTable | None, rows: int) -> None:
        self.costs, self.rows = costs, rows
        self.known: dict[tuple[int, int], TurnCosts] = {}

    def turn(self, batch: int, context: int, nodes: int, depth: int, asked: bool) -> float:
        """A turn in which the widest draft has ``nodes``; ``asked`` says whether anybody was whose ``depth`` steps cost
        something: a draft that was not found costs the search, a copy in place of a model's draft nothing."""
        at = self._at(batch, context)
        if at is None:
            return 0.0
        return (at.draft_turn + depth * at.draft_step if asked else 0.0) + at.verify_ms(1 + nodes)

    def reading(self, prompts: Sequence[int]) -> tuple[float, float]:
        """Prompts that are read together, with the drafter and plainly."""
        plainly, drafting = (0.0, 0.0) if self.costs is None else self.costs.read
        padded = len(prompts) * max(prompts)
        return padded * drafting, padded * plainly

    def _at(self, batch: int, context: int) -> TurnCosts | None:
        if self.costs is None:
            return None
        step = batch, CONTEXT * round(context / CONTEXT)
        if step not in self.known:
            self.known[step] = self.costs.at(batch, step[1], self.rows)
        return self.known[step]


def expected(text: Text, drafts: Drafting, depth: int, nodes: int, prices: Prices) -> Counts:
    """One text, decoded alone with the same draft in every turn: all ways in which turns may fall, by their chances.

    The chance that a turn begins at a place is summed over those from which a turn may end right before it.
    """
    places = len(text.places)
    found = Counts(tokens=places, emitted=float(places - 1))
    begun = [0.0] * (places + 1)
    begun[1 if places > 1 else places] = 1.0
    found.ms, found.plain_ms = prices.reading([text.prompt])
    for place in range(1, places):
        context = text.prompt + place
        found.plain_ms += prices.turn(1, context, 0, 0, False)
        if not begun[place]:
            continue
        asked = min(text.limit - place - 1, depth)
        draft = drafts(text, place, asked, nodes)
        matched = (1.0, *draft.chances)
        found.add(draft, begun[place], matched)
        found.ms += begun[place] * prices.turn(1, context, *_size([draft], [asked]))
        for accepted, chance in enumerate(matched):
            ends = chance - (matched[accepted + 1] if accepted + 1 < len(matched) else 0.0)
            begun[min(places, place + accepted + 1)] += begun[place] * ends
    return found


def simulated(
    texts: Sequence[Text], drafts: Drafting, control: Control, prices: Prices, coins: np.random.Generator
) -> Counts:
    """Texts decoded at once, turn by turn as the loop does; a row that has ended leaves the batch.

    Args:
        texts: one row each.
        drafts: what is drafted.
        control: asked before every turn, told after it; it belongs to this call.
        coins: decide where the text leaves it to chance.
    """
    rows = [(text, 1) for text in texts if len(text.places) > 1]
    found = Counts(tokens=sum(len(text.places) for text in texts))
    found.ms, found.plain_ms = prices.reading([text.prompt for text in texts])
    found.plain_ms += _plainly(texts, prices)
    control.admit(len(texts))
    if len(rows) < len(texts):
        control.select([row for row, text in enumerate(texts) if len(text.places) > 1])
    while rows:
        lengths = [text.prompt + place - 1 for text, place in rows]
        rooms = [max(0, text.limit - place - 1) for text, place in rows]
        budget = control.budget(rooms, lengths, _grades(rows))
        asked = list(zip(rows, budget.depths, budget.nodes, strict=True))
        turn = [drafts(text, place, depth, nodes) if depth else NOTHING for (text, place), depth, nodes in asked]
        accepted = [_toss(draft.chances, coins) for draft in turn]
        found.tosses += sum(min(draft.chances, default=1.0) < 1 for draft in turn)
        control.learn(_told(turn, accepted))
        found.ms += prices.turn(len(rows), max(lengths) + 1, *_size(turn, budget.depths))
        going = []
        for row, ((text, place), draft, count) in enumerate(zip(rows, turn, accepted, strict=True)):
            found.add(draft, 1.0, (1.0,) * (1 + count))
            end = min(len(text.places), place + count + 1)
            found.emitted += end - place
            rows[row] = text, end
            if end < len(text.places):
                going.append(row)
        if len(going) < len(rows):
            control.select(going)
            rows = [rows[row] for row in going]
    return found


def _size(turn: Sequence[Draft], depths: Sequence[int]) -> tuple[int, int, bool]:
    """Nodes, draft steps and whether any were asked for, as ``Prices.turn`` takes them; copies take no steps."""
    asked = [draft for draft, depth in zip(turn, depths, strict=True) if depth and not draft.copied]
    return max(len(draft.parents) for draft in turn), max((draft.depth for draft in asked), default=0), bool(asked)


def _grades(rows: Sequence[tuple[Text, int]]) -> list[int] | None:
    """What the drafter said that the draft of each row would be worth, where it said so of all."""
    said = [text.places[place].grade for text, place in rows]
    return None if None in said else [grade or 0 for grade in said]


def _plainly(texts: Sequence[Text], prices: Prices) -> float:
    """Milliseconds of plain decoding: every turn says one token of each text that goes on."""
    total = 0.0
    for step in range(1, max(len(text.places) for text in texts)):
        going = [text for text in texts if len(text.places) > step]
        total += prices.turn(len(going), max(text.prompt for text in going) + step, 0, 0, False)
    return total


def _toss(chances: Sequence[float], coins: np.random.Generator) -> int:
    """How many tokens are accepted: as many as have a chance above one coin, since chances fall along a path."""
    if all(chance >= 1 for chance in chances):
        return len(chances)
    coin = coins.random()
    return sum(chance > coin for chance in chances)


def _told(drafts: Sequence[Draft], accepted: Sequence[int]) -> Turn:
    """A turn with these drafts and so many accepted tokens, for a controller: it sees neither tokens nor laws."""
    tree = DraftTree.from_lists([([0] * len(draft.parents), list(draft.parents)) for draft in drafts])
    paths = [list(draft.path[:count]) for draft, count in zip(drafts, accepted, strict=True)]
    batch, nowhere = len(drafts), torch.zeros(len(drafts), dtype=torch.int64)
    return Turn(
        proposal=Proposal(tree),
        scores=Scores(torch.zeros(batch, 1, 1)),
        verdict=Verdict(tree.tokens[:, :0], nowhere, nowhere, "replay", True),
        rules=("replay",) * batch,
        emitted=[[0] * (1 + count) for count in accepted],
        paths=paths,
        keys=Keys((0,) * batch, (0,) * batch, (1,) * batch, (False,) * batch),
        errors=(None,) * batch,
        draft_s=0.0,
        verify_s=0.0,
        total_s=0.0,
    )
