"""The traces that come with the page: three short answers of the default model, drafted by its head in three ways.

    python examples/page_traces.py                   # a minute on two cores; needs the head in heads/eagle3-smollm2
    python examples/page_traces.py --out FOLDER      # elsewhere than into the package

A chain judged by rejection, as the lesson has it; a tree of drawn children; and the tree of EAGLE-2 under greedy
decoding. Seeds make the texts the same again; only the times are those of the machine. Headers get a title, a note and
the texts of all tokens, so that the page asks no tokenizer; figures are rounded to what it needs.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from outpace.decoding.generate import generate
from outpace.drafters.load import load_drafter
from outpace.models.load import load_target
from outpace.report.pieces import Pieces

REPOSITORY = Path(__file__).parents[1]
PARTS = REPOSITORY / "src" / "outpace" / "report" / "parts"
PROMPT = "Name three planets and say one thing about each."
WAYS: dict[str, dict[str, Any]] = {
    "chain": {"rule": "rejection", "num_draft_tokens": 4, "temperature": 1.0, "seed": 3},
    "tree": {"rule": "tree-rejection", "tree": "sampled:3", "depth": 4, "num_draft_tokens": 10}
    | {"temperature": 1.0, "seed": 4},
    "greedy": {"tree": "dynamic", "depth": 5, "num_draft_tokens": 14, "temperature": 0.0},
}
TITLES = {"chain": "A chain of four", "tree": "A tree of drawn children", "greedy": "A tree, greedily"}
TOKENS = 40
TOP = 10
"""Logits kept of each row."""


def rounded(record: dict[str, Any]) -> dict[str, Any]:
    """A record with so many logits a row, and figures of as many digits as the page can show."""
    for name in ("target", "draft"):
        for row in record[name] or ():
            row["ids"], row["logits"] = row["ids"][:TOP], [round(logit, 4) for logit in row["logits"][:TOP]]
            row["logsumexp"] = round(row["logsumexp"], 5)
    for node in record["nodes"]:
        node["draft_prob"], node["target_prob"] = (float(f"{node[name]:.5g}") for name in ("draft_prob", "target_prob"))
    record["coins"] = [round(coin, 6) for coin in record["coins"]]
    record["seconds"] = {name: round(value, 5) for name, value in record["seconds"].items()}
    return record


def tokens_of(records: Iterable[dict[str, Any]]) -> set[int]:
    """Every token that records name."""
    found: set[int] = set()
    for record in records:
        found |= {record["last"], record["verdict"]["next_token"], *(node["token"] for node in record["nodes"])}
        found.update(token for name in ("target", "draft") for row in record[name] or () for token in row["ids"])
    return found


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="smollm2")
    parser.add_argument("--draft", default=str(REPOSITORY / "heads" / "eagle3-smollm2"))
    parser.add_argument("--out", type=Path, default=PARTS)
    parser.add_argument("--dtype", default="auto")
    args = parser.parse_args(argv)
    target = load_target(args.target, dtype=args.dtype)
    drafter = load_drafter(args.draft, target, dtype=args.dtype)
    pieces = Pieces.of(args.target, target.fingerprint)
    for name, way in WAYS.items():
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "trace.jsonl"
            generate(target, None, PROMPT, max_new_tokens=4)  # what is slow the first time is not in the trace
            result = generate(target, drafter, PROMPT, max_new_tokens=TOKENS, trace=path, **way)
            header, *records = map(json.loads, path.read_text("utf-8").splitlines())
        records = [rounded(record) for record in records]
        header |= {"title": TITLES[name], "note": f"Prompt: {PROMPT}", "drafter": Path(str(header["drafter"])).name}
        header["pieces"] = {token: pieces.piece(token) for token in sorted(tokens_of(records))}
        lines = [json.dumps(one, separators=(",", ":")) for one in (header, *records)]
        (args.out / f"{name}.jsonl").write_text("\n".join(lines) + "\n", "utf-8")
        print(f"{name}: {result.text!r}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
