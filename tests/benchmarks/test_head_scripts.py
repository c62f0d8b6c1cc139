"""Scripts about trained heads run end to end on a random one, and what they compute with is right."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from cards import change_document
from outpace.drafters.record import FILE
from outpace.training.ledger import Ledger

Script = Callable[[str], ModuleType]


@pytest.mark.parametrize("name", ["draft_cost", "eagle_quality", "eagle_speed"])
def test_measuring_a_head_runs(
    name: str, script: Script, tiny: Path, head: Path, questions: Path, tmp_path: Path
) -> None:
    out = tmp_path / "result.json"
    flags = ["--tree", "chain", "dynamic"] if name == "eagle_speed" else []
    named = ["--target", str(tiny), "--draft", str(head), "--out", str(out)]
    assert script(name).main(["--quick", *named, *flags]) == 0
    text = out.read_text("utf-8")
    found = json.loads(text)
    assert found["script"] == f"benchmarks/{name}.py" and found["results"] and found["gates"]
    assert found["head"] == found["settings"]["draft"] == "random"
    assert str(tiny.parent) not in text and str(head.parent) not in text
    if name == "draft_cost":
        chains = [cell for cell in found["results"] if cell["tree"] == "chain"]
        assert len(chains) == 2 and all(0 < cell["levels"] == cell["nodes"] <= 5 for cell in chains)
        for cell in found["results"]:
            assert 0 < cell["passes_ms"] < cell["draft_ms"] < cell["turn_ms"] > cell["forward_ms"] > 0
            assert 0 < cell["bookkeeping"]["value"] < 1
    if name == "eagle_quality":
        assert (found["walked"]["prompts"], found["walked"]["equal"], found["walked"]["differences"]) == (2, 2, [])
        rules = {cell["way"]: cell["rule"] for cell in found["results"] if cell["category"] == "all"}
        assert list(rules.values()) == ["greedy", "greedy", "tree-rejection", "block", "match"]
    if name == "eagle_speed":
        assert {cell["tree"] for cell in found["results"]} == {"chain", "dynamic"}
        assert all(one["not_excused"] == one["lengths_differ"] == 0 for one in found["equality"].values())


def test_the_cost_of_a_head_that_nobody_trained(script: Script, tiny: Path, questions: Path, tmp_path: Path) -> None:
    out = tmp_path / "cost.json"
    assert script("draft_cost").main(["--quick", "--target", str(tiny), "--out", str(out)]) == 0
    assert json.loads(out.read_text("utf-8"))["head"] == "untrained"


def test_every_tree_of_a_head_says_the_same(
    script: Script, tiny: Path, head: Path, questions: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, out = script("head_equality"), tmp_path / "equal.json"
    monkeypatch.setattr(module, "SHAPES", module.SHAPES[-2:])
    assert module.main(["--quick", "--target", str(tiny), "--draft", str(head), "--out", str(out)]) == 0
    found = json.loads(out.read_text("utf-8"))
    assert len(found["results"]) == 4 and found["gates"][0]["estimate"]["value"] == 0


def test_without_a_head_there_is_nothing_to_measure(script: Script, tiny: Path, questions: Path) -> None:
    for name in ("eagle_quality", "eagle_speed"):
        with pytest.raises(SystemExit, match=r"no head comes with outpace for .*: name one with --draft"):
            script(name).main(["--quick", "--target", str(tiny)])


def log_of(folder: Path, *taus: float, every: int = 100) -> Path:
    """A training of as many validations, each after so many tokens, in one epoch more."""
    ledger = Ledger(folder / "log.jsonl")
    ledger.begin(0, {})
    for step, tau in enumerate(taus, 1):
        ledger.write({"step": step, "epoch": step, "tokens": step * every, "answer_tokens": step * 7})
        shown = {"conditional": [tau / 4, None], "tau": tau}
        ledger.write({"step": step, "epoch": step, "validation": shown})
    return folder


def test_two_doublings(script: Script, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Inside a training by its own validations, over several by the best of each."""
    long = log_of(tmp_path / "long.training", 1.0, 1.2, 1.5, 1.6)
    flat = log_of(tmp_path / "flat.training", 1.62, 1.64, 1.63, 1.65, every=400)
    short = log_of(tmp_path / "short.training", 1.3, 1.4)
    out = tmp_path / "curve.json"
    assert script("learning_curve").main([str(long), str(flat / "log.jsonl"), str(short), "--out", str(out)]) == 0
    found = json.loads(out.read_text("utf-8"))
    assert [one["two_doublings"] for one in found["results"]] == [pytest.approx(0.6), pytest.approx(0.03), None]
    assert [one["best"]["tokens"] for one in found["results"]] == [400, 1600, 200]
    assert found["two_doublings"] == pytest.approx(0.05), "1.65 at 1600 tokens, 1.6 at 400"
    said = capsys.readouterr().out
    assert "long: two doublings of tokens brought +0.600 tau; more tokens pay" in said
    assert "flat: two doublings of tokens brought +0.030 tau; less than 0.05, so more tokens do not pay" in said
    assert "short: fewer than two doublings of tokens were measured" in said
    assert str(tmp_path) not in out.read_text("utf-8")


def test_a_curve_between_its_points(script: Script) -> None:
    """Straight over the logarithm: half way between 100 and 400 tokens is 200; outside there is nothing."""
    curve = [(100, 1.0), (400, 1.4), (800, 1.5)]
    tau_at = script("learning_curve").tau_at
    assert [tau_at(curve, tokens) for tokens in (100, 200, 400)] == [1.0, pytest.approx(1.2), pytest.approx(1.4)]
    assert tau_at(curve, 99) is None and tau_at(curve, 801) is None and tau_at(curve[:1], 100) is None
    assert script("learning_curve").gain([]) is None


def test_the_card_beside_a_log_tells_its_tau(
    script: Script, head: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(head, tmp_path / "mine")
    change_document(tmp_path / "mine", lambda said: said.update(tau=1.75), FILE)
    work = log_of(tmp_path / "mine.training", 1.1)
    assert script("learning_curve").main([str(work), "--quick"]) == 0
    assert "mine: walked tau 1.750" in capsys.readouterr().out


def test_a_log_that_is_none(script: Script, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"is no log of a training; allowed: a log.jsonl, or the folder that"):
        script("learning_curve").main([str(tmp_path)])


def test_trees_of_a_head_run(script: Script, tiny: Path, head: Path, questions: Path, tmp_path: Path) -> None:
    """A card with rates: the static tree has them, and is compared with the dynamic one."""
    rated, out = tmp_path / "rated", tmp_path / "trees.json"
    shutil.copytree(head, rated)
    change_document(rated, lambda said: said.update(acceptance_by_rank=[0.4, 0.1, 0.2, 0.0]), FILE)
    flags = ["--quick", "--target", str(tiny), "--draft", str(rated), "--out", str(out)]
    assert script("dynamic_static").main(flags) == 0
    found = json.loads(out.read_text("utf-8"))
    assert found["rates"]["static"] == [0.4, 0.1, 0.1] and len(found["gates"]) == 2
    cells = {(cell["tree"], cell["nodes"]): cell for cell in found["results"]}
    assert {("chain", 8), ("dynamic", 16), ("static", 8), ("static", 16)} <= cells.keys()
    assert cells["dynamic", 8]["dynamic_over_this"]["value"] == 1.0
    assert str(tmp_path) not in out.read_text("utf-8")
