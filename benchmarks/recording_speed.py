"""Recording features for training against bare prefill of the same texts: tokens per second, and their ratio.

    python benchmarks/recording_speed.py               # about 6 minutes on two cores
    python benchmarks/recording_speed.py --quick       # does it run? one minute

bf16. The texts are prompts of specbench-dev, the last three quarters of each taken for an answer, as in the corpora
that drafters are trained on; nothing is trained. Texts of like length are read eight together, by both alike: bare
prefill for its last logits alone, recording with three taps, the state before the head, the likeliest token and the
log-sum-exp before every token of the answer, and one file written and summed. Interleaved repeats; 95 % paired
bootstrap over groups of the ratio of median rates.

Gate: recording at least 0.8 times the tokens per second of bare prefill.
"""

import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import Gate, arguments, document, judge, median_ratio, questions, save, show
from rich.console import Console
from rich.progress import track

from outpace.models.load import load_target
from outpace.models.target import Target, padded
from outpace.models.transformer import Transformer
from outpace.training.masks import Sample
from outpace.training.reader import ROWS, Reader
from outpace.training.shards import save_shard

BOUND = 0.8
ANSWER = 0.75
PROTOCOL = (
    "specbench-dev, first turn, the last three quarters of each text an answer; groups of eight texts of like length; "
    "interleaved repeats, medians; 95 % paired bootstrap over groups of the ratio of median tokens per second"
)


def groups_of(texts: Sequence[list[int]]) -> list[list[Sample]]:
    """Texts of like length, as many together as are recorded together."""
    samples = []
    for place, ids in enumerate(sorted(texts, key=len)):
        mask = torch.arange(len(ids)) >= len(ids) - round(ANSWER * len(ids))
        samples.append(Sample(f"text {place}", torch.tensor(ids, dtype=torch.int32), mask))
    return [samples[start : start + ROWS] for start in range(0, len(samples), ROWS)]


def bare(target: Target, group: Sequence[Sample]) -> None:
    """Read the texts for the logits of their last tokens, the longest first, as recording does."""
    rows = [sample.ids.tolist() for sample in reversed(group)]
    target.prefill(target.open(len(rows), len(rows[0])), padded(rows, 0), [len(row) for row in rows])


def measure(target: Target, groups: Sequence[list[Sample]], repeats: int) -> dict[str, list[list[float]]]:
    """Seconds of every group by name, ``[name][group][repeat]``, interleaved; the one that begins changes."""
    layers = target.shape.layers if isinstance(target, Transformer) else 3
    reader = Reader(target, sorted({min(2, layers), layers // 2, max(1, layers - 3)}))
    with tempfile.TemporaryDirectory() as folder:

        def recording(group: Sequence[Sample]) -> None:
            save_shard(Path(folder), "timed", reader.read(group)).unlink()

        contestants: dict[str, Callable[[Sequence[Sample]], None]] = {
            "bare prefill": lambda group: bare(target, group),
            "recording": recording,
        }
        names = list(contestants)
        found: dict[str, list[list[float]]] = {name: [[] for _ in groups] for name in names}
        for name in names:
            contestants[name](groups[0])
        jobs = [(repeat, place) for repeat in range(repeats) for place in range(len(groups))]
        for repeat, place in track(jobs, "measuring", console=Console(stderr=True)):
            for name in names if (repeat + place) % 2 else names[::-1]:
                begin = time.perf_counter()
                contestants[name](groups[place])
                found[name][place].append(time.perf_counter() - begin)
    return found


def main(argv: list[str] | None = None) -> int:
    parser = arguments(__doc__)
    parser.add_argument("--prompts-per-category", type=int, default=5)
    parser.add_argument("--categories", nargs="+", help="only these")
    parser.add_argument("--limit", type=int, help="at most this many prompts")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--dtype", choices=("bf16", "fp32"), default="bf16")
    args = parser.parse_args(argv)
    if args.quick:
        args.limit, args.repeats = 8, 1
    target = load_target(args.target, dtype=args.dtype)
    groups = groups_of([question.ids for question in questions(target.folder, args)])
    found = measure(target, groups, args.repeats)
    tokens = np.array([sum(map(len, group)) for group in groups])
    rates = {name: tokens / np.array([statistics.median(one) for one in runs]) for name, runs in found.items()}
    cells: list[dict[str, Any]] = [
        {
            "method": name,
            "tokens": int(tokens.sum()),
            "tokens_per_second": float(tokens.sum() / (tokens / rates[name]).sum()),
        }
        for name in found
    ]
    columns = ("method", "texts' tokens", "tokens/s")
    show("reading texts", columns, [(cell["method"], cell["tokens"], cell["tokens_per_second"]) for cell in cells])
    gates = [Gate("recording / bare prefill", median_ratio(rates["recording"], rates["bare prefill"]), BOUND)]
    status = judge(gates, args.quick)
    records = [gate.record() for gate in gates]
    save("recording_speed", args, document("recording_speed", args, PROTOCOL, results=cells, gates=records))
    return status


if __name__ == "__main__":
    sys.exit(main())
