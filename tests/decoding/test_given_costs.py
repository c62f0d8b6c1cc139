"""Costs that are given: computed from a machine's numbers, read from a file, or measured for tuning."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from first_heads import first_shape
from medusas import medusa_on
from outpace.decoding.assumed import Machine, assumed_table, said
from outpace.decoding.cost_file import read_costs, write_costs
from outpace.decoding.cost_grid import tuning_costs
from outpace.decoding.costs import CONTEXTS, CostTable
from outpace.drafters.budget import Branching
from outpace.drafters.eagle import Eagle
from outpace.drafters.first_head import FirstHead
from outpace.drafters.lookup import Lookup
from outpace.drafters.small import Small
from outpace.errors import UsageError
from outpace.models.toy import random_table, table_target
from outpace.models.transformer import Transformer
from outpace.verification.expectation import TurnCosts
from outpace.verification.probabilities import Sampling
from toys import lively, must_fail

LAW = TurnCosts({1: 10.0, 2: 11.0, 5: 14.0}, draft_step=1.0, draft_turn=0.5)
TABLE = CostTable(
    {(1, 128): LAW, (4, 128): TurnCosts({1: 20.5, 5: 30.0})},
    {"processor": "x", "threads": 2},
    0.03,
    {"top-k:3": {1: (0.7, 2.5), 4: (0.9, 3.5)}},
    (0.1, 0.3),
    {"bandwidth": 1e12},
)

# ---- a machine that is not at hand -----------------------------------------------------------------------------------

MACHINE = Machine(1e12, 1e14, launch=1e-3, target_bytes=1.4e10, draft_bytes=1e9, cache_bytes=1e5)


def test_a_forward_takes_the_slower_of_reading_and_multiplying() -> None:
    """By hand: 14 GB at 1 TB/s are 14 ms; 7 G weights over 64 · 16 rows at 100 TFLOP/s are 143 ms."""
    assert MACHINE.forward_ms(1, 0, 1) == pytest.approx(14 + 1)
    assert MACHINE.forward_ms(1, 1000, 1) == pytest.approx(14 + 0.1 + 1)
    assert MACHINE.forward_ms(16, 0, 64) == pytest.approx(2 * 7e9 * 1024 / 1e14 * 1e3 + 1)
    assert MACHINE.step_ms(1) == pytest.approx(1 + 1)
    assert Machine(1e12, 1e14, target_bytes=1e9).step_ms(8) == 0


def test_a_table_of_a_machine_is_its_roofline() -> None:
    table = assumed_table(MACHINE)
    for (batch, context), costs in table.cells.items():
        assert costs.verify == {rows: MACHINE.forward_ms(batch, context, rows) for rows in costs.verify}
        assert (costs.draft_step, costs.draft_turn) == (MACHINE.step_ms(batch), 0)
    assert {batch for batch, _ in table.cells} >= {1, 16, 64} and max(table.cells[1, 128].verify) == 65
    assert table.assumed["bandwidth"] == 1e12 and table.assumed["draft_bytes"] == 1e9
    parallel = assumed_table(MACHINE, parallel=True).cells[1, 128]
    assert (parallel.draft_step, parallel.draft_turn) == (0, MACHINE.step_ms(1))
    assert said({"bandwidth": 3.35e12}) == "costs are assumed, not measured: bandwidth 3.35e+12"


def test_bytes_are_those_of_the_pair(tiny: Transformer) -> None:
    """Two layers 32 wide: 4 query and 2 key heads of 8, 48 inside; 64 tokens."""
    layer = 32 * (4 + 2 + 2) * 8 + 32 * 32 + 3 * 32 * 48
    weights = 2 * layer + 64 * 32
    found = Machine.parse("assumed:bandwidth=1e9,flops=1e10", tiny, Small(lively(seed=4, layers=1), tiny))
    assert found.width == 4 and found.target_bytes == 4 * weights
    assert found.draft_bytes == 4 * (layer + 64 * 32) and found.cache_bytes == 4 * 2 * 2 * 2 * 8
    assert Machine.parse("assumed:bandwidth=1e9,flops=1e10", tiny, Lookup()).draft_bytes == 0
    given = Machine.parse("assumed:bandwidth=1e9,flops=1e10,target_bytes=5,draft_bytes=7,launch=0", tiny, Lookup())
    assert (given.target_bytes, given.draft_bytes, given.launch) == (5, 7, 0)


@pytest.mark.parametrize("own", [True, False])
def test_heads_read_the_targets_rows_where_they_have_none(own: bool, tiny: Transformer) -> None:
    """Four heads of one 32 x 32 layer; 64 tokens: rows of each head's own, or those of the target once."""
    heads = medusa_on(tiny, own=own)
    found = Machine.parse("assumed:bandwidth=1e9,flops=1e10", tiny, heads)
    assert found.draft_bytes == 4 * (4 * 32 * 32 + (4 if own else 1) * 64 * 32)


def test_a_first_head_reads_the_targets_rows(tiny: Transformer) -> None:
    head = FirstHead(first_shape())
    found = Machine.parse("assumed:bandwidth=1e9,flops=1e10", tiny, Eagle(head, tiny))
    own = sum(weight.numel() for weight in head.parameters() if weight.dim() == 2)
    assert found.draft_bytes == 4 * (own + 64 * 32)


def test_a_table_model_has_no_bytes() -> None:
    target = table_target(random_table(8))
    with pytest.raises(UsageError, match="nobody knows how many bytes a forward of 'table' reads; allowed: target_by"):
        read_costs("assumed:bandwidth=1,flops=1", target, None)
    assert read_costs("assumed:bandwidth=1,flops=1,target_bytes=2", target, None).assumed["target_bytes"] == 2


REFUSED = [
    ("assumed:bandwidth=1e9", "have no flops; allowed: both, such as assumed:bandwidth=3.35e12,flops=9.9e14"),
    ("assumed:", "have no bandwidth"),
    ("assumed:speed=3", "costs name 'speed'; allowed: bandwidth, flops, launch, "),
    ("assumed:bandwidth=fast,flops=1", "costs: bandwidth is 'fast'; allowed: a number"),
    ("assumed:bandwidth=0,flops=1", "bandwidth is 0; allowed: above 0"),
    ("assumed:bandwidth=1,flops=1,launch=-1", "launch is -1; allowed: 0 or more"),
    ("assumed:bandwidth=1,flops=nan", "flops is nan; allowed: above 0"),
    ("nowhere.json", "the costs nowhere.json cannot be read: No such file or directory; allowed: a file that outpace"),
]


@pytest.mark.parametrize(("spec", "words"), REFUSED, ids=range(len(REFUSED)))
def test_what_names_no_costs_is_refused(spec: str, words: str, tiny: Transformer) -> None:
    with pytest.raises(UsageError, match=words):
        read_costs(spec, tiny, None)


# ---- the file --------------------------------------------------------------------------------------------------------


def test_a_table_is_read_as_it_was_written(tmp_path: Path, tiny: Transformer) -> None:
    write_costs(tmp_path / "costs.json", TABLE)
    assert read_costs(str(tmp_path / "costs.json"), tiny, None) == TABLE
    assert [path.name for path in tmp_path.iterdir()] == ["costs.json"]
    with must_fail():
        document = json.loads((tmp_path / "costs.json").read_text("utf-8"))
        document["cells"][0]["verify"]["2"] += 1e-12
        assert CostTable.from_json(document) == TABLE


BROKEN: list[tuple[str, str]] = [
    ("words", "are no JSON; allowed: a file that outpace wrote"),
    ("[]", "is no cost table; allowed"),
    ('{"format_version": 2}', "format_version is 2; allowed: 1"),
    ('{"format_version": 1, "cells": [], "machine": {}, "spread": 0}', "a cost table has no cell"),
    ('{"format_version": 1, "cells": [{}], "machine": {}, "spread": 0}', "is no cost table"),
]


@pytest.mark.parametrize(("content", "words"), BROKEN, ids=range(len(BROKEN)))
def test_a_file_that_is_no_table_is_refused(content: str, words: str, tmp_path: Path, tiny: Transformer) -> None:
    (tmp_path / "costs.json").write_text(content, "utf-8")
    with pytest.raises(UsageError, match=words):
        read_costs(str(tmp_path / "costs.json"), tiny, None)


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match=r"the costs cannot be written to .*: "):
        write_costs(tmp_path / "file" / "costs.json", TABLE)


def test_trees_have_costs_of_their_own() -> None:
    narrow, chain = TABLE.for_tree(Branching.parse("top-k:3")), TABLE.for_tree(Branching())
    assert chain is TABLE and TABLE.for_tree(Branching.parse("top-k:2")) is TABLE
    assert (narrow.cells[1, 128].draft_turn, narrow.cells[1, 128].draft_step) == (0.7, 2.5)
    assert (narrow.cells[4, 128].draft_turn, narrow.cells[4, 128].draft_step) == (0.9, 3.5)
    assert narrow.cells[1, 128].verify == LAW.verify and narrow.assumed == TABLE.assumed


# ---- measured for tuning --------------------------------------------------------------------------------------------


def test_a_grid_has_every_batch_and_tree(tiny: Transformer) -> None:
    """Positive and rising; trees of those that can be drafted; the prompt's tokens cost something."""
    drafter = Small(lively(seed=4, layers=1), tiny)
    shapes = [Branching.parse("top-k:2"), Branching()]
    table = tuning_costs(tiny, drafter, batches=[2], contexts=[16, 48], rows=9, branchings=shapes, seconds=0.2)
    assert {batch for batch, _ in table.cells} == {1, 2} and (1, 16) in table.cells
    assert all(list(costs.verify) == [1, 2, 3, 5, 9] for costs in table.cells.values())
    assert set(table.trees) == {"top-k:2"} and set(table.trees["top-k:2"]) == {1, 2}
    plainly, drafting = table.read
    assert 0 < plainly <= drafting and not table.assumed
    assert CostTable.from_json(table.to_json()) == table


def test_plain_decoding_and_chains_alone(tiny: Transformer) -> None:
    table = tuning_costs(tiny, None, batches=[1], contexts=[16], rows=3, seconds=0.05, sampling=Sampling(1.0))
    assert set(table.cells) == {(1, 16)} and table.read[0] == table.read[1]
    shapes = [Branching.parse("dynamic")]
    looked = tuning_costs(tiny, Lookup(), batches=[1], contexts=[16], rows=3, branchings=shapes, seconds=0.05)
    assert not looked.trees


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    """A clock that is wound by hand."""
    now = [0.0]
    with monkeypatch.context() as patched:
        patched.setattr(time, "perf_counter", lambda: now[0])
        yield now


def test_reading_a_prompt_is_what_it_was(clock: list[float], tiny: Transformer, monkeypatch: Any) -> None:
    """2 ms a token of a prompt and 10 ms a turn: the turns are taken off."""
    prefill, score = Transformer.prefill, Transformer.score

    def slow_prefill(self: Transformer, state: Any, ids: torch.Tensor, *rest: Any) -> Any:
        clock[0] += 2e-3 * ids.numel()
        return prefill(self, state, ids, *rest)

    def slow_score(self: Transformer, *given: Any) -> Any:
        clock[0] += 10e-3
        return score(self, *given)

    monkeypatch.setattr(Transformer, "prefill", slow_prefill)
    monkeypatch.setattr(Transformer, "score", slow_score)
    table = tuning_costs(tiny, Lookup(), batches=[1], contexts=CONTEXTS[:1], rows=2, seconds=5.0)
    assert table.read == pytest.approx((2.0, 2.0))
    assert table.cells[1, CONTEXTS[0]].verify == pytest.approx({1: 10.0, 2: 10.0})


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"batches": []}, r"batches is \[\]; allowed: one number or more, each from 1 on"),
        ({"contexts": [0]}, r"contexts is \[0\]"),
        ({"rows": 66}, "rows is 66; allowed: 1 to 65"),
        ({"seconds": 0.0}, "seconds is 0; allowed: above 0"),
    ],
    ids=["batches", "contexts", "rows", "seconds"],
)
def test_a_grid_that_is_none_is_refused(given: dict[str, Any], words: str, tiny: Transformer) -> None:
    with pytest.raises(UsageError, match=words):
        tuning_costs(tiny, None, **given)
