"""The search: probe a few prompts, replay to prune, then halve the field on real runs until the time is up.

Knows nothing of how a winner is worded or written. A search spends its time on three things: what turns cost, probes of
a few prompts, and real runs, drafted and plain, side by side. What stands when it is interrupted can be concluded from.
"""

import math
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from outpace.decoding.cost_grid import tuning_costs
from outpace.decoding.costs import CostTable
from outpace.decoding.options import AUTO_NODES, costs_of
from outpace.decoding.plan import ALL
from outpace.drafters.budget import Branching
from outpace.drafters.drafter import Drafter
from outpace.errors import NumericsError, OutpaceError, UsageError
from outpace.evaluation.benchmark import Clock, Group, grouped, measure
from outpace.evaluation.workloads import Question
from outpace.models.staging import Progress, silent
from outpace.models.target import Target
from outpace.tuning.candidates import PLAIN, Candidate, all_candidates
from outpace.tuning.halving import SIZES, entrants, finished, own_entrants, rounds_left, survivors
from outpace.tuning.joined import joined_too, model_name, parts
from outpace.tuning.probing import predict, record
from outpace.tuning.recording import Recording
from outpace.tuning.replay import Prediction
from outpace.tuning.task import Level, Task
from outpace.tuning.trials import Place, Trials

COSTS_SHARE, PROBES_SHARE = 0.1, 0.25
"""Of the time, what costs and probes may take."""
REPLAY_SHARE, SWEEP_SHARE = 0.1, 0.4
"""Of the time of a load, what replaying may take, and the first round over all categories."""
MOST_COSTS_S = 60.0
PASSES = 3
"""Times that the finalists decode every prompt, if the time allows."""
WARM_TOKENS = 8
BATCHES, ROOMY_S = (1, 4, 16), 240.0
"""Batches whose costs are measured besides those asked for, to tell where drafting stops paying, where so many seconds
are given."""
_CONTEXT = 256  # tokens of a text, for a first estimate of what a run takes


@dataclass
class Found:
    """What is known of one load.

    Args:
        level: which.
        trials: what was measured; None where everything is predicted.
        costs: by drafter.
        promises: predictions by category, and of ``all``.
        alive: who was measured to the end for all prompts, and by category besides.
        fates: what became of everyone else, in words.
        beyond: what is promised at loads that were not asked for: the best speed-up by batch.
    """

    level: Level
    trials: Trials | None
    costs: Mapping[str, CostTable]
    promises: dict[str, dict[Candidate, Prediction]]
    alive: Mapping[str, list[Candidate]] = field(default_factory=dict)
    fates: dict[Candidate, str] = field(default_factory=dict)
    beyond: dict[int, float] = field(default_factory=dict)

    def finalists(self, category: str = ALL) -> list[Candidate]:
        """Who was measured to the end on the prompts of a category, or on all."""
        return list(dict.fromkeys([*self.alive.get(ALL, []), *self.alive.get(category, [])]))


@dataclass
class Searched:
    """All that a search found.

    Args:
        task: what was asked for.
        categories: of the prompts, in their order; None where a prompt names none.
        candidates: all of them, the simplest first.
        levels: one a load that was reached.
        notes: what went wrong on the way, a sentence each.
        interrupted: whether it was ended from outside.
        seconds: what it took.
    """

    task: Task
    categories: list[str | None]
    candidates: list[Candidate]
    levels: list[Found] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    interrupted: bool = False
    seconds: float = 0.0


def search(
    target: Target,
    drafters: Mapping[str, Drafter],
    asked: Sequence[Question],
    task: Task,
    *,
    costs: Mapping[str, CostTable] | None = None,
    progress: Progress = silent,
    clock: Clock = time.perf_counter,
) -> Searched:
    """Find out what pays, within the time.

    Args:
        target: who decides.
        drafters: the candidates by their names for ``load_drafter``; plain decoding is always one too.
        asked: prompts, at least one.
        task: what is asked for.
        costs: of another machine, by drafter: everything is then predicted and no run is timed, so that nobody knows
            what a sequence waits, and goodput cannot be asked for.
        progress: told how many seconds are gone, of how many.
        clock: seconds, rising.

    Raises:
        UsageError: goodput with costs of another machine, or a category of prompts that is called ``all``.
        NumericsError: the target's logits are no distribution.
        KeyboardInterrupt: interrupted before anything was known; later an interrupt ends the search and is noted.
    """
    begin = clock()
    if costs is not None and task.goal == "goodput":
        raise UsageError(
            "goal is goodput and costs are given, so that no wait is timed; allowed with costs: latency, throughput"
        )
    if any(question.category == ALL for question in asked):
        raise UsageError(f"a prompt's category is {ALL!r}, as plans call all prompts; allowed: another name, or none")
    notes = []
    if drafters and not target.can_rewind:
        notes = [f"nobody can draft here: the target {target.name!r} cannot rewind, and decodes plainly alone"]
        drafters = {}
    drawn = any(task.drawn(heat) for heat in task.temperatures)
    everyone = all_candidates(list(drafters.items()), target, drawn=drawn, rule=task.rule)
    found = Searched(task, list(dict.fromkeys(question.category for question in asked)), everyone, notes=notes)
    going = _Search(target, drafters, asked, found, progress, clock, begin)
    try:
        going.run(costs)
    except KeyboardInterrupt:
        found.interrupted = True
        if not found.levels:
            raise
    found.seconds = clock() - begin
    return found


@dataclass
class _Search:
    """A search under way."""

    target: Target
    drafters: Mapping[str, Drafter]
    asked: Sequence[Question]
    found: Searched
    progress: Progress
    clock: Clock
    begin: float
    seconds: dict[tuple[Level, Candidate], list[float]] = field(default_factory=dict)
    ready: set[tuple[Level, Candidate]] = field(default_factory=set)

    @property
    def task(self) -> Task:
        return self.found.task

    @property
    def end(self) -> float:
        return self.begin + self.task.budget_s

    def told(self, what: str) -> None:
        self.progress(min(int(self.clock() - self.begin), int(self.task.budget_s)), int(self.task.budget_s), what)

    def candidates(self, temperature: float) -> list[Candidate]:
        """Who makes sense there: where nothing is drawn, no tree of drawn children."""
        drawn = self.task.drawn(temperature)
        return [one for one in self.found.candidates if drawn or Branching.parse(one.tree).kind != "sampled"]

    def run(self, given: Mapping[str, CostTable] | None) -> None:
        """All probes, then load by load."""
        heats = sorted(self.task.temperatures)
        costs = {heat: self.costs(heat) if given is None else given for heat in heats}
        share = self.task.budget_s * (PROBES_SHARE if given is None else 1.0) / len(heats)
        recordings: dict[float, dict[str, Recording]] = {}
        for heat in heats:
            until = min(self.clock() + share, self.end)
            apart, notes = record(
                self.target, parts(self.drafters), self.asked, self.task, heat, until, clock=self.clock, told=self.told
            )
            recordings[heat], more = joined_too(apart, self.drafters)
            self.found.notes += [note for note in (*notes, *more) if note not in self.found.notes]
        levels = self.task.levels
        for place, level in enumerate(levels):
            heat = level.temperature
            names = [name for name in self.found.categories if name is not None]
            share = (self.end - self.clock()) / (len(levels) - place)
            until = self.clock() + REPLAY_SHARE * share if given is None else math.inf
            self.told(f"{level.words}: replaying")
            promises = predict(
                recordings[heat],
                self.found.candidates,
                costs[heat],
                self.task,
                level,
                names,
                until=until,
                clock=self.clock,
            )
            trials = Trials(each=self.task.goal == "latency") if given is None else None
            self.found.levels.append(here := Found(level, trials, costs[heat], promises))
            if level.batch == min(self.task.batches):
                here.beyond = self.beyond(recordings[heat], costs[heat], heat, until)
            if trials is not None and self.drafters:
                self.halve(here, trials, self.clock() + (self.end - self.clock()) / (len(levels) - place))

    def beyond(
        self, recordings: Mapping[str, Recording], costs: Mapping[str, CostTable], temperature: float, until: float
    ) -> dict[int, float]:
        """The best promise of a fixed draft at every load whose costs are known and that nobody asked for."""
        fixed = [one for one in self.found.candidates if one.num_draft_tokens != "auto"]
        loads = {batch for table in costs.values() for batch, _ in table.cells} - {*self.task.batches}
        found = {}
        for batch in sorted(loads):
            level = Level(batch, temperature)
            promises = predict(recordings, fixed, costs, self.task, level, until=until, clock=self.clock)[ALL]
            found[batch] = max((one.speedup or 0.0 for one in promises.values()), default=0.0)
        return found

    def costs(self, temperature: float) -> dict[str, CostTable]:
        """What turns cost with every drafter; one that cannot draft here is noted and has none. Of two that are joined
        only the model costs something: what was measured of it stands for both."""
        task = self.task
        apart = sorted(self.drafters, key=lambda name: model_name(name, self.drafters[name]) != name)
        models = {name: model_name(name, self.drafters[name]) for name in apart}
        whole = min(MOST_COSTS_S, COSTS_SHARE * task.budget_s / len(task.temperatures))
        found: dict[str, CostTable | None] = {}
        for name, model in models.items():
            if model not in found:
                found[model] = self.cost(name, temperature, whole / len({*models.values()}))
        return {name: table for name, model in models.items() if (table := found[model]) is not None}

    def cost(self, name: str, temperature: float, seconds: float) -> CostTable | None:
        """What turns cost with one drafter, measured for so long; None where it cannot draft here, which is noted."""
        task = self.task
        batches = {*task.batches, *(BATCHES if task.budget_s >= ROOMY_S else ())}
        own = [one for one in self.candidates(temperature) if one.drafter == name]
        shapes = {one.tree for one in own if one.tree != "chain"}
        self.told(f"measuring what {name} costs here")
        try:
            return tuning_costs(
                self.target,
                self.drafters[name],
                batches=sorted(batches),
                contexts=(_CONTEXT,),
                rows=1 + (AUTO_NODES if shapes else max(one.depth or 0 for one in own)),
                sampling=task.sampling(temperature),
                seeded=task.seeded(),
                branchings=[Branching.parse(shape) for shape in sorted(shapes)],
                seconds=seconds,
            )
        except OutpaceError as error:
            self.found.notes.append(f"{name} cannot draft here: {error.message}")
            return None

    # ---- real runs ---------------------------------------------------------------------------------------------------

    def halve(self, here: Found, trials: Trials, until: float) -> None:
        """Round by round: everyone still in decodes more prompts, and the better half goes on."""
        groups = {
            name: grouped([one for one in self.asked if one.category == name], here.level.batch)
            for name in self.found.categories
        }
        names = [name for name in self.found.categories if name is not None]
        here.alive = entrants(self.candidates(here.level.temperature), here.promises, names, self.size(here, until))
        taken: Counter[str | None] = Counter()
        while True:
            began, sweeps = self.clock(), 0
            share = (until - began) / rounds_left(here.alive)
            while sweeps == 0 or finished(here.alive) or (self.clock() - began) * (1 + 1 / sweeps) <= share:
                before = sum(taken.values())
                if not self.sweep(here, trials, groups, taken, until):
                    return
                sweeps += 1
                if sum(taken.values()) == before:  # every prompt was decoded as often as it may be
                    break
            if finished(here.alive):
                return
            here.alive = survivors(here.alive, trials, here.promises)

    def sweep(
        self,
        here: Found,
        trials: Trials,
        groups: Mapping[str | None, list[Group]],
        taken: Counter[str | None],
        until: float,
    ) -> bool:
        """One more group of every category; False as soon as the next one would end too late."""
        for name, own in groups.items():
            place = Place(name, taken[name] % len(own), taken[name] // len(own))
            if place.passed >= PASSES:
                continue
            if self.clock() + self.expected(here, here.finalists(name or ALL)) > until:
                return False
            self.prepare(here, own[0], name or ALL)
            field = here.finalists(name or ALL)
            if not field:
                continue
            if self.clock() + self.expected(here, field) > until:
                return False
            self.told(f"{here.level.words}: {name or 'prompts'}, plain decoding and {len(field)} settings")
            self.one(here, trials, place, own[place.group], field)
            taken[name] += 1
        return True

    def size(self, here: Found, until: float) -> int:
        """How many may begin, for the first round to leave time for others."""
        room = SWEEP_SHARE * (until - self.clock())
        once = self.expected(here, []) * max(1, len(self.found.categories))
        return next((count for count in SIZES if once * (1 + count + own_entrants(count)) <= room), SIZES[-1])

    def expected(self, here: Found, field: Sequence[Candidate]) -> float:
        """Seconds of one group, decoded plainly and by everyone: as before, or by what plain turns cost."""
        known = [one for (level, _), found in self.seconds.items() if level == here.level for one in found]
        table = next(iter(here.costs.values()), None)
        guess = sum(known) / len(known) if known else 0.0
        if not known and table is not None:
            turn = table.at(here.level.batch, _CONTEXT, 1).verify_ms(1)
            guess = (self.task.max_new_tokens * turn + here.level.batch * _CONTEXT * table.read[0]) / 1e3
        times = [self.seconds.get((here.level, one), [guess]) for one in (PLAIN, *field)]
        return sum(sum(found) / len(found) for found in times)

    def prepare(self, here: Found, group: Group, category: str) -> None:
        """Measure what controllers go by and warm up; who refuses is out, and the others go on."""
        protocol = self.task.protocol(here.level, tokens=WARM_TOKENS)
        for one in [one for one in here.finalists(category) if (here.level, one) not in self.ready]:
            self.told(f"{here.level.words}: warming up")
            setting, drafter = one.setting(here.level.temperature), self.drafters[one.drafter]
            try:
                if one.num_draft_tokens == "auto":
                    costs_of(self.target, drafter, protocol.options(setting, setting.temperature), here.level.batch)
                measure(self.target, drafter, [group], [setting], protocol, clock=self.clock, warm=False)
            except NumericsError:
                raise
            except OutpaceError as error:
                here.fates[one] = f"refused: {error.message}"
                here.alive = {name: [other for other in field if other != one] for name, field in here.alive.items()}
            else:
                self.ready.add((here.level, one))

    def one(self, here: Found, trials: Trials, place: Place, group: Group, field: Sequence[Candidate]) -> None:
        """One group, decoded plainly and by everyone."""
        level = here.level
        protocol = self.task.protocol(level, seconds=max(1e-3, self.end - self.clock()))
        settings = [one.setting(level.temperature) for one in field]
        drafters = [self.drafters[one.drafter] for one in field]
        measured = measure(self.target, drafters, [group], settings, protocol, clock=self.clock, warm=False)
        trials.add(place, measured, field)
        for one in (PLAIN, *field):
            self.seconds.setdefault((level, one), []).append(trials.runs[one][place].seconds)
