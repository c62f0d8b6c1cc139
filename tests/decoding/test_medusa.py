"""With Medusa heads every target says what it says plainly: greedy, seeded and by law, in chains and trees.

False alarms: greedy and seeded references are fixed texts, see ``test_every_pair``; those of the laws stand with them.
"""

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chi2
from torch import Tensor

import outpace
from hosts import hosted, model_of
from medusas import (
    Showing,
    always_first,
    by_heart,
    counting,
    counting_heads,
    medusa_shape,
    mostly_first,
    random_medusa,
    saying,
)
from outpace.decoding.control import Fixed
from outpace.decoding.loop import Request, decode
from outpace.decoding.trace import tracing
from outpace.decoding.turn import Turn
from outpace.drafters.budget import Branching, Budget
from outpace.drafters.drafter import Features, Proposal
from outpace.drafters.medusa import Medusa
from outpace.models.shape import Shape
from outpace.models.target import Target
from outpace.models.toy import random_table
from outpace.models.transformer import Transformer
from outpace.verification.coins import Keys
from outpace.verification.probabilities import Sampling, probability_rows
from toys import lively, must_fail, reference, run, seeded_reference

PROMPTS = ((9,), (5, 6, 7), (1, 2, 3, 4, 5, 6, 7), (11, 3, 2, 8, 1, 1, 30, 12, 7))
NEW = 20
TREES = ("chain", "top-k:2", "top-k:3", "top-p:0.9", "sampled:2", "dynamic", "static:0.5,0.2,0.1", "static")
RATES = ((0.6, 0.2, 0.1), (0.6, 0.2), (0.5, 0.2), (0.4, 0.3))


@pytest.fixture(scope="module")
def wide() -> Transformer:
    """As wide as there are places in all texts, so that heads may know them by heart."""
    return lively(hidden_size=128)


def fixed(tree: str, depth: int, nodes: int) -> Fixed:
    return Fixed(Branching.parse(tree), depth, depth if tree == "chain" else nodes)


@cache
def known(target: Transformer, rank: Callable[[int, int], int]) -> Any:
    return by_heart(target, [(prompt, reference(target, prompt, NEW + 5)) for prompt in PROMPTS], rank=rank)


def often_right(target: Transformer) -> Medusa:
    """Heads that know the texts of these prompts, but take another token for a likelier one now and then."""
    return Medusa(known(target, mostly_first), target, packed=False, rates=RATES)


def always_right(target: Transformer) -> Medusa:
    return Medusa(known(target, always_first), target, packed=False, rates=RATES)


# ---- texts -----------------------------------------------------------------------------------------------------------


@settings(max_examples=30)
@given(
    tree=st.sampled_from(TREES),
    depth=st.integers(1, 6),
    more=st.integers(0, 12),
    slots=st.integers(1, 4),
    new=st.integers(1, NEW),
    order=st.permutations(range(4)),
    seed=st.none() | st.integers(0, 3),
    ends=st.none() | st.integers(0, NEW - 1),
    told=st.booleans(),
)
def test_texts_are_the_plain_texts(
    tree: str,
    depth: int,
    more: int,
    slots: int,
    new: int,
    order: list[int],
    seed: int | None,
    ends: int | None,
    told: bool,
    wide: Transformer,
) -> None:
    """Ragged batches whose slots are refilled, more depth than heads, stops anywhere, greedy and seeded."""
    sampling = Sampling() if seed is None else Sampling(0.9, top_k=12)

    def plain(prompt: tuple[int, ...]) -> list[int]:
        return reference(wide, prompt, NEW) if seed is None else seeded_reference(wide, prompt, NEW, sampling, seed)

    eos = () if ends is None else (plain(PROMPTS[0])[ends],)
    requests = [Request(PROMPTS[place], sampling, new, eos, seed) for place in order]
    drafter = often_right(wide)
    drafter.eos_ids = frozenset(eos if told else ())
    for row, place in zip(
        run(wide, drafter, requests, control=fixed(tree, depth, depth + more), slots=slots), order, strict=True
    ):
        said = plain(PROMPTS[place])[:new]
        stops = [1 + said.index(end) for end in eos if end in said]
        assert row.ids == said[: min(stops, default=new)]


def test_drafts_come_true_now_and_then(wide: Transformer) -> None:
    """What the test above leans on: paths of every length are accepted, and children of later ranks."""
    lengths, later = set(), 0

    def look(turn: Turn, rows: list[int]) -> None:
        nonlocal later
        for (_, parents), path in zip(turn.proposal.tree.to_lists(), turn.paths, strict=True):
            lengths.add(len(path))
            later += sum(parents[node] in parents[:node] for node in path)

    requests = [Request(prompt, max_new_tokens=NEW) for prompt in PROMPTS]
    for tree in ("chain", "top-k:2", "static"):
        run(wide, often_right(wide), requests, control=fixed(tree, 4, 12), observer=look)
    assert lengths == {0, 1, 2, 3, 4} and later >= 8


@pytest.mark.parametrize(
    ("tree", "nodes"), [("chain", 4), ("top-k:2", 30), ("sampled:3", 8), ("dynamic", 40), ("static", 8)]
)
def test_what_is_known_by_heart_is_accepted_whole(tree: str, nodes: int, wide: Transformer) -> None:
    """Every turn of depth four emits five tokens; alone, in a batch, and where slots are refilled."""
    for slots in (1, 2, 4):
        requests = [Request(prompt, max_new_tokens=NEW + 1) for prompt in PROMPTS]
        for row in run(wide, always_right(wide), requests, control=fixed(tree, 4, nodes), slots=slots):
            assert row.stats.acceptance == 1.0 and row.stats.tau == 5.0 and row.stats.turns == NEW / 5


class Resting(Fixed):
    """Drafts in every so many turns only; in the others rows rest, one after the other and together."""

    turn = 0

    def budget(self, rooms: list[int], lengths: list[int], grades: list[int] | None = None) -> Budget:
        self.turn += 1
        if self.turn % 3:
            rooms = [room if row == self.turn % len(rooms) and self.turn % 2 else 0 for row, room in enumerate(rooms)]
        return super().budget(rooms, lengths)


@pytest.mark.parametrize("tree", TREES)
def test_rows_that_rested_draft_as_if_they_had_not(tree: str, wide: Transformer) -> None:
    requests = [Request(prompt, max_new_tokens=NEW) for prompt in PROMPTS]
    control = Resting(Branching.parse(tree), 3, 3 if tree == "chain" else 14)
    for row, prompt in zip(run(wide, always_right(wide), requests, control=control), PROMPTS, strict=True):
        assert row.ids == reference(wide, prompt, NEW)
        assert row.stats.plain_turns > 0 and row.stats.accepted > 0 and row.stats.acceptance == 1.0


def _states_late(features: list[Features]) -> list[Features]:
    return [torch.cat((part[:1], part[:-1])) for part in features]


def _admit_late(self: Medusa, state: Any, prompts: list[list[int]], features: list[Features]) -> None:
    HONEST_ADMIT(self, state, prompts, _states_late(features))


def _commit_late(self: Medusa, state: Any, emitted: list[list[int]], features: list[Features]) -> None:
    HONEST_COMMIT(self, state, emitted, _states_late(features))


def _a_head_further(self: Medusa, own: Any, depth: int) -> Tensor:
    said = HONEST_LOGITS(self, own, depth)
    return torch.cat((said[:, 1:], said[:, -1:]), 1)


HONEST_ADMIT, HONEST_COMMIT, HONEST_LOGITS = Medusa.admit, Medusa.commit, Medusa._logits
SHIFTS = {"admit": _admit_late, "commit": _commit_late, "_logits": _a_head_further}


@pytest.mark.parametrize("fault", SHIFTS)
def test_a_shift_by_one_is_noticed(fault: str, wide: Transformer, monkeypatch: pytest.MonkeyPatch) -> None:
    """States a position late, or depths a head further: texts stay what they are, but nothing is accepted whole."""
    monkeypatch.setattr(Medusa, fault, SHIFTS[fault])
    requests = [Request(prompt, max_new_tokens=NEW) for prompt in PROMPTS]
    rows = run(wide, always_right(wide), requests, control=fixed("chain", 4, 4))
    assert [row.ids for row in rows] == [reference(wide, prompt, NEW) for prompt in PROMPTS]
    with must_fail():
        assert all(row.stats.acceptance == 1.0 for row in rows)


@pytest.mark.parametrize("tree", TREES)
def test_a_head_that_says_no_numbers_harms_nothing(tree: str, wide: Transformer) -> None:
    drafter = often_right(wide)
    drafter.heads.get_parameter("1.1.weight").fill_(torch.nan)
    requests = [Request(prompt, max_new_tokens=NEW) for prompt in PROMPTS]
    for row, prompt in zip(run(wide, drafter, requests, control=fixed(tree, 4, 12)), PROMPTS, strict=True):
        assert row.ids == reference(wide, prompt, NEW)
        assert row.stats.accepted > 0 and len(row.stats.acceptance_by_position) == 1


# ---- a target that counts --------------------------------------------------------------------------------------------


def counts(own: bool, shift: int = 0) -> None:
    """All is accepted: head i speaks of token t + 2 + i."""
    target = counting()
    drafter = Medusa(counting_heads(own, shift=shift), target, packed=False)
    for tree in ("chain", "top-k:2", "static:0.9,0.05"):
        requests = [Request(prompt, max_new_tokens=21) for prompt in ((5,), (50, 51, 52))]
        for row, start in zip(run(target, drafter, requests, control=fixed(tree, 4, 30)), (6, 53), strict=True):
            assert row.ids == [(start + step) % 64 for step in range(21)]
            assert row.stats.acceptance == 1.0 and row.stats.tau == 5.0


@pytest.mark.parametrize("own", [False, True])
def test_counting_is_accepted_whole(own: bool) -> None:
    counts(own)
    for shift in (-1, 1):
        with must_fail():
            counts(own, shift)


# ---- targets of both lanes -------------------------------------------------------------------------------------------


def lanes(family: str) -> list[Target]:
    model = model_of(family)
    state = {name: weight.clone() for name, weight in model.state_dict().items()}
    targets: list[Target] = [hosted(family)]
    if family != "gpt2":
        targets.append(Transformer(Shape.from_config(model.config.to_dict()), state, dtype=torch.float32, packed=False))
    return targets


@pytest.mark.parametrize("family", ["gpt2", "llama", "qwen2", "mistral"])
@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("tree", ["chain", "top-k:2"])
def test_every_lane_shows_the_same_states(family: str, own: bool, tree: str) -> None:
    """Texts are the plain ones, beyond a window of 8 too; and both lanes of a family get the same drafts."""
    heads = random_medusa(medusa_shape(hidden_size=64, own_head=own), seed=4)
    drafts: list[list[Any]] = []
    for target in lanes(family):
        seen: list[Any] = []

        def look(turn: Turn, rows: list[int], seen: list[Any] = seen) -> None:
            seen.append((rows, turn.proposal.tree.to_lists()))

        requests = [Request(prompt, max_new_tokens=12) for prompt in PROMPTS]
        drafter = Medusa(heads, target, packed=False)
        rows = run(target, drafter, requests, control=fixed(tree, 3, 7), observer=look, slots=3)
        plain = run(target, None, requests)
        assert [row.ids for row in rows] == [row.ids for row in plain]
        assert sum(row.stats.drafted for row in rows) > 12
        drafts.append(seen)
    assert all(seen == drafts[0] for seen in drafts)


# ---- beside the loop -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tree", ["chain", "dynamic", "static"])
def test_auto_chooses_for_it(tree: str, wide: Transformer) -> None:
    """Costs are measured, the controller drafts and rests as it likes, and the text is the plain one."""
    result = outpace.generate(
        wide,
        always_right(wide),
        list(PROMPTS[1]),
        max_new_tokens=NEW,
        tree=tree,
        eos_ids=None,
        num_draft_tokens="auto",
    )
    assert result.token_ids == reference(wide, PROMPTS[1], NEW)


@pytest.mark.parametrize("tree", ["chain", "top-k:2", "sampled:2", "static"])
def test_a_trace_shows_what_the_heads_say(tree: str, wide: Transformer, tmp_path: Path) -> None:
    drafter = often_right(wide)
    requests = [Request(PROMPTS[2], max_new_tokens=12)]
    observer = tracing(tmp_path / "trace.jsonl", wide, drafter, requests)
    run(wide, drafter, requests, control=fixed(tree, 3, 7), observer=observer)
    records = [json.loads(line) for line in (tmp_path / "trace.jsonl").read_text().splitlines()][1:]
    drafted = [record for record in records if record["nodes"]]
    assert drafted
    for record in drafted:
        assert record["draft"] and all(len(row["ids"]) == 16 for row in record["draft"])
        if tree == "chain":
            assert [row["ids"][0] for row in record["draft"]] == [node["token"] for node in record["nodes"]]


@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize("seed", [None, 3])
def test_without_a_name_every_rule_is_lossless(tree: str, seed: int | None, wide: Transformer) -> None:
    """The heads' own paper judges by typical acceptance: here it has to be asked for, and says what it is."""
    asked: dict[str, Any] = {"tree": tree, "num_draft_tokens": 4 if tree == "chain" else 8, "max_new_tokens": NEW}
    drafter = often_right(wide)
    for temperature in (0.0, 1.0):
        found = outpace.generate(wide, drafter, list(PROMPTS[1]), temperature=temperature, seed=seed, **asked)
        stats = found.stats.speculation
        assert stats.drafted > 0 and stats.lossless and "typical" not in stats.rule
    stats = outpace.generate(
        wide, drafter, list(PROMPTS[1]), temperature=1.0, seed=seed, rule="typical", **asked
    ).stats.speculation
    assert stats.drafted > 0 and not stats.lossless and "typical" in stats.rule


# ---- laws ------------------------------------------------------------------------------------------------------------

ALARM, LENGTH, VOCAB, PROMPT = 1e-9, 3, 5, (3, 1)
WARPS = {"1": Sampling(1.0), "0.5 top-k": Sampling(0.5, top_k=3), "1.5 top-p": Sampling(1.5, top_p=0.85)}
TABLE = random_table(VOCAB, seed=2).float()
SAID = [random_table(VOCAB, seed=seed).float() for seed in (5, 6)]


def law_of(sampling: Sampling) -> Tensor:
    """The exact law of the second to fourth new token."""
    rows = probability_rows(TABLE.double(), sampling)
    return torch.einsum("a,ab,bc,cd->bcd", rows[PROMPT[-1]], rows, rows, rows)


def p_value(drafter: type[Medusa], tree: str, rule: str | None, sampling: Sampling, count: int = 2_000) -> float:
    """Of the second to fourth token of so many samples, if their law is the target's."""
    target = Showing(TABLE)
    requests = [Request(PROMPT, sampling, 2 + LENGTH, seed=5, sample=number) for number in range(count)]
    texts: list[list[int]] = [[] for _ in requests]
    guesser = drafter(saying(SAID), target, packed=False)
    for emission in decode(target, guesser, requests, control=fixed(tree, 2, 5), rule=rule, slots=500):
        texts[emission.index] += emission.ids
    places = VOCAB ** torch.arange(LENGTH - 1, -1, -1)
    cells = (torch.tensor(texts)[:, 1 : 1 + LENGTH] * places).sum(1)
    expected = law_of(sampling).flatten() * count
    counted = torch.bincount(cells, minlength=VOCAB**LENGTH).double()
    rare = expected < 5
    observed = torch.cat((counted[~rare], counted[rare].sum()[None]))
    wanted = torch.cat((expected[~rare], expected[rare].sum()[None]))
    if wanted[-1] == 0:
        assert observed[-1] == 0, "a token that the target never says"
        observed, wanted = observed[:-1], wanted[:-1]
    return float(chi2.sf(float(((observed - wanted) ** 2 / wanted).sum()), len(wanted) - 1))


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("warp", WARPS)
@pytest.mark.parametrize(
    ("tree", "rule"),
    [
        ("chain", "block"),
        ("chain", "rejection"),
        ("chain", None),
        ("sampled:2", "tree-rejection"),
        ("sampled:3", "traversal"),
        ("top-k:2", "match"),
        ("dynamic", "tree-rejection"),
        ("static:0.5,0.3", "match"),
    ],
)
def test_texts_keep_the_law(tree: str, rule: str | None, warp: str) -> None:
    """Three tokens through several turns. Seeds are fixed; a chi-square below 1e-9 would be one run in 1e9."""
    assert p_value(Medusa, tree, rule, WARPS[warp]) > ALARM


class Flatter(Medusa):
    """Draws from one law and reports a flatter one."""

    def propose(self, state: Any, budget: Budget, sampling: list[Sampling], keys: Keys) -> Proposal:
        proposal = super().propose(state, budget, sampling, keys)
        laws = proposal.draft_probs
        if laws is None:
            return proposal
        return Proposal(proposal.tree, laws.sqrt() / laws.sqrt().sum(-1, keepdim=True).clamp(min=1e-9))


class OneLaw(Medusa):
    """Draws from each head's law and reports the first head's for all of them."""

    def propose(self, state: Any, budget: Budget, sampling: list[Sampling], keys: Keys) -> Proposal:
        proposal = super().propose(state, budget, sampling, keys)
        laws = proposal.draft_probs
        return proposal if laws is None else Proposal(proposal.tree, laws[:, :1].expand_as(laws))


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("faulty", [Flatter, OneLaw])
@pytest.mark.parametrize(("tree", "rule"), [("chain", "rejection"), ("sampled:2", "tree-rejection")])
def test_another_law_is_noticed(faulty: type[Medusa], tree: str, rule: str) -> None:
    assert p_value(faulty, tree, rule, WARPS["1"], count=6_000) < ALARM
