"""What the runs of a benchmark say: a row for every category and setting, findings, and one sentence of verdict.

Knows nothing of clocks or of how texts were made. A speed-up is called one only where its whole interval says so.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from outpace.evaluation.benchmark import Group, Measured, Run, Setting, median_rates
from outpace.evaluation.metrics import Estimate, median_ratio, pooled
from outpace.evaluation.ties import Difference, Judge, compare
from outpace.evaluation.workloads import Skipped

ALL = "all"
ENOUGH = 5
"""Fewer units prove nothing: the range of four holds their median in 7 of 8 cases, that of five in 15 of 16."""


NAMED = 3
"""So many prompts that were skipped are named one by one."""


@dataclass(frozen=True)
class Row:
    """The figures of one setting in one category, or in ``all``; the fields of a result of ``bench``.

    Args:
        category: its name; ``all`` is every prompt.
        method, rule, lossless: who drafted, what judged, and whether that keeps the target's law.
        tree, num_draft_tokens, depth, temperature: the setting.
        batch, prompts: prompts decoded at once, and prompts measured.
        tau, acceptance, acceptance_by_position, plain_turn_share: pooled over all runs, see ``decoding/stats.py``.
        tokens_per_second, baseline_tokens_per_second: medians over units, drafted and plain.
        speedup, speedup_ci: their ratio and its 95 % interval; no interval for a single unit.
        near_ties_per_1000: first differences from the plain texts that are near-ties, by tokens compared up to there;
            every difference where nobody could judge. None where texts are sampled.
        differences: those that no near-tie explains; None where texts are sampled or nobody could judge.
        peak_rss_mb: the most memory of the process in these runs; None where the system does not say.
    """

    category: str
    method: str
    rule: str
    lossless: bool
    tree: str
    num_draft_tokens: int | str
    depth: int | None
    temperature: float
    batch: int
    prompts: int
    tau: float | None
    acceptance: float | None
    acceptance_by_position: tuple[float, ...]
    plain_turn_share: float | None
    tokens_per_second: float
    baseline_tokens_per_second: float
    speedup: float
    speedup_ci: tuple[float, float] | None
    near_ties_per_1000: float | None
    differences: int | None
    peak_rss_mb: float | None

    @property
    def enough(self) -> bool:
        """Whether so many units were measured that the interval means what it says."""
        return self.speedup_ci is not None and self.prompts > (ENOUGH - 1) * self.batch

    @property
    def faster(self) -> bool:
        """Whether drafting is faster than plain decoding, beyond doubt."""
        return self.enough and self.speedup_ci is not None and self.speedup_ci[0] > 1

    @property
    def slower(self) -> bool:
        """Whether drafting is slower than plain decoding, beyond doubt."""
        return self.enough and self.speedup_ci is not None and self.speedup_ci[1] < 1

    @property
    def words(self) -> str:
        """The speed-up in words."""
        if not self.enough:
            return "too few"
        return "faster" if self.faster else "slower" if self.slower else "unclear"

    @property
    def figure(self) -> str:
        """The speed-up with its interval."""
        if self.speedup_ci is None:
            return f"{self.speedup:.2f}x"
        return f"{self.speedup:.2f}x [{self.speedup_ci[0]:.2f}, {self.speedup_ci[1]:.2f}]"


@dataclass(frozen=True)
class _Text:
    """A drafted text beside the plain one: where they part, and how many tokens were compared up to there."""

    difference: Difference | None
    compared: int


def parted(measured: Measured) -> bool:
    """Whether any greedy text differs from the plain one, so that a judge is needed."""
    return any(text.difference for texts in _texts(measured, None) for group in texts or [] for text in group)


def rows(measured: Measured, method: str, judge: Judge | None) -> list[Row]:
    """One row a category and setting, categories in the order measured and ``all`` last.

    Args:
        measured: the runs.
        method: the drafter's name.
        judge: who tells near-ties from other differences; None: nobody does, and every difference is counted as one.
    """
    places: dict[str, list[int]] = {}
    for place, group in enumerate(measured.groups):
        if group.category is not None:
            places.setdefault(group.category, []).append(place)
    places[ALL] = list(range(len(measured.groups)))
    texts = _texts(measured, judge)
    found = []
    for setting, runs, compared in zip(measured.settings, measured.drafted, texts, strict=True):
        plain = measured.plain[setting.temperature]
        for category, chosen in places.items():
            judged = None if compared is None else [text for place in chosen for text in compared[place]]
            groups = [measured.groups[place] for place in chosen]
            pair = [runs[place] for place in chosen], [plain[place] for place in chosen]
            found.append(_row(category, method, setting, groups, pair, judged, judge is not None))
    return found


def _row(
    category: str,
    method: str,
    setting: Setting,
    groups: Sequence[Group],
    runs: tuple[list[list[Run]], list[list[Run]]],
    texts: Sequence[_Text] | None,
    judged: bool,
) -> Row:
    ours, theirs = runs
    rates = median_rates(ours), median_rates(theirs)
    ratio = median_ratio(*rates)
    every = [run for repeats in ours for run in repeats]
    speculations = [one for run in every for one in run.speculations]
    together = pooled(speculations)
    rules = sorted({name for one in speculations if one.drafted for name in one.rule.split("+")})
    peaks = [run.peak_mb for run in every if run.peak_mb is not None]
    differences = [text.difference for text in texts or [] if text.difference is not None]
    excused = sum(one.excused or not judged for one in differences)
    compared = sum(text.compared for text in texts or [])
    return Row(
        category=category,
        method=method,
        rule="+".join(rules) or "none",
        lossless=all(one.lossless for one in speculations),
        tree=setting.tree,
        num_draft_tokens=setting.num_draft_tokens,
        depth=setting.depth,
        temperature=setting.temperature,
        batch=len(groups[0].questions),
        prompts=sum(len(group.own) for group in groups),
        tau=together.tau,
        acceptance=together.acceptance,
        acceptance_by_position=together.acceptance_by_position,
        plain_turn_share=together.plain_turn_share,
        tokens_per_second=statistics.median(rates[0]),
        baseline_tokens_per_second=statistics.median(rates[1]),
        speedup=ratio.value,
        speedup_ci=_interval(ratio, len(groups)),
        near_ties_per_1000=None if texts is None else 1000 * excused / max(compared, 1),
        differences=None if texts is None or (differences and not judged) else len(differences) - excused,
        peak_rss_mb=max(peaks, default=None),
    )


def _interval(ratio: Estimate, units: int) -> tuple[float, float] | None:
    return (ratio.low, ratio.high) if units > 1 else None


def _texts(measured: Measured, judge: Judge | None) -> list[list[list[_Text]] | None]:
    """``[setting][group][prompt]``; None for a setting that samples. Texts of the first pass."""
    found: list[list[list[_Text]] | None] = []
    for setting, runs in zip(measured.settings, measured.drafted, strict=True):
        if not setting.greedy:
            found.append(None)
            continue
        plain = measured.plain[setting.temperature]
        found.append([_pairs(*three, judge) for three in zip(measured.groups, runs, plain, strict=True)])
    return found


def _pairs(group: Group, ours: Sequence[Run], theirs: Sequence[Run], judge: Judge | None) -> list[_Text]:
    pairs = zip(group.own, ours[0].texts, theirs[0].texts, strict=False)  # what only fills the batch does not count
    texts = []
    for question, first, second in pairs:
        difference = compare(judge, question.ids, first, second)
        both = min(len(first), len(second))
        texts.append(_Text(difference, both if difference is None else min(both, difference.place + 1)))
    return texts


def verdict(found: Sequence[Row]) -> str:
    """One sentence: whether the best of the settings helps, by how much, and where it does not."""
    whole = [row for row in found if row.category == ALL]
    best = max(whole, key=lambda row: row.speedup)
    which = f" with {named(best)}" if len(whole) > 1 else ""
    if best.slower:
        return f"speculation does not help here: {best.figure}{which}; decode plainly"
    if not best.enough:
        return f"too few prompts for a verdict: {best.figure}{which}; measure more of them"
    if not best.faster:
        return f"no clear difference here: {best.figure}{which}; measure longer, or decode plainly"
    slow = [row.category for row in found if named(row) == named(best) and row.slower]
    return f"speculation helps here: {best.figure}{which}" + (f", but not in {', '.join(slow)}" if slow else "")


def named(row: Row) -> str:
    """The setting of a row in words."""
    deep = "" if row.depth is None else f", depth {row.depth}"
    many = "as many drafts as pay" if row.num_draft_tokens == "auto" else f"{row.num_draft_tokens} drafts a turn"
    return f"{many}, {row.tree}{deep}, temperature {row.temperature:g}"


def findings(found: Sequence[Row], skipped: Sequence[Skipped], room: int) -> list[str]:
    """What makes the command exit with 1: a sentence each; none where all is well.

    Args:
        found: all rows.
        skipped: prompts that were left out.
        room: the target's context.
    """
    said = _left_out(skipped, room)
    for row in found:
        if row.category == ALL and row.slower:
            said.append(f"slower than plain decoding: {row.figure} with {named(row)}")
        if row.category == ALL and row.differences:
            said.append(
                f"{row.differences} texts differ from plain decoding by more than rounding explains, "
                f"with {named(row)}: run outpace check"
            )
    return said


def _left_out(skipped: Sequence[Skipped], room: int) -> list[str]:
    """A sentence for each of the first few, and one for the others."""
    said = [
        f"prompt {one.key!r} (line {one.line}) has {one.tokens} tokens and was skipped: the context holds {room}, new "
        "ones included"
        for one in skipped[:NAMED]
    ]
    if others := [one.tokens for one in skipped[NAMED:]]:
        sizes = f"{min(others)} to {max(others)} tokens" if len(others) > 1 else f"{others[0]} tokens"
        said.append(f"{len(others)} more prompt{'s' * (len(others) > 1)} skipped for the same reason, of {sizes}")
    return said
