"""``outpace check`` prints a table and a sentence, or one JSON document, and says by its exit code what it found."""

import importlib
import json
from typing import Any

import pytest
from typer.testing import CliRunner

from outpace.cli import app
from outpace.drafters.lookup import Lookup
from outpace.evaluation.pair import Check, Report
from outpace.models.staging import Progress
from toys import lively

COMMAND = importlib.import_module("outpace.cli.check")  # the room's door has a function of this name
PAIR = importlib.import_module("outpace.cli.pair")
GOOD = Check("sampled tokens", "law", True, 0.01, 0.05, 1e-7, "distance from uniform of 900 tokens")
BAD = Check("seeded text", "equality", False, 2.0, 0.0, 0.0, "token 3 of text 1 is 4 plainly and 5 with drafts")
FOUND = Check("mask leak", "control", True, 0.4, 0.01, 0.0, "found on this pair by: siblings")
MISSED = Check("tie rule", "control", False, 0.0, 0.0, 0.0, "not found by: equal logits")


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What ``check_pair`` was asked for; what it answers stands under ``checks``."""
    heard: dict[str, Any] = {"checks": (GOOD, FOUND)}

    def answer(target: Any, drafter: Any, *, progress: Progress, **options: Any) -> Report:
        progress(1, 2, "seeded texts")
        heard.update(options, target=target.name, drafter=drafter.name)
        return Report(target.name, drafter.name, options["rule"] or "match", heard["checks"])

    monkeypatch.setattr(PAIR, "load_target", lambda name, **options: heard.update(options) or lively())
    monkeypatch.setattr(PAIR, "load_drafter", lambda name, target, **options: Lookup())
    monkeypatch.setattr(COMMAND, "check_pair", answer)
    return heard


def test_json_is_one_document_on_stdout(asked: dict[str, Any]) -> None:
    result = CliRunner().invoke(app, ["check", "--json"])
    assert result.exit_code == 0 and result.stderr == ""
    document = json.loads(result.stdout)
    assert document["format_version"] == 1 and document["lossless"] is True
    assert (document["target"], document["drafter"], document["rule"]) == ("tiny-llama", "lookup", "match")
    assert document["false_alarm"] == 1e-7
    assert document["checks"][0] == {
        "name": "sampled tokens",
        "kind": "law",
        "passed": True,
        "statistic": 0.01,
        "threshold": 0.05,
        "false_alarm": 1e-7,
        "detail": "distance from uniform of 900 tokens",
    }


def test_a_table_and_a_sentence(asked: dict[str, Any]) -> None:
    result = CliRunner().invoke(app, ["check"], env={"COLUMNS": "140"})
    assert result.exit_code == 0
    assert "tiny-llama with drafts of lookup" in result.stdout
    assert "found on this pair by: siblings" in result.stdout
    for width, detailed in (("140", True), ("60", False)):  # the answers stand there, however narrow the screen
        lines = CliRunner().invoke(app, ["check"], env={"COLUMNS": width}).stdout.splitlines()
        [words] = [line.split() for line in lines if "sampled tokens" in line]
        assert words[:6] == ["ok", "law", "sampled", "tokens", "0.01", "0.05"] and (len(words) > 6) == detailed
    last = result.stdout.splitlines()[-1]
    assert (
        last
        == "lossless: yes (1 checks, 1 of 1 planted faults found; a flawless pair fails with probability 1e-07 at most)"
    )


@pytest.mark.parametrize(
    ("checks", "rule", "words"),
    [
        ((GOOD, BAD, FOUND), None, "lossless: no (2 checks, 1 of 1 planted faults found; failed: seeded text)"),
        (
            (BAD,),
            "typical",
            "lossless: no (1 checks, 0 of 0 planted faults found; failed: seeded text; typical is a lossy rule)",
        ),
        ((GOOD, MISSED), None, "lossless: not shown (1 checks, 0 of 1 planted faults found; missed: tie rule)"),
    ],
)
def test_a_finding_is_exit_code_1(asked: dict[str, Any], checks: Any, rule: str | None, words: str) -> None:
    asked["checks"] = checks
    result = CliRunner().invoke(app, ["check", *(["--rule", rule] if rule else [])])
    assert result.exit_code == 1
    assert result.stdout.splitlines()[-1] == words
    again = CliRunner().invoke(app, ["check", "--json"])
    assert again.exit_code == 1 and json.loads(again.stdout)["lossless"] is False


def test_options_reach_the_check(asked: dict[str, Any]) -> None:
    words = (
        "--dtype fp32 --num-draft-tokens 3 "
        "--tree top-k:2 --rule match --temperature 0.7 --temperature 2 --seed 5 --quick"
    )
    assert CliRunner().invoke(app, ["check", *words.split()]).exit_code == 0
    assert asked["dtype"] == "fp32" and asked["num_draft_tokens"] == 3 and str(asked["branching"]) == "top-k:2"
    assert asked["rule"] == "match" and list(asked["temperatures"]) == [0.7, 2.0]
    assert asked["seed"] == 5 and asked["quick"] is True


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--rule", "exact"], "rule is 'exact'; allowed: greedy"),
        (["--rule", "greedy", "--target", "/nowhere"], "rule is 'greedy'; allowed: a rule that samples, or none"),
        (["--temperature", "inf", "--target", "/nowhere"], "temperature is inf; allowed: 0 (greedy) or any positive"),
        (["--tree", "bush"], "tree is 'bush'; allowed: chain"),
        (["--target", "/nowhere"], "'/nowhere' is no folder here"),
    ],
)
def test_an_error_is_exit_code_2(arguments: list[str], words: str) -> None:
    result = CliRunner().invoke(app, ["check", *arguments, "--json"])
    assert result.exit_code == 2 and result.stdout == ""
    assert words in result.stderr


def test_the_help_has_an_example() -> None:
    assert "Example: outpace check --target smollm2" in CliRunner().invoke(app, ["check", "--help"]).stdout


def test_a_real_pair_and_a_lossy_rule(monkeypatch: pytest.MonkeyPatch, unchecked: None) -> None:
    """From the command line to the exit code, on toys; false alarm 1e-6."""
    monkeypatch.setattr(PAIR, "load_target", lambda name, **options: lively())
    assert CliRunner().invoke(app, ["check", "--quick"]).exit_code == 0
    result = CliRunner().invoke(app, ["check", "--quick", "--rule", "typical", "--json"])
    assert result.exit_code == 1
    wrong = [check["name"] for check in json.loads(result.stdout)["checks"] if not check["passed"]]
    assert "the rule typical keeps the law" in wrong
