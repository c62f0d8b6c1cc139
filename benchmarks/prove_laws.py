"""Prove every lossless rule on every small tree by enumeration, and write down how far from exact each came.

    python benchmarks/prove_laws.py [--quick]

One thread, a few minutes, no model and no download. Every row should say less than 1e-12: the target's law, whatever
the tree. ``behind`` counts trees on which traversal emitted fewer tokens than tree-rejection: none where
every sibling's subtree fits into the one before it (``nested``), some elsewhere, as optimality is a theorem for chains.
Writes ``benchmarks/results/prove_laws.json``.
"""

import argparse
import json
import platform
import time
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table as Grid

from outpace.verification.oracle import (
    Table,
    count_prefixes,
    expected_tokens,
    output_law,
    ranked,
    sampled,
    total_variation,
    tree_shapes,
)
from outpace.verification.rules import CHAIN_ONLY, LOSSLESS, RULES

RESULTS = Path(__file__).parent / "results" / "prove_laws.json"
EXACT = 1e-12
TABLES = 4  # random targets and drafts a shape
SWEEP = [(vocab, nodes) for vocab, most in ((2, 8), (3, 7), (4, 6), (5, 5)) for nodes in range(1, most + 1)]
Shape = tuple[int, ...]


def tables(vocab: int, length: int, seed: int) -> tuple[Table, Table]:
    """A random target and draft; one row in three of each has zeros, and one in five is the same in both."""
    generator = torch.Generator().manual_seed(seed)
    shape = (2, count_prefixes(vocab, length), vocab)
    rows = torch.randn(shape, generator=generator, dtype=torch.float64).mul(1.5).softmax(-1)
    spare = torch.rand(shape, generator=generator) < torch.rand((*shape[:2], 1), generator=generator)
    rows = rows.where(spare | (torch.rand((*shape[:2], 1), generator=generator) < 2 / 3), rows * 1e-300)
    rows[rows < 1e-200] = 0
    rows[(rows.sum(-1) == 0), 0] = 1
    rows = rows / rows.sum(-1, keepdim=True)
    same = torch.rand(shape[1], generator=generator) < 0.2
    rows[1, same] = rows[0, same]
    return Table(rows[0]), Table(rows[1])


def levels(shape: Shape) -> int:
    depths: list[int] = []
    for parent in shape:
        depths.append(1 if parent < 0 else depths[parent] + 1)
    return max(depths)


def nested(shape: Shape) -> bool:
    """Whether every sibling's subtree fits into the one of the sibling before it."""
    children = [[node for node, parent in enumerate(shape) if parent == row] for row in range(-1, len(shape))]

    def fits(small: int, large: int) -> bool:
        few, many = children[small + 1], children[large + 1]
        return len(few) <= len(many) and all(fits(*two) for two in zip(few, many, strict=False))

    return all(fits(later, earlier) for siblings in children for earlier, later in pairwise(siblings))


def prove(vocab: int, nodes: int) -> dict[str, Any]:
    """All shapes of one size, each with tables of its own, by every rule that can judge them."""
    furthest = dict.fromkeys((name for name in LOSSLESS if name != "greedy"), 0.0)
    behind = {"nested": 0, "other": 0}
    shapes = tree_shapes(nodes, vocab)
    cases = [(shape, table) for shape in shapes for table in range(TABLES)]
    for number, (shape, _) in enumerate(track(cases, f"vocab {vocab}, nodes {nodes}", transient=True)):
        depth = levels(shape)
        target, draft = tables(vocab, 1 + depth, number)
        reference = target.joint(1 + depth)
        for name in furthest:
            if name in CHAIN_ONLY and depth < nodes:
                continue
            for drafting in (ranked,) if name == "match" else (ranked, sampled):
                law = output_law(RULES[name], target, drafting(draft, shape), 1 + depth)
                furthest[name] = max(furthest[name], total_variation(law, reference))
        walked, tried = (
            expected_tokens(RULES[name], target, sampled(draft, shape)) for name in ("traversal", "tree-rejection")
        )
        behind["nested" if nested(shape) else "other"] += walked < tried - EXACT
    return {"vocab": vocab, "nodes": nodes, "shapes": len(shapes), "furthest": furthest, "behind": behind}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="trees of at most four nodes, nothing written")
    quick = parser.parse_args().quick
    torch.set_num_threads(1)
    begin, found = time.perf_counter(), []
    for vocab, nodes in SWEEP:
        if not (quick and nodes > 4):
            found.append(prove(vocab, nodes))
    grid = Grid(
        "vocab", "nodes", "shapes", *(f"max TV {name}" for name in found[0]["furthest"]), "behind: nested, other"
    )
    for row in found:
        distances = (f"{value:.1e}" for value in row["furthest"].values())
        grid.add_row(
            *(str(row[key]) for key in ("vocab", "nodes", "shapes")), *distances, str([*row["behind"].values()])
        )
    Console().print(grid)
    exact = all(value < EXACT for row in found for value in row["furthest"].values())
    if not quick:
        document = {
            "date": datetime.now(UTC).date().isoformat(),
            "machine": {
                "processor": platform.machine(),
                "python": platform.python_version(),
                "torch": torch.__version__,
            },
            "seconds": round(time.perf_counter() - begin),
            "exact_below": EXACT,
            "tables_per_shape": TABLES,
            "exact": exact,
            "sizes": found,
        }
        RESULTS.parent.mkdir(exist_ok=True)
        RESULTS.write_text(json.dumps(document, indent=1) + "\n", "utf-8")
    return 0 if exact else 1


if __name__ == "__main__":
    raise SystemExit(main())
