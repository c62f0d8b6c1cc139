"""Exercise 4: a tree with the top three at each depth, its mask, the longest right path, and what it brings.

    python labs/04-tree/lab.py           # 24 prompts, 96 tokens: README.md says how long
    python labs/04-tree/lab.py --quick   # 6 prompts, 48 tokens: minutes
    python labs/04-tree/lab.py --small   # 2 prompts, 12 tokens: what CI runs, on a tiny model

Everything runs in fp32, where the promise is the very tokens of plain decoding: greedy, and at temperature 1 with a
seed. At every turn the accepted path is held against the longest one in the tree that says what plain decoding said.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

from common import HEAD, arguments, finish, heading, table  # noqa: E402
from pictures import mask, taus, trees  # noqa: E402
from turns import Decoded, Seen, Shape, by_rank, decoded, paths_checked  # noqa: E402

from outpace.decoding.text import Text, text_of  # noqa: E402
from outpace.drafters.drafter import Drafter  # noqa: E402
from outpace.drafters.load import load_drafter  # noqa: E402
from outpace.evaluation.metrics import ratio_of_sums  # noqa: E402
from outpace.evaluation.workloads import workload  # noqa: E402
from outpace.models.load import load_target  # noqa: E402
from outpace.models.target import Target  # noqa: E402

PLAIN = Shape("plain", "chain", 0, 0)
SHOWN = Shape("top-3 tree, 4 deep, 12 nodes", "top-k:3", 4, 12)
SHAPES = (
    Shape("chain, 4 deep", "chain", 4, 4),
    Shape("chain, 12 nodes", "chain", 12, 12),
    SHOWN,
    Shape("top-3 of every node, 3 deep", "top-k:3", 3, 39),
)
TEMPERATURES = (0.0, 1.0)
EXAMPLES, WIDTH = 2, 90


def row(shape: Shape, temperature: float, texts: Sequence[Decoded], plain: Sequence[Decoded]) -> dict[str, Any]:
    """What one shape of drafts brought, and whether anything changed."""
    turns = [turn for text in texts for turn in text.seen]
    right, total = paths_checked(texts, plain)
    return {
        "shape": shape.name,
        "tree": shape.tree,
        "temperature": temperature,
        "tau": ratio_of_sums([text.emitted for text in texts], [text.turns for text in texts]),
        "nodes_per_turn": sum(len(turn.tokens) for turn in turns) / len(turns),
        "turns": len(turns),
        "by_rank": by_rank(texts),
        "texts": len(texts),
        "equal_texts": sum(text.ids == other.ids for text, other in zip(texts, plain, strict=True)),
        "longest_right_path_taken": right,
        "turns_checked": total,
    }


Example = dict[str, Any]


def examples(texts: Sequence[Decoded], asked: Sequence[str], text: Text, temperature: float) -> list[Example]:
    """The turns with the longest accepted paths, one a prompt; of equal ones those in which siblings mattered most."""

    def worth(turn: Seen) -> tuple[int, int, int]:
        return len(turn.path), sum(rank > 0 for rank in turn.ranks), -turn.start

    best = [(max(one.seen, key=worth), one, prompt) for one, prompt in zip(texts, asked, strict=True) if one.seen]
    best.sort(key=lambda found: worth(found[0]), reverse=True)
    return [
        {
            "temperature": temperature,
            "prompt": _first_words(prompt),
            "root": text.decode([one.ids[turn.start - 1]]),
            "words": [text.decode([token]) for token in turn.tokens],
            "next": text.decode([turn.next_token]),
            **{key: value for key, value in asdict(turn).items() if key in ("tokens", "parents", "path", "ranks")},
        }
        for turn, one, prompt in best
    ]


def _first_words(prompt: str) -> str:
    """The beginning of a prompt, as much as fits a line."""
    line = " ".join(prompt.split())
    return line if len(line) <= WIDTH else line[:WIDTH].rsplit(" ", 1)[0] + " …"


def summary(found: Mapping[str, Any]) -> str:
    """The table of README.md."""
    columns = ("drafts", "temperature", "nodes a turn", "tokens a forward", "2nd and 3rd choices")
    lines = [f"| {' | '.join((*columns, 'texts as plain', 'longest right path taken'))} |", "|---|" + "---:|" * 6]
    for one in found["results"]:
        ranks = one["by_rank"]
        cells = (
            one["shape"],
            f"{one['temperature']:g}",
            f"{one['nodes_per_turn']:.1f}",
            "{value:.2f} [{low:.2f}, {high:.2f}]".format(**one["tau"]),
            f"{sum(ranks[1:]) / max(1, sum(ranks)):.0%}",
            f"{one['equal_texts']} of {one['texts']}",
            f"{one['longest_right_path_taken']} of {one['turns_checked']} turns",
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def measure(args: Any, target: Target, drafter: Drafter, text: Text) -> tuple[list[dict[str, Any]], list[Example]]:
    """Every shape at every temperature beside plain decoding, and the best turns of the tree."""
    asked = [str(entry.turns[0]) for entry in workload(per_category=args.prompts_per_category)]
    asked = asked[:2] if args.small else asked
    prompts = [text.encode(prompt) for prompt in asked]
    results: list[dict[str, Any]] = []
    shown: list[Example] = []
    for temperature in TEMPERATURES:
        plain = decoded(target, None, prompts, args.max_new_tokens, temperature, PLAIN)
        for shape in SHAPES:
            texts = decoded(target, drafter, prompts, args.max_new_tokens, temperature, shape)
            results.append(row(shape, temperature, texts, plain))
            print(f"   {shape.name}, temperature {temperature:g}: tau {results[-1]['tau']}", file=sys.stderr)
            if shape is SHOWN:
                shown += examples(texts, asked, text, temperature)[:EXAMPLES]
    return results, shown


def show(results: Sequence[dict[str, Any]]) -> None:
    """The table on the screen."""
    heading("drafts of every shape, fp32")
    columns = ("drafts", "T", "nodes a turn", "tokens a forward", "by rank", "texts as plain", "longest right path")
    rows = [
        (
            one["shape"],
            one["temperature"],
            one["nodes_per_turn"],
            str(one["tau"]),
            "/".join(map(str, one["by_rank"])),
            f"{one['equal_texts']}/{one['texts']}",
            f"{one['longest_right_path_taken']}/{one['turns_checked']}",
        )
        for one in results
    ]
    table(columns, rows)


@torch.no_grad()
def main(argv: list[str] | None = None) -> int:
    parser = arguments(__doc__, __file__)
    parser.add_argument("--quick", action="store_true", help="6 prompts, 48 tokens")
    parser.add_argument("--target", default="smollm2")
    parser.add_argument("--draft", default=str(HEAD) if HEAD.is_dir() else "eagle3")
    parser.add_argument("--prompts-per-category", type=int, default=4)
    parser.add_argument("--max-new-tokens", type=int, default=96)
    args = parser.parse_args(argv)
    if args.quick or args.small:
        args.prompts_per_category, args.max_new_tokens = 1, 12 if args.small else 48
    target = load_target(args.target, dtype="fp32")
    drafter = load_drafter(args.draft, target, dtype="fp32")
    assert target.folder is not None
    results, shown = measure(args, target, drafter, text_of(target.folder))
    show(results)
    args.target, args.draft = Path(args.target).name, Path(args.draft).name  # what is written names no folder
    found = {
        "protocol": (
            "prompts of the package's workload, first ones of every category, fp32, all at once; temperature 1 with a "
            "seed: the shared-noise coupling; tau with a 95 % bootstrap over prompts"
        ),
        "drafter": drafter.name.partition(":")[0],
        "shown": SHOWN.name,
        "results": results,
        "examples": shown,
    }
    best = max(shown, key=lambda one: (len(one["path"]), sum(one["ranks"])))
    figures = {"mask": partial(mask, best), "trees": partial(trees, shown), "tau": partial(taus, found)}
    finish(args, found, figures, summary)
    kept = [
        one["equal_texts"] == one["texts"] and one["longest_right_path_taken"] == one["turns_checked"]
        for one in results
    ]
    return int(not all(kept))


if __name__ == "__main__":
    sys.exit(main())
