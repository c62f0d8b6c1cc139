"""Lab 3 runs from nothing to its figure on a tiny target, goes on where it was, and its α is that of the definition."""

import json
import shutil
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from exercises import LABS, opened
from outpace.evaluation.pair import read
from outpace.models.load import load_target


@pytest.fixture(scope="module")
def lab() -> Iterator[ModuleType]:
    with opened("03-distil") as module:
        yield module


@pytest.fixture(scope="module")
def done(lab: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the small lab has run: ``work`` and ``out``."""
    folder = tmp_path_factory.mktemp("distil")
    assert lab.main(["--small", "--work", str(folder / "work"), "--out", str(folder / "out")]) == 0
    return folder


def results(folder: Path) -> Any:
    return json.loads((folder / "out" / "results.json").read_text("utf-8"))


def test_alpha_grows_with_the_tokens(done: Path) -> None:
    """Seeds are fixed; between the smallest portion and all of it lies half of what the smallest had learnt."""
    found = results(done)
    assert found["script"] == "labs/03-distil/lab.py" and {"machine", "versions", "date", "protocol"} <= found.keys()
    rows = found["results"]
    assert [one["tokens"] for one in rows] == sorted({one["tokens"] for one in rows}) and len(rows) == 4
    alphas = [one["alpha"]["value"] for one in rows]
    assert 0 < alphas[0] < alphas[-1] < 1 and alphas[-1] > 1.2 * alphas[0]
    assert all(one["alpha"]["low"] <= one["alpha"]["value"] <= one["alpha"]["high"] for one in rows)
    assert (done / "out" / "figures" / "alpha-by-tokens.png").stat().st_size > 10_000
    assert str(done) not in (done / "out" / "results.json").read_text("utf-8"), "a result names no folder"


def test_portions_are_nested_and_hold_the_same_texts_out(lab: ModuleType, done: Path) -> None:
    """What judges all drafts has taught none of them."""
    work = done / "work"
    portions = [(work / f"one-in-{parts}.jsonl").read_text("utf-8").splitlines() for parts in lab.PORTIONS]
    for fewer, more in pairwise(portions):
        assert more[: len(fewer)] == fewer
    recipe, target, _ = lab.setting(work)
    courses = [lab.taught(recipe, target, work / f"one-in-{parts}.jsonl", work)[0] for parts in lab.PORTIONS]
    held = {tuple(sample.ids.tolist()) for sample in courses[-1].held_out.samples}
    assert held
    for course in courses:
        assert not held & {tuple(sample.ids.tolist()) for sample in course.features.samples}


def test_alpha_is_the_sum_of_the_smaller_probabilities(lab: ModuleType, done: Path) -> None:
    """By definition: both models read every prefix of every held-out answer afresh."""
    work = done / "work"
    recipe, target, _ = lab.setting(work)
    course, draft = lab.taught(recipe, target, work / "one-in-1.jsonl", work)
    prefixes = []
    for sample in course.held_out.samples:
        ids, first = sample.ids.tolist(), int(sample.loss_mask.int().argmax())
        prefixes += [ids[:place] for place in range(first, len(ids))]
    laws = [torch.cat([read(model, [one]).softmax(-1) for one in prefixes]) for model in (target, load_target(draft))]
    wanted = float(torch.minimum(*laws).sum(-1).mean())
    assert results(done)["results"][-1]["alpha"]["value"] == pytest.approx(wanted, abs=2e-3)
    agreed = float((laws[0].argmax(-1) == laws[1].argmax(-1)).float().mean())
    assert results(done)["results"][-1]["agreement"]["value"] == pytest.approx(agreed, abs=6e-3)


def test_decoding_accepts_what_alpha_says(done: Path) -> None:
    """Some fifty turns, so a third apart is three standard errors: the seed is fixed, and nothing is left to chance."""
    for one in results(done)["results"]:
        assert one["decoding"]["turns"] > 30
        assert one["decoding"]["acceptance_by_position"][0] == pytest.approx(one["alpha"]["value"], abs=0.15)


def test_it_goes_on_where_it_was(lab: ModuleType, done: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A draft that is missing is trained again from its checkpoint and comes out the same; others are left alone."""
    honest, trained = lab.run, []

    def watched(course: Any, recipe: Any, out: Path, *rest: Any, **more: Any) -> Any:
        trained.append(out.name)
        return honest(course, recipe, out, *rest, **more)

    monkeypatch.setattr(lab, "run", watched)
    weights = (done / "work" / "one-in-4" / "model.safetensors").read_bytes()
    shutil.rmtree(done / "work" / "one-in-4")
    before = results(done)["results"]
    assert lab.main(["--small", "--work", str(done / "work"), "--out", str(done / "out")]) == 0
    assert trained == ["one-in-4"]
    assert (done / "work" / "one-in-4" / "model.safetensors").read_bytes() == weights
    after = results(done)["results"]
    assert [one["alpha"] for one in after] == [one["alpha"] for one in before]


def test_a_curve_is_thinned_to_means(lab: ModuleType) -> None:
    curve = [(step, float(step % 2)) for step in range(1, 101)]
    thinned = lab.thinned(curve, 10)
    assert [tokens for tokens, _ in thinned] == list(range(10, 101, 10)) and {mean for _, mean in thinned} == {0.5}
    assert lab.thinned(curve[:3], 10) == curve[:3]


def test_without_data_it_says_what_is_missing(lab: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OUTPACE_DATA", raising=False)
    with pytest.raises(SystemExit, match="OUTPACE_DATA is None; it must name the folder that holds smollm2-answers"):
        lab.first_corpus()


def test_the_text_of_lab_3_says_what_was_found(lab: ModuleType, done: Path) -> None:
    """A line a portion, and the committed table is that of the committed results."""
    from common import block

    assert lab.summary(results(done)).count("\n| ") == 1 + len(lab.PORTIONS)
    readme, found = LABS / "03-distil" / "README.md", LABS / "03-distil" / "results.json"
    if found.is_file():
        assert block(readme.read_text("utf-8")) == lab.summary(json.loads(found.read_text("utf-8")))
