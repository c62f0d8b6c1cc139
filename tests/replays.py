"""Texts of toys that were recorded by probes, and the same texts really decoded.

Knows nothing of what is tested. Import it as ``replays``, as ``toys``.
"""

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch

from outpace.decoding.control import Control
from outpace.decoding.costs import CostTable
from outpace.decoding.loop import Request
from outpace.drafters.budget import Branching
from outpace.drafters.drafter import Drafter
from outpace.drafters.either import Either
from outpace.drafters.lookup import Lookup
from outpace.drafters.small import Small
from outpace.evaluation.metrics import Pooled, pooled
from outpace.evaluation.probe import read_probe, write_probe
from outpace.evaluation.workloads import Question
from outpace.models.shape import Shape
from outpace.models.toy import tiny_config, tiny_tensors
from outpace.models.transformer import Transformer
from outpace.tuning.joined import joined
from outpace.tuning.recording import Recording
from outpace.tuning.replay import Prediction
from outpace.verification.probabilities import Sampling
from simulated import TABLES
from toys import lively, run

ASKED = [
    Question("a", "repeats", [7, 8, 7, 8, 7, 8, 7]),
    Question("b", "others", [5, 6, 7]),
    Question("c", "others", [47, 11, 43, 4, 39, 21, 33, 63, 7, 33, 12, 5, 32, 32, 32, 32, 47, 11, 43]),
]
"""The last one holds what the target says, so that copies are right now and then."""
NEW = 24
LAWS = {"greedy": Sampling(), "warm": Sampling(0.8), "filtered": Sampling(0.9, top_p=0.9)}
SEED = 5
RECORDED = tuple(map(Branching.parse, ("top-k:8", "top-k:3")))
COSTS = CostTable({(1, 1): TABLES["a drafter that costs"]})


@cache
def near() -> Transformer:
    """The target with noise on its weights: unlike, and often right."""
    config, coins = tiny_config(), torch.Generator().manual_seed(0)
    tensors = {
        name: one + 0.03 * torch.randn(one.shape, generator=coins) if one.dim() == 2 else one
        for name, one in tiny_tensors(config, seed=3).items()
    }
    return Transformer(Shape.from_config(config), tensors, dtype=torch.float32, packed=False, name="near")


@cache
def drafter_named(name: str) -> Drafter:
    """``lookup``, ``small``, or both as ``lookup+small``."""
    if name == "lookup+small":
        return Either(Lookup(), drafter_named("small"))
    return Lookup() if name == "lookup" else Small(near(), lively(), rates=(0.5, 0.2, 0.1))


@cache
def recorded(name: str, law: str) -> Recording:
    if name == "lookup+small":
        return joined(recorded("lookup", law), recorded("small", law))
    with TemporaryDirectory() as folder:
        path = Path(folder) / "probe.jsonl"
        options: dict[str, Any] = {"sampling": LAWS[law], "max_new_tokens": NEW, "seed": SEED, "trees": RECORDED}
        write_probe(path, lively(), drafter_named(name), ASKED, **options)
        return Recording.of(read_probe(path))


def requests(law: str) -> list[Request]:
    return [Request(one.ids, LAWS[law], NEW, (), SEED) for one in ASKED]


def decoded(drafter: Drafter, law: str, control: Control, **options: Any) -> Pooled:
    ended = run(lively(), drafter, requests(law), control=control, **options)
    return pooled([one.stats for one in ended])


def same(real: Pooled, said: Prediction) -> None:
    assert said.tau == pytest.approx(real.tau, abs=1e-9)
    assert said.plain_turn_share == pytest.approx(real.plain_turn_share, abs=1e-9)
    assert said.acceptance == (None if real.acceptance is None else pytest.approx(real.acceptance, abs=1e-9))
    assert said.acceptance_by_position == pytest.approx(real.acceptance_by_position, abs=1e-9)
