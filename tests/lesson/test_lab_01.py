"""Lab 1 runs small to its figures; its floor, its test and its exact laws are right, and its faults are caught."""

import json
import re
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from exercises import LABS, opened

pytestmark = pytest.mark.usefixtures("unchecked")


@pytest.fixture(scope="module")
def lab() -> Iterator[ModuleType]:
    with opened("01-exactness") as module:
        yield module


@pytest.fixture(scope="module")
def found(lab: ModuleType, tmp_path_factory: pytest.TempPathFactory, unchecked: None) -> Any:
    out = tmp_path_factory.mktemp("exactness")
    assert lab.main(["--small", "--out", str(out)]) == 0
    for name in ("noise-floor", "verdicts"):
        assert (out / "figures" / f"{name}.png").stat().st_size > 10_000
    return json.loads((out / "results.json").read_text("utf-8"))


@pytest.fixture(scope="module")
def known(lab: ModuleType) -> dict[str, Any]:
    """The exact laws by sampler."""
    laws: dict[str, Any] = lab.exact_laws(lab.samplers()[1])
    return laws


def test_results_say_where_and_when(found: Any) -> None:
    assert found["script"] == "labs/01-exactness/lab.py"
    assert {"machine", "versions", "date", "protocol", "settings"} <= found.keys()


def test_honest_samplers_do_not_differ_and_a_fault_does(found: Any) -> None:
    """Seeds are fixed; with others one honest comparison of six would be called a difference in 0.6 % of runs."""
    rows = found["samplers"]
    assert len(rows) == 10 and not any(one["differs"] for one in rows if one["honest"])
    [snippet] = [one for one in rows if one["samples"] == 2000 and one["sampler"].startswith("lesson's")]
    assert snippet["differs"] and snippet["exact_tv"] > 0.1
    assert all(one["exact_tv"] is None or (one["exact_tv"] < 1e-12) == one["honest"] for one in rows)
    assert [one["sampler"] for one in rows if one["exact_tv"] is None] == ["seeded coupling"] * 2


def test_the_summary_is_what_the_readme_shows(lab: ModuleType, found: Any) -> None:
    committed = json.loads((LABS / "01-exactness" / "results.json").read_text("utf-8"))
    readme = (LABS / "01-exactness" / "README.md").read_text("utf-8")
    assert f"<!-- results -->\n{lab.summary(committed)}\n<!-- /results -->" in readme, "run the lab without --out"
    assert lab.summary(found) != lab.summary(committed)
    for picture in re.findall(r"\]\((figures/[\w-]+\.png)\)", readme):
        assert (LABS / "01-exactness" / picture).is_file()


@pytest.mark.parametrize("samples", [30, 10_000])
def test_the_floor_is_the_mean_of_perfect_pairs(lab: ModuleType, samples: int) -> None:
    """20,000 pairs: the mean's error is below a thousandth of the floor's half, so 2 % off is never chance."""
    law = lab.windows(lab.joint(lab.samplers()[1][0]))["64"]
    drawn = lab.perfect(law, samples, 20_000, np.random.default_rng(0))
    assert lab.floor(law, samples) == pytest.approx(drawn.mean(), rel=0.02)
    assert lab.floor(law, lab.needed(law, 0.01)) == pytest.approx(0.01, rel=0.01)


def test_p_values_of_perfect_pairs_are_even(lab: ModuleType) -> None:
    """Of 300 pairs a tenth lies below 0.1; fewer than 10 or more than 55 has probability below 1e-5."""
    law, rng = np.full(16, 1 / 16), np.random.default_rng(3)
    pairs = [(rng.multinomial(400, law), rng.multinomial(400, law)) for _ in range(300)]
    low = sum(lab.p_value(one, other, 199, rng) <= 0.1 for one, other in pairs)
    assert 10 <= low <= 55
    assert lab.p_value(np.array([300, 100]), np.array([200, 200]), 999, rng) == 0.001


@pytest.mark.parametrize("rule", ["rejection", "block"])
def test_the_exact_law_of_a_right_rule_is_the_target_s(lab: ModuleType, known: dict[str, Any], rule: str) -> None:
    """The enumeration goes turn after turn: with a rule that keeps the law nothing may be lost on the way."""
    _, laws = lab.samplers()
    assert known[rule].sum() == pytest.approx(1, abs=1e-12)
    assert lab.tv_of(known[rule], lab.joint(laws[0])) < 1e-12


@pytest.mark.parametrize("fault", [0, 1])
def test_a_fault_follows_the_law_that_was_enumerated(lab: ModuleType, known: dict[str, Any], fault: int) -> None:
    """6,000 samples of each: beyond twice the floor has probability below 1e-9 by McDiarmid's inequality."""
    drawn, laws = lab.samplers()
    name = lab.FAULTS[fault]
    law = lab.windows(known[name])["64"]
    counts = lab.windows(drawn[name](6_000, 7 << 40))["64"]
    one_sided = np.abs(counts / 6_000 - law).sum() / 2
    assert one_sided < 2 * lab.floor(law, 6_000)
    assert np.abs(counts / 6_000 - lab.windows(lab.joint(laws[0]))["64"]).sum() / 2 > one_sided


def test_where_the_snippet_stops_with_an_error(lab: ModuleType) -> None:
    """A token of which the draft is surer than the target of any, and that is refused."""
    target = torch.tensor([[0.5, 0.5], [0.5, 0.5]], dtype=torch.float64)
    draft = torch.tensor([[0.8, 0.2], [0.5, 0.5]], dtype=torch.float64)
    torch.testing.assert_close(lab.breaks_down(target, draft), torch.tensor([0.3, 0.0], dtype=torch.float64))


def test_what_is_unexpected_fails_the_lab(lab: ModuleType) -> None:
    honest = {"sampler": "rejection", "samples": 10, "honest": True, "differs": False, "p_value": 0.4}
    fault = {"sampler": "a fault", "samples": 10, "honest": False, "differs": True, "p_value": 0.0001}
    assert lab.judge([honest, fault], small=False) == 0
    assert lab.judge([honest | {"differs": True}, fault], small=False) == 1
    assert lab.judge([honest, fault | {"differs": False}], small=False) == 1
    assert lab.judge([honest, fault | {"differs": False}, fault | {"samples": 20}], small=False) == 0
