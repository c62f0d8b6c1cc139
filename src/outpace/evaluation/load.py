"""Does drafting still pay where many sequences are decoded at once? Streams of prompts through so many slots.

Knows nothing of where prompts come from, of how results are shown, or of servers.

At each concurrency a stream of prompts is decoded with that many slots, an ended sequence giving its slot to the next
prompt: drafted and plain, one behind the other, in rounds (``rounds.py``). Clocks run around the whole of a stream,
prompts read and slots that stand empty at its end included; text is not made of the tokens. What a request sees is
counted from the turn that begins to read its prompt.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from outpace.decoding.control import Control
from outpace.decoding.costs import Conditions, CostTable, cost_table
from outpace.decoding.loop import Request, decode
from outpace.decoding.options import Options, control_of, sampling_of
from outpace.decoding.stats import Speculation
from outpace.decoding.turn import Turn
from outpace.drafters.budget import Budget
from outpace.drafters.drafter import Drafter, deepest
from outpace.errors import NumericsError
from outpace.evaluation.benchmark import Clock, Group, Measured, Protocol, Run, Setting
from outpace.evaluation.machine import peak_rss_mb, reset_peak
from outpace.evaluation.rounds import in_rounds, streams
from outpace.evaluation.workloads import Question
from outpace.models.staging import Progress
from outpace.models.target import Target

WARM = 4
"""New tokens of the unmeasured texts with which every way begins."""
ROUNDS, BUDGET = 5, "15m"
"""Rounds and time where nothing else is asked for."""


@dataclass(frozen=True, kw_only=True)
class Flow(Run):
    """A stream decoded once; ``rate`` is that of all its texts together.

    Args:
        first_s: for each text, seconds from the beginning of its prompt to its first token.
        pace_s: for each text, seconds a token behind the first one; None for a text of one token.
        turns: verification forwards, and ``turning_s`` what they took together: the rest of the time reads prompts.
        in_flight: sequences a turn, on average.
        asked: drafts that were asked for, a sequence and turn each, and ``found`` those of one token or more.
        steps: draft steps of the turns that drafted, on average.
    """

    first_s: list[float]
    pace_s: list[float | None]
    turns: int
    turning_s: float
    in_flight: float
    asked: int
    found: int
    steps: float


@dataclass(frozen=True)
class Loaded:
    """All streams.

    Args:
        levels: what was measured at each concurrency; its groups are streams, decoded once each.
        costs: what turns cost there, for each setting in order.
        rounds: how many were measured, of ``asked_rounds``.
        seconds: what all of it took.
        deepest: the longest path that the drafter can draft; None where it has no limit of its own.
    """

    levels: dict[int, Measured]
    costs: dict[int, list[CostTable]]
    rounds: int
    asked_rounds: int
    seconds: float
    deepest: int | None = None


class _Watched:
    """A control that counts what it asked for and what came of it."""

    def __init__(self, control: Control) -> None:
        self.control = control
        self.max_depth, self.max_nodes, self.branching = control.max_depth, control.max_nodes, control.branching
        self.depths: list[int] = []
        self.turns = self.rows = self.asked = self.found = self.steps = self.drafting = 0
        self.seconds = 0.0

    def admit(self, count: int) -> None:
        self.control.admit(count)

    def budget(self, rooms: list[int], lengths: list[int], grades: list[int] | None = None) -> Budget:
        budget = self.control.budget(rooms, lengths, grades)
        self.depths = list(budget.depths)
        return budget

    def learn(self, turn: Turn) -> None:
        found = turn.proposal.tree.num_nodes.tolist()
        self.turns, self.rows, self.seconds = self.turns + 1, self.rows + len(found), self.seconds + turn.total_s
        self.asked += sum(depth > 0 for depth in self.depths)
        self.found += sum(nodes > 0 for nodes in found)
        if any(found):
            self.drafting += 1
            self.steps += max(self.depths)
        self.control.learn(turn)

    def select(self, rows: list[int]) -> None:
        self.control.select(rows)


_Way = tuple[float, int | None]
"""A temperature, and which of the level's settings drafts; None decodes plainly."""


def measure(
    target: Target,
    drafter: Drafter,
    asked: Sequence[Question],
    levels: Mapping[int, Sequence[Setting]],
    protocol: Protocol,
    progress: Progress | None = None,
    clock: Clock = time.perf_counter,
) -> Loaded:
    """Decode the streams of every level in every way, round by round, as often as the budget allows.

    Args:
        target, drafter: who verifies and who guesses.
        asked: the prompts, at least one.
        levels: for each concurrency the ways of drafting, at least one; plain decoding is measured once a temperature.
        protocol: its ``repeats`` is the most rounds; ``concurrency`` is not read.
        progress: told of streams done in this round.
        clock: seconds, rising.

    Raises:
        UsageError, UnsupportedError, NumericsError: as for ``generate``.
    """
    begin = clock()
    ways: dict[int, list[_Way]] = {}
    costs: dict[int, list[CostTable]] = {}
    for done, (level, settings) in enumerate(levels.items()):
        if progress is not None:
            progress(done, len(levels), "warming up")
        heats = dict.fromkeys(setting.temperature for setting in settings)
        ways[level] = [(heat, None) for heat in heats] + [(one.temperature, at) for at, one in enumerate(settings)]
        warm = replace(protocol, max_new_tokens=min(WARM, protocol.max_new_tokens))
        for heat, place in ways[level]:
            setting = None if place is None else settings[place]
            _flow(target, drafter, streams(asked, level, 1)[0][:level], level, warm.options(setting, heat), clock)
        costs[level] = [_costs(target, drafter, level, protocol.options(one, one.temperature)) for one in settings]
    offered = {level: streams(asked, level, protocol.repeats) for level in levels}
    streams_a_round = sum(map(len, ways.values()))
    ran = 0

    def once(level: int, way: _Way, place: int) -> Flow:
        nonlocal ran
        if progress is not None:
            progress(ran % streams_a_round, streams_a_round, f"round {place + 1}, {level} at once")
        ran += 1
        heat, at = way
        setting = None if at is None else levels[level][at]
        return _flow(target, drafter, offered[level][place], level, protocol.options(setting, heat), clock)

    found = in_rounds(ways, protocol.repeats, protocol.budget_s - (clock() - begin), once, clock=clock)
    rounds = min(len(flows) for flows in next(iter(found.values())).values())
    return Loaded(
        levels={level: _measured(offered[level][:rounds], levels[level], found[level]) for level in levels},
        costs=costs,
        rounds=rounds,
        asked_rounds=protocol.repeats,
        seconds=clock() - begin,
        deepest=deepest(drafter),
    )


def _measured(
    offered: Sequence[Sequence[Question]], settings: Sequence[Setting], found: Mapping[_Way, Sequence[Flow]]
) -> Measured:
    flows: dict[_Way, list[list[Run]]] = {way: [[flow] for flow in ran] for way, ran in found.items()}
    return Measured(
        groups=[Group(None, list(stream)) for stream in offered],
        offered=len(offered),
        settings=list(settings),
        plain={heat: ran for (heat, place), ran in flows.items() if place is None},
        drafted=[flows[one.temperature, place] for place, one in enumerate(settings)],
        repeats=1,
        seconds=sum(flow.seconds for ran in found.values() for flow in ran),
    )


def _costs(target: Target, drafter: Drafter, level: int, options: Options) -> CostTable:
    """What turns cost at this level: for ``auto`` the very table that it goes by."""
    control = control_of(target, drafter, options, level)
    conditions = Conditions(
        batch=level,
        rows=1 + control.max_nodes,
        sampling=sampling_of(options),
        seeded=options.get("seed") is not None and options.get("rule") is None,
        branching=control.branching,
    )
    return cost_table(target, drafter, conditions)


def _flow(
    target: Target, drafter: Drafter, stream: Sequence[Question], level: int, options: Options, clock: Clock
) -> Flow:
    drafts = "num_draft_tokens" in options
    requests = [
        Request(
            ids=question.ids,
            sampling=sampling_of(options),
            max_new_tokens=options["max_new_tokens"],
            eos_ids=target.eos_ids,
            seed=options["seed"],
        )
        for question in stream
    ]
    watched = _Watched(control_of(target, drafter if drafts else None, options, level))
    texts: list[list[int]] = [[] for _ in stream]
    first, pace = [0.0] * len(stream), [None] * len(stream)  # type: list[float], list[float | None]
    spoken: dict[int, Speculation] = {}
    reset_peak()
    begin = clock()
    emissions = decode(
        target,
        drafter if drafts else None,
        requests,
        control=watched,
        slots=level,
        rule=options.get("rule"),
    )
    for emission in emissions:
        texts[emission.index] += emission.ids
        if emission.error is not None:
            raise NumericsError(f"prompt {stream[emission.index].key!r}: {emission.error}")
        if emission.speculation is not None and emission.timing is not None:
            behind = len(texts[emission.index]) - 1
            first[emission.index] = emission.timing.prefill_s
            pace[emission.index] = emission.timing.decode_s / behind if behind else None
            spoken[emission.index] = emission.speculation
    seconds = clock() - begin
    return Flow(
        seconds=seconds,
        texts=texts,
        speculations=[spoken[place] for place in range(len(stream))],
        peak_mb=peak_rss_mb(),
        first_s=first,
        pace_s=pace,
        turns=watched.turns,
        turning_s=watched.seconds,
        in_flight=watched.rows / watched.turns if watched.turns else 0.0,
        asked=watched.asked,
        found=watched.found,
        steps=watched.steps / watched.drafting if watched.drafting else 0.0,
    )
