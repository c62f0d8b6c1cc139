"""Replay of lookup joined with a model, from the probes of each, is what the decoder does with both as one drafter.

Every seed is fixed, so that a test which passes once passes always.
"""

from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from medusas import medusa_shape, random_medusa
from outpace.decoding.control import Adaptive, Fixed
from outpace.decoding.costs import CostTable
from outpace.decoding.turn import Turn
from outpace.drafters.budget import Branching, Budget
from outpace.drafters.drafter import Proposal
from outpace.drafters.either import LEAST, MODEL, Either
from outpace.drafters.lookup import Lookup
from outpace.drafters.medusa import Medusa
from outpace.drafters.small import Small
from outpace.errors import UsageError
from outpace.evaluation.metrics import pooled
from outpace.evaluation.probe import read_probe, write_probe
from outpace.tuning import joined as joining
from outpace.tuning.joined import joined, joined_too, model_name, parts, with_joined
from outpace.tuning.recording import Recording, Text
from outpace.tuning.replay import Setting, replay
from outpace.verification.coins import Keys
from outpace.verification.expectation import TurnCosts
from outpace.verification.probabilities import Sampling
from replays import ASKED, LAWS, NEW, decoded, drafter_named, recorded, requests, same
from simulated import TABLES, table
from toys import lively, must_fail, run

pytestmark = pytest.mark.usefixtures("unchecked")  # a hundred texts; other tests check axes

BOTH = "lookup+small"


def both() -> Either:
    drafter = drafter_named(BOTH)
    assert isinstance(drafter, Either)
    return drafter


# ---- turns -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("law", LAWS)
def test_chains_of_every_length_are_those_of_both(law: str) -> None:
    """Greedy, and by a seed."""
    for length in range(9):
        real = decoded(both(), law, Fixed(Branching(), length))
        said = replay(recorded(BOTH, law), Setting(length, temperature=LAWS[law].temperature, seeded=law != "greedy"))
        same(real, said)
        assert not said.unsure and not said.approximate
        assert 0.05 < said.copied < 0.5 or not length  # each of the two drafts now and then


@given(
    st.sampled_from(["top-k:3", "top-k:2", "dynamic", "top-p:0.7", "static", "static:0.5,0.3,0.1"]),
    st.integers(1, 8),
    st.integers(0, 32),
    st.sampled_from(sorted(LAWS)),
)
@settings(max_examples=20, suppress_health_check=[HealthCheck.too_slow])
def test_trees_beside_copies(shape: str, depth: int, more: int, law: str) -> None:
    """Equal wherever the recording holds all of every tree, and it says so itself; a static tree it always holds."""
    real = decoded(both(), law, Fixed(Branching.parse(shape), depth, depth + more))
    setting = Setting(depth + more, shape, depth, None, LAWS[law].temperature, seeded=law != "greedy")
    said = replay(recorded(BOTH, law), setting)
    if not said.unsure:
        same(real, said)
    assert real.tau is not None and said.tau == pytest.approx(real.tau, rel=0.15)
    assert not said.unsure or not shape.startswith("static")


@pytest.mark.parametrize("costs", ["a small model on two cores", "steep", "a drafter that costs"])
@pytest.mark.parametrize("tree", ["chain", "static"])
@pytest.mark.parametrize("law", ["greedy", "warm"])
def test_the_controller_knows_copies_from_drafts(law: str, tree: str, costs: str) -> None:
    """Each text alone: the same turns, one by one."""
    shape, prices = Branching.parse(tree), table(TABLES[costs])
    nodes = 4 if shape.is_chain else 24
    alone = []
    for request in requests(law):
        shaped = Branching.parse("static:0.5,0.2,0.1") if not shape.is_chain else shape
        control = Adaptive(prices, shaped, 4, nodes, both().unasked)
        [ended] = run(lively(), both(), [request], control=control)
        alone.append(ended.stats)
    asked = Setting("auto", str(shaped), 4, None, LAWS[law].temperature, seeded=law != "greedy")
    same(pooled(alone), replay(recorded(BOTH, law), asked, prices))


def test_copies_reach_beyond_the_heads_of_a_model() -> None:
    """Two heads draft two tokens, and a copy as many as are asked for; a static tree is made for two depths."""
    heads = Medusa(random_medusa(medusa_shape(heads=2)), lively(), packed=False)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "probe.jsonl"
        write_probe(path, lively(), heads, ASKED, sampling=Sampling(), max_new_tokens=NEW)
        recording = joined(recorded("lookup", "greedy"), Recording.of(read_probe(path)))
    drafter = Either(Lookup(), heads)
    for shape, depth, nodes in (("chain", 6, 6), ("static:0.5,0.3,0.1", 5, 12)):
        real = decoded(drafter, "greedy", Fixed(Branching.parse(shape), depth, nodes))
        said = replay(recording, Setting(nodes, shape, depth))
        same(real, said)
        assert len(said.acceptance_by_position) > 2
        with must_fail():
            same(real, replay(cut(recording), Setting(nodes, shape, depth)))


@pytest.mark.parametrize("fault", ["no grades", "copies at grade 1", "no copies", "spoilt copies"])
def test_a_fault_of_joining_is_seen(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Grades ignored by the controller, copies where lookup is seldom right, or none, or others than lookup's."""
    prices, parted = table(TABLES["a drafter that costs"]), (recorded("lookup", "greedy"), recorded("small", "greedy"))
    if fault == "copies at grade 1":
        monkeypatch.setattr(joining, "LEAST", 1)
    found = joined(*parted)
    if fault == "no grades":
        found = changed(found, grade=None)
    if fault == "no copies":
        found = changed(found, copy=None)
    if fault == "spoilt copies":
        found = changed(found, copy=(63,))
    alone = []
    for request in requests("greedy"):
        control = Adaptive(prices, Branching(), 4, 4, both().unasked)
        [ended] = run(lively(), both(), [request], control=control)
        alone.append(ended.stats)
    with must_fail():
        same(pooled(alone), replay(found, Setting("auto", depth=4), prices))
    if fault != "no grades":
        with must_fail():
            same(decoded(both(), "greedy", Fixed(Branching(), 4)), replay(found, Setting(4)))


def changed(found: Recording, **change: Any) -> Recording:
    """The places with a copy, changed."""

    def of(text: Text) -> Text:
        return replace(text, places=tuple(one if one.copy is None else replace(one, **change) for one in text.places))

    return replace(found, texts=tuple(map(of, found.texts)))


def cut(found: Recording) -> Recording:
    """Copies no deeper than the model reaches."""
    texts = [
        replace(text, places=tuple(replace(one, copy=one.copy and one.copy[: found.deepest]) for one in text.places))
        for text in found.texts
    ]
    return replace(found, texts=tuple(texts))


# ---- time ------------------------------------------------------------------------------------------------------------


@dataclass
class Watched:
    """A drafter that notes the steps it really takes."""

    drafter: Small
    steps: list[int] = field(default_factory=list)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.drafter, name)

    def propose(self, state: Any, budget: Budget, sampling: list[Sampling], keys: Keys) -> Proposal:
        proposal = self.drafter.propose(state, budget, sampling, keys)
        self.steps.append(max(proposal.tree.heights()))
        return proposal


@dataclass
class Bill:
    """Adds up what turns cost by a table, as they were really taken."""

    costs: CostTable
    model: Watched
    ms: float = 0.0

    def __call__(self, turn: Turn, indices: list[int]) -> None:
        if not turn.scores.logits.shape[1] or turn.keys.starts == tuple(len(ASKED[i].ids) for i in indices):
            return  # prefill
        at = self.costs.at(len(indices), 64, 33)
        self.ms += at.verify_ms(1 + int(turn.proposal.tree.num_nodes.max()))
        self.ms += sum(at.draft_turn + steps * at.draft_step for steps in self.model.steps)
        self.model.steps.clear()


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("tree", ["chain", "static:0.5,0.2,0.1"])
def test_time_of_a_copy_has_no_draft_steps(tree: str, batch: int) -> None:
    """The bill of the real turns: a turn of copies alone costs a forward, a mixed one what the model takes besides."""
    law = TurnCosts({rows: 20 + 0.7 * rows for rows in range(1, 34)}, draft_step=2.0, draft_turn=0.5)
    costs = CostTable({(1, 64): law, (3, 64): TurnCosts({r: 30 + 3.0 * r for r in range(1, 34)}, 4.0, 1.5)})
    model, shape = Watched(both().model), Branching.parse(tree)
    drafter: Any = Either(both().copies, model)
    bill, nodes = Bill(costs, model), 3 if shape.is_chain else 12
    groups = [requests("greedy")] if batch == 3 else [[one] for one in requests("greedy")]
    for group in groups:
        places = [ASKED.index(next(q for q in ASKED if q.ids == list(one.ids))) for one in group]
        run(
            lively(),
            drafter,
            group,
            control=Fixed(shape, 3, nodes),
            observer=lambda turn, own, at=places: bill(turn, [at[one] for one in own]),
        )
    said = replay(recorded(BOTH, "greedy"), Setting(nodes, tree, None if shape.is_chain else 3, batch=batch), costs)
    assert said.milliseconds_per_token == pytest.approx(bill.ms / (NEW * len(ASKED)))
    dearer = replay(changed(recorded(BOTH, "greedy"), copy=None), Setting(3, batch=batch), costs)
    assert dearer.milliseconds_per_token != pytest.approx(bill.ms / (NEW * len(ASKED)))


# ---- names and refusals ----------------------------------------------------------------------------------------------


def test_parts_and_what_is_joined_of_them() -> None:
    copies, small = Lookup(), drafter_named("small")
    alone = {"small": small, "lookup": copies}
    assert list(with_joined(alone)) == ["small", "lookup", "lookup+small"]
    assert list(with_joined({"small": small})) == ["small"] and list(with_joined({"lookup": copies})) == ["lookup"]
    together = with_joined(with_joined(alone))
    assert list(together) == ["small", "lookup", "lookup+small"] and parts(together) == alone
    both = Either(copies, small)
    assert parts({"lookup+a/b": both}) == {"lookup": copies, "a/b": small}
    assert model_name("auto", both) == "eagle3" and model_name("lookup", copies) == "lookup"


def test_places_have_a_copy_or_a_grade_of_the_model() -> None:
    found = recorded(BOTH, "greedy")
    assert found.drafter == both().name and found.unasked == both().unasked and found.depth == 8
    places = [place for text in found.texts for place in text.places[1:]]
    for place, lookup in zip(
        places, (place for text in recorded("lookup", "greedy").texts for place in text.places[1:]), strict=True
    ):
        assert lookup.grade is not None and place.followed is not None
        assert (place.copy, place.grade) == ((lookup.chain, lookup.grade) if lookup.grade >= LEAST else (None, MODEL))
    assert all(text.places[0].copy is None and text.places[0].grade is None for text in found.texts)


def refused() -> dict[str, tuple[Recording, Recording, str]]:
    copies, model = recorded("lookup", "greedy"), recorded("small", "greedy")
    spoilt = replace(model.texts[1], places=(replace(model.texts[1].places[0], token=63), *model.texts[1].places[1:]))
    ungraded = replace(copies.texts[0], places=tuple(replace(one, grade=None) for one in copies.texts[0].places))
    return {
        "a trace": (
            copies,
            replace(model, kind="trace"),
            "the recording of 'small:near' is an ordinary trace; allowed",
        ),
        "swapped": (
            model,
            copies,
            "the recordings are of 'small:near' and 'lookup'; allowed: of lookup and of a model",
        ),
        "joined twice": (copies, recorded(BOTH, "greedy"), r"of 'lookup' and 'lookup\+small:near'; allowed"),
        "ungraded": (
            replace(copies, texts=(ungraded, *copies.texts[1:])),
            model,
            "has no grades; allowed: one of this",
        ),
        "targets": (replace(copies, target="other"), model, "have other targets, other and "),
        "laws": (recorded("lookup", "warm"), model, "have other laws, Sampling"),
        "numbers": (replace(copies, texts=copies.texts[:2]), model, "have other numbers of texts, 2 and 3; allowed"),
        "texts": (
            copies,
            replace(model, texts=(model.texts[0], spoilt, model.texts[2])),
            "the probes of 'lookup' and 'small:near' differ in text b; allowed: the same texts",
        ),
    }


@pytest.mark.parametrize(
    "name", ["a trace", "swapped", "joined twice", "ungraded", "targets", "laws", "numbers", "texts"]
)
def test_what_cannot_be_joined_is_refused(name: str) -> None:
    copies, model, words = refused()[name]
    with pytest.raises(UsageError, match=words):
        joined(copies, model)


def test_who_cannot_be_joined_is_noted_and_left_out() -> None:
    drafters, apart = (
        {"lookup+small": both()},
        {"lookup": recorded("lookup", "greedy"), "small": recorded("small", "warm")},
    )
    found, notes = joined_too(apart, drafters)
    assert found == apart and len(notes) == 1 and notes[0].startswith("lookup+small cannot be replayed: the probes of")
    whole, notes = joined_too(apart | {"small": recorded("small", "greedy")}, drafters)
    assert list(whole) == ["lookup", "small", "lookup+small"] and not notes
    assert joined_too({"lookup": apart["lookup"]}, drafters) == ({"lookup": apart["lookup"]}, [])  # noted before
