"""Measured times by rows, batch and context, as a staircase.

Knows nothing of what will be decoded or of who chooses its drafts: whole turns are taken on arbitrary ids and timed. So
a figure holds what a turn costs here: the target's forward and the judging behind it, in the dtype, by the law and with
the threads that will be used.
"""

import hashlib
import itertools
import json
import os
import platform
import time
import uuid
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import torch

from outpace.decoding.stopwatch import FEWEST, Bench, Filler, medians
from outpace.drafters.budget import CHAIN, Branching
from outpace.drafters.drafter import Drafter
from outpace.drafters.either import computing
from outpace.errors import UsageError
from outpace.models.staging import Progress, cache_root, silent
from outpace.models.target import Target
from outpace.verification.expectation import TurnCosts
from outpace.verification.probabilities import Sampling

FORMAT_VERSION = 1
CONTEXTS = (128, 1024)
"""Lengths of text to measure behind, where the target's own context and the time reach."""
SIZES = (1, 2, 3, 5, 9, 17, 33, 65)
"""Rows a sequence to measure, the root and the draft, up to what is asked for."""
AGREED = 0.1
"""The largest spread of a table that is kept for later."""
SECONDS = 4.0
_STEPS = 4  # a long draft, beside one of a single step: the difference is what a step costs


@dataclass(frozen=True)
class CostTable:
    """What turns cost on one machine.

    Args:
        cells: milliseconds by (batch, length of the context); never decreasing in the rows.
        machine: where they were measured.
        spread: how far the rounds disagreed: the median distance from the median, as a share of it, of the worst size.
        trees: milliseconds a drafting turn and a draft step by the branching's name and the batch, for drafts that
            branch otherwise than those of ``cells``.
        read: milliseconds to read one token of a prompt, plainly and with the drafter; 0 where nobody measured it.
        assumed: the numbers that the table was computed from; empty for a measured one.

    Raises:
        UsageError: there is no cell.
    """

    cells: Mapping[tuple[int, int], TurnCosts]
    machine: Mapping[str, Any] = field(default_factory=dict)
    spread: float = 0.0
    trees: Mapping[str, Mapping[int, tuple[float, float]]] = field(default_factory=dict)
    read: tuple[float, float] = (0.0, 0.0)
    assumed: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.cells:
            raise UsageError("a cost table has no cell; allowed: one or more, by batch and context")

    def for_tree(self, branching: Branching) -> "CostTable":
        """The table with the draft costs of such drafts, where these were measured apart; else the table itself."""
        found = self.trees.get(str(branching))
        if found is None:
            return self
        cells = {
            place: costs if place[0] not in found else TurnCosts(costs.verify, found[place[0]][1], found[place[0]][0])
            for place, costs in self.cells.items()
        }
        return replace(self, cells=cells)

    def to_json(self) -> dict[str, Any]:
        """Plain data; ``from_json`` reads it back to the last digit."""
        cells = [
            {
                "batch": batch,
                "context": context,
                "verify": {str(rows): ms for rows, ms in costs.verify.items()},
                "draft_step": costs.draft_step,
                "draft_turn": costs.draft_turn,
            }
            for (batch, context), costs in self.cells.items()
        ]
        trees = [
            {"tree": tree, "batch": batch, "draft_turn": turn, "draft_step": step}
            for tree, batches in self.trees.items()
            for batch, (turn, step) in batches.items()
        ]
        return {
            "format_version": FORMAT_VERSION,
            "machine": dict(self.machine),
            "assumed": dict(self.assumed),
            "spread": self.spread,
            "read": list(self.read),
            "cells": cells,
            "trees": trees,
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> "CostTable":
        """The inverse of ``to_json``.

        Raises:
            UsageError, ValueError, LookupError, TypeError, AttributeError: it is no such document.
        """
        if document["format_version"] != FORMAT_VERSION:
            raise UsageError(f"format_version is {document['format_version']!r}; allowed: {FORMAT_VERSION}")
        cells = {
            (int(cell["batch"]), int(cell["context"])): TurnCosts(
                {int(rows): float(ms) for rows, ms in cell["verify"].items()},
                float(cell["draft_step"]),
                float(cell["draft_turn"]),
            )
            for cell in document["cells"]
        }
        trees: dict[str, dict[int, tuple[float, float]]] = {}
        for one in document.get("trees", ()):
            costs = float(one["draft_turn"]), float(one["draft_step"])
            trees.setdefault(str(one["tree"]), {})[int(one["batch"])] = costs
        plainly, drafting = map(float, document.get("read", (0.0, 0.0)))
        assumed = {name: float(value) for name, value in document.get("assumed", {}).items()}
        spread = float(document["spread"])
        return cls(cells, dict(document["machine"]), spread, trees, (plainly, drafting), assumed)

    def at(self, batch: int, context: int, rows: int) -> TurnCosts:
        """Costs of every size from 1 to ``rows``, between what was measured by straight lines.

        A batch or a context outside of what was measured costs what the nearest one does; rows beyond the largest
        size go on as steeply as the last two sizes.
        """
        contexts: dict[int, list[int]] = {}
        for size, length in sorted(self.cells):
            contexts.setdefault(size, []).append(length)

        def value(read: Callable[[TurnCosts], float]) -> float:
            return _between(
                [
                    (size, _between([(length, read(self.cells[size, length])) for length in lengths], context))
                    for size, lengths in contexts.items()
                ],
                batch,
            )

        def verify(size: int) -> float:
            return value(lambda costs: _between(sorted(costs.verify.items()), size, grows=True))

        return TurnCosts(
            {size: verify(size) for size in range(1, rows + 1)},
            value(lambda costs: costs.draft_step),
            value(lambda costs: costs.draft_turn),
        )


def _between(points: Sequence[tuple[int, float]], place: int, *, grows: bool = False) -> float:
    """The value at ``place`` by straight lines; outside, the end's value, or past the end its slope where it grows."""
    if place <= points[0][0] or len(points) == 1:
        return points[0][1]
    for (left, low), (right, high) in itertools.pairwise(points):
        if place <= right or (grows and right == points[-1][0]):
            return low + (high - low) * (place - left) / (right - left)
    return points[-1][1]


def rising(values: Sequence[float]) -> list[float]:
    """The never decreasing values nearest to these by squares: neighbours that fall are pooled to their mean.

    Source: isotonic regression by pooling adjacent violators (Ayer et al. 1955).
    """
    pools: list[tuple[float, int]] = []
    for value in values:
        pools.append((value, 1))
        while len(pools) > 1 and pools[-2][0] > pools[-1][0]:
            (low, many), (high, more) = pools.pop(), pools.pop()
            pools.append(((low * many + high * more) / (many + more), many + more))
    return [value for value, count in pools for _ in range(count)]


@dataclass(frozen=True)
class Conditions:
    """What turns are like that are measured.

    Args:
        batch: sequences at once, 1 or more.
        rows: the most rows a sequence, the root and the nodes, 1 or more; rounded up to a size that is measured.
        sampling: the law that turns are judged by.
        seeded: whether they are judged by the coupling.
        branching: how drafts branch. A tree is timed with as many nodes as there may be: smaller ones cost no more.

    Raises:
        UsageError: batch or rows below 1.
    """

    batch: int = 1
    rows: int = 9
    sampling: Sampling = field(default_factory=Sampling)
    seeded: bool = False
    branching: Branching = CHAIN

    def __post_init__(self) -> None:
        for name in ("batch", "rows"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} is {getattr(self, name)}; allowed: 1 or more")

    @property
    def size(self) -> int:
        """The smallest measured size that holds so many rows, or the largest."""
        return min((size for size in SIZES if size >= self.rows), default=SIZES[-1])


def cost_table(
    target: Target,
    drafter: Drafter | None,
    conditions: Conditions,
    *,
    refresh: bool = False,
    progress: Progress = silent,
) -> CostTable:
    """What turns cost here: remembered, read from the cache folder, or measured, which takes a few seconds.

    A file that cannot be read or was written for anything else is measured anew. Only tables of a target that has a
    folder and a fingerprint are kept on disk, and none of a machine so busy that the rounds disagreed.

    Args:
        target, drafter: who will decode; None measures verification alone.
        conditions: what turns will be like; the batch is rounded up to a power of two.
        refresh: measure again, whatever is known.
        progress: told how much is done.
    """
    conditions = replace(conditions, batch=1 << (conditions.batch - 1).bit_length(), rows=conditions.size)
    drafter = computing(drafter)
    key = _key(target, drafter, conditions)
    name = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:24]
    path = cache_root() / "costs" / f"{name}.json" if target.folder is not None and target.fingerprint else None
    known = _remembered(target)
    table = None if refresh else known.get(name) or (None if path is None else _read(path, key))
    if table is None:
        table = measure(target, drafter, conditions, progress=progress)
        if path is not None and table.spread <= AGREED:
            _write(path, key, table)
    known[name] = table
    return table


_MEASURED: WeakKeyDictionary[Target, dict[str, CostTable]] = WeakKeyDictionary()


def _remembered(target: Target) -> dict[str, CostTable]:
    """The tables of this very object; none are kept of one that cannot be a key."""
    try:
        return _MEASURED.setdefault(target, {})
    except TypeError:
        return {}


# ---- measuring -------------------------------------------------------------------------------------------------------


def measure(
    target: Target,
    drafter: Drafter | None,
    conditions: Conditions,
    *,
    batches: Sequence[int] = (),
    contexts: Sequence[int] = CONTEXTS,
    seconds: float = SECONDS,
    progress: Progress = silent,
) -> CostTable:
    """Time turns by size, batch and context; medians of interleaved rounds.

    The shortest context is always measured, with three rounds at least; more rounds, and longer contexts, are taken as
    far as ``seconds`` reach.

    Args:
        target, drafter, conditions: as for ``cost_table``, which keeps what it measured.
        batches: sequences at once; a single one and those of the conditions, where none are given.
        contexts: tokens that each text has; shorter where the target's context is.
    """
    deadline = time.perf_counter() + seconds
    longest = target.max_positions - 1
    sizes = [size for size in SIZES if size <= min(conditions.size, max(1, longest))]
    contexts = sorted({max(1, min(context, longest - sizes[-1])) for context in contexts})
    batches = sorted({*batches} or {1, conditions.batch})
    places = [(count, context) for context in contexts for count in batches]
    law = conditions.sampling, conditions.seeded
    cells: dict[tuple[int, int], TurnCosts] = {}
    spread = 0.0
    read_ms = 0.0  # milliseconds to read one token of a prompt
    for done, (count, context) in enumerate(places):
        progress(done, len(places), "measuring what a turn costs here")
        first = cells.get((count, contexts[0]))
        if first is not None:
            expected = read_ms * count * context + (1 + FEWEST) * sum(first.verify.values())
            if time.perf_counter() + expected / 1e3 > deadline:
                continue
        begin = time.perf_counter()
        filler = Filler(() if drafter is None else drafter.taps)
        opened = Bench(target, filler, count, context, sizes[-1], *law)
        read_ms = (time.perf_counter() - begin) * 1e3 / (count * context)
        share = (deadline - time.perf_counter()) / (len(places) - done) / 2
        until = time.perf_counter() + share
        times, apart = medians({size: partial(opened.verify_ms, size) for size in sizes}, until)
        spread = max(spread, apart)
        verify = dict(zip(sizes, rising([times[size] for size in sizes]), strict=True))
        if first is None:
            turn, step = 0.0, 0.0
            if drafter is not None:
                bench = Bench(target, drafter, count, context, sizes[-1], *law, conditions.branching)
                turn, step = draft_costs(bench, sizes[-1] - 1, until + share)
        else:
            turn, step = first.draft_turn, first.draft_step
        cells[count, context] = TurnCosts(verify, step, turn)
    progress(len(places), len(places), "measuring what a turn costs here")
    return CostTable(cells, _machine(target), spread)


def draft_costs(bench: Bench, longest: int, until: float) -> tuple[float, float]:
    """Milliseconds a turn and a step: what one step costs, and what each further one does."""
    depths = sorted({min(1, longest), min(_STEPS, longest)})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a drafter's short context is said when it matters
        times, _ = medians({depth: partial(bench.draft_ms, depth) for depth in depths}, until)
    if len(depths) == 1:
        return 0.0, times[depths[0]]
    step = max(0.0, (times[depths[1]] - times[depths[0]]) / (depths[1] - depths[0]))
    return max(0.0, times[depths[0]] - step), step


# ---- the file --------------------------------------------------------------------------------------------------------


def _machine(target: Target) -> dict[str, Any]:
    return {
        "processor": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "device": str(target.device),
        "dtype": str(target.dtype).removeprefix("torch."),
    }


def _key(target: Target, drafter: Drafter | None, conditions: Conditions) -> dict[str, Any]:
    """Everything that the figures depend on."""
    sampling = conditions.sampling
    filtered = bool(sampling.top_k) or sampling.top_p < 1 or sampling.min_p > 0
    kinds = ["greedy"] if sampling.greedy else ["sampled"] + ["filtered"] * filtered + ["seeded"] * conditions.seeded
    return {
        "target": target.fingerprint,
        "drafter": None if drafter is None else drafter.name,
        "batch": conditions.batch,
        "rows": conditions.rows,
        "tree": str(conditions.branching),
        "law": "-".join(kinds),
        **_machine(target),
    }


def _read(path: Path, key: Mapping[str, Any]) -> CostTable | None:
    """A table from a file; None where there is none that can be read, or it was measured for something else."""
    try:
        document = json.loads(path.read_text("utf-8"))
        return CostTable.from_json(document) if document["key"] == key else None
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError, UsageError):
        return None


def _write(path: Path, key: Mapping[str, Any], table: CostTable) -> None:
    """Keep a table, whole or not at all; a full or read-only disk costs a measurement the next time, nothing else."""
    with suppress(OSError):
        keep(path, table.to_json() | {"key": dict(key)})


def keep(path: Path, document: Mapping[str, Any]) -> None:
    """Write a document, whole or not at all.

    Raises:
        OSError: it cannot be written.
    """
    growing = path.with_name(f".{path.name}.{uuid.uuid4().hex[:12]}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        growing.write_text(json.dumps(document, indent=1) + "\n", "utf-8")
        os.replace(growing, path)
    finally:
        with suppress(OSError):
            growing.unlink()
