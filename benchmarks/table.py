"""Draw the tables of measurements from the committed results, and keep them equal to them.

    python benchmarks/table.py --write

The README has the headlines, in words; ``benchmarks/README.md`` has one line a gate: what was measured, its interval,
what was asked for, and the script that measured it. Nothing is measured here.
"""

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).parents[1]
RESULTS = REPOSITORY / "benchmarks" / "results"
OPEN, CLOSE = "<!-- measured -->", "<!-- /measured -->"


@dataclass(frozen=True)
class Headline:
    """A line of the README: of all gates of a script that begin so, the one that comes nearest to its bound.

    Args:
        words: what was measured.
        script: its name.
        begins: how the gates' names begin.
    """

    words: str
    script: str
    begins: str


HEADLINES = (
    Headline("plain decoding, bf16, times transformers' `generate`", "plain_speed", "plain, bf16, against"),
    Headline("plain decoding, fp32, times transformers' `generate`", "plain_speed", "plain, fp32, against"),
    Headline("a hosted model, plainly, times transformers' `generate`", "hosted_speed", "plain, hosted, bf16, a"),
    Headline("lookup drafts, times transformers' own prompt lookup", "lookup_speed", "lookup 4 against"),
    Headline("eight prompts at once, tokens a second times one", "batch_speed", "batch 8, plain"),
    Headline("`auto` with lookup, times plain: the worst category of T 0, 1 and 1.5", "auto_speed", "auto"),
    Headline("a trained head, times plain decoding", "eagle_speed", "auto, dynamic, all, over plain"),
    Headline("a trained head, times transformers' `generate`", "eagle_speed", "auto, dynamic, all, over transformers"),
    Headline("time outside the target's forward, greedy, share of a turn", "overhead", "greedy"),
    Headline("the same at temperature 1", "overhead", "temperature 1, lookup"),
    Headline("the same with a tree of 24 nodes, the worst sampling", "tree_overhead", ""),
    Headline("greedy texts that differ from plain ones, fp32, of 720", "greedy_equality", "lookup"),
    Headline("`outpace check`: planted faults found, of ten", "losslessness", "check, lookup, chain: planted"),
)


def headlines(results: Path = RESULTS) -> str:
    """The block between the two marks of the README, marks included."""
    found = _judged(results)
    by_script = {Path(document["script"]).stem: document for document in found}
    lines = ["| measured | value | asked for | script |", "|---|---|---|---|"]
    for one in HEADLINES:
        document = by_script.get(one.script)
        gates = [gate for gate in document["gates"] if gate["name"].startswith(one.begins)] if document else []
        if document and gates:
            lines.append(_line(min(gates, key=_margin), document["script"], "benchmarks/", one.words))
    place = "Every gate stands in [benchmarks/README.md](benchmarks/README.md), every figure beside it."
    return "\n".join([OPEN, f"{_where(found)} {place}", "", *lines, CLOSE])


def table(results: Path = RESULTS) -> str:
    """The block between the two marks of the whole table, marks included."""
    found = _judged(results)
    lines = ["| measured | value | asked for | script |", "|---|---|---|---|"]
    lines += [_line(gate, document["script"], "", gate["name"]) for document in found for gate in document["gates"]]
    place = "Protocols and every figure stand in [results](results)."
    return "\n".join([OPEN, f"{_where(found)} {place}", "", *lines, CLOSE])


BLOCKS = {REPOSITORY / "README.md": headlines, REPOSITORY / "benchmarks" / "README.md": table}


def block(text: str) -> tuple[int, int]:
    """Where the block of a document begins and ends."""
    return text.index(OPEN), text.index(CLOSE) + len(CLOSE)


def _judged(results: Path) -> list[dict[str, Any]]:
    documents = [json.loads(path.read_text("utf-8")) for path in sorted(results.glob("*.json"))]
    return [document for document in documents if document.get("gates")]


def _margin(gate: dict[str, Any]) -> float:
    """How far a gate is from its bound, below 0 on the wrong side."""
    value, bound = gate["estimate"]["value"], gate["bound"]
    return float(bound - value if gate["ceiling"] else value - bound)


def _line(gate: dict[str, Any], script: str, folder: str, words: str) -> str:
    estimate = gate["estimate"]
    value = _number(estimate["value"])
    if estimate["low"] != estimate["high"]:
        value += f" [{_number(estimate['low'])}, {_number(estimate['high'])}]"
    asked = f"{'≤' if gate['ceiling'] else '≥'} {_number(gate['bound'])}"
    if gate.get("goal") is not None:
        asked += f", goal {_number(gate['goal'])}"
    missed = "" if gate["holds"] else " **missed**"
    name = Path(script).name
    return f"| {words} | {value}{missed} | {asked} | [{name}]({folder}{name}) |"


def _where(documents: Sequence[dict[str, Any]]) -> str:
    """Machine, versions and dates, said once."""
    if not documents:
        return "Nothing has been measured yet."
    machine, versions = documents[-1]["machine"], documents[-1]["versions"]
    dates = sorted({document["date"][:10] for document in documents})
    when = " to ".join(dict.fromkeys((dates[0], dates[-1])))
    return (
        f"Measured on {machine['cores']} cores of an {machine['cpu']}, torch {versions['torch']}, "
        f"transformers {versions['transformers']}, {when}; intervals are 95 % bootstrap intervals over prompts."
    )


def _number(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def main() -> None:
    for path, drawn in BLOCKS.items():
        text = path.read_text("utf-8")
        start, end = block(text)
        if "--write" in sys.argv[1:]:
            path.write_text(text[:start] + drawn() + text[end:], "utf-8")
        else:
            print(drawn())


if __name__ == "__main__":
    main()
