"""Exercise 5: the ways to lose. Temperature, a draft that costs too much, load; and the controller that falls back.

    python labs/05-failure/lab.py --small           # a tiny random target: does it run? no claim
    python labs/05-failure/lab.py law counts        # what is accepted: any machine, other work may run
    python labs/05-failure/lab.py speed load size control   # what it costs: a quiet machine
    python labs/05-failure/lab.py                   # all; README.md says how long each takes

Parts: ``law`` (α by closed forms at every place of texts), ``counts`` (tau and acceptance of real decoding), ``speed``
(beside plain decoding, by temperature), ``load`` (by prompts decoded at once), ``size`` (what a draft costs by its
size, and what that leaves), ``control`` (the controller where nothing pays, and where most does). Each replaces its own
part of results.json and says when and where it was measured.
"""

import argparse
import json
import sys
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

from clocks import control, load, sizes, speed  # noqa: E402
from common import HEAD, arguments, finish, heading, plain, table  # noqa: E402
from pairs import Setting, setting, small_setting  # noqa: E402
from pictures import figures  # noqa: E402
from rates import TEMPERATURES, closed_forms, counts  # noqa: E402
from words import summary  # noqa: E402

from outpace.evaluation.machine import machine, versions  # noqa: E402
from outpace.evaluation.metrics import Estimate  # noqa: E402

SHAPES = (
    {"depth": 1, "width": 64, "heads": 1, "feed_forward": 192},
    {"depth": 2, "width": 128, "heads": 2, "feed_forward": 384},
    {"depth": 4, "width": 256, "heads": 4, "kv_heads": 2, "feed_forward": 704},
    {"depth": 7, "width": 384, "heads": 6, "kv_heads": 2, "feed_forward": 1024},
    {"depth": 12, "width": 512, "heads": 8, "kv_heads": 4, "feed_forward": 1408},
    {"depth": 30, "width": 576, "heads": 9, "kv_heads": 3, "feed_forward": 1536},
)
"""From a hundredth of the default's weights to all of them; the fourth is that of recipes/distil-smollm2.toml."""
SMALL = 6
"""Tokens of a text of the small run."""
PROTOCOL = {
    "law": "raw logits of target and draft at every place of plain texts; 95 % bootstrap over texts; `said at 1` "
    "compares all temperatures on one text, `said at its own` on texts of that temperature",
    "counts": "our own prompts; a rule by name, its coins by a seed; sums over sums, 95 % bootstrap over prompts",
    "speed": "batch 1, prefill counted, interleaved repeats, medians; paired bootstrap over prompts of their ratio",
    "load": "greedy, prompts decoded at once, no refilling; otherwise as speed",
    "size": "one forward behind a text of made-up ids, medians; speed-ups are predicted from alpha and these costs",
    "control": "as speed; the controller (num_draft_tokens auto) beside plain decoding and fixed chains of one drafter",
}


def parts(args: argparse.Namespace, given: Setting) -> Mapping[str, Callable[[], list[dict[str, Any]]]]:
    """What each part runs, in its own size."""
    tokens, repeats = (SMALL, 1) if args.small else (args.tokens, args.repeats)
    shapes = (
        SHAPES if not args.small else ({"depth": 1, "width": 16, "heads": 1}, {"depth": 2, "width": 32, "heads": 4})
    )
    batches = (1, 2) if args.small else (1, 2, 4, 8, 16)
    return {
        "law": partial(closed_forms, given, tokens, (1.0, 1.5) if args.small else TEMPERATURES),
        "counts": partial(counts, given, tokens, (0.0, 1.5) if args.small else (0.0, 0.5, 1.0, 1.5)),
        "speed": partial(speed, given, tokens, repeats, (0.0, 1.5) if args.small else (0.0, 1.0, 1.5)),
        "load": partial(load, given, tokens, repeats, batches),
        "size": partial(sizes, given.target, shapes, 32 if args.small else 256, 3 if args.small else 30),
        "control": partial(control, given, tokens, repeats, (2,) if args.small else (2, 4, 8)),
    }


def said(name: str, rows: list[dict[str, Any]]) -> None:
    """A part as a table, one line a figure."""
    heading(f"{name}: {PROTOCOL[name]}")
    if name == "size":
        drafts = [
            (one["parameters"], one["c"], one["break_even_alpha"]["4"], *(best["speedup"] for best in one["best"]))
            for one in rows[0]["drafts"]
        ]
        table(
            (
                "weights",
                "c",
                "break-even α, K 4",
                *(f"best at α {best['alpha']}" for best in rows[0]["drafts"][0]["best"]),
            ),
            drafts,
        )
        return
    columns = [key for key, value in rows[0].items() if isinstance(value, str | int | float | Estimate | None)]
    hidden = {"what", "tree", "nodes", "depth", "rule" if name == "counts" else "", "drawn", "turns"}
    shown = [key for key in columns if key not in hidden]
    table(shown, [["-" if row[key] is None else row[key] for key in shown] for row in rows])


def standing(args: argparse.Namespace) -> dict[str, Any]:
    """The parts that were measured before."""
    path = (args.out or HERE) / "results.json"
    return dict(json.loads(path.read_text("utf-8"))["parts"]) if path.is_file() else {}


def flags(argv: list[str] | None) -> argparse.Namespace:
    parser = arguments(__doc__, __file__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PROTOCOL)}; all by default")
    parser.add_argument("--target", default="smollm2", help="a folder, a Hugging Face id, or the default")
    parser.add_argument("--head", type=Path, default=HEAD, help="a trained head for it")
    parser.add_argument("--student", type=Path, help="a small model for it, such as lab 3 makes")
    parser.add_argument("--prompts-per-category", type=int, default=2, help="of our own six categories")
    parser.add_argument("--tokens", type=int, default=64, help="of each text")
    parser.add_argument("--repeats", type=int, default=3, help="of what is timed")
    args = parser.parse_args(argv)
    if unknown := [name for name in args.parts if name not in PROTOCOL]:
        parser.error(f"the part is {unknown[0]!r}; allowed: {', '.join(PROTOCOL)}")
    return args


def given_by(args: argparse.Namespace) -> Setting:
    if args.small:
        return small_setting()
    return setting(args.target, args.head, args.student, args.prompts_per_category)


def main(argv: list[str] | None = None) -> int:
    args = flags(argv)
    wanted = args.parts or list(PROTOCOL)
    given, found = given_by(args), standing(args)
    for name in wanted:
        rows = parts(args, given)[name]()
        said(name, rows)
        found[name] = {
            "protocol": PROTOCOL[name],
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "machine": machine(),
            "versions": versions(),
            "tokens": SMALL if args.small else args.tokens,
            "prompts": len(given.asked),
            "drafters": {key: one.name.rpartition("/")[2] for key, one in given.drafters.items()},
            "results": plain(rows),
        }
    # A result names no folder of the machine, and each part says its own settings.
    ordered = {name: found[name] for name in PROTOCOL if name in found}
    for name in ("target", "head", "student"):
        value = getattr(args, name)
        setattr(args, name, None if value is None else Path(value).name)
    finish(args, {"parts": ordered}, figures({name: part["results"] for name, part in ordered.items()}), summary)
    return 0


if __name__ == "__main__":
    sys.exit(main())
