"""``outpace bench``: a table and a sentence, or one JSON document, and exit codes that mean something."""

import importlib
import json
from pathlib import Path
from typing import Any

import pytest

from benches import FIELDS, call, six_prompts, tiny_folder
from outpace.decoding.generate import generate
from outpace.evaluation import benchmark
from outpace.evaluation.probe import read_probe

COMMAND = importlib.import_module("outpace.cli.bench")
PAIR = importlib.import_module("outpace.cli.pair")
CATEGORIES = ["chat", "code", "summary", "extraction", "maths", "creative"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_folder(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    return six_prompts(tmp_path)


def quick(model: Path, *more: object) -> list[object]:
    once = [] if "--probe" in more else ["--repeats", 1]
    return ["--target", model, "--dtype", "fp32", "--max-new-tokens", 8, *once, *more]


@pytest.fixture
def steady(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """A clock that stands still but for what each way of decoding is said to take."""
    seconds = {"now": 0.0, "plain": 2.0, "drafted": 1.0}

    def timed(target: Any, drafter: Any, prompts: Any, **options: Any) -> Any:
        seconds["now"] += seconds["plain" if drafter is None else "drafted"]
        return generate(target, drafter, prompts, **options)

    honest = benchmark.measure
    monkeypatch.setattr(benchmark, "generate", timed)
    monkeypatch.setattr(COMMAND, "measure", lambda *given: honest(*given, clock=lambda: seconds["now"]))
    return seconds


def test_json_is_one_document(model: Path, mine: Path, steady: dict[str, float]) -> None:
    settings = ["--num-draft-tokens", 2, "--num-draft-tokens", 3, "--temperature", 0, "--temperature", 0.8]
    result = call(*quick(model, "--prompts", mine, *settings, "--budget", "1h", "--json"))
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert {"format_version", "machine", "versions", "protocol", "results", "verdict", "skipped"} <= found.keys()
    assert found["format_version"] == 1 and found["skipped"] == found["findings"] == []
    assert len(found["results"]) == 4 * 3
    for row in found["results"]:
        assert row.keys() >= FIELDS
        assert (row["method"], row["tree"], row["batch"], row["speedup"] > 0) == ("lookup", "chain", 1, True)
    whole = [row for row in found["results"] if row["category"] == "all"]
    assert [(row["temperature"], row["num_draft_tokens"]) for row in whole] == [(0, 2), (0, 3), (0.8, 2), (0.8, 3)]
    assert [row["near_ties_per_1000"] for row in whole] == [0, 0, None, None]
    assert (whole[0]["speedup"], whole[0]["speedup_ci"], whole[0]["prompts"]) == (2.0, [2.0, 2.0], 6)
    assert found["protocol"]["source"] == "mine.jsonl" and found["protocol"]["passes"] == 1
    assert found["protocol"]["dtype"] == "float32" and "bootstrap" in found["protocol"]["how"]


def test_a_table_and_a_sentence_for_people(model: Path, mine: Path, steady: dict[str, float]) -> None:
    result = call(*quick(model, "--prompts", mine, "--num-draft-tokens", 3))
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    title = "lookup, 3 drafts a turn, chain, temperature 0, 1 at a time, rule greedy: tokens per second"
    assert lines[0].strip() == title
    figures = [line.split() for line in lines if "x [" in line and "speculation" not in line]
    assert [line[0] for line in figures] == ["x", "y", "all"]
    assert [line[4:8] for line in figures] == [
        ["2.00x", "[2.00,", "2.00]", words] for words in ("too", "too", "faster")
    ]
    assert lines[-1] == "speculation helps here: 2.00x [2.00, 2.00]"


def test_slower_than_plain_exits_with_1(model: Path, mine: Path, steady: dict[str, float]) -> None:
    steady["drafted"] = 4.0
    result = call(*quick(model, "--prompts", mine, "--num-draft-tokens", 3))
    assert result.exit_code == 1
    assert "speculation does not help here: 0.50x [0.50, 0.50]; decode plainly" in result.stdout
    assert "slower than plain decoding: 0.50x [0.50, 0.50] with 3 drafts a turn, chain" in result.stderr


def test_our_prompts_by_default_and_as_many_as_fit(model: Path, steady: dict[str, float]) -> None:
    """13 seconds are spent after warm-up and one prompt a category at 3 seconds each: there is no room for more."""
    result = call(*quick(model, "--num-draft-tokens", 2, "--budget", "13s", "--json"))
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert [row["category"] for row in found["results"]] == [*CATEGORIES, "all"]
    assert (found["protocol"]["prompts"], found["protocol"]["prompts_asked"]) == (6, 48)
    assert "6 of 48 prompts, 1 of 1 passes: the budget of 13 s held no more" in result.stderr
    assert found["protocol"]["source"] == "outpace"


def test_several_at_once(model: Path, mine: Path, steady: dict[str, float]) -> None:
    for flag in ("--concurrency", "--batch-size"):
        result = call(*quick(model, "--prompts", mine, "--num-draft-tokens", 2, flag, 3, "--category", "x", "--json"))
        assert result.exit_code == 0, result.output
        [row, whole] = json.loads(result.stdout)["results"]
        assert (row["batch"], row["prompts"], row["category"]) == (3, 3, "x")
        assert whole["tokens_per_second"] == pytest.approx(24.0) and whole["speedup_ci"] is None


def test_a_prompt_that_is_too_long_is_skipped_and_exits_with_1(
    model: Path, mine: Path, steady: dict[str, float]
) -> None:
    with mine.open("a", encoding="utf-8") as file:
        file.write(json.dumps({"id": "long", "category": "x", "prompt": "w1 " * 600}) + "\n")
    result = call(*quick(model, "--prompts", mine, "--num-draft-tokens", 2, "--json"))
    assert result.exit_code == 1
    found = json.loads(result.stdout)
    assert found["skipped"] == [{"key": "long", "line": 7, "tokens": 600}]
    words = "prompt 'long' (line 7) has 600 tokens and was skipped: the context holds 512, new ones included"
    assert words in result.stderr and found["findings"] == [words]
    assert [row["prompts"] for row in found["results"]] == [3, 3, 6]


def test_a_probe_is_written_and_nothing_is_measured(model: Path, mine: Path, tmp_path: Path) -> None:
    trace = tmp_path / "probe.jsonl"
    result = call(*quick(model, "--prompts", mine, "--per-category", 1, "--probe", trace, "--json"))
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["results"] == [] and found["probe"]["texts"] == 2
    assert len(read_probe(trace).records) == found["probe"]["positions"] == 2 * 8
    assert "16 positions of 2 texts probed" in result.stderr


def test_a_probe_is_of_the_head_where_lookup_would_draft_beside_it(
    model: Path, mine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody named the two; who names them is told to probe each."""
    trace, honest = tmp_path / "probe.jsonl", PAIR.load_drafter
    monkeypatch.setattr(PAIR, "load_drafter", lambda name, *given, **more: honest(f"lookup+{model}", *given, **more))
    flags = ["--prompts", mine, "--per-category", 1, "--probe", trace]
    for named in ([], ["--draft", "auto"]):
        result = call(*quick(model, *flags, *named))
        assert result.exit_code == 0, result.output
        assert read_probe(trace).header["drafter"].startswith("small:")
    result = call(*quick(model, *flags, "--draft", f"lookup+{model}"))
    assert result.exit_code == 2 and "allowed for a probe: one that is not joined with another" in result.stderr


REFUSED = [
    (["--budget", "soon"], "budget is 'soon'; allowed: a number of seconds, or one with s, m or h, such as 3m"),
    (["--budget", "0m"], "budget is 0 seconds; allowed: more than 0"),
    (["--num-draft-tokens", "many"], "num_draft_tokens is 'many'; allowed: auto, or a number from 0 on"),
    (["--tree", "bush"], "tree is 'bush'; allowed: chain"),
    (["--rule", "none"], "rule is 'none'; allowed: "),
    (["--repeats", "0"], "repeats is 0; allowed: 1 or more"),
    (["--concurrency", "0"], "concurrency is 0; allowed: 1 or more"),
    (["--category", "poems"], "category is 'poems'; allowed: "),
    (["--prompts", "/nowhere.jsonl"], "the prompts cannot be read from /nowhere.jsonl: No such file"),
    (["--draft", "none"], "the drafter is 'none'; allowed: one that drafts\nhint: plain decoding is measured anyway"),
    (["--probe", "t", "--budget", "9s"], "budget is 9s beside a probe; allowed there: no budget"),
    (["--probe", "t", "--tree", "chain"], "tree is ['chain'] beside a probe; allowed there: no tree"),
    (["--probe", "t", "--batch-size", "4"], "concurrency is 4 beside a probe; allowed there: no concurrency"),
    (["--probe", "t", "--temperature", "0", "--temperature", "1"], "beside a probe; allowed there: one temperature"),
]


@pytest.mark.parametrize(("arguments", "words"), REFUSED, ids=lambda value: str(value)[:30])
def test_what_is_refused_before_a_model_is_opened(
    arguments: list[str], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PAIR, "load_target", lambda *given, **more: pytest.fail("a model was opened"))
    result = call(*arguments)
    assert result.exit_code == 2 and result.stdout == ""
    assert words in result.stderr


def test_the_help_has_an_example() -> None:
    result = call("--help")
    assert "Example: outpace bench --prompts mine.jsonl" in " ".join(result.stdout.split())
