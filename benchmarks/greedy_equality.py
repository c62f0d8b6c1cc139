"""Greedy texts with lookup drafts, in fp32, beside plain ones: the same tokens for every prompt and every K.

    python benchmarks/greedy_equality.py                        # all 240 prompts, about 30 minutes on two cores
    python benchmarks/greedy_equality.py --transformers 24      # and transformers' generate on the first of each kind
    python benchmarks/greedy_equality.py --quick                # does it run? one minute

Resumable: finished prompts stand in a file of JSON lines beside the result until all are done; they are not decoded
again while program and settings, in its first line, are the same. Prompts are decoded in batches of similar length; 64
tokens, end-of-text respected. A first difference is excused only where float64 shows a tie within 1e-4 of the two
tokens' logits after the common prefix; excused ones are counted.

Gate: no difference that is not excused, for K 1, 3 and 8, over all prompts.
"""

import hashlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from common import (
    REPOSITORY,
    RESULTS,
    Estimate,
    Gate,
    Question,
    arguments,
    document,
    judge,
    mixed,
    prompt_arguments,
    questions,
    save,
    show,
)
from reference import Judge, Reference, equality
from rich.console import Console
from rich.progress import track

from outpace.decoding.generate import generate
from outpace.drafters.lookup import Lookup
from outpace.models.load import load_target
from outpace.models.target import Target

PLAIN, TRANSFORMERS = "plain", "transformers"
PROTOCOL = (
    "specbench-dev, first turn, fp32, greedy, EOS respected, batched; texts with lookup drafts at fixed K beside plain "
    "texts; a first difference is excused where float64 shows the two logits within 1e-4"
)


class Progress:
    """Finished prompts, one JSON line each behind a line of settings; a torn last line is dropped."""

    def __init__(self, path: Path, settings: dict[str, Any]) -> None:
        self.path = path
        self.done: dict[int, dict[str, list[int]]] = {}
        head = json.dumps(settings)
        lines = path.read_text("utf-8").splitlines(keepends=True) if path.is_file() else []
        whole = [line for line in lines if line.endswith("\n")]
        if whole and whole[0].rstrip("\n") == head:
            records = [json.loads(line) for line in whole[1:]]
            self.done = {record["question_id"]: record["texts"] for record in records}
        else:
            whole = [head + "\n"]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(whole), "utf-8")

    def add(self, question: Question, texts: dict[str, list[int]]) -> None:
        self.done[question.question_id] = texts
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"question_id": question.question_id, "texts": texts}) + "\n")


def source_digest() -> str:
    """Changes with any line of the package: texts of another program are not evidence about this one."""
    digest = hashlib.sha256()
    for path in sorted((REPOSITORY / "src").rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def decode_batch(target: Target, batch: Sequence[Question], args: Any) -> list[dict[str, list[int]]]:
    """Plain, and with lookup drafts at every K."""
    ids = [question.ids for question in batch]
    texts: list[dict[str, list[int]]] = [{} for _ in batch]
    for depth in (0, *args.depths):
        drafter = Lookup(eos_ids=target.eos_ids) if depth else None
        results = generate(target, drafter, ids, max_new_tokens=args.max_new_tokens, num_draft_tokens=depth)
        for place, result in enumerate(results):
            texts[place][f"K {depth}" if depth else PLAIN] = result.token_ids
    return texts


def decode_all(target: Target, asked: Sequence[Question], progress: Progress, args: Any) -> None:
    """Decode what is not done yet, in batches of similar length."""
    waiting = sorted((one for one in asked if one.question_id not in progress.done), key=lambda one: len(one.ids))
    starts = range(0, len(waiting), args.batch_size)
    for start in track(starts, "decoding", console=Console(stderr=True)):
        batch = waiting[start : start + args.batch_size]
        for question, texts in zip(batch, decode_batch(target, batch, args), strict=True):
            progress.add(question, texts)


def foreign(target: Target, asked: Sequence[Question], args: Any) -> tuple[list[Question], list[list[int]]]:
    """transformers' texts of some prompts, one from every category in turn."""
    assert target.folder is not None
    chosen = mixed(asked)[: args.transformers]
    reference = Reference(target.folder, "fp32", target.eos_ids)
    runs = [
        reference.run(question, args.max_new_tokens)
        for question in track(chosen, TRANSFORMERS, console=Console(stderr=True))
    ]
    return chosen, [run.token_ids for run in runs]


def main(argv: list[str] | None = None) -> int:
    parser = arguments(__doc__)
    prompt_arguments(parser, per_category=40, tokens=64, repeats=1)
    parser.add_argument("--depths", type=int, nargs="+", default=[1, 3, 8], help="the K of each run with drafts")
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--transformers", type=int, default=0, metavar="N", help="N texts beside transformers")
    parser.add_argument("--progress", type=Path, help="the file of finished prompts")
    args = parser.parse_args(argv)
    if args.quick:
        args.prompts_per_category, args.limit, args.batch_size, args.max_new_tokens = 1, 3, 2, 12
        args.transformers = 1
    target = load_target(args.target, dtype="fp32")
    asked = questions(target.folder, args)
    settings = {
        "fingerprint": target.fingerprint,
        "source": source_digest(),
        "depths": args.depths,
        "max_new_tokens": args.max_new_tokens,
        "batch_size": args.batch_size,
        "torch": torch.__version__,
    }
    name = "greedy_equality.quick" if args.quick else "greedy_equality"
    progress = Progress(args.progress or (args.out or RESULTS / name).with_suffix(".progress.jsonl"), settings)
    decode_all(target, asked, progress, args)
    referee = Judge(args.target, "fp32")
    plain = [progress.done[question.question_id][PLAIN] for question in asked]
    found = {}
    for depth in args.depths:
        drafted = [progress.done[question.question_id][f"K {depth}"] for question in asked]
        found[f"lookup, K {depth}"] = equality(referee, asked, drafted, plain)
    if args.transformers:
        chosen, theirs = foreign(target, asked, args)
        mine = [progress.done[question.question_id][PLAIN] for question in chosen]
        found[TRANSFORMERS] = equality(referee, chosen, mine, theirs)
    keys = ("texts", "texts_identical", "tokens_compared", "near_ties", "not_excused", "lengths_differ", "largest_gap")
    columns = ("beside plain", *(key.replace("_", " ") for key in keys))
    show("greedy texts, fp32", columns, [[name, *(one[key] for key in keys)] for name, one in found.items()])
    wrong = {name: float(one["not_excused"] + one["lengths_differ"]) for name, one in found.items()}
    gates = [
        Gate(f"{name}: differences", Estimate(count, count, count), 0, ceiling=True) for name, count in wrong.items()
    ]
    status = judge(gates, args.quick)
    records = [gate.record() for gate in gates]
    save("greedy_equality", args, document("greedy_equality", args, PROTOCOL, results=found, gates=records))
    progress.path.unlink()
    return status


if __name__ == "__main__":
    sys.exit(main())
