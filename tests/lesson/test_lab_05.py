"""Lab 5 runs part by part on a tiny target, keeps the parts that stand, and its closed forms are what is accepted."""

import json
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from exercises import LABS, opened
from outpace.evaluation.metrics import Estimate
from outpace.verification.expectation import TurnCosts, break_even
from outpace.verification.oracle import Table, expected_tokens, ranked, sampled
from outpace.verification.rules import RULES

PARTS = ["law", "counts", "speed", "load", "size", "control"]


@pytest.fixture(scope="module")
def lab() -> Iterator[ModuleType]:
    with opened("05-failure") as module:
        yield module


@pytest.fixture(scope="module")
def done(unchecked: None, lab: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("failure")
    assert lab.main(["--small", "--out", str(folder)]) == 0
    return folder


def parts(folder: Path) -> Any:
    return json.loads((folder / "results.json").read_text("utf-8"))["parts"]


def test_every_part_leaves_rows_and_a_figure(done: Path) -> None:
    found = parts(done)
    assert list(found) == PARTS
    for name, part in found.items():
        assert part["results"] and {"protocol", "date", "machine", "versions"} <= part.keys(), name
        assert (done / "figures" / f"{name}.png").stat().st_size > 5_000


def alphas(part: Any, drafter: str, text: str) -> dict[tuple[str, float], float]:
    return {
        (row["rule"], row["temperature"]): row["alpha"]["value"]
        for row in part["results"]
        if row["drafter"] == drafter and row["text"] == text
    }


def test_a_draft_that_is_its_target_is_always_accepted_where_it_is_drawn(done: Path) -> None:
    """And only there: drawn apart or taken as the likeliest token, it loses as the temperature rises."""
    own = alphas(parts(done)["law"], "itself", "said at 1")
    assert own["rejection, a drawn token", 1.0] == own["rejection, a drawn token", 1.5] == pytest.approx(1, abs=1e-5)
    for rule in ("match, the likeliest token", "match, a drawn token"):
        assert own[rule, 1.5] < own[rule, 1.0] < 0.95
    counted = {(row["way"], row["temperature"]): row for row in parts(done)["counts"]["results"]}
    assert counted["itself, drawn chain of 5, block", 1.5]["acceptance"] == 1
    assert counted["itself, likeliest chain of 5, match", 1.5]["acceptance"] < 1
    assert counted["itself, likeliest chain of 5, match", 0.0]["acceptance"] == 1


def test_the_noisy_draft_keeps_its_alpha(done: Path) -> None:
    """Drawn from its law it loses little as the temperature rises; its likeliest token loses much more."""
    noisy = alphas(parts(done)["law"], "noise", "said at 1")
    drawn, likeliest = (
        noisy[rule, 1.5] / noisy[rule, 1.0] for rule in ("rejection, a drawn token", "match, the likeliest token")
    )
    assert drawn > 0.95 and likeliest < 0.9


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.5])
def test_closed_forms_are_what_the_rules_accept(lab: ModuleType, temperature: float) -> None:
    """Beside the oracle, which enumerates the shipped rules on drafts of one token of this very row."""
    generator = torch.Generator().manual_seed(1)
    target, draft = (torch.randn(4, generator=generator, dtype=torch.float64) for _ in range(2))
    from rates import forms as forms_of  # the lab's folder is on the path while the lab is open

    forms = forms_of(target, draft, temperature)

    def table(logits: torch.Tensor) -> Table:
        return Table.of(lambda prefix: (logits / temperature).softmax(-1), vocab=4, length=1)

    for name, rule, drafting in (
        ("rejection, a drawn token", "rejection", sampled(table(draft), (-1,))),
        ("match, the likeliest token", "match", ranked(table(draft), (-1,))),
        ("match, the three likeliest", "match", ranked(table(draft), (-1, -1, -1))),
        ("match, a drawn token", "match", sampled(table(draft), (-1,))),
    ):
        assert forms[name] == pytest.approx(expected_tokens(RULES[rule], table(target), drafting) - 1, abs=1e-9), name
    law = (target / temperature).softmax(-1)
    assert forms_of(target, 2, temperature) == {"match, the token found": pytest.approx(float(law[2]))}
    assert forms_of(target, None, temperature) == {}


def test_parts_that_stand_are_kept(lab: ModuleType, done: Path) -> None:
    before = parts(done)
    assert lab.main(["--small", "size", "--out", str(done)]) == 0
    after = parts(done)
    assert list(after) == PARTS and all(after[name] == before[name] for name in PARTS if name != "size")
    assert after["size"]["date"] >= before["size"]["date"]


def test_cost_rises_with_size_and_decides(done: Path) -> None:
    """The larger draft costs more, and the best K is plain decoding just where no length breaks even."""
    [found] = parts(done)["size"]["results"]
    smaller, larger = found["drafts"]
    assert smaller["parameters"] < larger["parameters"] and smaller["c"] < larger["c"]
    for one in found["drafts"]:
        assert one["c"] == pytest.approx(one["step_ms"] / found["target_ms"]["1"], rel=1e-4)
        costs = TurnCosts({int(rows): ms for rows, ms in found["target_ms"].items()}, draft_step=one["step_ms"])
        needed = {k: break_even(costs, k) for k in range(1, 9)}
        assert one["break_even_alpha"]["4"] == pytest.approx(needed[4], rel=1e-4)
        for best in one["best"]:
            if best["k"]:
                assert best["alpha"] > needed[best["k"]] - 1e-4 and best["speedup"] > 1
            else:
                assert best["alpha"] < min(needed.values()) + 1e-4 and best["speedup"] == 1


def test_the_control_is_held_against_plain_and_the_best_chain(lab: ModuleType) -> None:
    """Rates are played: ``auto`` is as fast as plain decoding, and half as fast as the best chain."""
    played = {"plain": 10.0, "auto": 10.0, "a": 20.0, "b": 5.0}
    import clocks

    runs = {name: [[clocks.Run(int(rate), 1.0, [])] for _ in range(3)] for name, rate in played.items()}
    row = clocks.judged(runs, [0, 2], {"a": None, "b": None}, "chat", "head", 0.0)
    assert row["best_fixed"] == "a" and row["best_fixed_against_plain"] == Estimate(2.0, 2.0, 2.0)
    assert row["auto_against_plain"] == Estimate(1.0, 1.0, 1.0)
    assert row["auto_against_best_fixed"] == Estimate(0.5, 0.5, 0.5)


def test_an_unknown_part_is_named(lab: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        lab.main(["--small", "lore"])
    assert ended.value.code == 2
    assert "the part is 'lore'; allowed: law, counts, speed, load, size, control" in capsys.readouterr().err


def test_the_readme_says_what_was_found(lab: ModuleType, done: Path) -> None:
    """Every part has its table there, and the committed one is that of the committed results."""
    from common import block

    text = lab.summary({"parts": parts(done)})
    assert text.count("\n![") == len(PARTS) and text.count("|---|") >= 1 + len(PARTS)
    readme, found = LABS / "05-failure" / "README.md", LABS / "05-failure" / "results.json"
    if found.is_file():
        assert block(readme.read_text("utf-8")) == lab.summary(json.loads(found.read_text("utf-8")))
