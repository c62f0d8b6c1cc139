"""What the flags say of models reaches both of them, in every verb that opens a pair."""

import sys
from typing import Any

import pytest
from typer.testing import CliRunner

from outpace.cli import app
from outpace.drafters.lookup import Lookup
from outpace.errors import UsageError
from outpace.models.transformer import Transformer

VERBS = {"generate": ["abc"], "bench": [], "check": []}


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("trusted", [False, True])
def test_flags_reach_both_models(verb: str, trusted: bool, tiny: Transformer, monkeypatch: pytest.MonkeyPatch) -> None:
    heard: dict[str, dict[str, Any]] = {}

    def target(name: str, **options: Any) -> Transformer:
        heard[name] = options
        return tiny

    def drafter(name: str, target: Transformer, **options: Any) -> Lookup:
        heard[name] = options
        raise UsageError("heard")

    monkeypatch.setattr(sys.modules["outpace.cli.pair"], "load_target", target)
    monkeypatch.setattr(sys.modules["outpace.cli.pair"], "load_drafter", drafter)
    flags = ["--target", "big", "--draft", "little", "--dtype", "fp32", "--lane", "hosted"]
    result = CliRunner().invoke(app, [verb, *VERBS[verb], *flags, *(["--trust-remote-code"] if trusted else [])])
    assert result.exit_code == 2 and result.stderr == "outpace: heard\n"
    del heard["big"]["progress"]
    assert heard["big"] == {"dtype": "fp32", "device": "cpu", "lane": "hosted", "trust_remote_code": trusted}
    assert heard["little"] == {"dtype": "fp32", "trust_remote_code": trusted}
