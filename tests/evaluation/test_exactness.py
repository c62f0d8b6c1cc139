"""A flawless pair passes every check; a planted fault, a lossy rule and a drafter that cheats do not.

A whole report raises a false alarm with probability 1e-6; seeds are fixed, so that every run is the same run.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch

from outpace.decoding import judging, loop
from outpace.decoding.judging import process as honest_process
from outpace.decoding.turn import Turn
from outpace.drafters.budget import Branching, Budget
from outpace.drafters.drafter import Drafter, Proposal
from outpace.drafters.lookup import Lookup
from outpace.drafters.small import Small
from outpace.errors import UnsupportedError, UsageError
from outpace.evaluation import equality, faults
from outpace.evaluation.controls import FAULTS, Fault, control, random_pair
from outpace.evaluation.exactness import ALARM, check_pair
from outpace.evaluation.laws import DraftPlaces, check_rule
from outpace.evaluation.pair import QUICK, Check, Judge, Pair, Report
from outpace.evaluation.rows import check_rows, check_siblings
from outpace.evaluation.sampled import SAMPLINGS, check_emitted, check_places, draw_sample
from outpace.models.target import Target
from outpace.models.toy import random_table, table_target, tiny_transformer
from outpace.verification.coins import Keys
from outpace.verification.probabilities import Sampling
from outpace.verification.rules import RULES
from outpace.verification.tree import DraftTree
from toys import lively, spelling

pytestmark = pytest.mark.usefixtures("unchecked")  # tens of thousands of tokens; test_checks.py checks the axes

PROMPTS = ((5, 6, 7, 5, 6, 7, 5), (1, 2), (9, 8, 7, 6), (3,), (4, 5, 4, 5, 4))


def small(target: Target) -> Small:
    return Small(lively(seed=4, layers=1), target)


def pair_of(target: Target, drafter: Drafter, **changes: Any) -> Pair:
    pair = Pair(target, drafter, Judge(target), PROMPTS, size=QUICK, **changes)
    return replace(pair, plain=equality.plain_texts(pair))


@cache
def honest_pair(kind: str) -> Pair:
    target = lively()
    return pair_of(target, small(target) if kind == "small" else Lookup())


def failed(report: Report) -> list[str]:
    return [check.name for check in report.checks if not check.passed]


# ---- what is right passes ------------------------------------------------------------------------------------------


def test_a_flawless_pair_is_lossless() -> None:
    told: list[tuple[int, int, str]] = []
    target = lively()
    report = check_pair(target, small(target), quick=True, progress=lambda *step: told.append(step))
    assert failed(report) == [] and report.lossless and report.rule == "block"
    assert 0 < report.false_alarm <= ALARM
    assert sum(check.kind == "control" for check in report.checks) == 10
    assert {check.kind for check in report.checks} == {"law", "equality", "cache", "mask", "control"}
    names = [check.name for check in report.checks]
    assert len(set(names)) == len(names) and "drafts follow the law they claim" in names
    assert told[0] == (0, 0, "plain texts") and told[-1][0] == told[-1][1] == len(told) - 1


def test_so_it_is_in_bf16() -> None:
    """Near-ties are excused, counted, and compared with those of the plain text as the draft."""
    target = tiny_transformer(seed=3, spread=0.5, dtype=torch.bfloat16)
    report = check_pair(target, Lookup(), quick=True)
    assert failed(report) == [] and report.rule == "match"
    assert "near-ties" in [check.name for check in report.checks]


def test_a_named_rule_and_a_further_temperature_are_checked() -> None:
    """On a table: without an own cache, and in float64."""
    target = table_target(random_table(12, seed=1))
    drafter = Small(table_target(random_table(12, seed=2)), target)
    report = check_pair(target, drafter, rule="rejection", temperatures=(0.8, 1.5), quick=True)
    names = [check.name for check in report.checks]
    assert report.lossless and report.rule == "rejection"
    assert "sampled tokens, temperature 0.8" in names and "seeded text" not in names


def test_the_same_seed_asks_the_same_questions() -> None:
    pair = honest_pair("small")
    first, again, other = (
        draw_sample(replace(pair, seed=seed), SAMPLINGS, 8, 12, "block").places for seed in (1, 1, 2)
    )
    assert torch.equal(first, again) and not torch.equal(first, other)


@pytest.mark.parametrize("rule", sorted(set(RULES) - {"greedy", "typical"}))
def test_every_exact_rule_keeps_the_law(rule: str) -> None:
    check = check_rule(rule)
    assert check.passed and check.statistic < 1e-12


def test_sampled_trees_keep_it_and_are_drawn_as_they_claim() -> None:
    """False alarm 1e-7 for each of five."""
    target = lively()
    pair = pair_of(target, small(target), branching=Branching("sampled", 2.0), num_draft_tokens=5)
    checks = check_emitted(pair, "tree-rejection", SAMPLINGS, seeded=False)
    assert all(check.passed for check in checks) and checks[0].name == "drafts follow the law they claim"


class Coins(DraftPlaces):
    """Notes whose coins were used."""

    def __call__(self, turn: Turn, indices: list[int]) -> None:
        super().__call__(turn, indices)
        self.used = getattr(self, "used", {})
        for index, *key in zip(indices, turn.keys.seeds, turn.keys.samples, strict=True):
            self.used.setdefault(tuple(key), set()).add(index)


def test_no_two_texts_share_coins() -> None:
    """Or their tokens would not be independent, and the limits not what they claim."""
    coins = Coins(torch.Generator().manual_seed(1))
    for number in range(2):
        draw_sample(honest_pair("small"), SAMPLINGS, 3, 4, "block", 3 * number, coins)
    assert len(coins.used) == 18 and all(len(texts) == 1 for texts in coins.used.values())


# ---- what is wrong is found ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["small", "lookup"])
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name.split(":")[0])
def test_a_planted_fault_is_found_on_the_pair_itself(fault: Fault, kind: str) -> None:
    """And the check that finds it passes without the fault: it is not simply always alarmed."""
    pair = honest_pair(kind)
    assert fault.look(pair).passed
    found = control(fault, pair)
    assert found.passed and found.kind == "control" and f"found on {fault.where} by" in found.detail


def test_no_fault_stays_behind() -> None:
    """Nor where the check that looks for it stops with an error."""
    honest = judging.RULES, judging.argmax, loop._Row.take
    for fault in FAULTS:
        with pytest.raises(RuntimeError, match="planted"), fault.plant(honest_pair("lookup")):
            raise RuntimeError("planted")
    assert (judging.RULES, judging.argmax, loop._Row.take) == honest and judging.process is honest_process


def test_a_fault_that_does_not_show_is_planted_elsewhere() -> None:
    """A table has no positions."""
    target = table_target(random_table(12, seed=1))
    shifted = next(fault for fault in FAULTS if fault.name.startswith("shifted position"))
    found = control(shifted, pair_of(target, Lookup()))
    assert found.passed and "found on a random pair, as this one does not show it by" in found.detail


def test_a_control_that_finds_nothing_fails() -> None:
    ties, swapped = (next(one for one in FAULTS if one.name.startswith(name)) for name in ("tie rule", "batch rows"))
    found = control(replace(swapped, plant=ties.plant), random_pair(0))  # random floats do not tie
    assert not found.passed and found.detail.startswith("not found by: ")


def row(pair: Pair) -> Check:
    return check_rows(pair)[0]


def node(pair: Pair) -> Check:
    return check_rows(pair)[1]


WRAPPERS: Sequence[tuple[Any, Any]] = [
    (faults.Shifted, node),
    (faults.Stale, row),
    (faults.Leaking, check_siblings),
    (faults.LeafAsItsParent, equality.check_rehearsed),
    (faults.Swapped, equality.check_processors),
    (faults.Stale, equality.check_seeded),
]


@pytest.mark.parametrize(("wrapper", "check"), WRAPPERS, ids=lambda value: value.__name__)
def test_a_faulty_target_is_convicted(wrapper: Any, check: Any) -> None:
    pair = honest_pair("small")
    assert check(pair).passed and not check(replace(pair, target=wrapper(pair.target))).passed


def test_the_whole_report_of_a_faulty_target() -> None:
    target = lively()
    report = check_pair(faults.Stale(target), small(target), quick=True)
    assert not report.lossless
    assert {"rows behind kept and dropped drafts", "greedy text, own drafts", "seeded text"} <= set(failed(report))


def test_typical_acceptance_is_convicted_and_called_lossy() -> None:
    target = lively()
    report = check_pair(target, small(target), rule="typical", quick=True)
    names = failed(report)
    assert "the rule typical keeps the law" in names
    assert any("typical is a lossy rule by design" in check.detail for check in report.checks)
    assert not any(name.startswith("greedy") for name in names)


def test_typical_acceptance_shows_in_the_tokens() -> None:
    """False alarm 1e-7, missed with 2e-8: a drafter that favours what the target does not pulls places 0.24 away. The
    limit of 4,000 tokens is 0.05, and 400 independent texts, none of which moves the distance by more than 1/400, fall
    0.15 short of its mean with probability exp(-2 * 400 * 0.15 ** 2) at most (McDiarmid)."""
    table = random_table(12, seed=1, spread=0.5)
    target = table_target(table)
    pair = pair_of(target, Small(table_target(-2 * table), target))
    for rule, passed in (("rejection", True), ("typical", False)):
        sample = draw_sample(pair, [Sampling(1.0)], 400, 10, rule)
        check = check_places("tokens", sample.places, int(sample.strange.sum()), 1e-7)
        assert check.passed == passed and check.threshold < 0.05


class Picky(Small):
    """Submits a drafted token only if its own law thinks highly of it: the choice depends on the token drawn."""

    def propose(self, state: Any, budget: Budget, sampling: list[Sampling], keys: Keys) -> Proposal:
        proposal = super().propose(state, budget, sampling, keys)
        if proposal.draft_probs is None:
            return proposal
        drawn = proposal.draft_probs[:, :-1].gather(2, proposal.tree.tokens.clamp(min=0)[..., None])[..., 0]
        sure = ((drawn > 0.2) & proposal.tree.real).long().cumprod(1).sum(1)
        return Proposal(DraftTree.chain(proposal.tree.tokens, sure), proposal.draft_probs, proposal.draft_logits)


@pytest.mark.parametrize("cheat", ["picky", "liar", "honest"])
def test_a_drafter_that_cheats_is_convicted(cheat: str) -> None:
    """One looks at a token before it submits it, one names another law than it drew from. False alarm 1e-7."""
    target = lively()
    guesser: Drafter = Picky(lively(seed=4, layers=1), target) if cheat == "picky" else small(target)
    if cheat == "liar":
        guesser = faults.Liar(guesser, target.vocab_size)
    observer = DraftPlaces(torch.Generator().manual_seed(1))
    draw_sample(pair_of(target, guesser), [Sampling(1.0)], 24, 24, "rejection", 0, observer)
    check = observer.check(1e-7)
    assert check is not None and check.passed == (cheat == "honest")


# ---- what is refused -----------------------------------------------------------------------------------------------


def test_refusals() -> None:
    target = lively()
    cases: list[tuple[dict[str, Any], str]] = [
        ({"rule": "exact"}, "rule is 'exact'; allowed: greedy, match"),
        ({"rule": "greedy"}, "rule is 'greedy'; allowed: a rule that samples, or none\nhint: greedy texts are checked"),
        ({"num_draft_tokens": 0}, "num_draft_tokens is 0; allowed: 1 or more"),
        ({"temperatures": (0.0,)}, r"temperature is 0\.0; allowed: above 0\nhint: greedy texts"),
        ({"branching": Branching("top-k", 3.0)}, "tree is top-k:3, and the drafter 'lookup' cannot draft that"),
    ]
    for options, words in cases:
        with pytest.raises(UsageError, match=words):
            check_pair(target, Lookup(), quick=True, **options)


def test_a_short_context_and_few_words() -> None:
    target = lively(max_position_embeddings=64)
    assert failed(check_pair(target, Lookup(), quick=True)) == []
    with pytest.raises(UsageError, match="the context of 'tiny-llama' holds 48; allowed: 64 or more"):
        check_pair(lively(max_position_embeddings=48), Lookup(), quick=True)
    few = Pair(table_target(random_table(3, seed=1)), Lookup(), Judge(target), ((1, 2), (0,)))
    assert all(check.passed for check in (*check_rows(few), check_siblings(few)))


def test_a_target_that_cannot_rewind_is_refused() -> None:
    target = spelling([1, 2, 3], prompt=1, vocab=4, name="recurrent")
    target.can_rewind = False
    with pytest.raises(UnsupportedError, match="the target 'recurrent' cannot rewind"):
        check_pair(target, Lookup(), quick=True)
