"""Streams through slots: refilled, the plain texts, counted right, and rows that say what the streams say."""

import heapq
from dataclasses import replace

import pytest

from outpace.decoding.costs import CostTable
from outpace.drafters.lookup import Lookup
from outpace.errors import UsageError
from outpace.evaluation.benchmark import Group, Measured, Protocol, Setting
from outpace.evaluation.load import Flow, Loaded, measure
from outpace.evaluation.load_outcome import as_plain, load_findings, load_rows, verdicts
from outpace.evaluation.metrics import Estimate, pooled
from outpace.evaluation.outcome import named, parted
from outpace.evaluation.workloads import Question
from outpace.models.transformer import Transformer
from outpace.verification.expectation import TurnCosts
from toys import reference

SETTING = Setting(2)


def questions(tiny: Transformer, *rooms: int) -> list[Question]:
    """Prompts that leave so much room in the context: the texts have just these lengths."""
    size = tiny.max_positions
    whole = [(7 * place + 3) % 60 for place in range(size)]
    return [Question(f"q{place}", None, whole[: size - room]) for place, room in enumerate(rooms)]


def run(tiny: Transformer, asked: list[Question], *levels: int, rounds: int = 1, **more: object) -> Loaded:
    protocol = Protocol(budget_s=1e6, repeats=rounds, max_new_tokens=12, **more)  # type: ignore[arg-type]
    return measure(tiny, Lookup(), asked, {level: [SETTING] for level in levels}, protocol)


def flows(loaded: Loaded, level: int) -> tuple[Flow, Flow]:
    """Plain and drafted, of the first round."""
    one = loaded.levels[level]
    plain, drafted = one.plain[0.0][0][0], one.drafted[0][0][0]
    assert isinstance(plain, Flow) and isinstance(drafted, Flow)
    return plain, drafted


def makespan(lengths: list[int], slots: int) -> int:
    """Plain turns of a stream: the first token of each comes with its prompt, every other one takes a turn."""
    free = [0] * slots
    for length in lengths:
        heapq.heappush(free, heapq.heappop(free) + length - 1)
    return max(free)


@pytest.mark.parametrize("slots", [1, 2, 3])
def test_an_ended_text_gives_its_slot_to_the_next_prompt(slots: int, tiny: Transformer) -> None:
    """Texts of 12, 3, 5, 9, 2 and 7 tokens: in groups that wait for their longest there would be more turns."""
    lengths = [12, 3, 5, 9, 2, 7][: 2 * slots]
    plain, drafted = flows(run(tiny, questions(tiny, *lengths), slots), slots)
    assert list(map(len, plain.texts)) == list(map(len, drafted.texts)) == lengths
    assert plain.turns == makespan(lengths, slots)
    assert plain.in_flight == pytest.approx(sum(length - 1 for length in lengths) / plain.turns)
    assert drafted.turns <= plain.turns


def test_the_texts_are_the_plain_ones(tiny: Transformer) -> None:
    asked = questions(tiny, 12, 6, 9, 30)
    loaded = run(tiny, asked, 1, 2, rounds=2)
    for level, one in loaded.levels.items():
        assert not parted(one) and len(one.groups) == 2
        for group, repeats in zip(one.groups, one.drafted[0], strict=True):
            for question, text in zip(group.questions, repeats[0].texts, strict=True):
                room = tiny.max_positions - len(question.ids)
                assert text == reference(tiny, tuple(question.ids), min(12, room)), f"{question.key} at {level}"


def test_what_a_flow_counts_is_what_its_texts_count(tiny: Transformer) -> None:
    plain, drafted = flows(run(tiny, questions(tiny, 12, 6, 9, 30), 2), 2)
    for flow in (plain, drafted):
        together = pooled(flow.speculations)
        assert together.turns == round(flow.in_flight * flow.turns)
        assert 0 < flow.turning_s < flow.seconds and flow.rate == sum(map(len, flow.texts)) / flow.seconds
        assert all(one > 0 for one in flow.first_s) and all(one is not None and one > 0 for one in flow.pace_s)
    assert (plain.asked, plain.found, plain.steps) == (0, 0, 0.0)
    together = pooled(drafted.speculations)
    assert drafted.found == together.turns - together.plain_turns
    assert drafted.found <= drafted.asked <= together.turns and 1 <= drafted.steps <= 2


def test_a_text_of_one_token_has_no_pace(tiny: Transformer) -> None:
    plain, _ = flows(run(tiny, questions(tiny, 1, 4), 1), 1)
    assert plain.pace_s[0] is None and plain.pace_s[1] is not None


def test_progress_and_rounds(tiny: Transformer) -> None:
    told: list[tuple[int, int, str]] = []
    protocol = Protocol(budget_s=1e6, repeats=2, max_new_tokens=2)
    levels = {1: [SETTING], 2: [SETTING]}
    loaded = measure(tiny, Lookup(), questions(tiny, 9, 9), levels, protocol, lambda *given: told.append(given))
    assert (loaded.rounds, loaded.asked_rounds) == (2, 2)
    assert told[:2] == [(0, 2, "warming up"), (1, 2, "warming up")]
    assert told[2:6] == [(place, 4, f"round 1, {1 + place // 2} at once") for place in range(4)]


def test_bad_options_are_refused_before_a_round(tiny: Transformer) -> None:
    protocol = Protocol(max_new_tokens=2)
    with pytest.raises(UsageError, match="tree is top-k:2, and the drafter 'lookup' cannot draft that"):
        measure(tiny, Lookup(), questions(tiny, 9), {2: [Setting(4, tree="top-k:2")]}, protocol)


# ---- rows ----------------------------------------------------------------------------------------------------------


def known(loaded: Loaded, level: int, plain_s: list[float], drafted_s: list[float]) -> Loaded:
    """The same streams with other times."""
    one = loaded.levels[level]

    def timed(flow: object, seconds: float) -> list[Flow]:
        assert isinstance(flow, Flow)
        pace = [0.01 * seconds] * len(flow.pace_s)
        return [
            replace(flow, seconds=seconds, turning_s=0.8 * seconds, first_s=[0.1 * seconds] * len(pace), pace_s=pace)
        ]

    plain, drafted = one.plain[0.0][0][0], one.drafted[0][0][0]
    stream = one.groups[0]
    changed = Measured(
        groups=[Group(None, stream.questions)] * len(plain_s),
        offered=len(plain_s),
        settings=one.settings,
        plain={0.0: [timed(plain, seconds) for seconds in plain_s]},
        drafted=[[timed(drafted, seconds) for seconds in drafted_s]],
        repeats=1,
        seconds=1.0,
    )
    return replace(loaded, levels={**loaded.levels, level: changed}, rounds=len(plain_s))


@pytest.fixture
def loaded(tiny: Transformer) -> Loaded:
    return run(tiny, questions(tiny, 12, 6, 9, 30), 1, 2)


def test_rows_by_hand(loaded: Loaded) -> None:
    found = known(known(loaded, 1, [2.0] * 5, [1.0] * 5), 2, [1.0, 3.0, 1.0, 3.0, 1.0], [2.0, 6.0, 2.0, 6.0, 2.0])
    first, second = load_rows(found, "lookup", None)
    assert [(row.batch, row.streams, row.speedup, row.speedup_ci) for row in (first, second)] == [
        (1, 5, 2.0, (2.0, 2.0)),
        (2, 5, 0.5, (0.5, 0.5)),
    ]
    assert (first.words, second.words) == ("faster", "slower")
    assert (first.ms_per_token, first.baseline_ms_per_token) == (pytest.approx(10.0), pytest.approx(20.0))
    assert first.ms_per_token_ci == pytest.approx((10.0, 10.0))
    assert (first.first_token_ms, first.baseline_first_token_ms) == (pytest.approx(100.0), pytest.approx(200.0))
    assert first.tokens_per_second == sum(map(len, flows(found, 1)[1].texts)) / 1.0
    [said] = load_findings([first, second])
    assert (
        said == "slower than plain decoding at 2 at once: 0.50x [0.50, 0.50] with 2 drafts a turn, chain, temperature 0"
    )
    [(words, point)] = verdicts(found)
    assert words.startswith("drafting pays up to 1 at once, and no longer from 2 on")
    assert point is not None and point.value == pytest.approx(2 ** (2 / 3))


def test_levels_that_differ_by_their_rule_are_one_setting(loaded: Loaded) -> None:
    """A plan may have another rule from some level on; rows do not tell them apart, and there is one sentence."""
    found = known(known(loaded, 1, [2.0] * 5, [1.0] * 5), 2, [1.0] * 5, [2.0] * 5)
    other = replace(found.levels[2], settings=[replace(SETTING, rule="match")])
    mixed = replace(found, levels={**found.levels, 2: other})
    assert len({named(row) for row in load_rows(mixed, "lookup", None)}) == 1
    assert verdicts(mixed) == verdicts(found) and len(verdicts(mixed)) == 1


def test_four_streams_are_too_few(loaded: Loaded) -> None:
    found = known(known(loaded, 1, [2.0] * 4, [1.0] * 4), 2, [1.0] * 4, [2.0] * 4)
    rows = load_rows(found, "lookup", None)
    assert [row.words for row in rows] == ["too few", "too few"] and load_findings(rows) == []


def test_the_prediction_is_that_of_the_costs(loaded: Loaded) -> None:
    """A forward twice as dear with a draft: every draft that is found makes a turn cost 40 ms in place of 20."""
    costs = CostTable({(1, 16): TurnCosts({1: 20.0, 3: 40.0})})
    found = replace(known(known(loaded, 1, [2.0], [1.0]), 2, [2.0], [1.0]), costs={1: [costs], 2: [costs]})
    row, _ = load_rows(found, "lookup", None)
    both = [flows(found, level)[1] for level in (1, 2)]
    share = sum(flow.found for flow in both) / sum(flow.asked for flow in both)
    tau = pooled([one for flow in both for one in flow.speculations]).tau
    assert tau is not None and row.predicted_speedup is not None
    decoding = tau * 20 / (share * 40 + (1 - share) * 20)
    assert row.predicted_speedup == pytest.approx(1 / (0.2 + 0.8 / decoding))


def test_no_deeper_chain_is_foreseen_than_the_drafter_can_draft(loaded: Loaded) -> None:
    """Each further draft is free here, so that the longest chain pays best."""
    costs = CostTable({(1, 16): TurnCosts({1: 20.0, 2: 20.0})})
    found = replace(known(known(loaded, 1, [2.0], [1.0]), 2, [2.0], [1.0]), costs={1: [costs], 2: [costs]})
    auto = {level: replace(one, settings=[Setting("auto")]) for level, one in found.levels.items()}
    found = replace(found, levels=auto)
    gains = [load_rows(replace(found, deepest=most), "lookup", None)[0].predicted_speedup for most in (1, 2, None)]
    first, second, free = (gain or 0.0 for gain in gains)
    assert 1 < first < second < free


def test_nothing_drafted_nothing_foreseen(loaded: Loaded) -> None:
    def without(one: Measured) -> Measured:
        return replace(
            one, drafted=[[[replace(flow, found=0) for flow in ran] for ran in runs] for runs in one.drafted]
        )

    found = replace(loaded, levels={level: without(one) for level, one in loaded.levels.items()})
    assert [row.predicted_speedup for row in load_rows(found, "lookup", None)] == [None, None]


def test_a_break_even_as_plain_data() -> None:
    assert as_plain(None) is None
    assert as_plain(Estimate(4.0, 2.0, float("inf"))) == {"value": 4.0, "low": 2.0, "high": None}
