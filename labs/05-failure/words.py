"""What the lab found as tables for its README.

Knows nothing of how it was measured: it reads what stands in results.json.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Rows = Sequence[Mapping[str, Any]]
LAWS = (
    ("noise", "rejection, a drawn token"),
    ("noise", "match, the likeliest token"),
    ("noise", "match, a drawn token"),
    ("head", "rejection, a drawn token"),
    ("head", "match, the likeliest token"),
    ("head", "match, the three likeliest"),
    ("student", "rejection, a drawn token"),
    ("student", "match, the likeliest token"),
    ("itself", "rejection, a drawn token"),
    ("itself", "match, a drawn token"),
    ("lookup", "match, the token found"),
    ("target", "its likeliest token"),
)
"""The lines of the table of laws, those of a drafter that took no part left out."""


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    head = f"| {' | '.join(columns)} |"
    return [head, "|---|" + "---:|" * (len(columns) - 1), *(f"| {' | '.join(row)} |" for row in rows), ""]


def span(one: Mapping[str, float] | float | None, digits: int = 2) -> str:
    """An estimate with its interval."""
    if one is None:
        return "-"
    if not isinstance(one, Mapping):
        return f"{one:.{digits}f}"
    return f"{one['value']:.{digits}f} [{one['low']:.{digits}f}, {one['high']:.{digits}f}]"


def across(rows: Rows, line: str, column: str, cell: str, name: str) -> list[str]:
    """A line for each value of one field, a column for each value of another."""
    columns = sorted({row[column] for row in rows})
    cells = {(row[line], row[column]): span(row[cell]) for row in rows}
    lines = list(dict.fromkeys(row[line] for row in rows))
    head = [line, *(f"{name} {value:g}" for value in columns)]
    return table(head, ([one, *(cells.get((one, value), "-") for value in columns)] for one in lines))


def law(rows: Rows) -> list[str]:
    """α of the closed forms, first on one text and then on texts of their own temperature."""
    found = []
    titles = {"said at 1": "α, all temperatures on one text", "said at its own": "α, texts of their own temperature"}
    for text, title in titles.items():
        own = [row for row in rows if row["text"] == text]
        chosen = [row for who, rule in LAWS for row in own if (row["drafter"], row["rule"]) == (who, rule)]
        named = [{**row, title: f"{row['drafter']}: {row['rule']}"} for row in chosen]
        found += across(named, title, "temperature", "alpha", "T")
    return found


def size(rows: Rows) -> list[str]:
    drafts = rows[0]["drafts"]
    head = ["weights of the draft", "a step, ms", "c", "α to break even, K 4"]
    head += [f"best speed-up at α {one['alpha']:g}" for one in drafts[0]["best"]]
    lines = [
        [f"{one['parameters']:,}", f"{one['step_ms']:.2f}", f"{one['c']:.3f}", f"{one['break_even_alpha']['4']:.2f}"]
        + [f"{best['speedup']:.2f} (K {best['k']})" for best in one["best"]]
        for one in drafts
    ]
    costs = rows[0]["target_ms"]
    return [
        *table(head, lines),
        *table(["rows of the target's forward", *costs], [["ms", *(f"{ms:.1f}" for ms in costs.values())]]),
    ]


def control(rows: Rows) -> list[str]:
    head = ["drafter", "T", "category", "against plain", "best fixed chain", "against it", "turns without a draft"]
    return table(
        head,
        [
            [
                row["drafter"],
                f"{row['temperature']:g}",
                row["category"],
                span(row["auto_against_plain"]),
                f"{row['best_fixed'].partition(', ')[2]}, {span(row['best_fixed_against_plain'])}",
                span(row["auto_against_best_fixed"]),
                span(row["plain_turn_share"]),
            ]
            for row in rows
        ],
    )


WORDS = {
    "law": law,
    "counts": lambda rows: across(rows, "way", "temperature", "tau", "τ, T"),
    "speed": lambda rows: across(rows, "way", "temperature", "speedup", "T"),
    "load": lambda rows: across(rows, "way", "batch", "speedup", "batch"),
    "size": size,
    "control": control,
}
TITLES = {
    "law": "What a rule accepts (`law`)",
    "counts": "Tokens a forward, decoded (`counts`)",
    "speed": "Speed against plain decoding by temperature (`speed`)",
    "load": "Speed against plain decoding by prompts at once, greedy (`load`)",
    "size": "A draft by its size (`size`)",
    "control": "The controller (`control`)",
}


def summary(found: Mapping[str, Any]) -> str:
    """All parts that were measured, each with where and when."""
    lines = []
    for name, part in found["parts"].items():
        machine = f"{part['machine']['cores']} cores of {part['machine']['cpu']}"
        taken = f"{part['date'][:10]}, {machine}"
        if name != "size":
            taken += f"; {part['prompts']} prompts, {part['tokens']} tokens each"
        how = part["protocol"].replace("alpha", "α")
        lines += [f"### {TITLES[name]}", "", f"{taken}. {how[0].upper()}{how[1:]}.", ""]
        lines += [*WORDS[name](part["results"]), f"![{TITLES[name]}](figures/{name}.png)", ""]
    return "\n".join(lines).rstrip()
