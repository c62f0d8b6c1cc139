"""With an EAGLE-3 head every target says what it says plainly: greedy, seeded and by law, in chains and trees.

False alarms: greedy and seeded references are fixed texts, see ``test_every_pair``; those of the laws stand with them.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chi2
from torch import Tensor

import outpace
from heads import WHOLE, fitted_head, random_head, shape_of
from hosts import hosted, model_of
from outpace.decoding.control import Fixed
from outpace.decoding.loop import Request, decode
from outpace.decoding.trace import tracing
from outpace.decoding.turn import Turn
from outpace.drafters.budget import Branching, Budget
from outpace.drafters.drafter import Features, Proposal
from outpace.drafters.eagle import Eagle
from outpace.drafters.head import Head
from outpace.models.hosted import Hosted
from outpace.models.shape import Shape
from outpace.models.target import Target
from outpace.models.toy import tiny_transformer
from outpace.models.transformer import Transformer
from outpace.verification.coins import Keys
from outpace.verification.probabilities import Sampling, probability_rows
from toys import dense_logits, must_fail, reference, run, seeded_reference

PROMPTS = ((9,), (5, 6, 7), (1, 2, 3, 4, 5, 6, 7), (11, 3, 2, 8, 1, 1, 30, 12, 7))
NEW = 20
TREES = ("chain", "top-k:2", "top-k:3", "top-p:0.9", "sampled:2", "dynamic", "static:0.5,0.2,0.1")


def fixed(tree: str, depth: int, nodes: int) -> Fixed:
    return Fixed(Branching.parse(tree), depth, depth if tree == "chain" else nodes)


def often_right(target: Transformer) -> Eagle:
    """A head that has half learnt the texts of these prompts."""
    return Eagle(fitted_head(PROMPTS, NEW + 8), target, packed=False)


def always_right(target: Transformer, **changes: Any) -> Eagle:
    """One that has learnt them by heart."""
    return Eagle(fitted_head(PROMPTS, NEW + 8, WHOLE), target, packed=False, **changes)


# ---- texts -----------------------------------------------------------------------------------------------------------


@settings(max_examples=20)
@given(
    tree=st.sampled_from(TREES),
    depth=st.integers(1, 5),
    more=st.integers(0, 12),
    slots=st.integers(1, 4),
    new=st.integers(1, NEW),
    order=st.permutations(range(4)),
    seed=st.none() | st.integers(0, 3),
    ends=st.none() | st.integers(0, NEW - 1),
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
    tiny: Transformer,
) -> None:
    """Ragged batches whose slots are refilled, stops anywhere, greedy and seeded."""
    sampling = Sampling() if seed is None else Sampling(0.9, top_k=12)

    def plain(prompt: tuple[int, ...]) -> list[int]:
        return reference(tiny, prompt, NEW) if seed is None else seeded_reference(tiny, prompt, NEW, sampling, seed)

    eos = () if ends is None else (plain(PROMPTS[0])[ends],)
    requests = [Request(PROMPTS[place], sampling, new, eos, seed) for place in order]
    drafter = often_right(tiny)
    drafter.eos_ids = frozenset(eos)
    for row, place in zip(
        run(tiny, drafter, requests, control=fixed(tree, depth, depth + more), slots=slots), order, strict=True
    ):
        said = plain(PROMPTS[place])[:new]
        stops = [1 + said.index(end) for end in eos if end in said]
        assert row.ids == said[: min(stops, default=new)]


def test_drafts_come_true_now_and_then(tiny: Transformer) -> None:
    """What the tests above lean on: paths of every length are accepted, and children of later ranks."""
    lengths, later = set(), 0

    def look(turn: Turn, rows: list[int]) -> None:
        nonlocal later
        for (_, parents), path in zip(turn.proposal.tree.to_lists(), turn.paths, strict=True):
            lengths.add(len(path))
            later += sum(parents[node] in parents[:node] for node in path)

    requests = [Request(prompt, max_new_tokens=NEW) for prompt in PROMPTS]
    run(tiny, often_right(tiny), requests, control=fixed("top-k:3", 3, 12), observer=look)
    assert lengths == {0, 1, 2, 3} and later >= 4


@pytest.mark.parametrize(("tree", "nodes"), [("chain", 3), ("top-k:2", 14), ("sampled:3", 6), ("dynamic", 40)])
def test_what_was_learnt_by_heart_is_accepted_whole(tree: str, nodes: int, tiny: Transformer) -> None:
    """Every turn of depth three emits four tokens; alone, in a batch, and where slots are refilled."""
    for slots in (1, 2, 4):
        requests = [Request(prompt, max_new_tokens=NEW + 1) for prompt in PROMPTS]
        for row in run(tiny, always_right(tiny), requests, control=fixed(tree, 3, nodes), slots=slots):
            assert row.stats.acceptance == 1.0 and row.stats.tau == 4.0 and row.stats.turns == NEW / 4


class Resting(Fixed):
    """Drafts in every so many turns only; in the others rows rest, one after the other and together."""

    turn = 0

    def budget(self, rooms: list[int], lengths: list[int], grades: list[int] | None = None) -> Budget:
        self.turn += 1
        if self.turn % 3:
            rooms = [room if row == self.turn % len(rooms) and self.turn % 2 else 0 for row, room in enumerate(rooms)]
        return super().budget(rooms, lengths)


@pytest.mark.parametrize("tree", TREES)
def test_rows_that_rested_draft_as_if_they_had_not(tree: str, tiny: Transformer) -> None:
    requests = [Request(prompt, max_new_tokens=NEW) for prompt in PROMPTS]
    control = Resting(Branching.parse(tree), 3, 3 if tree == "chain" else 14)
    for row, prompt in zip(run(tiny, always_right(tiny), requests, control=control), PROMPTS, strict=True):
        assert row.ids == reference(tiny, prompt, NEW)
        assert row.stats.plain_turns > 0 and row.stats.accepted > 0
        if tree in ("chain", "sampled:2", "dynamic"):  # a ranked tree of few nodes may be wide where it should be deep
            assert row.stats.acceptance == 1.0


def _features_late(self: Eagle, state: Any, prompts: list[list[int]], features: list[Features]) -> None:
    HONEST_ADMIT(self, state, prompts, [torch.cat((part[:1], part[:-1])) for part in features])


def _rows_of_the_turn(self: Eagle, state: Any, emitted: list[list[int]], features: list[Features]) -> None:
    """The features of the accepted path without those of the token before it."""
    HONEST_COMMIT(self, state, emitted, [torch.cat((part[1:], part[-1:])) for part in features])


HONEST_ADMIT, HONEST_COMMIT = Eagle.admit, Eagle.commit


@pytest.mark.parametrize("fault", ["taps", "admit", "commit"])
def test_a_shift_by_one_is_noticed(fault: str, tiny: Transformer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Taps a layer late, or features a position late: texts stay what they are, but nothing is accepted whole."""
    if fault == "taps":
        honest, (first, second, third) = Eagle.__init__, fitted_head(PROMPTS, NEW + 8, WHOLE).shape.taps

        def late(self: Eagle, *args: Any, **options: Any) -> None:
            honest(self, *args, **options)
            self.taps = (first + 1, second + 1, third)

        monkeypatch.setattr(Eagle, "__init__", late)
    else:
        monkeypatch.setattr(Eagle, fault, _features_late if fault == "admit" else _rows_of_the_turn)
    requests = [Request(prompt, max_new_tokens=NEW) for prompt in PROMPTS]
    rows = run(tiny, always_right(tiny), requests, control=fixed("chain", 3, 3))
    assert [row.ids for row in rows] == [reference(tiny, prompt, NEW) for prompt in PROMPTS]
    with must_fail():
        assert all(row.stats.acceptance == 1.0 for row in rows)


# ---- targets of both lanes -------------------------------------------------------------------------------------------

SIZE = {"hidden_size": 64, "target_hidden_size": 64, "head_width": 16, "taps": (1, 2, 3)}


def lanes(family: str) -> list[Target]:
    model = model_of(family)
    state = {name: weight.clone() for name, weight in model.state_dict().items()}
    targets: list[Target] = [hosted(family)]
    if family != "gpt2":
        targets.append(Transformer(Shape.from_config(model.config.to_dict()), state, dtype=torch.float32, packed=False))
    return targets


@pytest.mark.parametrize("family", ["gpt2", "llama", "qwen2", "mistral"])
@pytest.mark.parametrize("tree", ["chain", "top-k:2", "sampled:2"])
def test_every_lane_shows_the_same_features(family: str, tree: str) -> None:
    """Texts are the plain ones, beyond a window of 8 too; and both lanes of a family get the same drafts."""
    head = random_head(shape_of(**SIZE), seed=4)
    drafts: list[list[Any]] = []
    for target in lanes(family):
        seen: list[Any] = []

        def look(turn: Turn, rows: list[int], seen: list[Any] = seen) -> None:
            seen.append((rows, turn.proposal.tree.to_lists()))

        requests = [Request(prompt, max_new_tokens=12) for prompt in PROMPTS]
        drafter = Eagle(head, target, packed=False)
        rows = run(target, drafter, requests, control=fixed(tree, 3, 7), observer=look, slots=3)
        plain = run(target, None, requests)
        assert [row.ids for row in rows] == [row.ids for row in plain]
        assert sum(row.stats.drafted for row in rows) > 12
        drafts.append(seen)
    assert all(seen == drafts[0] for seen in drafts)


def test_a_tap_that_a_hosted_target_lacks_is_refused() -> None:
    target = hosted("gpt2")
    assert isinstance(target, Hosted)
    with pytest.raises(outpace.UsageError, match="tap is 4; allowed: last_normed, 0, or a layer; the model has 3"):
        Eagle(random_head(shape_of(**(SIZE | {"taps": (1, 2, 4)}))), target)


# ---- beside the loop -------------------------------------------------------------------------------------------------


def test_auto_chooses_for_it(tiny: Transformer) -> None:
    """Costs are measured, the controller drafts and rests as it likes, and the text is the plain one."""
    for tree in ("chain", "dynamic"):
        result = outpace.generate(
            tiny,
            always_right(tiny),
            list(PROMPTS[1]),
            max_new_tokens=NEW,
            tree=tree,
            eos_ids=None,
            num_draft_tokens="auto",
        )
        assert result.token_ids == reference(tiny, PROMPTS[1], NEW)


@pytest.mark.parametrize("tree", ["chain", "top-k:2", "sampled:2"])
def test_a_trace_shows_what_the_head_can_say(tree: str, tiny: Transformer, tmp_path: Path) -> None:
    """Of a row of the draft the largest logits, in the target's ids, and none of an id that the head lacks."""
    drafter = often_right(tiny)
    says = set(drafter._target_ids(torch.arange(48)).tolist())
    requests = [Request(PROMPTS[2], max_new_tokens=12)]
    observer = tracing(tmp_path / "trace.jsonl", tiny, drafter, requests)
    run(tiny, drafter, requests, control=fixed(tree, 3, 7), observer=observer)
    records = [json.loads(line) for line in (tmp_path / "trace.jsonl").read_text().splitlines()][1:]
    drafted = [record for record in records if record["nodes"]]
    assert drafted
    for record in drafted:
        assert record["draft"] and all(set(row["ids"]) <= says and len(row["ids"]) == 16 for row in record["draft"])
        for node in record["nodes"]:
            assert node["parent"] < 0 or node["token"] in says
        if tree == "chain":
            assert [row["ids"][0] for row in record["draft"]] == [node["token"] for node in record["nodes"]]


# ---- laws ------------------------------------------------------------------------------------------------------------

ALARM, LENGTH, VOCAB, PROMPT = 1e-9, 3, 5, (3, 1)
WARPS = {"1": Sampling(1.0), "0.5 top-k": Sampling(0.5, top_k=3), "1.5 top-p": Sampling(1.5, top_p=0.85)}


def pair() -> tuple[Transformer, Head]:
    """A target with five tokens, and a head that can say three of them."""
    target = tiny_transformer(seed=2, vocab_size=VOCAB)
    return target, random_head(shape_of(vocab_size=VOCAB, draft_vocab_size=3), seed=1)


def law_of(target: Transformer, sampling: Sampling) -> Tensor:
    """The exact law of the second to fourth new token, by enumeration."""
    law = torch.zeros((VOCAB,) * (1 + LENGTH), dtype=torch.float64)

    def walk(text: tuple[int, ...], reached: float) -> None:
        said = text[len(PROMPT) :]
        if len(said) == 1 + LENGTH:
            law[said] = reached
            return
        for token, prob in enumerate(probability_rows(dense_logits(target, text)[-1], sampling).tolist()):
            if prob > 0:
                walk((*text, token), reached * prob)

    walk(PROMPT, 1.0)
    return law.sum(0)


def p_value(
    drafter: Callable[[Head, Target], Eagle], tree: str, rule: str | None, sampling: Sampling, count: int = 2_000
) -> float:
    """Of the second to fourth token of so many samples, if their law is the target's."""
    target, head = pair()
    requests = [Request(PROMPT, sampling, 2 + LENGTH, seed=5, sample=number) for number in range(count)]
    texts: list[list[int]] = [[] for _ in requests]
    for emission in decode(target, drafter(head, target), requests, control=fixed(tree, 2, 5), rule=rule, slots=500):
        texts[emission.index] += emission.ids
    places = VOCAB ** torch.arange(LENGTH - 1, -1, -1)
    cells = (torch.tensor(texts)[:, 1 : 1 + LENGTH] * places).sum(1)
    expected = law_of(target, sampling).flatten() * count
    counts = torch.bincount(cells, minlength=VOCAB**LENGTH).double()
    rare = expected < 5
    observed = torch.cat((counts[~rare], counts[rare].sum()[None]))
    wanted = torch.cat((expected[~rare], expected[rare].sum()[None]))
    if wanted[-1] == 0:
        assert observed[-1] == 0, "a token that the target never says"
        observed, wanted = observed[:-1], wanted[:-1]
    return float(chi2.sf(float(((observed - wanted) ** 2 / wanted).sum()), len(wanted) - 1))


def honest(head: Head, target: Target) -> Eagle:
    return Eagle(head, target, packed=False)


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
    assert p_value(honest, tree, rule, WARPS[warp]) > ALARM


class Wrong(Eagle):
    """Draws from one law and reports another."""

    fault = ""

    def propose(self, state: Any, budget: Budget, sampling: list[Sampling], keys: Keys) -> Proposal:
        proposal = super().propose(state, budget, sampling, keys)
        laws = proposal.draft_probs
        if laws is None:
            return proposal
        if self.fault == "a law of the whole vocabulary":  # what the head cannot say is given a share
            laws = 0.8 * laws + 0.2 / VOCAB
        else:
            laws = laws.sqrt() / laws.sqrt().sum(-1, keepdim=True).clamp(min=1e-9)
        return Proposal(proposal.tree, laws)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("fault", ["a law of the whole vocabulary", "a flatter law"])
@pytest.mark.parametrize(("tree", "rule"), [("chain", "rejection"), ("sampled:2", "tree-rejection")])
def test_another_law_is_noticed(fault: str, tree: str, rule: str) -> None:
    def faulty(head: Head, target: Target) -> Eagle:
        drafter = Wrong(head, target, packed=False)
        drafter.fault = fault
        return drafter

    assert p_value(faulty, tree, rule, WARPS["1"], count=6_000) < ALARM
