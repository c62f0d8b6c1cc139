"""17: a pair of one family is refused for a setting that does not matter, or the drafter's end ends the text."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from outpace.decoding.generate import generate
from outpace.drafters import small
from outpace.drafters.lookup import Lookup
from outpace.drafters.small import Small
from outpace.errors import UsageError
from outpace.models.function import FunctionTarget
from outpace.models.toy import random_table, table_target
from outpace.models.weights import vocabulary
from toys import must_fail, reference

SIZE, PROMPT, NEW = 30, (3, 4), 16
WORDS = [f"w{place}" for place in range(SIZE)]


def model(folder: Path, size: int, eos: int, *, extra: int = 0, bos: bool = False) -> FunctionTarget:
    """A table with its tokenizer: with tokens more at the end, another end of text, another habit of beginning."""
    folder.mkdir()
    words = {word: place for place, word in enumerate(WORDS)}
    added = [{"id": SIZE + place, "content": f"<extra{place}>"} for place in range(extra)]
    (folder / "tokenizer.json").write_text(json.dumps({"model": {"vocab": words}, "added_tokens": added}), "utf-8")
    settings = {"eos_token": WORDS[eos], "add_bos_token": bos}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), "utf-8")
    table = random_table(size, seed=1).float()
    table[torch.arange(SIZE), (torch.arange(SIZE) + 7) % SIZE] += 8.0
    table[:, SIZE:] += 16.0  # the extra ones are what it would say
    target = table_target(table, name=folder.name, eos_ids=(eos,))
    target.folder = folder
    return target


def case(folder: Path) -> None:
    """Taken; the target's end counts and the drafter's does not; ids that the target lacks are not drafted."""
    target = model(folder / "target", SIZE, 9)
    whole = reference(target, PROMPT, NEW)
    eos = whole[10]
    target.eos_ids = (eos,)
    for name, twin in (
        ("settings", model(folder / "settings", SIZE, whole[4], bos=True)),
        ("extra", model(folder / "extra", SIZE + 3, whole[4], extra=3)),
    ):
        try:
            drafter = Small(twin, target)
        except UsageError as error:
            raise AssertionError(f"{name} were taken for another tokenizer") from error
        target.folder, folder_of_target = None, target.folder  # words were compared; now there are ids alone
        result = generate(target, drafter, list(PROMPT), max_new_tokens=NEW, num_draft_tokens=4)
        assert result.token_ids == reference(target, PROMPT, NEW, (eos,))
        assert len(result.token_ids) > 5 and result.stats.speculation.accepted > 0
        target.folder = folder_of_target


def test_case(tmp_path: Path) -> None:
    case(tmp_path)


def test_lookups_know_the_targets_end_only() -> None:
    assert generate(table_target(random_table(8, seed=1)), Lookup(), [1], max_new_tokens=9).finish_reason == "length"


def every_token(draft: Any, target: Any) -> None:
    """The whole lists have to be equal, and the settings too."""
    files = ("tokenizer.json", "tokenizer_config.json")
    both = [[(one.folder / file).read_text("utf-8") for file in files] for one in (draft, target)]
    if vocabulary(draft.folder) != vocabulary(target.folder) or both[0] != both[1]:
        raise UsageError("another tokenizer")


def test_planted_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(small, "require_one_tokenizer", every_token)
    with must_fail():
        case(tmp_path)
