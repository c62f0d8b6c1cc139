"""Draw the README's table of measurements from the committed results, and keep it equal to them.

    python benchmarks/table.py --write

One line a gate: what was measured, its interval, what was asked for, and the script that measured it. Nothing is
measured here.
"""

import json
import sys
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).parents[1]
RESULTS = REPOSITORY / "benchmarks" / "results"
OPEN, CLOSE = "<!-- measured -->", "<!-- /measured -->"


def table(results: Path = RESULTS) -> str:
    """The block between the two marks of the README, marks included."""
    documents = [json.loads(path.read_text("utf-8")) for path in sorted(results.glob("*.json"))]
    judged = [document for document in documents if document.get("gates")]
    lines = ["| measured | value | asked for | script |", "|---|---|---|---|"]
    lines += [_line(gate, document["script"]) for document in judged for gate in document["gates"]]
    return "\n".join([OPEN, _where(judged), "", *lines, CLOSE])


def _line(gate: dict[str, Any], script: str) -> str:
    estimate = gate["estimate"]
    value = _number(estimate["value"])
    if estimate["low"] != estimate["high"]:
        value += f" [{_number(estimate['low'])}, {_number(estimate['high'])}]"
    asked = f"{'≤' if gate['ceiling'] else '≥'} {_number(gate['bound'])}"
    if gate.get("goal") is not None:
        asked += f", goal {_number(gate['goal'])}"
    missed = "" if gate["holds"] else " **missed**"
    return f"| {gate['name']} | {value}{missed} | {asked} | [{Path(script).name}]({script}) |"


def _where(documents: list[dict[str, Any]]) -> str:
    """Machine, versions and dates, said once."""
    if not documents:
        return "Nothing has been measured yet."
    machine, versions = documents[-1]["machine"], documents[-1]["versions"]
    dates = sorted({document["date"][:10] for document in documents})
    when = " to ".join(dict.fromkeys((dates[0], dates[-1])))
    return (
        f"Measured on {machine['cores']} cores of an {machine['cpu']}, torch {versions['torch']}, "
        f"transformers {versions['transformers']}, {when}; intervals are 95 % bootstrap intervals over prompts. "
        "Protocols and every figure stand in [benchmarks/results](benchmarks/results)."
    )


def _number(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def main() -> None:
    path = REPOSITORY / "README.md"
    readme = path.read_text("utf-8")
    start, end = readme.find(OPEN), readme.find(CLOSE) + len(CLOSE)
    if "--write" in sys.argv[1:]:
        path.write_text(readme[:start] + table() + readme[end:], "utf-8")
    else:
        print(table())


if __name__ == "__main__":
    main()
