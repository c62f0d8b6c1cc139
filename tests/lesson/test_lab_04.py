"""Lab 4 runs small to its figures on a tiny model; its longest path, ranks and layout are right, and it can fail."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from exercises import LABS, opened
from outpace.drafters.load import load_drafter
from outpace.models.load import load_target


@pytest.fixture(scope="module")
def lab() -> Iterator[ModuleType]:
    with opened("04-tree") as module:
        yield module


@pytest.fixture(scope="module")
def found(lab: ModuleType, worded: Path, nearly: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    out = tmp_path_factory.mktemp("tree")
    assert lab.main(["--small", "--target", str(worded), "--draft", str(nearly), "--out", str(out)]) == 0
    for name in ("mask", "trees", "tau"):
        assert (out / "figures" / f"{name}.png").stat().st_size > 10_000
    text = (out / "results.json").read_text("utf-8")
    assert str(worded.parent) not in text, "a result names no folder"
    return json.loads(text)


def test_no_text_changes_and_the_longest_right_path_is_taken(found: Any) -> None:
    assert len(found["results"]) == 8
    for one in found["results"]:
        assert one["equal_texts"] == one["texts"] == 2
        assert one["longest_right_path_taken"] == one["turns_checked"] > 0


def test_siblings_are_accepted_and_counted(found: Any) -> None:
    tree = {one["temperature"]: one for one in found["results"] if one["shape"] == found["shown"]}
    chain = {one["temperature"]: one for one in found["results"] if one["shape"] == "chain, 4 deep"}
    assert sum(tree[0]["by_rank"][1:]) > 0 and len(chain[0]["by_rank"]) == 1
    assert tree[0]["tau"]["value"] > chain[0]["tau"]["value"]
    assert all(one["nodes_per_turn"] <= 12 for one in tree.values())


def test_examples_are_turns_as_they_were(found: Any) -> None:
    assert len(found["examples"]) == 4
    for one in found["examples"]:
        nodes = [-1, *one["path"]]
        assert [one["parents"][node] for node in one["path"]] == nodes[:-1]
        assert len(one["words"]) == len(one["tokens"]) == len(one["parents"])


def test_the_longest_right_path_is_looked_for(lab: ModuleType) -> None:
    """Token 5 then 7 is right; a path that was cut short would not be it."""
    tokens, parents = [4, 5, 7, 6, 7], [-1, -1, 0, 1, 1]
    seen = lab.Seen(start=2, tokens=tokens, parents=parents, path=[1, 4], ranks=[1, 1], next_token=9)
    text = [1, 2, 5, 7, 9]
    plain = lab.Decoded(ids=text)
    taken = lab.Decoded(ids=text, seen=[seen])
    assert lab.paths_checked([taken], [plain]) == (1, 1)
    short = lab.Seen(start=2, tokens=tokens, parents=parents, path=[1], ranks=[1], next_token=9)
    assert lab.paths_checked([lab.Decoded(ids=text, seen=[short])], [plain]) == (0, 1)
    behind = lab.Seen(start=4, tokens=[9, 3], parents=[-1, 0], path=[0, 1], ranks=[0, 0], next_token=9)
    assert lab.paths_checked([lab.Decoded(ids=text, seen=[behind])], [plain]) == (0, 0)


def test_a_changed_text_fails_the_lab(lab: ModuleType, worded: Path, nearly: Path, monkeypatch: Any) -> None:
    """The control: another plain text, and the exit code is 1."""
    honest = lab.decoded

    def other(target: Any, drafter: Any, prompts: Any, tokens: int, temperature: float, shape: Any) -> Any:
        texts = honest(target, drafter, prompts, tokens, temperature, shape)
        if drafter is None:
            texts[0].ids[5] += 1
        return texts

    monkeypatch.setattr(lab, "decoded", other)
    monkeypatch.setattr(lab, "finish", lambda *_: None)
    assert lab.main(["--small", "--target", str(worded), "--draft", str(nearly)]) == 1


def test_turns_of_a_text_join_to_it(lab: ModuleType, worded: Path, nearly: Path) -> None:
    target = load_target(str(worded), dtype="fp32")
    drafter = load_drafter(str(nearly), target, dtype="fp32")
    [text] = lab.decoded(target, drafter, [[1, 2, 3]], 30, 0.0, lab.SHOWN)
    joined = text.ids[:1]
    for turn in text.seen:
        assert turn.start == len(joined)
        joined += [*(turn.tokens[node] for node in turn.path), turn.next_token]
    assert joined[:30] == text.ids and text.turns == len(text.seen)


def test_the_readme_shows_the_committed_results(lab: ModuleType) -> None:
    committed = json.loads((LABS / "04-tree" / "results.json").read_text("utf-8"))
    readme = (LABS / "04-tree" / "README.md").read_text("utf-8")
    assert f"<!-- results -->\n{lab.summary(committed)}\n<!-- /results -->" in readme, "run the lab without --out"
    for picture in re.findall(r"\]\((figures/[\w-]+\.png)\)", readme):
        assert (LABS / "04-tree" / picture).is_file()
