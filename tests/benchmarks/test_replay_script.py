"""The script that compares replay with real runs runs end to end on a tiny model, and is right where it must be."""

import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

Script = Callable[[str], ModuleType]


def test_predicted_and_real_are_compared(script: Script, tiny: Path, questions: Path, tmp_path: Path) -> None:
    """With lookup, in fp32: from a probe of the same texts there is no error at all."""
    out = tmp_path / "result.json"
    flags = ["--quick", "--draft", "none", "--dtype", "fp32", "--no-time", "--target", str(tiny), "--out", str(out)]
    assert script("replay_error").main(flags) == 0
    found = json.loads(out.read_text("utf-8"))
    own = [one for one in found["compared"] if one["source"] == "probe"]
    assert own and all(one["error"] == pytest.approx(0, abs=1e-6) for one in own)
    assert {one["source"] for one in found["results"]} == {"probe", "trace", "probe, other texts"}
    assert [gate["name"] for gate in found["gates"]] == ["error of tau, chains, from a probe"]
