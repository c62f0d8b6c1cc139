"""What tests of the page share: traces of toys, and a browser."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session")
def toy_trace(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Write a trace of three texts of a toy, by the way they are decoded; the results stand beside the path."""
    from outpace.decoding.generate import generate
    from outpace.drafters.small import Small
    from outpace.models.toy import random_table, table_target

    def write(**options: Any) -> tuple[Path, list[Any]]:
        target, other = (table_target(random_table(12, seed=seed, spread=2.0), name="toy") for seed in (1, 2))
        path = tmp_path_factory.mktemp("trace") / "toy.jsonl"
        given = {"num_draft_tokens": 3, "temperature": 1.0, "max_new_tokens": 24, "seed": 7, **options}
        results = generate(target, Small(other, target), [[1, 2], [3], [4, 5, 6]], trace=path, **given)
        return path, results

    return write


@pytest.fixture(scope="module")
def page() -> Iterator[Any]:
    """A browser, or a skip with the reason."""
    from browser import opened

    with opened() as page:
        yield page
