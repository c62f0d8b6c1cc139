"""How far replay is from real runs: tau and speed predicted from probes, and the same settings really decoded.

    python benchmarks/replay_error.py                    # about 45 minutes on two quiet cores; tau and speed
    python benchmarks/replay_error.py --no-time          # tau alone, which needs no quiet machine: about 35 minutes
    python benchmarks/replay_error.py --quick            # does it run? two minutes

For lookup and for a trained head, at temperature 0, 0.7 and 1: plain texts of specbench-dev are probed once; then every
setting is replayed from the probe, and decoded. At temperature 0, and with the seed of the probe at others, the text is
the same, so that what is left is replay's own error: in fp32, the default here, for bf16 has near-ties. Without a seed
the decoder says other texts by the same law: ``block`` is predicted from texts that it did not say, and the real runs
have noise of their own.
An ordinary trace of the longest chain, and a probe of another temperature, are replayed too: their errors are stated
and gated by nothing.

Gate: the median error of tau over chains of K 1 to 8 and over trees is 3 % at most.
"""

import argparse
import statistics
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from common import (
    Gate,
    arguments,
    document,
    judge,
    median,
    prompt_arguments,
    questions,
    save,
    show,
)
from rich.console import Console
from rich.progress import track

from outpace.decoding.cost_grid import tuning_costs
from outpace.decoding.generate import Result, generate
from outpace.drafters.budget import Branching
from outpace.drafters.drafter import Drafter
from outpace.drafters.load import load_drafter
from outpace.evaluation.metrics import median_ratio, pooled
from outpace.evaluation.probe import read_probe, write_probe
from outpace.evaluation.workloads import Question
from outpace.models.load import load_target
from outpace.models.target import Target
from outpace.tuning.recording import Recording, read_recording
from outpace.tuning.replay import Setting, replay
from outpace.verification.probabilities import Sampling

HEAD = Path(__file__).parents[1] / "heads" / "eagle3-smollm2"
TEMPERATURES = (0.0, 0.7, 1.0)
CHAINS = tuple(range(1, 9))
TREES = (("dynamic", 8, 4), ("dynamic", 16, 5), ("dynamic", 24, 8), ("top-k:3", 12, 4), ("top-p:0.8", 12, 4))
STATIC = ("static:0.5,0.15,0.06", 12, 4)
RECORDED = tuple(map(Branching.parse, ("top-k:8", "top-k:3")))
SEED, LIMIT, BATCH = 7, 0.03, 8
PROTOCOL = (
    "specbench-dev, first turn, EOS respected; texts of a probe and of real runs by one seed, batches of 8 for tau; an "
    "error is |predicted - real| / real of pooled tau; speed one prompt at a time, plain decoding interleaved"
)


@dataclass(frozen=True)
class Compared:
    """One setting, predicted and real."""

    drafter: str
    temperature: float
    source: str
    setting: str
    predicted: float
    real: float
    unsure: float
    same_texts: float

    @property
    def error(self) -> float:
        """Of tau, as a share of the real one."""
        return abs(self.predicted / self.real - 1)


def settings(drafter: Drafter, temperature: float, quick: bool) -> list[Setting]:
    """Every chain, and every tree where the drafter branches."""
    ways = [Setting(length, temperature=temperature) for length in ((2, 6) if quick else CHAINS)]
    if "top-k" in drafter.branchings:
        shapes = (*TREES, STATIC)[:: 3 if quick else 1]
        ways += [Setting(nodes, tree, depth, temperature=temperature) for tree, nodes, depth in shapes]
    return ways


def named(one: Setting) -> str:
    """A setting in words."""
    rule = f", {one.rule}" if one.rule else ""
    return (f"K {one.num_draft_tokens}" if one.tree == "chain" else f"{one.tree}, {one.num_draft_tokens} nodes") + rule


def decode(
    target: Target, drafter: Drafter | None, asked: list[Question], one: Setting, **options: Any
) -> list[Result]:
    """Real runs of a setting."""
    return generate(
        target,
        drafter,
        [question.ids for question in asked],
        temperature=one.temperature,
        num_draft_tokens=one.num_draft_tokens,
        tree=one.tree,
        depth=one.depth,
        rule=one.rule,
        **options,
    )


def real_tau(results: list[Result]) -> float:
    """Pooled over texts."""
    found = pooled([result.stats.speculation for result in results]).tau
    assert found is not None, "texts have more than one token"
    return found


def compare(
    target: Target, drafter: Drafter, asked: list[Question], temperature: float, args: argparse.Namespace, folder: Path
) -> tuple[list[Compared], Recording]:
    """All settings of one drafter at one temperature."""
    greedy, path = temperature == 0, folder / "probe.jsonl"
    size: dict[str, Any] = {"max_new_tokens": args.max_new_tokens, "batch_size": BATCH}
    law: dict[str, Any] = {"sampling": Sampling(temperature), "max_new_tokens": args.max_new_tokens, "seed": SEED}
    write_probe(path, target, drafter, asked, trees=RECORDED, **law)
    recording = Recording.of(read_probe(path))
    texts = [list(text.tokens(0, args.max_new_tokens)) for text in recording.texts]
    found = []

    def add(source: str, trace: Recording, one: Setting, results: list[Result]) -> None:
        said, same = replay(trace, one), [result.token_ids for result in results[: len(texts)]]
        share = statistics.fmean(ours == theirs for ours, theirs in zip(same, texts, strict=True))
        row = Compared(drafter.name, temperature, source, named(one), said.tau, real_tau(results), said.unsure, share)
        found.append(row)

    ways, what = settings(drafter, temperature, args.quick), f"{drafter.name}, temperature {temperature:g}"
    real: dict[str, list[Result]] = {}
    for one in track(ways, what, console=Console(stderr=True)):
        traced = {"trace": folder / "trace.jsonl"} if one.tree == "chain" else {}  # the longest one's is the last
        real[named(one)] = decode(target, drafter, asked, one, seed=SEED, **size, **traced)
        add("probe", recording, replace(one, seeded=not greedy), real[named(one)])
    ordinary = read_recording(folder / "trace.jsonl")
    for one in ways:
        if one.tree == "chain":
            add("trace", ordinary, one, real[named(one)])
    for length in () if greedy else (3, 6):
        one = Setting(length, temperature=temperature, rule="block" if recording.is_model else "match")
        seeds = range(SEED + 1, SEED + 1 + args.repeats)
        fresh = [decode(target, drafter, asked, one, seed=seed, **size) for seed in seeds]
        add("probe, other texts", recording, one, [result for part in fresh for result in part])
        if temperature == 1.0:
            near = replace(one, temperature=0.7)
            add("probe at 1, run at 0.7", recording, near, decode(target, drafter, asked, near, seed=SEED + 9, **size))
    return found, recording


def speed(
    target: Target, drafter: Drafter, asked: list[Question], recording: Recording, args: argparse.Namespace
) -> list[dict[str, Any]]:
    """Predicted and real speed-ups at temperature 0: the costs measured here, plain decoding beside."""
    shapes = [Branching.parse(tree) for tree, _, _ in TREES]
    budget = 10.0 if args.quick else 40.0
    costs = tuning_costs(target, drafter, batches=(1,), rows=33, branchings=shapes, seconds=budget)
    ways = settings(drafter, 0.0, args.quick)[1::2]
    plain = Setting(0)
    times: dict[str, list[float]] = {named(one): [] for one in [plain, *ways]}
    for place, question in enumerate(asked):
        for one in [plain, *ways][:: 1 if place % 2 else -1]:
            begin = time.perf_counter()
            [result] = decode(
                target, None if one is plain else drafter, [question], one, max_new_tokens=args.max_new_tokens
            )
            times[named(one)].append(len(result.token_ids) / (time.perf_counter() - begin))
    found = []
    for one in ways:
        said, real = replay(recording, one, costs), median_ratio(times[named(one)], times[named(plain)])
        found.append(
            {
                "drafter": drafter.name,
                "setting": named(one),
                "predicted": said.speedup,
                "ci": said.speedup_ci,
                "real": real,
            }
        )
    return found


def gates(rows: list[Compared]) -> list[Gate]:
    """One for chains and one for trees, over all drafters and temperatures."""
    own = [one for one in rows if one.source == "probe"]
    parts = {
        "chains": [one.error for one in own if one.setting.startswith("K ")],
        "trees": [one.error for one in own if not one.setting.startswith("K ")],
    }
    return [
        Gate(f"error of tau, {name}, from a probe", median(errors), LIMIT, ceiling=True)
        for name, errors in parts.items()
        if errors
    ]


def summary(rows: list[Compared]) -> list[dict[str, Any]]:
    """By source, drafter and temperature: how many settings, and the median and the largest error."""
    groups: dict[tuple[str, str, float], list[Compared]] = {}
    for one in rows:
        groups.setdefault((one.source, one.drafter, one.temperature), []).append(one)
    return [
        {
            "source": source,
            "drafter": drafter,
            "temperature": heat,
            "settings": len(own),
            "median_error": statistics.median(one.error for one in own),
            "largest_error": max(one.error for one in own),
            "unsure": statistics.fmean(one.unsure for one in own),
            "same_texts": statistics.fmean(one.same_texts for one in own),
        }
        for (source, drafter, heat), own in sorted(groups.items())
    ]


def main(argv: list[str] | None = None) -> int:
    parser = arguments(__doc__)
    prompt_arguments(parser, per_category=1, tokens=48, repeats=2)
    parser.add_argument("--draft", default=str(HEAD), help="a trained drafter, besides lookup; none leaves it out")
    parser.add_argument("--dtype", choices=("bf16", "fp32"), default="fp32")
    parser.add_argument("--no-time", action="store_true", help="tau alone")
    args = parser.parse_args(argv)
    if args.quick:
        args.prompts_per_category, args.limit, args.max_new_tokens, args.repeats = 1, 2, 16, 1
    target = load_target(args.target, dtype=args.dtype)
    asked = [Question(str(one.question_id), one.category, one.ids) for one in questions(target.folder, args)]
    names = ["lookup", *([] if args.draft == "none" else [args.draft])]
    rows: list[Compared] = []
    times: list[dict[str, Any]] = []
    for name in names:
        drafter = load_drafter(name, target)
        for heat in TEMPERATURES[: 2 if args.quick else None]:
            with tempfile.TemporaryDirectory() as folder:
                found, recording = compare(target, drafter, asked, heat, args, Path(folder))
            rows += found
            if heat == 0 and not args.no_time:
                times += speed(target, drafter, asked, recording, args)
    table = summary(rows)
    show("error of tau by source", tuple(table[0]), [tuple(one.values()) for one in table])
    if times:
        said = [(one["drafter"], one["setting"], one["predicted"], str(one["real"])) for one in times]
        show("speed-up at temperature 0", ("drafter", "setting", "predicted", "real"), said)
    checks = gates(rows)
    status = judge(checks, args.quick)
    results = {
        "results": table,
        "compared": [asdict(one) | {"error": one.error} for one in rows],
        "speed": times,
        "gates": [gate.record() for gate in checks],
    }
    save("replay_error", args, document("replay_error", args, PROTOCOL, **results))
    return status


if __name__ == "__main__":
    sys.exit(main())
