"""16: a drafter with another tokenizer of the same size is taken without a word, and drafts nonsense."""

import json
from pathlib import Path

import pytest

from outpace.decoding.generate import generate
from outpace.drafters import small
from outpace.drafters.small import Small
from outpace.errors import UsageError
from outpace.models.function import FunctionTarget
from outpace.models.toy import random_table, table_target
from toys import must_fail, reference

SIZE, PROMPT, NEW = 30, (3, 4), 12
WORDS = [f"w{place}" for place in range(SIZE)]
SHUFFLED = [*WORDS[:7], *reversed(WORDS[7:])]


def model(folder: Path, words: list[str]) -> FunctionTarget:
    """The same table for every list of words: the law is the same, and the ids mean other things."""
    folder.mkdir()
    vocabulary = {word: place for place, word in enumerate(words)}
    (folder / "tokenizer.json").write_text(json.dumps({"model": {"vocab": vocabulary}, "added_tokens": []}), "utf-8")
    target = table_target(random_table(SIZE, seed=1).float(), name=folder.name)
    target.folder = folder
    return target


def case(folder: Path) -> None:
    """Refused when the drafter is made, by the first id that differs and what it stands for on both sides."""
    target = model(folder / "target", WORDS)
    Small(model(folder / "twin", WORDS), target)
    words = (
        "the draft model 'other' has another tokenizer than the target 'target': id 7 is 'w29' in the draft and 'w7'"
    )
    with pytest.raises(UsageError, match=words):
        Small(model(folder / "other", SHUFFLED), target)


def test_case(tmp_path: Path) -> None:
    case(tmp_path)


def test_planted_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes alone are compared. The text is right all the same: a drafter may be wrong, never harmful."""
    monkeypatch.setattr(small, "require_one_tokenizer", lambda draft, target: None)
    with must_fail():
        case(tmp_path)
    target = model(tmp_path / "first", WORDS)
    drafter = Small(model(tmp_path / "second", SHUFFLED), target)
    target.folder = None  # words were compared; now there are ids alone
    result = generate(target, drafter, list(PROMPT), max_new_tokens=NEW, num_draft_tokens=3, eos_ids=None)
    assert result.token_ids == reference(target, PROMPT, NEW)
