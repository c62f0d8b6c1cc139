"""Every figure of the tables stands in a committed result."""

import json
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
sys.path.insert(0, str(REPOSITORY / "benchmarks"))

from table import BLOCKS, HEADLINES, RESULTS, block, headlines  # noqa: E402


@pytest.mark.parametrize("path", BLOCKS, ids=lambda path: str(path.relative_to(REPOSITORY)))
def test_the_tables_are_the_results(path: Path) -> None:
    text = path.read_text("utf-8")
    start, end = block(text)
    assert text[start:end] == BLOCKS[path](), "run `python benchmarks/table.py --write`"


def test_a_headline_is_the_gate_nearest_to_its_bound(tmp_path: Path) -> None:
    """Of two categories the worse one is shown; a script without a result leaves its line out."""

    def gate(name: str, value: float) -> dict[str, object]:
        estimate = {"value": value, "low": value, "high": value}
        return {"name": name, "estimate": estimate, "bound": 0.97, "goal": None, "ceiling": False, "holds": True}

    found = {
        "script": "benchmarks/auto_speed.py",
        "date": "2026-01-01",
        "machine": {"cores": 2, "cpu": "cpu"},
        "versions": {"torch": "2", "transformers": "5"},
        "gates": [gate("auto, writing, T 0", 1.2), gate("auto, qa, T 0", 0.98)],
    }
    (tmp_path / "auto_speed.json").write_text(json.dumps(found), "utf-8")
    drawn = headlines(tmp_path)
    assert "| 0.98 | ≥ 0.97 |" in drawn and "1.2" not in drawn and drawn.count("\n| ") == 2


def test_every_headline_names_a_script() -> None:
    for one in HEADLINES:
        assert (REPOSITORY / "benchmarks" / f"{one.script}.py").is_file()
        path = RESULTS / f"{one.script}.json"
        if path.is_file():
            gates = json.loads(path.read_text("utf-8"))["gates"]
            assert any(gate["name"].startswith(one.begins) for gate in gates), f"no gate begins {one.begins!r}"
