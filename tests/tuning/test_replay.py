"""What replay says of a setting is what the decoder does with the same texts: to the last digit where the text decides.

Every seed is fixed, so that a test which passes once passes always; where a figure has an interval, the test says how
probably another seed would have failed.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
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
from outpace.drafters.drafter import Drafter, Proposal, chains
from outpace.drafters.medusa import Medusa
from outpace.errors import UsageError
from outpace.evaluation.metrics import pooled
from outpace.evaluation.probe import read_probe, write_probe
from outpace.tuning import drafts
from outpace.tuning.recording import Recording, Text
from outpace.tuning.replay import Setting, replay
from outpace.verification.coins import Keys
from outpace.verification.expectation import TurnCosts
from outpace.verification.probabilities import Sampling
from replays import ASKED, COSTS, LAWS, NEW, decoded, drafter_named, recorded, requests, same
from simulated import TABLES, table
from toys import lively, must_fail, run

pytestmark = pytest.mark.usefixtures("unchecked")  # a hundred texts; other tests check axes


# ---- where the text decides ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("name", ["lookup", "small"])
def test_chains_of_every_length(name: str, law: str) -> None:
    """Greedy, and by a seed: the coupling's text is the plain one, so that replay knows it."""
    for length in range(9) if name == "lookup" else (0, 1, 2, 5, 8):
        real = decoded(drafter_named(name), law, Fixed(Branching(), length))
        setting = Setting(length, temperature=LAWS[law].temperature, seeded=law != "greedy")
        said = replay(recorded(name, law), setting)
        same(real, said)
        assert not said.unsure and not said.approximate


@st.composite
def trees(draw: st.DrawFn) -> tuple[str, int, int]:
    shape = draw(st.sampled_from(["top-k:3", "top-k:2", "dynamic", "top-p:0.7", "static", "static:0.5,0.3,0.1,0.05"]))
    depth = draw(st.integers(1, 8))
    return shape, draw(st.integers(depth, 40)), depth


@given(trees(), st.sampled_from(sorted(LAWS)))
@settings(max_examples=20, suppress_health_check=[HealthCheck.too_slow])
def test_trees_of_every_shape(tree: tuple[str, int, int], law: str) -> None:
    """Equal wherever the recording holds all of every tree, and it says so itself; a static tree it always holds."""
    shape, nodes, depth = tree
    real = decoded(drafter_named("small"), law, Fixed(Branching.parse(shape), depth, nodes))
    said = replay(
        recorded("small", law), Setting(nodes, shape, depth, None, LAWS[law].temperature, seeded=law != "greedy")
    )
    if not said.unsure:
        same(real, said)
    assert real.tau is not None and said.tau == pytest.approx(real.tau, rel=0.15)
    if shape.startswith("static"):
        assert not said.unsure


def test_trees_that_are_held_whole_are_not_rare() -> None:
    """Or the test before would say nothing."""
    shapes = [("dynamic", 24, 8), ("dynamic", 4, 2), ("top-k:3", 12, 4), ("top-k:2", 6, 3), ("top-p:0.7", 8, 4)]
    unsure = [replay(recorded("small", "greedy"), Setting(n, shape, d)).unsure for shape, n, d in shapes]
    assert sum(share == 0 for share in unsure) >= 2 and max(unsure) < 1


@pytest.mark.parametrize("fault", ["one right too many", "another token", "no chain"])
def test_a_planted_fault_is_seen(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A walk that takes one token more, and recordings in which one place is spoilt."""
    found = recorded("small", "greedy")
    if fault == "one right too many":
        honest = drafts._agreement
        monkeypatch.setattr(drafts, "_agreement", lambda chain, said: min(len(chain), honest(chain, said) + 1))
    else:
        change: dict[str, Any] = {"chain": ()} if fault == "no chain" else {"token": 63}
        found = replace(found, texts=tuple(spoilt(text, change) for text in found.texts))
    with must_fail():
        same(decoded(drafter_named("small"), "greedy", Fixed(Branching(), 4)), replay(found, Setting(4)))


def spoilt(text: Text, change: dict[str, Any]) -> Text:
    """Every fifth place changed: some turn begins at one, or comes by."""
    places = [replace(place, **change) if at % 5 == 4 else place for at, place in enumerate(text.places)]
    return replace(text, places=tuple(places))


def test_acceptance_at_a_temperature_nearby_is_that_of_drafts() -> None:
    """Where lookup finds nothing, nothing is tried: of places with a draft, the share whose first token is right."""
    found = recorded("lookup", "warm")
    firsts = [(place.chain[0], place.token) for text in found.texts for place in text.places[1:] if place.chain]
    said = replay(found, Setting(3, temperature=0.8 * (1 + 1e-9)))
    assert said.approximate and 0 < len(firsts) < sum(len(text.places) - 1 for text in found.texts)
    assert said.acceptance_by_position[0] == pytest.approx(sum(one == other for one, other in firsts) / len(firsts))


# ---- controllers, batches and time -----------------------------------------------------------------------------------


@pytest.mark.parametrize("costs", ["a small model on two cores", "steep", "a drafter that costs"])
@pytest.mark.parametrize(("name", "tree"), [("lookup", "chain"), ("small", "chain"), ("small", "top-k:3")])
def test_the_controller_decides_as_it_does_in_decoding(name: str, tree: str, costs: str) -> None:
    """Each text alone, greedily: the same turns, one by one."""
    shape, prices = Branching.parse(tree), table(TABLES[costs])
    alone = []
    for request in requests("greedy"):
        control = Adaptive(prices, shape, 4, 4 if shape.is_chain else 24)
        [ended] = run(lively(), drafter_named(name), [request], control=control)
        alone.append(ended.stats)
    said = replay(recorded(name, "greedy"), Setting("auto", tree, 4), prices)
    if not said.unsure:
        same(pooled(alone), said)
    assert said.tau == pytest.approx(pooled(alone).tau, rel=0.1)


@pytest.mark.parametrize("setting", [Setting("auto"), Setting(6), Setting(12, "static:0.5,0.3,0.1")])
def test_no_draft_is_deeper_than_the_drafter_reaches(setting: Setting) -> None:
    """Two heads: the controller never hopes for more, and a static tree is made for two depths."""
    heads = Medusa(random_medusa(medusa_shape(heads=2)), lively(), packed=False)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "probe.jsonl"
        write_probe(path, lively(), heads, ASKED, sampling=Sampling(), max_new_tokens=NEW)
        recording = Recording.of(read_probe(path))
    prices, shape = table(TABLES["steep"]), Branching.parse(setting.tree)
    depth, nodes = (2, 2) if shape.is_chain else (2, 12)
    auto = setting.num_draft_tokens == "auto"
    alone = []
    for request in requests("greedy"):
        control = Adaptive(prices, shape, depth, nodes) if auto else Fixed(shape, depth, nodes)
        [ended] = run(lively(), heads, [request], control=control)
        alone.append(ended.stats)
    same(pooled(alone), replay(recording, setting, prices))
    if not shape.is_chain:
        with must_fail():
            same(pooled(alone), replay(replace(recording, deepest=None), setting, prices))


@dataclass
class Bill:
    """Adds up what turns cost by a table, as they were really taken."""

    costs: CostTable
    ms: float = 0.0

    def __call__(self, turn: Turn, indices: Sequence[int]) -> None:
        tree = turn.proposal.tree
        if not turn.scores.logits.shape[1] or turn.keys.starts == tuple(len(ASKED[i].ids) for i in indices):
            return  # prefill
        nodes, depth = int(tree.num_nodes.max()), max(tree.heights())
        at = self.costs.at(len(indices), 64, 33)
        places = [start - len(ASKED[one].ids) for start, one in zip(turn.keys.starts, indices, strict=True)]
        searched = not nodes and min(places) < NEW - 1  # a text's last token is never asked for a draft
        self.ms += at.turn_ms(nodes, depth) + at.draft_turn * searched


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize(("name", "length"), [("lookup", 5), ("small", 3)])
def test_time_is_that_of_the_turns(name: str, length: int, batch: int) -> None:
    """The bill of the real turns at one context; a batch shrinks as its texts end, and pays for its widest draft."""
    law = TurnCosts({rows: 20 + 0.7 * rows for rows in range(1, 34)}, draft_step=2.0, draft_turn=0.5)
    costs = CostTable({(1, 64): law, (3, 64): TurnCosts({r: 30 + 3.0 * r for r in range(1, 34)}, 4.0, 1.5)})
    bill = Bill(costs)
    groups = [requests("greedy")] if batch == 3 else [[one] for one in requests("greedy")]
    for group in groups:
        places = [ASKED.index(next(q for q in ASKED if q.ids == list(one.ids))) for one in group]
        run(
            lively(),
            drafter_named(name),
            group,
            control=Fixed(Branching(), length),
            observer=lambda turn, own, at=places: bill(turn, [at[one] for one in own]),
        )
    said = replay(recorded(name, "greedy"), Setting(length, batch=batch), costs)
    assert said.milliseconds_per_token == pytest.approx(bill.ms / (NEW * len(ASKED)))
    same(decoded(drafter_named(name), "greedy", Fixed(Branching(), length)), said)


def test_a_speedup_is_over_plain_decoding_with_prompts_read() -> None:
    """Every text has as many tokens, so that the ratio of medians can be written down."""
    law = TurnCosts({rows: 20.0 for rows in range(1, 34)})
    read = CostTable({(1, 64): law}, read=(1.0, 3.0))
    plain = [20.0 * (NEW - 1) + 1.0 * len(one.ids) for one in ASKED]
    said = replay(recorded("small", "greedy"), Setting(0), read)
    ours = [20.0 * (NEW - 1) + 3.0 * len(one.ids) for one in ASKED]
    assert said.speedup == pytest.approx(sorted(plain)[1] / sorted(ours)[1])
    assert said.tau == 1 and said.plain_turn_share == 1 and said.acceptance is None
    assert replay(recorded("small", "greedy"), Setting(4)).speedup is None


def test_assumed_costs_are_said_to_be_assumed() -> None:
    costs = replace(COSTS, assumed={"bandwidth": 3.35e12, "flops": 9.9e14})
    said = replay(recorded("small", "greedy"), Setting(4), costs)
    assert said.assumed and said.approximate == ("costs are assumed, not measured: bandwidth 3.35e+12, flops 9.9e+14",)
    assert not replay(recorded("small", "greedy"), Setting(4), COSTS).assumed


# ---- thresholds -----------------------------------------------------------------------------------------------------


class Cautious:
    """A drafter whose chains end before a row of which its likeliest token has less than a share."""

    def __init__(self, drafter: Drafter, threshold: float) -> None:
        self.drafter, self.threshold = drafter, threshold

    def __getattr__(self, name: str) -> Any:
        return getattr(self.drafter, name)

    def propose(self, state: Any, budget: Budget, sampling: list[Sampling], keys: Keys) -> Proposal:
        whole = self.drafter.propose(state, budget, sampling, keys)
        if whole.draft_logits is None:
            return whole
        sure = whole.draft_logits.softmax(-1).amax(-1) >= self.threshold
        counts = sure.long().cumprod(1).sum(1).minimum(whole.tree.num_nodes).tolist()
        tokens = [row[:count] for (row, _), count in zip(whole.tree.to_lists(), counts, strict=True)]
        return Proposal(chains(tokens))


@pytest.mark.parametrize("threshold", [0.1, 0.3, 0.6])
def test_a_threshold_ends_chains(threshold: float) -> None:
    real = decoded(Cautious(drafter_named("small"), threshold), "greedy", Fixed(Branching(), 6))
    said = replay(recorded("small", "greedy"), Setting(6, threshold=threshold))
    same(real, said)
    assert threshold < 0.6 or said.tau < replay(recorded("small", "greedy"), Setting(6)).tau


# ---- what cannot be told --------------------------------------------------------------------------------------------

REFUSED = [
    ("lookup", "greedy", Setting(9), "drafts are 9 deep; allowed: up to 8, as deep as the trace's"),
    ("lookup", "greedy", Setting(8, "top-k:2"), "tree is top-k:2, and 'lookup' drafts chains alone; allowed: chain"),
    ("small", "greedy", Setting(65, "dynamic"), "num_draft_tokens is 65; allowed: up to 64, as many as the trace's"),
    ("small", "greedy", Setting(9, "top-k:9"), "tree is top-k:9; allowed in this trace: top-k:8, top-k:3"),
    ("small", "greedy", Setting(9, "sampled:2"), "tree is sampled:2; a trace tells of: chain, top-k, top-p, dynamic"),
    ("small", "greedy", Setting(4, temperature=0.5), "temperature is 0.5; allowed for this trace: 0"),
    ("small", "warm", Setting(4, temperature=1.3), r"temperature is 1\.3; allowed for this trace: 0\.533 to 1\.2"),
    ("small", "filtered", Setting(4, temperature=1.0), r"temperature is 1; allowed for this trace: 0\.9"),
    ("small", "warm", Setting(4, temperature=1.0, seeded=True), "allowed with a seed: the trace's own"),
    ("small", "warm", Setting(4, temperature=0.8, rule="typical"), "rule is 'typical'; a trace tells of: block, "),
    ("small", "warm", Setting(8, "top-k:2", rule="block", temperature=0.8), "rule is 'block' and tree top-k:2"),
    ("small", "greedy", Setting("auto"), "num_draft_tokens is 'auto' and there are no costs"),
    ("small", "greedy", Setting(4, threshold=1.0), "threshold is 1; allowed: 0"),
    ("lookup", "greedy", Setting(4, threshold=0.5), r"threshold is 0\.5; allowed: with chains of a model"),
    ("small", "greedy", Setting(-1), "num_draft_tokens is -1; allowed: 0 or more"),
    ("small", "greedy", Setting(4, batch=0), "batch is 0; allowed: 1 or more"),
    (
        "small",
        "greedy",
        Setting(4, "chain", 3),
        "num_draft_tokens is 4 and depth 3; allowed: equal numbers",
    ),
]


@pytest.mark.parametrize(("name", "law", "setting", "words"), REFUSED, ids=range(len(REFUSED)))
def test_what_a_trace_cannot_tell_is_refused(name: str, law: str, setting: Setting, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        replay(recorded(name, law), setting)


def test_a_static_tree_needs_rates() -> None:
    found = replace(recorded("small", "greedy"), rates=())
    with pytest.raises(UsageError, match="tree is static, and the trace knows no acceptance by rank of 'small:near'"):
        replay(found, Setting(8, "static"))
