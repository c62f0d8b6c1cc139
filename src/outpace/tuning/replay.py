"""What another setting would have done with recorded texts: acceptance, tau and speed, without running a model.

Knows nothing of files or models: a recording comes in, figures go out. What a recording cannot tell is refused by name.

From a probe at its own temperature tau is exact: what the decoder does with these texts, or, where a rule leaves it to
chance, its expectation given these texts. Three things make it less, and a prediction names them: another temperature,
an ordinary trace, and the share of turns whose tree the recording does not wholly hold.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import zip_longest

import numpy as np
from numpy.typing import NDArray

from outpace.decoding.assumed import said
from outpace.decoding.control import Adaptive, Control, Fixed
from outpace.decoding.costs import CostTable
from outpace.decoding.options import AUTO_DEPTH, AUTO_NODES
from outpace.drafters.budget import Branching
from outpace.errors import UsageError
from outpace.evaluation import benchmark
from outpace.evaluation.metrics import median_ratio, ratio_of_sums, resampled
from outpace.tuning.drafts import Draft, Drafting, drafting
from outpace.tuning.nearby import Warmth
from outpace.tuning.recording import Recording, Text
from outpace.tuning.walk import Counts, Prices, expected, simulated

PASSES = 8
"""Walks over the texts where chance decides and a controller listens, or several texts share a forward."""


@dataclass(frozen=True)
class Setting(benchmark.Setting):
    """One way of drafting, as ``bench`` measures it (num_draft_tokens, tree, depth, rule, temperature), and besides:

    Args:
        batch: sequences decoded at once, 1 or more: what a turn costs depends on it, what is accepted does not.
        seeded: whether requests have a seed and no named rule: the coupling judges then.
        threshold: a chain ends where the drafter's likeliest token is less probable than this, before temperature; 0
            never. Of models only.
    """

    batch: int = 1
    seeded: bool = False
    threshold: float = 0.0


@dataclass(frozen=True)
class Prediction:
    """What to expect of a setting.

    Args:
        tau, acceptance, acceptance_by_position, plain_turn_share: as ``bench`` has them, pooled over texts.
        milliseconds_per_token: time over the tokens of all texts, reading the prompt included where the table knows
            what that costs: one of ``batch`` texts decoded at once waits ``batch`` times as long. None without costs.
        speedup, speedup_ci: as ``bench`` has them: the ratio of median rates over texts, or over groups of texts that
            are decoded at once, and its 95 % interval by a bootstrap over these; None without costs, and no interval
            for a single one.
        assumed: whether the costs were assumed and not measured.
        tau_ci: the 95 % interval of a bootstrap over texts or groups; None for a single one.
        unsure: the share of turns whose draft the recording does not wholly hold.
        copied: the share of turns in which lookup drafted in place of the model that it is joined with.
        approximate: what was taken for granted, in words; empty where the recording tells all.
    """

    tau: float
    acceptance: float | None
    acceptance_by_position: tuple[float, ...]
    plain_turn_share: float
    milliseconds_per_token: float | None = None
    speedup: float | None = None
    speedup_ci: tuple[float, float] | None = None
    assumed: bool = False
    tau_ci: tuple[float, float] | None = None
    unsure: float = 0.0
    copied: float = 0.0
    approximate: tuple[str, ...] = ()


def replay(
    trace: Recording,
    setting: Setting,
    costs: CostTable | None = None,
    *,
    control: Callable[[], Control] | None = None,
) -> Prediction:
    """Walk the recorded texts turn by turn as the decoder would under this setting.

    Args:
        trace: from ``read_recording`` or ``Recording.of``.
        setting: what to try; its temperature near the trace's.
        costs: what turns cost; ``auto`` needs them.
        control: makes the controller of each text, or of each group of texts decoded at once, in place of what
            ``num_draft_tokens`` says.

    Raises:
        UsageError: the recording cannot tell, or the setting is out of range; the message names what.
    """
    branching = Branching.parse(setting.tree)
    warmth = Warmth.of(trace, setting.temperature)
    depth, nodes = _bounds(trace, setting, branching)
    _check(setting, costs, control, warmth)
    drafts = drafting(
        trace,
        branching,
        rule=setting.rule,
        seeded=setting.seeded,
        threshold=setting.threshold,
        warmth=warmth,
    )
    table = None if costs is None else costs.for_tree(branching)
    prices = Prices(table, 1 + nodes)
    if warmth is not None:
        units, apart = _nearby(trace, drafts, depth, nodes, prices, warmth)
        return _prediction(units, table, _taken(trace, setting, costs), apart)
    makes = control or _controller(trace, setting, branching, depth, nodes, table)
    if makes is None and setting.batch == 1:
        units = [expected(text, drafts, depth, nodes, prices) for text in trace.texts]
    else:
        makes = makes or partial(Fixed, branching, depth, nodes)
        units = _simulations(trace.texts, setting.batch, _remembered(drafts), makes, prices)
    return _prediction(units, table, _taken(trace, setting, costs))


def _bounds(trace: Recording, setting: Setting, branching: Branching) -> tuple[int, int]:
    """Depth and nodes as ``generate`` takes them, within what was recorded and no deeper than the drafter reaches."""
    nodes, depth = setting.num_draft_tokens, setting.depth
    for name, value, least in (("num_draft_tokens", nodes, 0), ("depth", depth, 1), ("batch", setting.batch, 1)):
        if isinstance(value, int) and value < least:
            raise UsageError(f"{name} is {value}; allowed: {least} or more")
    if nodes == "auto":
        deepest = min(depth or AUTO_DEPTH, trace.deepest or trace.depth, trace.depth)
        return deepest, deepest if branching.is_chain else max(AUTO_NODES, deepest)
    deepest = nodes if branching.is_chain else min(nodes, depth or AUTO_DEPTH)
    Fixed(branching, depth or deepest if nodes else 0, nodes)  # refuses what contradicts itself
    if deepest > trace.depth:
        raise UsageError(f"drafts are {deepest} deep; allowed: up to {trace.depth}, as deep as the trace's")
    if not branching.is_chain and trace.trees and nodes > trace.tree_nodes:
        raise UsageError(f"num_draft_tokens is {nodes}; allowed: up to {trace.tree_nodes}, as many as the trace's")
    reached = deepest if trace.unasked else min(deepest, trace.deepest or deepest)  # a copy reaches as far as is asked
    return reached, reached if branching.is_chain else nodes


def _check(
    setting: Setting, costs: CostTable | None, control: Callable[[], Control] | None, warmth: Warmth | None
) -> None:
    chosen = setting.num_draft_tokens == "auto" or control is not None
    if setting.num_draft_tokens == "auto" and control is None and costs is None:
        raise UsageError(
            "num_draft_tokens is 'auto' and there are no costs; allowed: a number, or costs to choose by",
            hint="cost_table measures them, read_costs reads or assumes them",
        )
    if warmth is None:
        return
    for name, given in (("auto", chosen), ("a batch", setting.batch > 1), ("a seed", setting.seeded)):
        if given:
            raise UsageError(
                f"temperature is {setting.temperature:g} and the trace's {warmth.before:g}; allowed with {name}: the "
                "trace's own",
                hint="probe at that temperature: bench --probe --temperature",
            )


def _controller(
    trace: Recording, setting: Setting, branching: Branching, depth: int, nodes: int, costs: CostTable | None
) -> Callable[[], Control] | None:
    if setting.num_draft_tokens != "auto" or costs is None:
        return None
    return partial(Adaptive, costs, branching, depth, nodes, trace.unasked)


def _taken(trace: Recording, setting: Setting, costs: CostTable | None) -> tuple[str, ...]:
    """What a prediction takes for granted."""
    words = []
    if trace.kind == "trace":
        words.append("an ordinary trace: where no turn began, drafts are taken to be as good as the usual one")
    if setting.temperature != trace.sampling.temperature:
        words.append(f"texts of temperature {trace.sampling.temperature:g}, weighted")
    if costs is not None and costs.assumed:
        words.append(said(costs.assumed))
    return tuple(words)


# ---- walks ----------------------------------------------------------------------------------------------------------


def _remembered(drafts: Drafting) -> Drafting:
    """The same, asked once for each place and budget: several walks come by."""
    known: dict[tuple[int, int, int, int], Draft] = {}

    def asked(text: Text, place: int, depth: int, nodes: int) -> Draft:
        key = id(text), place, depth, nodes
        if key not in known:
            known[key] = drafts(text, place, depth, nodes)
        return known[key]

    return asked


def _simulations(
    texts: Sequence[Text], batch: int, drafts: Drafting, makes: Callable[[], Control], prices: Prices
) -> list[Counts]:
    """Groups of texts in their order, whatever their kind; the last one is filled up with texts from the beginning."""
    units = []
    for start in range(0, len(texts), batch):
        group = list(itertools.islice(itertools.cycle(texts), start, start + batch))
        passes: list[Counts] = []
        for one in range(PASSES):
            passes.append(simulated(group, drafts, makes(), prices, np.random.default_rng((start, one))))
            if not passes[-1].tosses:
                break  # the text decides everything: another pass would be the same
        units.append(_mean(passes))
    return units


def _mean(passes: Sequence[Counts]) -> Counts:
    def mean(values: Sequence[float]) -> float:
        return sum(values) / len(passes)

    def columns(lists: Sequence[Sequence[float]]) -> list[float]:
        return [mean(column) for column in zip_longest(*lists, fillvalue=0.0)]

    return Counts(
        tokens=passes[0].tokens,
        emitted=mean([one.emitted for one in passes]),
        turns=mean([one.turns for one in passes]),
        plain_turns=mean([one.plain_turns for one in passes]),
        unsure=mean([one.unsure for one in passes]),
        copied=mean([one.copied for one in passes]),
        tried=columns([one.tried for one in passes]),
        passed=columns([one.passed for one in passes]),
        ms=mean([one.ms for one in passes]),
        plain_ms=passes[0].plain_ms,
    )


def _nearby(
    trace: Recording, drafts: Drafting, depth: int, nodes: int, prices: Prices, warmth: Warmth
) -> tuple[list[Counts], tuple[float, float]]:
    """Walks at another temperature, and how far tau may lie, as shares of it: every place is a turn's beginning.

    The tokens behind a place are as probable there as here times the ratios of the target's two laws. So a turn accepts
    i tokens with the mean over places of chance times weight, over the mean of the weights.
    """
    sums = np.zeros((len(trace.texts), 3, depth + 1))
    for sum_of, text in zip(sums, trace.texts, strict=True):
        ratios = [warmth.target(place) / place.said.law if place.said else 0.0 for place in text.places]
        for place in range(1, len(text.places)):
            weights = np.cumprod([1.0, *ratios[place : place + depth]])
            draft = drafts(text, place, depth, nodes)
            accepted = np.array([1.0, *draft.chances]) * weights[: 1 + len(draft.chances)]
            sum_of[0, : len(accepted)] += accepted
            sum_of[1, : len(weights)] += weights
            sum_of[2, : min(len(accepted), draft.depth)] += accepted[: draft.depth]  # and there is another token to try
    whole = sums.sum(0)
    survival, tried = _shares(whole), _shares(whole[[2, 1]])
    tau = float(survival.sum())
    units = []
    for text in trace.texts:
        own = expected(text, drafts, depth, nodes, prices)
        read = prices.reading([text.prompt])[0]
        share = own.emitted / tau / own.turns if own.turns else 0.0
        own.turns, own.plain_turns, own.unsure = own.turns * share, own.plain_turns * share, own.unsure * share
        own.copied *= share
        own.tried, own.passed = (list(map(float, own.turns * part)) for part in (tried[:-1], survival[1:]))
        own.ms = read + (own.ms - read) * share
        units.append(own)
    others = _shares(sums[resampled(len(sums))].sum(1)).sum(-1) / tau
    low, high = np.percentile(others, (2.5, 97.5))
    return units, (float(low), float(high))


def _shares(sums: NDArray[np.float64]) -> NDArray[np.float64]:
    """How probably each number of tokens is accepted."""
    above, below = sums[..., 0, :], sums[..., 1, :]
    return np.divide(above, below, out=np.zeros_like(above), where=below > 0)


# ---- figures --------------------------------------------------------------------------------------------------------


def _prediction(
    units: Sequence[Counts], table: CostTable | None, taken: tuple[str, ...], apart: tuple[float, float] | None = None
) -> Prediction:
    """Sums over sums, as ``bench`` pools them; ``apart`` says how far tau may lie where units do not tell."""
    turns, several = sum(one.turns for one in units), len(units) > 1
    tried = [sum(column) for column in zip_longest(*(one.tried for one in units), fillvalue=0.0)]
    passed = [sum(column) for column in zip_longest(*(one.passed for one in units), fillvalue=0.0)]
    tau = ratio_of_sums([one.emitted for one in units], [one.turns for one in units])
    near = (tau.low, tau.high) if apart is None else (tau.value * apart[0], tau.value * apart[1])
    found = Prediction(
        tau=tau.value,
        acceptance=sum(passed) / sum(tried) if sum(tried) else None,
        acceptance_by_position=tuple(p / t for p, t in zip(passed, tried, strict=True) if t > 0),
        plain_turn_share=sum(one.plain_turns for one in units) / turns,
        tau_ci=near if several else None,
        unsure=sum(one.unsure for one in units) / turns,
        copied=sum(one.copied for one in units) / turns,
        approximate=taken,
    )
    if table is None:
        return found
    rates = [one.tokens / one.ms for one in units], [one.tokens / one.plain_ms for one in units]
    speedup = median_ratio(*rates)
    low, high = (1.0, 1.0) if apart is None else apart
    return replace(
        found,
        milliseconds_per_token=sum(one.ms for one in units) / sum(one.tokens for one in units),
        speedup=speedup.value,
        speedup_ci=(speedup.low * low, speedup.high * high) if several else None,
        assumed=bool(table.assumed),
    )
