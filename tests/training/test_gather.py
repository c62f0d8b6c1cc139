"""Samples come from all sources of a recipe, each prompt answered once by the target, and none on both sides."""

import gzip
import json
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from chats import EOS, chat_model, chat_text
from outpace.decoding.text import Text
from outpace.errors import UsageError
from outpace.models.staging import file_sha256
from outpace.training import gather as module
from outpace.training.gather import ANSWERS, INVENTED, gather, is_answered, split
from outpace.training.masks import Sample, answered
from outpace.training.recipe import Data
from toys import Watched, must_fail, reference

NEW = 10
BASE = Data(max_new_tokens=NEW, limit=200, batch_size=4)


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Text:
    return chat_text(tmp_path_factory.mktemp("chat"))


@pytest.fixture(scope="module")
def model() -> Any:
    return chat_model()


def written(path: Path, *lines: Any) -> str:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
    return str(path)


def same(ours: list[Sample], theirs: list[Sample]) -> bool:
    """Keys, ids and masks."""
    return [one.key for one in ours] == [one.key for one in theirs] and all(
        torch.equal(left.ids, right.ids) and torch.equal(left.loss_mask, right.loss_mask)
        for left, right in zip(ours, theirs, strict=True)
    )


def greedy(model: Any, text: Text, key: str, prompt: Any) -> Sample:
    """A prompt and the target's own plain answer."""
    ids = text.encode(prompt)
    return answered(text, key, ids, reference(model, tuple(ids), NEW, (EOS,)))


# ---- sources ---------------------------------------------------------------------------------------------------------


def test_answers_are_trained_as_they_stand(model: Any, text: Text, tmp_path: Path) -> None:
    """Not a token is asked of the target, and nothing is written."""
    first = written(tmp_path / "a.jsonl", {"user": "one", "answer_ids": [5, 6]}, {"user": "two", "answer_ids": [7]})
    second = written(tmp_path / "b.jsonl", {"id": "q", "prompt_ids": [1, 2, 3], "answer_ids": [4], "temperature": 1})
    watched = Watched(model)
    found = gather(replace(BASE, answers=(first, second)), watched, text, tmp_path / "work")
    assert same(
        found.samples,
        [
            answered(text, "a.jsonl: line 1", "one", [5, 6]),
            answered(text, "a.jsonl: line 2", "two", [7]),
            answered(text, "b.jsonl: q", [1, 2, 3], [4]),
        ],
    )
    assert found.sources == [
        {"answers": "a.jsonl", "sha256": file_sha256(Path(first)), "samples": 2},
        {"answers": "b.jsonl", "sha256": file_sha256(Path(second)), "samples": 1},
    ]
    assert found.rejected == {} and watched.prefills == [] and not (tmp_path / "work").exists()


def test_prompts_are_answered_by_the_target(model: Any, text: Text, tmp_path: Path) -> None:
    """Those that may be: once each, none that is to be avoided, the first so many of a file; the others are counted."""
    first = written(tmp_path / "a.jsonl", {"prompt": "hello"}, {"prompt": "  HELLO "}, {"prompt": "no"})
    second = written(
        tmp_path / "b.jsonl", {"id": "q", "prompt": "of measuring"}, {"prompt": "the sea"}, {"prompt": "left out"}
    )
    avoid = written(tmp_path / "dev.jsonl", {"question_id": 1, "turns": ["Of measuring"]})
    data = replace(BASE, prompts=(first, second), avoid=(avoid,))
    found = gather(data, model, text, tmp_path / "work")
    keys = ["a.jsonl: line 1", "b.jsonl: line 2", "b.jsonl: line 3"]
    asked = [greedy(model, text, key, words) for key, words in zip(keys, ("hello", "the sea", "left out"), strict=True)]
    assert same(sorted(found.samples, key=lambda one: one.key), asked)
    assert found.rejected == {"repeated": 1, "too short": 1, "to be avoided": 1}
    assert [source["samples"] for source in found.sources] == [3, 3]
    less = gather(replace(data, most_prompts=2), model, text, tmp_path / "less")
    assert same(sorted(less.samples, key=lambda one: one.key), asked[:2])
    assert less.rejected == {"repeated": 1, "to be avoided": 1}
    assert [source["samples"] for source in less.sources] == [2, 2]


def test_both_beside_each_other(model: Any, text: Text, tmp_path: Path) -> None:
    answers = written(tmp_path / "a.jsonl", {"user": "one", "answer_ids": [5, 6]})
    prompts = written(tmp_path / "p.jsonl", {"prompt": "hello"})
    found = gather(replace(BASE, answers=(answers,), prompts=(prompts,)), model, text, tmp_path / "work")
    own = [answered(text, "a.jsonl: line 1", "one", [5, 6]), greedy(model, text, "p.jsonl: line 1", "hello")]
    assert same(found.samples, own)
    assert [sorted(source)[0] for source in found.sources] == ["answers", "prompts"]


def test_prompts_of_the_targets_own(model: Any, text: Text, tmp_path: Path) -> None:
    """They are written down, avoid what is given and what is to be avoided, and are answered beside the others."""
    prompts = written(tmp_path / "p.jsonl", {"prompt": "hello"})
    data = replace(BASE, prompts=(prompts,), invent=4, limit=256)
    with warnings.catch_warnings(action="ignore"):  # of so few, some may be too many
        found = gather(data, model, text, tmp_path / "work")
    invented = [json.loads(line) for line in (tmp_path / "work" / INVENTED).read_text("utf-8").splitlines()[1:]]
    assert found.sources[1] == {"invented": len(invented), "seed": 0} and len(invented) > 0
    asked = {"p.jsonl: line 1", *(line["id"] for line in invented)}
    assert {one.key for one in found.samples} <= asked and "p.jsonl: line 1" in {one.key for one in found.samples}
    assert len(found.samples) == len(asked) - found.rejected.get("no room for an answer", 0)


# ---- going on --------------------------------------------------------------------------------------------------------


def dialogues(model: Any, text: Text, folder: Path) -> None:
    """Turns of a dialogue belong to its prompt, whatever that is called; answers of other prompts are passed over."""
    talk = {"id": "a turn of talk", "turns": ["one", "two"]}
    lines = [talk, {"id": "my turn now", "prompt": "three"}, {"id": "a", "prompt": "four"}]
    many = written(folder / "p.jsonl", *lines)
    found = gather(replace(BASE, prompts=(many,)), model, text, folder / "work")
    keys = [f"p.jsonl: {key}" for key in ("a", "a turn of talk", "a turn of talk turn 2", "my turn now")]
    assert sorted(one.key for one in found.samples) == keys
    for place, kept in ((0, keys[1:3]), (1, keys[3:]), (2, keys[:1])):
        written(folder / "p.jsonl", lines[place])
        watched = Watched(model)
        again = gather(replace(BASE, prompts=(many,)), watched, text, folder / "work")
        assert sorted(one.key for one in again.samples) == kept and watched.prefills == []
        assert all(any(same([one], [other]) for other in found.samples) for one in again.samples)


def test_what_was_answered_is_not_asked_again(model: Any, text: Text, tmp_path: Path) -> None:
    dialogues(model, text, tmp_path)


def test_planted_fault_of_names(model: Any, text: Text, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name ends where a turn is first spoken of; or all that a file holds is taken."""

    def cut(entries: Any, answers: Any) -> Any:
        asked = {entry.key for entry in entries}
        return [one for one in answers if one.key.partition(" turn ")[0] in asked]

    for place, fault in enumerate((cut, lambda entries, answers: answers)):
        (tmp_path / str(place)).mkdir()
        monkeypatch.setattr(module, "_of_these", fault)
        with must_fail():
            dialogues(model, text, tmp_path / str(place))


def test_a_recipe_with_other_answers_is_refused(model: Any, text: Text, tmp_path: Path) -> None:
    prompts = written(tmp_path / "p.jsonl", {"prompt": "hello"})
    gather(replace(BASE, prompts=(prompts,)), model, text, tmp_path / "work")
    with pytest.raises(UsageError, match=f"{ANSWERS} was begun with seed 0, and now it is 1"):
        gather(replace(BASE, prompts=(prompts,), seed=1), model, text, tmp_path / "work")


# ---- nothing to train on ---------------------------------------------------------------------------------------------


def test_what_is_refused(model: Any, text: Text, tmp_path: Path) -> None:
    """By what is missing, before anything is written or after all was passed over."""
    with pytest.raises(UsageError, match="the recipe has no data; allowed: answers, prompts, or invent above 0"):
        gather(BASE, model, text, tmp_path / "work")
    for name in ("answers", "prompts", "avoid"):
        data = replace(BASE, invent=1, **{name: (str(tmp_path / "missing.jsonl"),)})
        with pytest.raises(UsageError, match=r"cannot be read from .*missing.jsonl: No such file"):
            gather(data, model, text, tmp_path / "work")
    assert not (tmp_path / "work").exists()
    prompts = written(tmp_path / "p.jsonl", {"prompt": "no"}, {"prompt": "of measuring"})
    data = replace(BASE, prompts=(prompts,), avoid=(written(tmp_path / "dev.jsonl", {"prompt": "of measuring"}),))
    with pytest.raises(UsageError, match=r"no prompt is left to train on \(too short 1, to be avoided 1\)"):
        gather(data, model, text, tmp_path / "work")
    with pytest.raises(UsageError, match=r"no prompt is left to train on \(too short 1, no room for an answer 1\)"):
        gather(replace(data, avoid=(), limit=10), model, text, tmp_path / "work")


@pytest.mark.parametrize(
    ("lines", "answers"),
    [
        ([{"user": "a", "answer_ids": [1]}], True),
        ([{"settings": {}}, {"user": "a", "answer_ids": [1]}], True),
        ([{"settings": {}}], False),
        ([{"prompt": "a"}], False),
        ([{"question": "a", "answer": "b"}], False),
        ([{"messages": []}], False),
        (["words"], False),
        ([], False),
    ],
)
def test_whether_a_file_holds_answers(lines: list[Any], answers: bool, tmp_path: Path) -> None:
    path = Path(written(tmp_path / "a.jsonl", *lines))
    assert is_answered(path) == answers
    path.write_text("\n  \n" + path.read_text("utf-8"), "utf-8")
    assert is_answered(path) == answers, "blank lines are passed over, as whoever reads the file passes over them"


def test_other_files(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"prompt": "a"}\n'))
    assert not is_answered(path)
    with pytest.raises(UsageError, match=r"the data cannot be read from .*: No such file"):
        is_answered(tmp_path / "missing.jsonl")
    with pytest.raises(UsageError, match=r"the data cannot be read from .*: Is a directory"):
        is_answered(tmp_path)


# ---- what is held out ------------------------------------------------------------------------------------------------


def sample_of(place: int, prompt: int) -> Sample:
    """One of several answers to a prompt."""
    ids = torch.tensor([prompt, prompt // 7, 3, 100 + place, 5], dtype=torch.int32)
    return Sample(f"s{place}", ids, torch.arange(5) >= 3)


def apart(prompts: list[int], share: float, seed: int) -> None:
    """All samples, in order, each on one side, and those of one prompt on the same; by prompt and seed alone."""
    samples = [sample_of(place, prompt) for place, prompt in enumerate(prompts)]
    kept, held = split(samples, share, seed)
    places = {id(one): place for place, one in enumerate(samples)}
    sides = [[places[id(one)] for one in side] for side in (kept, held)]
    assert all(side == sorted(side) for side in sides) and sorted(sides[0] + sides[1]) == list(range(len(samples)))
    assert not {prompts[place] for place in sides[0]} & {prompts[place] for place in sides[1]}
    for one in held:
        assert split([one], share, seed) == ([], [one])
        assert split([one], (1 + share) / 2, seed) == ([], [one]), "a larger share holds out the same, and more"


@given(st.lists(st.integers(0, 9), max_size=12), st.sampled_from([0.0, 0.2, 0.5, 0.9]), st.integers(0, 5))
def test_a_prompt_is_never_on_both_sides(prompts: list[int], share: float, seed: int) -> None:
    apart(prompts, share, seed)


def test_the_share_is_that_of_prompts() -> None:
    """Of 4000 prompts a fifth are held out, and other ones by another seed. False alarm: shares outside 0.16 to 0.24
    are six standard deviations off, and the choice is fixed besides."""
    samples = [sample_of(place, place) for place in range(4000)]
    held = {seed: [one.key for one in split(samples, 0.2, seed)[1]] for seed in (0, 1)}
    assert all(640 < len(keys) < 960 for keys in held.values())
    assert len(set(held[0]) & set(held[1])) < 320, "two choices share a fifth of a fifth"
    assert split(samples, 0.0, 0) == (samples, [])


def test_planted_fault_of_splitting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Samples are held out one by one."""

    def one_by_one(samples: Any, share: float, seed: int) -> Any:
        cut = round(len(samples) * (1 - share))
        return list(samples[:cut]), list(samples[cut:])

    monkeypatch.setitem(globals(), "split", one_by_one)
    with must_fail():
        apart([1, 2, 1, 2], 0.5, 0)
