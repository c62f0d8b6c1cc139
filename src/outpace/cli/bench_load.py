"""outpace bench --concurrency 1,2,4: does drafting still pay under load? A row a level, and where it stops paying.

Knows nothing of how it is measured; parses, calls, prints.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from outpace.cli.bench_show import number
from outpace.decoding.plan import NONE, Choice
from outpace.drafters.drafter import Drafter
from outpace.errors import UsageError
from outpace.evaluation.benchmark import Protocol, Setting
from outpace.evaluation.load import Loaded, measure
from outpace.evaluation.load_outcome import LoadRow, as_plain, load_rows, verdicts
from outpace.evaluation.outcome import named, parted
from outpace.evaluation.ties import open_judge
from outpace.evaluation.workloads import Question
from outpace.models.staging import Progress
from outpace.models.target import Target

HOW = (
    "streams of prompts through so many slots, an ended sequence giving its slot to the next prompt; drafted and plain "
    "one behind the other, level by level, in rounds; wall time of the whole stream, prefill included; speed-ups are "
    "ratios of median tokens per second over streams, with 95 % intervals of a paired bootstrap over them; ms a token "
    "are of one request behind its first token, medians over requests; predictions are from measured costs of turns "
    "and the acceptance of all levels together"
)
COLUMNS = (
    *("at\nonce", "streams", "plain\ntok/s", "drafted\ntok/s", "speed-up", "", "predicted", "plain ms\na token"),
    *("drafted ms\na token", "tokens\na forward", "turns with\nno draft"),
)


def concurrencies(given: str) -> list[int]:
    """The levels of ``--concurrency``, in rising order.

    Raises:
        UsageError: it is no number and no list of different numbers.
    """
    try:
        levels = sorted(int(part) for part in given.split(","))
    except ValueError:
        levels = []
    if not levels or len({*levels}) < len(levels) or levels[0] < 1:
        raise UsageError(f"concurrency is {given}; allowed: 1 or more, or several different ones, such as 1,2,4,8,16")
    return levels


def settings_of(
    choices: Mapping[int, Choice | None], make: Callable[[Choice | None], list[Setting]]
) -> tuple[dict[int, list[Setting]], list[str]]:
    """What is measured at each level, and a note where a plan leaves nothing to compare.

    Args:
        choices: a plan's choice for each level, or None where flags say what to measure.
        make: the settings of a choice; refuses one that decodes plainly.

    Raises:
        UsageError: as ``make`` where every choice decodes plainly; or a plan has several drafters for these levels.
    """
    plain = [
        level for level, choice in choices.items() if choice is not None and not choice.options["num_draft_tokens"]
    ]
    left = {level: choice for level, choice in choices.items() if level not in plain} or dict(choices)
    names = {choice.drafter for choice in left.values() if choice is not None} - {NONE}
    if len(names) > 1:
        raise UsageError(
            f"the plan has the drafters {', '.join(sorted(names))} for these concurrencies; allowed: one at a time",
            hint="measure the concurrencies of each drafter apart",
        )
    settings = {level: make(choice) for level, choice in left.items()}
    which = ", ".join(map(str, plain))
    return settings, [f"the plan decodes plainly at {which} at once: nothing to compare there"] if plain else []


def loaded(
    model: Target,
    drafter: Drafter,
    asked: Sequence[Question],
    levels: Mapping[int, Sequence[Setting]],
    protocol: Protocol,
    progress: Progress,
) -> tuple[dict[str, Any], list[LoadRow], list[str]]:
    """Measure; what the document gains by it, the rows, and notes for people."""
    measured = measure(model, drafter, asked, levels, protocol, progress)
    differ = any(parted(one) for one in measured.levels.values())
    judge = open_judge(model) if differ else None
    shown = load_rows(measured, drafter.name, judge)
    done = {
        "how": HOW,
        "concurrency": list(levels),
        "prompts": len(asked),
        "rounds": measured.rounds,
        "seconds": measured.seconds,
        "judged_in": None if judge is None else judge.dtype,
    }
    notes = []
    if measured.rounds < protocol.repeats:
        notes.append(
            f"{measured.rounds} of {protocol.repeats} rounds: the budget of {protocol.budget_s:g} s held no more"
        )
    if differ and judge is None:
        notes.append("differences from plain texts are not judged: there is no copy in a better precision")
    found: dict[str, Any] = {"protocol": asdict(protocol) | done, "results": [asdict(row) for row in shown]}
    return found | _said(measured, shown), shown, notes


def _said(measured: Loaded, shown: Sequence[LoadRow]) -> dict[str, Any]:
    names = list(dict.fromkeys(map(named, shown)))
    said = [
        {"setting": name, "sentence": sentence, "break_even": as_plain(point)}
        for name, (sentence, point) in zip(names, verdicts(measured), strict=True)
    ]
    lines = [one["sentence"] if len(said) == 1 else f"{one['setting']}: {one['sentence']}" for one in said]
    return {"verdicts": said, "verdict": "\n".join(map(str, lines))}


def load_table(shown: Sequence[LoadRow]) -> Table:
    """One setting's levels for people."""
    first = shown[0]
    lossless = "" if all(row.lossless for row in shown) else ", not lossless"
    rules = sorted({rule for row in shown for rule in row.rule.split("+")} - {"none"}) or ["none"]
    title = f"{first.method}, {named(first)}, rule {'+'.join(rules)}{lossless}"
    drawn = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    for place, column in enumerate(COLUMNS):
        drawn.add_column(column, justify="left" if place == 5 else "right", no_wrap=place == 4)
    for row in shown:
        drawn.add_row(
            str(row.batch),
            str(row.streams),
            f"{row.baseline_tokens_per_second:.1f}",
            f"{row.tokens_per_second:.1f}",
            row.figure,
            row.words,
            number(row.predicted_speedup, ".2f", "x"),
            number(row.baseline_ms_per_token, ".1f"),
            number(row.ms_per_token, ".1f"),
            number(row.tau, ".2f"),
            number(row.plain_turn_share, ".0%"),
        )
    return drawn
