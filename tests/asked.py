"""Files of prompts and what became of them: what the tests of jobs share.

Knows nothing of what is tested.
"""

import json
from pathlib import Path
from typing import Any

from outpace.decoding.jobs import Outcome, answer
from outpace.decoding.prompts import Entry
from outpace.drafters.lookup import Lookup
from outpace.models.target import Target

PROMPTS = [[9, 8, 7, 6, 5], [5], [1, 2, 3, 1, 2, 3], [4, 4], [11, 12, 13], [21], [30, 31]]
NEW = 9


def entries_of(*turns: Any) -> list[Entry]:
    """One entry each, its turns a tuple, or a single turn."""
    return [
        Entry(f"q{place}", place, None, one if isinstance(one, tuple) else (one,)) for place, one in enumerate(turns, 1)
    ]


def all_of(target: Target, entries: list[Entry], output: Path | None = None, **options: Any) -> dict[str, Outcome]:
    """Every outcome by its id; each entry has exactly one."""
    options = {"max_new_tokens": NEW, "num_draft_tokens": 3, "batch_size": 2} | options
    found = list(answer(target, Lookup(), entries, output=output, **options))
    assert len(found) == len(entries)
    return {outcome.entry.key: outcome for outcome in found}


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def said_in(path: Path) -> dict[str, list[list[int]]]:
    """The ids of every answer by entry; an entry stands there once."""
    _, *answers = lines_of(path)
    found = {one["id"]: [part["token_ids"] for part in one["answers"]] for one in answers}
    assert len(found) == len(answers)
    return found
