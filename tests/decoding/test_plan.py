"""A plan reads back as it was written, chooses by category and batch, and names what is wrong with it."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outpace.decoding.control import Fixed
from outpace.decoding.options import Options, check
from outpace.decoding.plan import ALL, NONE, Choice, Evidence, Plan
from outpace.drafters.budget import Branching
from outpace.errors import UsageError
from outpace.models.transformer import Transformer
from outpace.verification.rules import CHAIN_ONLY, RULES
from toys import must_fail

PLAN = Plan(
    "smollm2",
    "abc",
    (
        Choice(drafter="lookup", num_draft_tokens="auto", depth=8),
        Choice(batch=8, num_draft_tokens=2),
        Choice(batch=32, drafter=NONE, num_draft_tokens=0),
        Choice(category="rag", num_draft_tokens=6, rule="match"),
        Choice(category="rag", batch=16, num_draft_tokens=3),
        Choice(category="coding", batch=4, drafter="head", num_draft_tokens=24, tree="top-p:0.9", depth=6),
    ),
)

texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)


@st.composite
def parts(draw: st.DrawFn) -> tuple[Any, ...]:
    """Of a choice; it is made in the test, as checks of axes take chances that no strategy may."""
    tree = draw(st.sampled_from(["chain", "top-k:3", "top-p:0.25", "sampled:2", "static", "static:0.6,0.15,0.06"]))
    nodes: Any = draw(st.one_of(st.just("auto"), st.integers(0, 64)))
    depth = draw(st.one_of(st.none(), st.integers(1, 64)))
    if depth is not None and nodes != "auto":
        depth = None if nodes == 0 else nodes if tree == "chain" else min(depth, nodes)
    rules = sorted(RULES) if tree == "chain" else sorted(set(RULES) - CHAIN_ONLY)
    return (
        draw(texts),
        draw(st.integers(1, 2**40)),
        draw(texts),
        nodes,
        tree,
        depth,
        draw(st.sampled_from([None, *rules])),
        draw(numbers),
        draw(st.one_of(st.none(), texts)),
    )


numbers = st.floats(0, 1e9)
figures = st.tuples(st.integers(0, 2**40), *[st.one_of(st.none(), numbers)] * 8)
goals = st.sampled_from([(None, None), ("latency", None), ("goodput", 25.0), ("throughput", None)])


@given(
    texts,
    st.text(st.characters(exclude_categories=["Cs"])),
    st.lists(st.tuples(parts(), st.one_of(st.none(), figures)), max_size=4),
    goals,
)
def test_a_plan_reads_back_as_it_was_written(
    target: str, fingerprint: str, others: list[tuple[Any, Any]], goal: tuple[Any, Any]
) -> None:
    made = [Choice(*own, evidence=None if found is None else Evidence(*found)) for own, found in others]
    unlike = {(one.category, one.batch, one.temperature): one for one in [*made, Choice()]}
    plan = Plan(target, fingerprint, tuple(unlike.values()), *goal)
    assert Plan.from_toml(plan.to_toml()) == plan


def test_a_plan_of_an_earlier_version_reads_on() -> None:
    """Choices without a temperature hold at all of them."""
    old = Plan.from_toml(HEAD + ROW + "drafter = 'lookup'\n" + ROW + "batch = 4\nnum_draft_tokens = 3\ndepth = 3\n")
    assert old == Plan("smollm2", "abc", (Choice(), Choice(batch=4, num_draft_tokens=3, depth=3)))
    assert old.choice(batch=9, temperature=1.5).num_draft_tokens == 3


def test_files(tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    path.write_text("an older one")
    PLAN.write(path)
    assert Plan.read(path) == PLAN and list(tmp_path.iterdir()) == [path]
    with pytest.raises(UsageError, match=r"the plan cannot be written to .*: No such file or directory"):
        PLAN.write(tmp_path / "nowhere" / "plan.toml")
    with pytest.raises(UsageError, match=r"the plan .* cannot be read: No such file or directory"):
        Plan.read(tmp_path / "none.toml")
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match=r"the plan .* cannot be read: it is not UTF-8"):
        Plan.read(path)


@pytest.mark.parametrize(
    ("category", "batch", "place"),
    [
        (ALL, 1, 0),
        (ALL, 7, 0),
        (ALL, 8, 1),
        ("anything else", 31, 1),
        ("anything else", 500, 2),
        ("rag", 1, 3),
        ("rag", 15, 3),
        ("rag", 16, 4),
        ("coding", 1, 0),
        ("coding", 4, 5),
        ("coding", 100, 5),
    ],
)
def test_the_choice_for_a_category_and_a_batch(category: str, batch: int, place: int) -> None:
    """Its own before that of all; the largest batch that is reached."""
    assert PLAN.choice(category, batch) is PLAN.choices[place]


def test_the_choice_for_a_temperature() -> None:
    """Of the largest batch reached, that of the highest temperature reached."""
    plan = Plan("t", "f", (Choice(), Choice(temperature=0.7, depth=3), Choice(batch=4, depth=5)))
    heats = {heat: plan.choice(temperature=heat).depth for heat in (0.0, 0.69, 0.7, 2.0)}
    assert heats == {0.0: None, 0.69: None, 0.7: 3, 2.0: 3}
    assert plan.choice(batch=4, temperature=0.7).depth == 5
    with pytest.raises(UsageError, match=r"temperature is -1.0; allowed: 0 \(greedy\) or more"):
        plan.choice(temperature=-1.0)


def test_options_are_those_of_generate() -> None:
    assert PLAN.choice("rag").options == {"num_draft_tokens": 6, "tree": "chain", "depth": None, "rule": "match"}
    assert PLAN.choice("coding", 9).options == {"num_draft_tokens": 24, "tree": "top-p:0.9", "depth": 6, "rule": None}
    assert PLAN.choice(batch=40).options == {"num_draft_tokens": 0, "tree": "chain", "depth": None, "rule": None}
    for one in PLAN.choices:
        options: Options = {**one.options}
        check(options)
        if one.num_draft_tokens not in ("auto", 0):
            assert isinstance(one.num_draft_tokens, int)
            Fixed(Branching.parse(one.tree), one.depth or one.num_draft_tokens, one.num_draft_tokens)


HEAD = 'format_version = 1\ntarget = "smollm2"\nfingerprint = "abc"\n'
ROW = "[[choices]]\n"

REFUSED = [
    ("x", "the plan is not TOML: "),
    (HEAD, "the plan: choices is missing; allowed: a list of tables"),
    (HEAD + "colour = 3\n" + ROW, "the plan: unknown key 'colour' with value 3; allowed: format_version, target, fing"),
    (HEAD.replace("1", "2") + ROW, "the plan: format_version is 2; allowed: 1"),
    (HEAD.replace("1", "'1'") + ROW, "the plan: format_version is '1'; allowed: 1"),
    (HEAD.replace('"abc"', "3") + ROW, "the plan: fingerprint is 3; allowed: a string"),
    (HEAD + "choices = 3\n", "the plan: choices is 3; allowed: a list of tables"),
    (HEAD + "choices = [3]\n", "the plan, choice 1 is 3; allowed: a table"),
    (
        HEAD + ROW + ROW + "depht = 4\n",
        "the plan, choice 2: unknown key 'depht' with value 4; allowed: category, b",
    ),
    (HEAD + ROW + "batch = 0\n", "the plan, choice 1: batch is 0; allowed: 1 or more"),
    (HEAD + ROW + "batch = true\n", "the plan, choice 1: batch is True; allowed: a whole number"),
    (HEAD + ROW + "batch = 1.0\n", r"the plan, choice 1: batch is 1\.0; allowed: a whole number"),
    (
        HEAD + ROW + "num_draft_tokens = 'many'\n",
        "the plan, choice 1: num_draft_tokens is 'many'; allowed: a whole number or \"auto\"",
    ),
    (HEAD + ROW + "num_draft_tokens = -1\n", "choice 1: num_draft_tokens is -1; allowed: auto, 0 "),
    (HEAD + ROW + "tree = 'bush'\n", "choice 1: tree is 'bush'; allowed: chain, top-k:K, top-p:P, sampled:K"),
    (HEAD + ROW + "depth = 0\n", "choice 1: depth is 0; allowed: 1 or more, or left out"),
    (
        HEAD + ROW + "depth = 3\nnum_draft_tokens = 4\n",
        "num_draft_tokens is 4 and depth 3; allowed: equal numbers",
    ),
    (HEAD + ROW + "depth = 5\nnum_draft_tokens = 4\ntree = 'top-k:2'\n", "allowed: as many nodes as depths, or more"),
    (HEAD + ROW + "rule = 'wishful'\n", "choice 1: rule is 'wishful'; allowed: greedy, match"),
    (
        HEAD + ROW + "rule = 'block'\ntree = 'top-k:2'\n",
        "rule is 'block' and tree top-k:2; allowed: a chain, or an",
    ),
    (HEAD + ROW + "category = ''\n", "choice 1: category is empty; allowed: a name"),
    (HEAD + ROW + "drafter = ''\n", "choice 1: drafter is empty; allowed: a name"),
    (HEAD + ROW + ROW, "the plan: category 'all' has several choices from batch 1 on; allowed: one for each batch"),
    (HEAD + ROW + "temperature = -1\n", r"choice 1: temperature is -1.0; allowed: 0 \(greedy\) or more"),
    (HEAD + ROW + "temperature = nan\n", r"choice 1: temperature is nan; allowed: 0 \(greedy\) or more"),
    (HEAD + ROW + "temperature = 'hot'\n", "choice 1: temperature is 'hot'; allowed: a number"),
    (HEAD + ROW + "[choices.evidence]\nspeedup = inf\n", "the plan, choice 1: speedup is inf; allowed: 0 or more"),
    (HEAD + ROW + "[choices.evidence]\nsped = 1\n", "choice 1, evidence: unknown key 'sped' with value 1; allowed: pr"),
    (HEAD + ROW + "evidence = 3\n", "choice 1: evidence is 3; allowed: a table"),
    (HEAD + "goal = 'fame'\n" + ROW, "the plan: goal is 'fame'; allowed: latency, throughput, goodput"),
    (HEAD + "latency_bound_ms = 0\n" + ROW, "the plan: latency_bound_ms is 0.0; allowed: above 0"),
    (
        HEAD + ROW + "temperature = 1\n" + ROW + "temperature = 1.0\n" + ROW,
        "category 'all' has several choices from batch 1 and temperature 1 on",
    ),
    (HEAD + ROW + "temperature = 1\n", "no choice has category 'all' and batch 1; allowed: one that holds where no o"),
    (HEAD + ROW + "category = 'rag'\n", "the plan: no choice has category 'all' and batch 1; allowed: one that holds"),
]


@pytest.mark.parametrize(("text", "words"), REFUSED, ids=lambda value: str(value)[-40:])
def test_refusals(text: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        Plan.from_toml(text)


def test_a_batch_of_nothing() -> None:
    with pytest.raises(UsageError, match="batch is 0; allowed: 1 or more"):
        PLAN.choice(batch=0)


def made_for(tiny: Transformer) -> None:
    Plan("tiny-llama", tiny.fingerprint, (Choice(),)).require(tiny)
    words = (
        f"fingerprint is 'abc' in the plan, made for 'smollm2'; allowed: '{tiny.fingerprint}', that of the target 'tiny"
    )
    with pytest.raises(UsageError, match=words):
        PLAN.require(tiny)


def test_a_plan_for_another_target(tiny: Transformer) -> None:
    made_for(tiny)


def test_a_plan_for_another_target_planted(tiny: Transformer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Plan, "require", lambda self, target: None)
    with must_fail():
        made_for(tiny)
