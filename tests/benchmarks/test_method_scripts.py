"""Scripts that compare methods run end to end on tiny drafters, and do no text twice."""

import json
import shutil
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from cards import change_document
from outpace.drafters.record import FILE
from outpace.training.ledger import Ledger

Script = Callable[[str], ModuleType]
Compared = Callable[..., dict[str, Any]]


@pytest.fixture
def compared(script: Script, tiny: Path, head: Path, questions: Path, tmp_path: Path) -> Compared:
    """Two drafters compared; what was noted before stays."""

    def run(*flags: str) -> dict[str, Any]:
        out = tmp_path / "result.json"
        named = ["--target", str(tiny), "--drafter", "lookup=lookup", "--drafter", f"mine={head}", "--out", str(out)]
        notes = ["--notes", str(tmp_path / "notes.jsonl")]
        assert script("method_comparison").main(["--quick", *named, *notes, *flags]) == 0
        text = out.read_text("utf-8")
        assert str(tiny.parent) not in text and str(head.parent) not in text and str(tmp_path) not in text
        return dict(json.loads(text))

    return run


def test_methods_are_compared(compared: Compared) -> None:
    """Every drafter in all its ways, what drafting costs, and auto beside plain decoding at both temperatures."""
    found = compared()
    parts = {
        part: [one for one in found["results"] if one["measured"] == part] for part in ("counts", "costs", "speed")
    }
    ways = {(one["drafter"], one["way"], one["rule"]) for one in parts["counts"] if one["category"] == "all"}
    assert {(who, way) for who, way, _ in ways} == {
        ("lookup", "chain of 5, T 0"),
        ("lookup", "chain of 5, T 1"),
        ("mine", "chain of 5, T 0"),
        ("mine", "dynamic, 24 nodes, 6 deep, T 0"),
        ("mine", "chain of 5, T 1"),
        ("mine", "sampled:3, 24 nodes, 6 deep, T 1"),
    }
    assert all(one["tau"]["value"] >= 1 for one in parts["counts"])
    assert [one["drafter"] for one in parts["costs"]] == ["lookup", "mine", "mine"]
    assert all(one["forward_ms"] > 0 and one["drafting"]["value"] >= 0 for one in parts["costs"])
    sides = {(one["drafter"], one["tree"], one["temperature"]) for one in parts["speed"]}
    assert len(sides) == 6 and ("lookup", "dynamic", 0.0) not in sides
    kinds = {one["category"] for one in parts["speed"]} - {"all"}
    assert len(found["gates"]) == 6 * len(kinds) > 0


def test_no_text_is_done_twice(compared: Compared, script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that was stopped goes on, and is the same."""
    module, calls = script("method_comparison"), []
    honest = module.spoken

    def noted(*given: Any) -> Any:
        calls.append(given)
        return honest(*given)

    monkeypatch.setattr(module, "spoken", noted)
    first, done = compared("--part", "counts"), len(calls)
    assert done and {one["measured"] for one in first["results"]} == {"counts"}
    again = compared("--part", "counts")
    assert len(calls) == done and again["results"] == first["results"]


@pytest.mark.parametrize("said", ["mine", "=lookup", "mine=", "plain=lookup"])
def test_drafters_without_a_name_are_refused(said: str, script: Script, tiny: Path, questions: Path) -> None:
    with pytest.raises(SystemExit, match="allowed: NAME=FOLDER, each name once and none of them 'plain'"):
        script("method_comparison").main(["--quick", "--target", str(tiny), "--drafter", said])


def test_notes_go_on(script: Script, tmp_path: Path) -> None:
    """What was noted is not made again; a line that was cut off is, and the file is whole again."""
    notes_of, path, made = script("common").Notes, tmp_path / "notes.jsonl", []

    def make() -> list[int]:
        made.append(1)
        return [len(made)]

    first = notes_of(path)
    assert [first.of(key, make) for key in ("a", "b", "a")] == [[1], [2], [1]]
    path.write_text(path.read_text("utf-8")[:-3], "utf-8")
    second = notes_of(path)
    assert [second.of(key, make) for key in ("a", "b")] == [[1], [3]]
    assert notes_of(path).found == {"a": [1], "b": [3]}


def test_a_draft_of_its_own_size(script: Script, tiny: Path, questions: Path, tmp_path: Path) -> None:
    """The target as its own drafter is always right but for near-ties; with all its layers the cut one is the same."""
    out = tmp_path / "own.json"
    named = ["--target", str(tiny), "--layers", "1", "--out", str(out)]
    assert script("own_size_draft").main(["--quick", *named]) == 0
    text = out.read_text("utf-8")
    found = json.loads(text)
    own = [one for one in found["results"] if one["drafter"] == "itself"]
    cut = [one for one in found["results"] if one["drafter"] == "its first 1 layers"]
    assert [one["num_draft_tokens"] for one in own] == [1, 2] == [one["num_draft_tokens"] for one in cut]
    for one in own:
        assert one["num_draft_tokens"] < one["tau"]["value"] <= 1 + one["num_draft_tokens"]
        assert one["draft_cost"]["value"] > 0 and one["predicted"]["value"] > 0
    assert str(tiny.parent) not in text


def trained(folder: Path, head: Path, acceptance: list[float], alphas: list[float], **told: Any) -> Path:
    """A card with a log, of a training whose alpha rose step by step, each of 100 answer tokens."""
    shutil.copytree(head, folder)
    told |= {"acceptance_by_position": acceptance, "tau": 2.0, "steps": len(alphas)}
    change_document(folder, lambda said: said.update(told), FILE)
    ledger = Ledger(folder / "log.jsonl")
    ledger.begin(0, {})
    for step, alpha in enumerate(alphas, 1):
        shown = {"loss": [1.0], "acceptance": [alpha], "accuracy": [alpha / 2]}
        ledger.write({"step": step, "epoch": 0, "answer_tokens": 100 * step, **shown})
    last = {"acceptance": [alphas[-1]], "accuracy": [alphas[-1] / 2]}
    ledger.write({"step": len(alphas), "epoch": 1, "validation": last})
    return folder


def test_curves_of_methods(script: Script, head: Path, tmp_path: Path) -> None:
    """Points are means by answer tokens, up to all that were seen; heads of both kinds stand side by side."""
    module, out = script("method_curves"), tmp_path / "curves.json"
    rising = [step / 10 for step in range(1, 9)]
    first = trained(
        tmp_path / "first",
        head,
        [0.6, 0.3],
        rising,
        method="eagle1",
        flags={"fc_bias": False},
        depth_trained=1,
        draft_vocab_size=64,
        taps={"indices": [], "convention": "hidden_states"},
    )
    third = trained(tmp_path / "third", head, [0.5, 0.4], rising)
    assert module.main([f"a={first}", f"b={third}", "--points", "3", "--out", str(out)]) == 0
    text = out.read_text("utf-8")
    found = json.loads(text)
    points = found["results"][0]["while_it_learns"]
    assert len(points) == 3 and points[-1]["answer_tokens"] == 800
    seen = [0, *(point["answer_tokens"] for point in points)]
    shares = [later - before for before, later in pairwise(seen)]
    whole = sum(point["alpha"] * share for point, share in zip(points, shares, strict=True))
    assert whole == pytest.approx(100 * sum(rising), rel=1e-4)
    assert found["results"][0]["held_out"][0]["alpha"] == pytest.approx(0.8)
    [pair] = found["pairs"]
    assert (pair["eagle1"], pair["eagle3"], pair["eagle1_kept"], pair["eagle3_kept"]) == ("a", "b", [0.5], [0.8])
    assert pair["equal_size"] and pair["same_data"] is (found["results"][0]["data"] is not None)
    assert str(tmp_path) not in text


def test_gates_of_curves(script: Script) -> None:
    """The best validation is asked, and only of the methods that promise something."""
    module = script("method_curves")

    def cell(method: str, *alphas: float) -> dict[str, Any]:
        shown = [{"alpha": alpha, "top_1": alpha - 0.1} for alpha in alphas]
        return {"drafter": method, "method": method, "held_out": shown}

    gates = module.gates_of([cell("small", 0.4, 0.55), cell("medusa", 0.45), cell("eagle3", 0.1), cell("medusa")])
    assert [(gate.estimate.value, gate.holds) for gate in gates] == [(0.55, True), (pytest.approx(0.35), False)]


def test_what_is_no_training(script: Script, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="is no drafter of a training; allowed: NAME=FOLDER, with its card and its"):
        script("method_curves").main([f"a={tmp_path}"])
