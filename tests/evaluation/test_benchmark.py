"""Interleaved runs within a budget, on a clock that is made up, and what their figures say."""

from dataclasses import dataclass, field, replace
from itertools import pairwise
from mmap import mmap
from typing import Any

import pytest
import torch

from outpace.decoding.generate import Result, Stats
from outpace.decoding.stats import Tally, timing
from outpace.drafters.lookup import Lookup
from outpace.errors import NumericsError, UsageError
from outpace.evaluation import benchmark
from outpace.evaluation.benchmark import Group, Measured, Protocol, Setting, grouped, measure
from outpace.evaluation.machine import available_mb, machine, peak_rss_mb, reset_peak, total_mb, versions
from outpace.evaluation.outcome import ALL, Row, findings, named, parted, rows, verdict
from outpace.evaluation.ties import Judge
from outpace.evaluation.workloads import Question, Skipped
from outpace.models.toy import table_target
from outpace.models.transformer import Transformer
from toys import must_fail

GREEDY = Setting(num_draft_tokens=4)


def questions(*categories: str | None) -> list[Question]:
    return [Question(f"q{place}", kind, [1 + place, 2, 3]) for place, kind in enumerate(categories)]


@dataclass
class Decoder:
    """Plays ``generate``: every call takes so many seconds of a clock of its own, and says a text of ten tokens.

    ``text`` is what drafted decoding says; plain decoding says 0 to 9.
    """

    plain: float = 2.0
    drafted: float = 1.0
    text: list[int] = field(default_factory=lambda: list(range(10)))
    harder: dict[int, float] = field(default_factory=dict)
    now: float = 0.0
    calls: list[tuple[str, int]] = field(default_factory=list)
    options: list[Any] = field(default_factory=list)
    error: str | None = None

    def clock(self) -> float:
        return self.now

    def __call__(self, target: Any, drafter: Any, prompts: list[list[int]], **options: Any) -> list[Result]:
        first = prompts[0][0]
        self.calls.append(("plain" if drafter is None else "drafted", first))
        self.options.append(options)
        self.now += (self.plain if drafter is None else self.drafted) * self.harder.get(first, 1.0)
        tally = Tally()
        drafts = 4 * (drafter is not None)
        for _ in range(3):
            tally.add(
                rule="greedy", lossless=True, drafted=drafts, depth=drafts, matched=drafts // 2, emitted=drafts // 2 + 1
            )
        stats = Stats(tally.speculation("x"), timing(0.0, 1.0, 10))
        text = list(range(10)) if drafter is None else self.text
        return [Result(text, "", "length", len(prompt), stats, error=self.error) for prompt in prompts]


@pytest.fixture
def decoder(monkeypatch: pytest.MonkeyPatch) -> Decoder:
    played = Decoder()
    monkeypatch.setattr(benchmark, "generate", played)
    return played


def measured(decoder: Decoder, tiny: Transformer, groups: list[Group], *settings: Setting, **protocol: Any) -> Measured:
    given = Protocol(**({"budget_s": 1e6, "repeats": 1} | protocol))
    return measure(tiny, Lookup(), groups, settings or (GREEDY,), given, clock=decoder.clock)


# ---- groups --------------------------------------------------------------------------------------------------------


def test_prompts_come_category_by_category() -> None:
    """However early the budget ends, every category has had as many prompts as any other, or one fewer."""
    groups = grouped(questions("a", "a", "a", "b", "c", "c"), 1)
    assert [group.category for group in groups] == ["a", "b", "c", "a", "c", "a"]
    assert all(group.own == group.questions and len(group.own) == 1 for group in groups)


def test_groups_are_of_one_size_and_one_category() -> None:
    groups = grouped(questions("a", "a", "a", "b", "a", "a"), 3)
    assert [[question.key for question in group.questions] for group in groups] == [
        ["q0", "q1", "q2"],
        ["q3", "q3", "q3"],
        ["q4", "q5", "q0"],
    ]
    assert [[question.key for question in group.own] for group in groups] == [["q0", "q1", "q2"], ["q3"], ["q4", "q5"]]


# ---- order and budget ------------------------------------------------------------------------------------------------


def alternates(calls: list[tuple[str, int]]) -> bool:
    """Whether every pair begins with the way that the pair before ended with."""
    pairs = [tuple(name for name, _ in calls[place : place + 2]) for place in range(0, len(calls), 2)]
    return all(set(pair) == {"plain", "drafted"} for pair in pairs) and all(
        first == second[::-1] for first, second in pairwise(pairs)
    )


def test_ways_are_interleaved_and_take_turns_at_beginning(decoder: Decoder, tiny: Transformer) -> None:
    """A B, B A, A B ...; a prompt that began with one way begins with the other in the next pass."""
    groups = grouped(questions("a", "b", "c"), 1)
    found = measured(decoder, tiny, groups, repeats=2)
    warm, calls = decoder.calls[:2], decoder.calls[2:]
    assert warm == [("plain", 1), ("drafted", 1)]
    assert alternates(calls[:6]) and alternates(calls[6:])
    assert [first for _, first in calls] == [1, 1, 2, 2, 3, 3] * 2
    assert all(calls[place] != calls[place + 6] for place in (0, 2, 4))
    assert [len(repeats) for repeats in found.drafted[0]] == [2, 2, 2] and found.repeats == 2
    with must_fail():
        assert alternates([("plain", 1), ("drafted", 1)] * 3)


def test_a_budget_too_small_for_a_pass_takes_fewer_prompts(decoder: Decoder, tiny: Transformer) -> None:
    """Both ways take 3 seconds a prompt; warm-up takes 3: 19 seconds hold five prompts, and no repeat."""
    found = measured(decoder, tiny, grouped(questions(*"abcabcabc"), 1), repeats=3, budget_s=19.0)
    assert (len(found.groups), found.offered, found.repeats, found.seconds) == (5, 9, 1, 18.0)
    assert [group.category for group in found.groups] == ["a", "b", "c", "a", "b"]


def test_one_prompt_of_each_category_is_measured_whatever_the_budget(decoder: Decoder, tiny: Transformer) -> None:
    found = measured(decoder, tiny, grouped(questions(*"abcdabcd"), 1), repeats=3, budget_s=0.1)
    assert [group.category for group in found.groups] == ["a", "b", "c", "d"] and found.repeats == 1


@pytest.mark.parametrize(
    ("budget", "repeats"), [(8.9, 1), (9.0, 1), (14.9, 1), (15.0, 2), (20.9, 2), (21.0, 3), (99.0, 3)]
)
def test_repeats_are_whole(budget: float, repeats: int, decoder: Decoder, tiny: Transformer) -> None:
    """Two prompts take 6 seconds, and 3 before that to warm up."""
    found = measured(decoder, tiny, grouped(questions("a", "b"), 1), repeats=3, budget_s=budget)
    assert (len(found.groups), found.repeats) == (2, repeats)


def test_each_temperature_has_its_own_baseline(decoder: Decoder, tiny: Transformer) -> None:
    settings = [Setting(count, temperature=heat) for heat in (0.0, 0.8) for count in (2, 4)]
    found = measured(decoder, tiny, grouped(questions("a"), 1), *settings, top_p=0.9, seed=3)
    ways = decoder.options[:6]
    assert [one["temperature"] for one in ways] == [0.0, 0.8, 0.0, 0.0, 0.8, 0.8]
    assert all(one["top_p"] == 0.9 and one["seed"] == 3 for one in ways)
    assert ["num_draft_tokens" in one for one in ways] == [False, False, True, True, True, True]
    assert set(found.plain) == {0.0, 0.8} and len(found.drafted) == 4


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"budget_s": 0.0}, "budget is 0 seconds; allowed: more than 0"),
        ({"repeats": 0}, "repeats is 0; allowed: 1 or more"),
        ({"concurrency": -2}, "concurrency is -2; allowed: 1 or more"),
        ({"max_new_tokens": 0}, "max_new_tokens is 0; allowed: 1 or more"),
    ],
)
def test_a_protocol_out_of_range(given: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        Protocol(**given)


def test_a_prompt_that_fails_is_named(decoder: Decoder, tiny: Transformer) -> None:
    decoder.error = "the target's logits are no distribution"
    with pytest.raises(NumericsError, match="prompt 'q0': the target's logits are no distribution"):
        measured(decoder, tiny, grouped(questions("a"), 1))


# ---- figures -------------------------------------------------------------------------------------------------------


def whole(found: list[Row]) -> Row:
    return next(row for row in found if row.category == ALL)


def test_a_speed_up_is_the_ratio_of_rates_on_the_same_prompts(decoder: Decoder, tiny: Transformer) -> None:
    """Prompts that are three times as hard for both sides change no speed-up and widen no interval."""
    decoder.harder = {2: 3.0, 5: 3.0}
    found = rows(measured(decoder, tiny, grouped(questions(*"aaabbb"), 1)), "lookup", None)
    assert [row.category for row in found] == ["a", "b", ALL] and [row.prompts for row in found] == [3, 3, 6]
    for row in found:
        assert (row.speedup, row.speedup_ci) == (2.0, (2.0, 2.0))
    assert [row.words for row in found] == ["too few", "too few", "faster"]
    assert found[0].baseline_tokens_per_second == pytest.approx(10 / 2)
    assert (whole(found).tau, whole(found).acceptance, whole(found).plain_turn_share) == (
        3.0,
        pytest.approx(2 / 3),
        0.0,
    )
    assert (whole(found).near_ties_per_1000, whole(found).differences, whole(found).batch) == (0.0, 0, 1)
    assert verdict(found) == "speculation helps here: 2.00x [2.00, 2.00]"
    assert findings(found, [], 256) == []


def test_the_rate_of_a_group_is_that_of_all_its_texts(decoder: Decoder, tiny: Transformer) -> None:
    found = rows(measured(decoder, tiny, grouped(questions(*"aaa"), 3), concurrency=3), "lookup", None)
    assert (whole(found).tokens_per_second, whole(found).batch, whole(found).prompts) == (30.0, 3, 3)


def test_slower_than_plain_is_a_finding(decoder: Decoder, tiny: Transformer) -> None:
    decoder.drafted = 2.5
    found = rows(measured(decoder, tiny, grouped(questions(*"ababa"), 1)), "lookup", None)
    assert verdict(found) == "speculation does not help here: 0.80x [0.80, 0.80]; decode plainly"
    said = "slower than plain decoding: 0.80x [0.80, 0.80] with 4 drafts a turn, chain, temperature 0"
    assert findings(found, [], 256) == [said]


def test_an_interval_around_one_is_no_verdict_and_no_finding(decoder: Decoder, tiny: Transformer) -> None:
    run = measured(decoder, tiny, grouped(questions(*"aaaaa"), 1))
    for place, seconds in enumerate((1.5, 1.8, 2.0, 2.2, 2.5)):
        run.drafted[0][place][0] = benchmark.Run(seconds, [list(range(10))], run.drafted[0][place][0].speculations)
    found = rows(run, "lookup", None)
    assert whole(found).words == "unclear"
    assert verdict(found).startswith("no clear difference here: ") and findings(found, [], 256) == []


def test_a_single_prompt_has_no_interval(decoder: Decoder, tiny: Transformer) -> None:
    decoder.drafted = 9.0
    found = rows(measured(decoder, tiny, grouped(questions("a"), 1)), "lookup", None)
    assert (whole(found).speedup_ci, whole(found).words) == (None, "too few")
    assert (
        verdict(found) == "too few prompts for a verdict: 0.22x; measure more of them" and findings(found, [], 9) == []
    )


@pytest.mark.parametrize(
    ("prompts", "batch", "words"), [(4, 1, "too few"), (5, 1, "slower"), (8, 2, "too few"), (9, 2, "slower")]
)
def test_few_units_prove_nothing(prompts: int, batch: int, words: str, decoder: Decoder, tiny: Transformer) -> None:
    decoder.drafted = 9.0
    found = rows(measured(decoder, tiny, grouped(questions(*"a" * prompts), batch), concurrency=batch), "lookup", None)
    assert whole(found).words == words and (findings(found, [], 9) == []) == (words == "too few")


def test_prompts_without_a_category_stand_in_all_alone(decoder: Decoder, tiny: Transformer) -> None:
    found = rows(measured(decoder, tiny, grouped(questions(None, "a", None), 1)), "lookup", None)
    assert [(row.category, row.prompts) for row in found] == [("a", 1), (ALL, 3)]


def test_the_verdict_is_of_the_best_setting_and_names_where_it_slows_down(decoder: Decoder, tiny: Transformer) -> None:
    base = whole(rows(measured(decoder, tiny, grouped(questions(*"ababa"), 1)), "lookup", None))
    tree = replace(base, tree="top-k:3", depth=2, num_draft_tokens=6)
    found = [
        replace(base, category="b", speedup=0.7, speedup_ci=(0.6, 0.8)),
        replace(base, speedup=1.2, speedup_ci=(1.1, 1.3)),
        replace(tree, category="a", speedup=0.8, speedup_ci=(0.7, 0.9)),
        replace(tree, category="b", speedup=0.9, speedup_ci=(0.8, 1.1)),
        replace(tree, speedup=1.314, speedup_ci=(1.22, 1.4)),
    ]
    which = "6 drafts a turn, top-k:3, depth 2, temperature 0"
    assert verdict(found) == f"speculation helps here: 1.31x [1.22, 1.40] with {which}, but not in a"
    assert findings(found, [], 256) == [], "a category that is slower is said, and no finding"


def test_skipped_prompts_are_findings() -> None:
    said = "prompt 'long' (line 3) has 900 tokens and was skipped: the context holds 256, new ones included"
    assert findings([], [Skipped("long", 3, 900)], 256) == [said]


def test_many_skipped_prompts_are_named_together() -> None:
    """The first three one by one; the document has them all."""
    skipped = [Skipped(f"p{line}", line, 900 + line) for line in range(1, 7)]
    few, one, many = (findings([], skipped[:count], 256) for count in (3, 4, 6))
    assert few == [single for prompt in skipped[:3] for single in findings([], [prompt], 256)]
    assert one == [*few, "1 more prompt skipped for the same reason, of 904 tokens"]
    assert many == [*few, "3 more prompts skipped for the same reason, of 904 to 906 tokens"]


def test_a_setting_in_words(decoder: Decoder, tiny: Transformer) -> None:
    base = whole(rows(measured(decoder, tiny, grouped(questions(*"ababa"), 1)), "lookup", None))
    assert named(base) == "4 drafts a turn, chain, temperature 0"
    assert named(replace(base, num_draft_tokens="auto")) == "as many drafts as pay, chain, temperature 0"


# ---- texts ---------------------------------------------------------------------------------------------------------


def judged(gap: float) -> Judge:
    """The tokens 5 and 6 lie ``gap`` apart behind token 4."""
    table = torch.zeros(64, 64, dtype=torch.float64)
    table[4, 5], table[4, 6] = 2.0, 2.0 - gap
    return Judge(table_target(table), "fp32", 0.25)


def test_near_ties_are_counted_and_other_differences_found(decoder: Decoder, tiny: Transformer) -> None:
    """The drafted texts part from 0, 1, 2, ... at the sixth token, and say nothing that counts behind it."""
    decoder.text = [0, 1, 2, 3, 4, 6, 6, 6, 6, 6]
    run = measured(decoder, tiny, grouped(questions(*"ab"), 1))
    assert parted(run)
    tied, wrong, alone = (whole(rows(run, "lookup", judge)) for judge in (judged(0.1), judged(1.0), None))
    assert (tied.near_ties_per_1000, tied.differences) == (pytest.approx(1000 / 6), 0)
    assert (wrong.near_ties_per_1000, wrong.differences) == (0.0, 2)
    assert (alone.near_ties_per_1000, alone.differences) == (pytest.approx(1000 / 6), None)
    [said] = findings([wrong], [], 256)
    assert said.startswith("2 texts differ from plain decoding by more than rounding explains, with 4 drafts a turn")
    assert findings([tied], [], 256) == findings([alone], [], 256) == []


def test_what_fills_a_group_is_not_counted_twice(decoder: Decoder, tiny: Transformer) -> None:
    decoder.text = [0, 1, 2, 3, 4, 6, 6, 6, 6, 6]
    run = measured(decoder, tiny, grouped(questions(*"aaa"), 2), concurrency=2)
    assert whole(rows(run, "lookup", judged(1.0))).differences == 3


def test_sampled_texts_are_not_compared(decoder: Decoder, tiny: Transformer) -> None:
    decoder.text = [9] * 10
    run = measured(decoder, tiny, grouped(questions(*"ab"), 1), Setting(4, temperature=0.7))
    found = whole(rows(run, "lookup", None))
    assert not parted(run) and (found.near_ties_per_1000, found.differences) == (None, None)


def test_the_real_decoder_says_the_plain_texts(tiny: Transformer) -> None:
    """fp32, chains, two settings and two at a time: no difference at all, and figures that are figures."""
    asked = [Question(f"q{place}", "ab"[place % 2], [place + 1, 7, 8, 7, 8, 7]) for place in range(4)]
    protocol = Protocol(repeats=1, concurrency=2, max_new_tokens=12)
    ticks: list[tuple[int, int, str]] = []
    run = measure(
        tiny,
        Lookup(),
        grouped(asked, 2),
        [Setting(1), Setting(3)],
        protocol,
        lambda done, total, what: ticks.append((done, total, what)),
    )
    assert not parted(run) and ticks == [(0, 2, "pass 1"), (1, 2, "pass 1")]
    for row in rows(run, "lookup", None):
        assert row.tokens_per_second > 0 and row.baseline_tokens_per_second > 0 and row.speedup > 0
        assert row.tau is not None and 1 <= row.tau <= 1 + int(row.num_draft_tokens)
        assert (row.rule, row.lossless, row.batch, row.differences) == ("greedy", True, 2, 0)
        assert row.peak_rss_mb is None or row.peak_rss_mb > 10


# ---- the machine -----------------------------------------------------------------------------------------------------


def test_the_record_of_the_machine() -> None:
    found = machine()
    assert found["threads"] == torch.get_num_threads() and found["cpu"]
    assert set(versions()) == {"python", "outpace", "torch", "transformers", "numpy"}
    total, free = total_mb(), available_mb()
    assert total is None or (free is not None and 0 < free <= total)


@pytest.mark.skipif(not reset_peak(), reason="this system keeps one mark for the whole process")
def test_the_peak_can_be_forgotten() -> None:
    """64 MB written and freed are in the mark until it is reset; 8 MB are left to what else the process does."""
    with mmap(-1, 2**26) as written:  # not from the heap, where earlier tests may have left room that never goes back
        written.write(b"\1" * 2**20 * 64)
        high = peak_rss_mb()
    reset_peak()
    low = peak_rss_mb()
    assert high is not None and low is not None and high - low > 32
