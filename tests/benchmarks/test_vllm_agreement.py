"""What is asked of a head in vLLM: vLLM's part is played by our own decoder, which counts as vLLM does."""

import importlib
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from cards import card_for, change_document, model_folder
from heads import fitted_head
from outpace.decoding.loop import Request, decode
from outpace.decoding.turn import Turn
from outpace.drafters.card import write_card
from outpace.drafters.eagle import Eagle
from outpace.drafters.load import load_drafter
from outpace.models.load import load_target
from outpace.models.target import Target
from toys import lively, reference

SCRIPTS = Path(__file__).parents[2] / "benchmarks"
PROMPTS = ((1, 2, 3), (4, 5, 6), (7, 8, 9))
NEW, DEPTH = 26, 3
Job = dict[str, Any]
Run = Callable[..., tuple[int, dict[str, Any]]]


@pytest.fixture(scope="module")
def script() -> Iterator[ModuleType]:
    before = set(sys.modules)
    sys.path.insert(0, str(SCRIPTS))
    yield importlib.import_module("vllm_agreement")
    sys.path.remove(str(SCRIPTS))
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(SCRIPTS)):
            del sys.modules[name]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A target whose first text ends within it, and the card of a head that is often right, behind the end too."""
    head = fitted_head(PROMPTS, NEW + DEPTH + 1)
    text = reference(lively(), PROMPTS[0], NEW)
    end = next(token for place, token in enumerate(text) if place >= 16 and token not in text[:place])
    folder = model_folder(tmp_path_factory.mktemp("served") / "target", seed=3, layers=2, eos_token_id=end)
    card = tmp_path_factory.mktemp("cards") / "fitted"
    write_card(card, head, card_for(head, load_target(folder, dtype="fp32")), dtype=torch.float32)
    return folder, card


def text_by(target: Target, drafter: Eagle, ids: list[int], limit: int, depth: int) -> dict[str, Any]:
    """A text with its rounds: K drafts to the last, behind the end of the text too, and what is accepted there counts.

    The text that is decoded has no end, and goes on far enough.
    """
    turns: list[Turn] = []
    endless = Request(ids, max_new_tokens=limit + depth + 1)
    for _ in decode(target, drafter, [endless], num_draft_tokens=depth, observer=lambda turn, _: turns.append(turn)):
        pass
    text, rounds = list(turns[0].emitted[0]), []
    for turn in turns[1:]:
        if len(text) >= limit or not set(target.eos_ids).isdisjoint(text):
            break
        rounds.append([int(turn.proposal.tree.num_nodes[0]), len(turn.paths[0])])
        text += turn.emitted[0]
    ends = [place + 1 for place, token in enumerate(text) if token in target.eos_ids]
    return {"token_ids": text[: min([limit, *ends])], "rounds": rounds}


def played(python: str, job: Job) -> dict[str, Any]:
    """What vLLM would tell of a job."""
    target = load_target(job["target"], dtype=job["dtype"])
    drafter = load_drafter(job["draft"], target)
    assert isinstance(drafter, Eagle)
    drafter.eos_ids = frozenset()
    depth = job["num_draft_tokens"]
    texts = [text_by(target, drafter, ids, job["max_new_tokens"], depth) for ids in job["prompts"]]
    rounds = [one for text in texts for one in text["rounds"]]
    assert {drafted for drafted, _ in rounds} == {depth}
    accepted = [sum(one > place for _, one in rounds) for place in range(depth)]
    counters = {"drafts": len(rounds), "accepted_by_position": accepted}
    return {"versions": {"vllm": "played"}, "texts": texts, "counters": counters}


@pytest.fixture
def run(
    script: ModuleType, pair: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[int, dict[str, Any]]]:
    """The script from its arguments to its exit status and result, with somebody in vLLM's place."""
    asked = [script.Question(place, "qa", list(prompt)) for place, prompt in enumerate(PROMPTS)]
    monkeypatch.setattr(script, "questions", lambda folder, args: asked)

    def main(vllm: Callable[[str, Job], dict[str, Any]], *flags: str) -> tuple[int, dict[str, Any]]:
        monkeypatch.setattr(script, "served", vllm)
        target, card = map(str, pair)
        out = tmp_path / "result.json"
        named = ["--target", target, "--draft", card, "--vllm-python", "/somewhere/python", "--out", str(out)]
        status = script.main([*named, "--max-new-tokens", str(NEW), "--depths", str(DEPTH), *flags])
        text = out.read_text("utf-8")
        assert not any(place in text for place in (target, card, "/somewhere"))
        return status, json.loads(text)

    return main


def failing(found: dict[str, Any]) -> list[str]:
    return [gate["name"] for gate in found["gates"] if not gate["holds"]]


def test_one_and_the_same_head_agrees(run: Run) -> None:
    """Every text and every count, though vLLM drafts behind the end of texts, one of which ends within a draft."""
    status, found = run(played)
    assert status == 0 and failing(found) == []
    assert [(cell["layout"], cell["num_draft_tokens"]) for cell in found["results"]] == [
        ("vllm", DEPTH),
        ("speculators", DEPTH),
    ]
    for cell in found["results"]:
        assert cell["texts"]["texts_identical"] == cell["texts_with_equal_counts"] == len(PROMPTS)
        assert [one["difference"] for one in cell["positions"]] == [0.0] * DEPTH
        assert 0.2 < cell["positions"][0]["ours"] < 1, "a head that is always or never right compares nothing"
        within = [one["passed"][1] for one in cell["positions"]]
        assert sum(cell["vllm_counts"]["accepted_by_position"]) > sum(within), "vLLM accepts behind the end"
    assert found["vllm"] == {"vllm": "played"} and found["head"] == found["settings"]["draft"] == "fitted"


def test_a_head_that_is_read_in_another_way_is_found(run: Run) -> None:
    """The planted fault: the export says norm_before_residual, and the head was made without. No text changes."""

    def other(python: str, job: Job) -> dict[str, Any]:
        change_document(Path(job["draft"]), lambda said: said.update(norm_before_residual=True))
        return played(python, job)

    status, found = run(other, "--layouts", "vllm")
    assert status == 1
    assert found["results"][0]["texts"]["texts_identical"] == len(PROMPTS)
    assert "vllm, K 3: acceptance at position 1, off ours" in failing(found)


def test_another_text_is_found(run: Run) -> None:
    """The planted fault: one token of one text. Its prompt leaves the comparison of acceptance."""

    def other(python: str, job: Job) -> dict[str, Any]:
        told = played(python, job)
        told["texts"][1]["token_ids"][5] ^= 1
        return told

    status, found = run(other, "--layouts", "vllm")
    assert status == 1 and failing(found) == ["vllm, K 3: differences that are no near-ties"]
    cell = found["results"][0]
    assert cell["common_texts"] == cell["texts_with_equal_counts"] == len(PROMPTS) - 1
    assert [one["place"] for one in cell["texts"]["differences"]] == [5]


def test_no_text_in_common_proves_nothing(run: Run) -> None:
    def other(python: str, job: Job) -> dict[str, Any]:
        told = played(python, job)
        for text in told["texts"]:
            text["token_ids"][0] ^= 1
        return told

    status, found = run(other, "--layouts", "vllm")
    assert status == 1 and "vllm, K 3: texts that are the same" in failing(found)


@pytest.mark.parametrize(
    ("tokens", "rounds", "limit", "tried", "passed"),
    [
        (5, [(3, 1), (3, 0), (3, 1)], 9, (3, 1, 0), (2, 0, 0)),  # ends at the first draft of the last round
        (6, [(3, 3), (3, 0)], 9, (2, 1, 1), (1, 1, 1)),
        (6, [(3, 3), (3, 3)], 6, (1, 1, 1), (1, 1, 1)),  # the last token is never drafted here
        (8, [(3, 0), (3, 2), (3, 2)], 8, (3, 2, 1), (2, 2, 0)),
        (8, [(3, 0), (3, 2), (3, 2)], 9, (3, 2, 2), (2, 2, 0)),  # where the limit leaves room, it is
        (5, [(3, 1), (1, 1)], 9, (2, 1, 0), (2, 0, 0)),
        (1, [], 9, (0, 0, 0), (0, 0, 0)),
    ],
)
def test_rounds_are_counted_within_the_text(
    script: ModuleType,
    tokens: int,
    rounds: list[tuple[int, int]],
    limit: int,
    tried: tuple[int, ...],
    passed: tuple[int, ...],
) -> None:
    found = script.counted(list(range(tokens)), rounds, limit, 3)
    assert (found.turns, found.tried, found.passed) == (len(rounds), tried, passed)


@pytest.mark.parametrize(("rounds", "words"), [([(3, 3), (3, 0), (3, 0)], "behind the end"), ([(3, 1)], "missing")])
def test_rounds_that_make_another_text_are_refused(
    script: ModuleType, rounds: list[tuple[int, int]], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        script.counted(list(range(6)), rounds, 9, 3)


def test_counters_of_other_rounds_are_refused(run: Run) -> None:
    """The planted fault: one draft too many, as if something else had been served beside what was asked."""

    def other(python: str, job: Job) -> dict[str, Any]:
        told = played(python, job)
        told["counters"]["drafts"] += 1
        return told

    with pytest.raises(ValueError, match="its rounds make"):
        run(other, "--layouts", "vllm")


def stub(folder: Path, does: str) -> str:
    """A program in the place of vLLM's python; its last argument is where it is to answer."""
    path = folder / "python"
    path.write_text(f"#!/bin/sh\n{does}\n", "utf-8")
    path.chmod(0o755)
    return str(path)


def test_vllm_is_asked_in_a_process_of_its_own(script: ModuleType, tmp_path: Path) -> None:
    job = {"draft": "somewhere/vllm", "num_draft_tokens": 3, "prompts": [[1, 2]]}
    assert script.served(stub(tmp_path, 'cp "$3" "$4"'), job) == job


@pytest.mark.parametrize("does", ["echo no such engine >&2; exit 3", "echo no such engine"])
def test_a_vllm_that_fails_is_quoted(script: ModuleType, tmp_path: Path, does: str) -> None:
    with pytest.raises(SystemExit, match="no such engine"):
        script.served(stub(tmp_path, does), {"draft": "vllm", "num_draft_tokens": 3})
