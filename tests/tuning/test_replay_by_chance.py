"""Where a rule leaves it to chance, replay gives the expectation: equal to enumeration of the shipped rules.

Figures that are sampled have fixed seeds; each test says how often another seed would have failed it.
"""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from outpace.decoding.control import Fixed
from outpace.decoding.trace import Logits
from outpace.drafters.budget import Branching
from outpace.evaluation.probe import Followed, Said
from outpace.tuning.drafts import accepted
from outpace.tuning.nearby import Warmth
from outpace.tuning.recording import Place, Recording, Text
from outpace.tuning.replay import Prediction, Setting, replay
from outpace.verification.expectation import chain_tokens
from outpace.verification.probabilities import Sampling
from outpace.verification.rules import RULES
from outpace.verification.tree import DraftTree
from toys import must_fail

VOCAB, LENGTH = 3, 3


def laws(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Target's and draft's laws behind every prefix of up to LENGTH tokens: ``[prefix, vocab]``, float64."""
    coins = torch.Generator().manual_seed(seed)
    count = sum(VOCAB**length for length in range(LENGTH + 1))
    return tuple(torch.randn(count, VOCAB, dtype=torch.float64, generator=coins).mul(1.5).softmax(-1) for _ in "pq")


def row(prefix: tuple[int, ...]) -> int:
    """The place of a prefix: shorter ones first, then by their tokens."""
    return sum(VOCAB**length for length in range(len(prefix))) + sum(
        token * VOCAB**place for place, token in enumerate(prefix)
    )


def enumerated(rule: str, target: torch.Tensor, draft: torch.Tensor, said: tuple[int, ...]) -> list[float]:
    """How probably a turn accepts said[:i], given that the text begins so: the rule's own law over all drafts."""
    drafts = list(itertools.product(range(VOCAB), repeat=LENGTH))
    rows = torch.tensor([[row(one[:length]) for length in range(LENGTH + 1)] for one in drafts])
    tokens = torch.tensor(drafts)
    chances = draft[rows[:, :-1], tokens].prod(1)
    ends = RULES[rule].law(target[rows], DraftTree.chain(tokens), draft[rows]).sum(-1)
    joint = [
        sum(
            float(chance * end[length:].sum())
            for one, chance, end in zip(drafts, chances, ends, strict=True)
            if one[:length] == said[:length]
        )
        for length in range(1, LENGTH + 1)
    ]
    text = list(itertools.accumulate((float(target[row(said[:at]), token]) for at, token in enumerate(said)), _times))
    return [one / whole for one, whole in zip(joint, text, strict=True)]


def _times(left: float, right: float) -> float:
    return left * right


def pairs(target: torch.Tensor, draft: torch.Tensor, said: tuple[int, ...]) -> list[tuple[float, float]]:
    return [
        (float(draft[row(said[:at]), token]), float(target[row(said[:at]), token])) for at, token in enumerate(said)
    ]


@given(st.integers(0, 10**6), st.tuples(*[st.integers(0, VOCAB - 1)] * LENGTH))
def test_chances_are_those_of_the_shipped_rules(seed: int, said: tuple[int, ...]) -> None:
    target, draft = laws(seed)
    for rule in ("rejection", "block", "match"):
        expected = enumerated(rule, target, draft, said)
        assert accepted(pairs(target, draft, said), rule) == pytest.approx(expected, abs=1e-9)


def test_one_rule_is_not_the_other() -> None:
    """The negative control: what holds of ``block`` does not hold of ``rejection``."""
    target, draft = laws(1)
    with must_fail():
        for said in itertools.product(range(VOCAB), repeat=LENGTH):
            found = accepted(pairs(target, draft, said), "block")
            assert found == pytest.approx(enumerated("rejection", target, draft, said), abs=1e-6)


def test_tokens_without_chance() -> None:
    """What the draft cannot say is never accepted; nothing behind it is either."""
    for rule in ("rejection", "block", "match"):
        assert accepted([(0.5, 0.5), (0.0, 0.3), (1.0, 0.1)], rule)[1:] == [0.0, 0.0]


# ---- whole texts -----------------------------------------------------------------------------------------------------

WORDS, TEXTS, NEW, DEPTH = 24, 40, 60, 8
LOGITS = torch.randn(2, WORDS, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
"""Of a target and a drafter that have one law each, whatever they read: then acceptance has a closed form."""


def law_at(temperature: float) -> torch.Tensor:
    return (LOGITS / temperature).softmax(-1)


def recording(temperature: float, seed: int = 3) -> Recording:
    """Texts drawn from the target's law, as a probe would have recorded them."""
    ours, theirs = law_at(temperature)
    rows, raw = Logits.of(LOGITS), law_at(1.0)
    coins = np.random.default_rng(seed)
    texts = []
    for _ in range(TEXTS):
        said = coins.choice(WORDS, size=NEW, p=ours.numpy() / ours.numpy().sum()).tolist()
        places = []
        for at, token in enumerate(said):
            behind = [Followed(float(raw[1, one]), float(theirs[one]), 0, rows[1]) for one in said[at : at + DEPTH]]
            finds = Said(float(raw[0, token]), float(ours[token]), 0)
            row = tuple(rows[0].logits), rows[0].logsumexp
            places.append(
                Place(token, (0,) * DEPTH if at else (), finds, tuple(behind), certain=(0.5,) * DEPTH, row=row)
            )
        texts.append(Text(None, None, 1, NEW, tuple(places)))
    return Recording("probe", "target", "draft", Sampling(temperature), DEPTH, (), 64, (), tuple(texts))


def alpha(temperature: float) -> float:
    return float(torch.minimum(*law_at(temperature)).sum())


def near(said: Prediction, value: float) -> None:
    """Within four standard errors of the bootstrap: another seed fails with a chance below 1e-3."""
    assert said.tau_ci is not None
    error = (said.tau_ci[1] - said.tau_ci[0]) / 3.92
    assert abs(said.tau - value) < 4 * error and error < 0.05


@pytest.mark.parametrize("length", [1, 2, 4, 8])
def test_tau_of_a_sampled_chain_has_its_closed_form(length: int) -> None:
    """A text's last turns are cut, so that a little is lost: less than a tenth of the interval here."""
    said = replay(recording(1.0), Setting(length, rule="rejection", temperature=1.0))
    near(said, chain_tokens(alpha(1.0), length))
    assert said.acceptance == pytest.approx(alpha(1.0), abs=0.03)


def test_block_is_ahead_of_rejection_and_match_behind() -> None:
    found = recording(1.0)
    taus = [replay(found, Setting(4, rule=rule, temperature=1.0)).tau for rule in ("block", "rejection", "match")]
    assert taus == sorted(taus, reverse=True) and taus[0] > taus[1] > taus[2]


def test_a_controller_that_stays_gives_what_the_walk_gives() -> None:
    """Eight passes with coins of their own against the expectation, pooled over 40 texts: within 3 %."""
    found, setting = recording(1.0), Setting(4, temperature=1.0)
    walked, tossed = replay(found, setting), replay(found, setting, control=lambda: Fixed(Branching(), 4))
    assert tossed.tau == pytest.approx(walked.tau, rel=0.03)


@pytest.mark.parametrize("after", [0.7, 0.85, 1.2, 1.45])
def test_a_temperature_nearby(after: float) -> None:
    """From texts of temperature 1, with all but the largest 16 logits of 24 left out."""
    said = replay(recording(1.0), Setting(3, rule="rejection", temperature=after))
    near(said, chain_tokens(alpha(after), 3))
    assert said.approximate == ("texts of temperature 1, weighted",)
    if abs(after - 1) > 0.2:
        with must_fail():
            near(said, chain_tokens(alpha(1.0), 3))


@pytest.mark.parametrize(("after", "apart"), [(0.6, 0.05), (0.9, 0.01), (1.2, 0.07)])
def test_laws_nearby_are_nearly_the_laws(after: float, apart: float) -> None:
    """A row of 2,000 tokens whose tail is long, recorded at 0.8 by 16 logits and two sums: others to some percent."""
    logits = torch.randn(2000, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * 2.5
    [shown] = Logits.of(logits[None])
    before, raw, real = ((logits / heat).softmax(-1) for heat in (0.8, 1.0, after))
    warmth = Warmth(0.8, after)
    for token in logits.topk(40).indices.tolist():
        found = warmth.law(float(raw[token]), float(before[token]), shown.logits, shown.logsumexp)
        assert found == pytest.approx(float(real[token]), rel=apart)
