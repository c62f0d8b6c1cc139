"""Every measuring script and example runs end to end on a tiny model, and what they compute with is right."""

import importlib
import json
import math
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from safetensors.torch import save_file
from tokenizers import Tokenizer, models, pre_tokenizers

from outpace.decoding.stats import Speculation, Tally
from outpace.models.toy import tiny_config, tiny_tensors

REPOSITORY = Path(__file__).parents[2]
WORDS = [f"w{place}" for place in range(60)]
CATEGORIES = ("writing", "summarization", "rag", "qa")
Script = Callable[[str], ModuleType]


@pytest.fixture(scope="module")
def script() -> Iterator[Script]:
    """A script as a module, its folder on the path while this file is tested."""
    before, folders = set(sys.modules), [str(REPOSITORY / name) for name in ("benchmarks", "examples")]
    sys.path[:0] = folders
    yield importlib.import_module
    for folder in folders:
        sys.path.remove(folder)
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(tuple(folders)):
            del sys.modules[name]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder with a tokenizer of sixty words and a chat template."""
    folder = tmp_path_factory.mktemp("tiny")
    config = tiny_config(max_position_embeddings=512, eos_token_id=63)
    (folder / "config.json").write_text(json.dumps(config), "utf-8")
    save_file(tiny_tensors(config, seed=3), folder / "model.safetensors", metadata={"format": "pt"})
    vocab = {word: place for place, word in enumerate([*WORDS, "user", "assistant", "<unk>", "<end>"])}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<end>",
        "unk_token": "<unk>",
        "chat_template": "{% for m in messages %}{{ m['role'] }} {{ m['content'] }} {% endfor %}assistant",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), "utf-8")
    return folder


@pytest.fixture
def questions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file in the shape of specbench-dev, where the scripts look for it: two prompts a category."""
    lines = [
        {"question_id": place, "category": CATEGORIES[place % 4], "turns": [" ".join(WORDS[place : place + 12] * 2)]}
        for place in range(8)
    ]
    path = tmp_path / "specbench-dev.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
    monkeypatch.setenv("OUTPACE_DATA", str(tmp_path))
    return path


SCRIPTS = ["plain_speed", "hosted_speed", "lookup_speed", "overhead", "tree_overhead", "batch_speed", "auto_speed"]
SCRIPTS += ["recording_speed"]


@pytest.mark.parametrize("name", [*SCRIPTS, "greedy_equality"])
def test_measuring_runs(name: str, script: Script, tiny: Path, questions: Path, tmp_path: Path) -> None:
    out = tmp_path / "result.json"
    assert script(name).main(["--quick", "--target", str(tiny), "--out", str(out)]) == 0
    found = json.loads(out.read_text("utf-8"))
    assert {"script", "date", "machine", "versions", "protocol", "settings", "results", "gates"} <= found.keys()
    assert found["script"] == f"benchmarks/{name}.py" and found["results"] and found["gates"]
    assert str(tiny.parent) not in out.read_text("utf-8"), "a result names no folder of the machine it was taken on"
    if name == "greedy_equality":
        assert all(one["not_excused"] == one["lengths_differ"] == 0 for one in found["results"].values())
    if name == "batch_speed":
        assert [cell["forwards_per_turn"] for cell in found["results"]] == [1, 1]


def test_the_sweep_runs(script: Script, tiny: Path, questions: Path, tmp_path: Path) -> None:
    out = tmp_path / "sweep.json"
    assert script("lookup_speed").main(["--quick", "--sweep", "--target", str(tiny), "--out", str(out)]) == 0
    methods = {cell["method"] for cell in json.loads(out.read_text("utf-8"))["results"]}
    assert methods == {"outpace plain", *(f"K {depth}, min_match {match}" for depth in (2, 4) for match in (1, 2))}


def test_memory_runs(
    script: Script, tiny: Path, questions: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its processes are played by this one: what they would start with costs seconds each."""
    memory, out = script("memory"), tmp_path / "memory.json"

    def here(args: Any, kind: str, dtype: str, tokens: int) -> dict[str, Any]:
        args.child, args.prompt_tokens = kind, [tokens]
        found: dict[str, Any] = memory.child(args)
        args.child = None
        return found

    monkeypatch.setattr(memory, "fresh", here)
    assert memory.main(["--quick", "--target", str(tiny), "--prompt-tokens", "40", "--out", str(out)]) == 0
    cell = json.loads(out.read_text("utf-8"))["results"][0]
    assert cell["prompt_tokens"] == 40 and cell["peak_mb"] > 0
    values = 2 * 2 * 2 * 8 * (40 + 8)  # keys and values, layers, heads, width, positions
    assert cell["cache_mb"] == pytest.approx(values * 2 / 2**20, rel=1e-4)


def test_the_lesson_runs(script: Script, tmp_path: Path) -> None:
    """The law is kept by every rule and the planted fault is caught: seeds are fixed, so there are no false alarms."""
    out = tmp_path / "law.json"
    assert script("lesson_law").main(["--samples", "400", "--vocab", "3", "--out", str(out)]) == 0
    gates = json.loads(out.read_text("utf-8"))["gates"]
    assert [gate["ceiling"] for gate in gates] == [True] * 7 + [False]


def test_the_noise_floor_is_exact(script: Script) -> None:
    """Both expectations beside their definition, every outcome of five draws from two cells enumerated."""
    law, draws = np.array([0.3, 0.7]), 5
    tv = kl = 0.0
    for count in range(draws + 1):
        weight = math.comb(draws, count) * 0.3**count * 0.7 ** (draws - count)
        shares = np.array([count, draws - count]) / draws
        tv += weight * 0.5 * float(np.abs(shares - law).sum())
        kl += weight * sum(share * math.log(share / one) for share, one in zip(shares, law, strict=True) if share > 0)
    assert script("lesson_law").expected_tv(law, draws) == pytest.approx(tv, rel=1e-12)
    assert script("lesson_law").expected_kl(law, draws) == pytest.approx(kl, rel=1e-9)


def test_pooled_acceptance_is_sums_over_sums(script: Script) -> None:
    whole, parts = Tally(), []
    for turns in ([(4, 4, 2, 3), (0, 0, 0, 1)], [(2, 2, 0, 1), (4, 4, 4, 5)], [(3, 3, 0, 1)]):
        tally = Tally()
        for drafted, depth, matched, emitted in turns:
            for one in (tally, whole):
                one.add(rule="greedy", lossless=True, drafted=drafted, depth=depth, matched=matched, emitted=emitted)
        parts.append(tally.speculation("lookup"))
    all_at_once: Speculation = whole.speculation("lookup")
    found = script("common").pooled(parts)
    assert found["tau"] == pytest.approx(all_at_once.tau)
    assert found["acceptance"] == pytest.approx(all_at_once.acceptance)


def test_intervals_are_paired(script: Script) -> None:
    """However much prompts differ, one side twice the other on each of them is twice the other, without doubt."""
    common = script("common")
    theirs = np.array([1.0, 5.0, 20.0, 3.0, 8.0])
    estimate = common.median_ratio(2 * theirs, theirs)
    assert (estimate.value, estimate.low, estimate.high) == (2.0, 2.0, 2.0)
    noisy = common.median_ratio(theirs, theirs[::-1])
    assert noisy.low < noisy.value == 1.0 < noisy.high


@pytest.mark.parametrize(
    ("low", "high", "ceiling", "holds"),
    [(1.0, 1.4, False, False), (1.0, 1.6, False, True), (1.6, 2.0, True, False), (1.4, 2.0, True, True)],
)
def test_a_gate_fails_only_where_the_whole_interval_does(
    low: float, high: float, ceiling: bool, holds: bool, script: Script
) -> None:
    common = script("common")
    gate = common.Gate("a", common.Estimate((low + high) / 2, low, high), 1.5, ceiling=ceiling)
    assert gate.holds is holds
    assert common.judge([gate], quick=False) == int(not holds)
    assert common.judge([gate], quick=True) == 0


def answers(path: Path) -> list[str]:
    return sorted(path.read_text("utf-8").splitlines())


def test_answers_go_on_where_they_stopped(script: Script, tiny: Path, tmp_path: Path) -> None:
    """Interrupted in the middle of a line, the run ends with the answers of a run that was not, fp32 and a seed."""
    given, whole, torn = (tmp_path / name for name in ("in.jsonl", "whole.jsonl", "torn.jsonl"))
    kinds = [
        {"prompt": "w1 w2 w3"},
        {"question": "w4 w5"},
        {"turns": ["w6 w7 w8 w9", "w1"]},
        {"messages": [{"role": "user", "content": "w10 w11"}]},
        {"prompt": "w1 w2 w3"},
    ]
    given.write_text("".join(json.dumps(kind) + "\n" for kind in kinds), "utf-8")
    flags = ["--target", str(tiny), "--dtype", "fp32", "--max-new-tokens", "12", "--batch-size", "2", "--seed", "1"]
    main = script("answer_prompts").main
    assert main([str(given), str(whole), *flags]) == 0
    assert main([str(given), str(torn), *flags, "--limit", "3"]) == 0
    with torn.open("a", encoding="utf-8") as file:
        file.write('{"user": "w1 w2')
    assert main([str(given), str(torn), *flags]) == 0
    assert answers(torn) == answers(whole)
    records = [json.loads(line) for line in answers(whole)]
    assert len(records) == 5
    assert {"user", "answer_ids", "temperature"} <= set.intersection(*(set(record) for record in records))
    assert main([str(given), str(torn), *flags]) == 0
    assert answers(torn) == answers(whole)


def test_an_interrupt_keeps_what_is_whole(
    script: Script, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer_prompts = script("answer_prompts")
    given, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    given.write_text("".join(json.dumps({"prompt": f"w{place}"}) + "\n" for place in range(4)), "utf-8")
    honest = answer_prompts.decode

    def stopped(*given: Any, **options: Any) -> Iterator[Any]:
        ended = 0
        for emission in honest(*given, **options):
            yield emission
            ended += emission.finish is not None
            if ended == 2:
                raise KeyboardInterrupt

    monkeypatch.setattr(answer_prompts, "decode", stopped)
    flags = ["--target", str(tiny), "--max-new-tokens", "5", "--batch-size", "1"]
    assert answer_prompts.main([str(given), str(out), *flags]) == 130
    assert len([json.loads(line) for line in answers(out)]) == 2


def test_first_steps_run(tiny: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    path = REPOSITORY / "examples" / "first_steps.py"
    monkeypatch.setattr(sys, "argv", [str(path), str(tiny)])
    exec(compile(path.read_text("utf-8"), str(path), "exec"), {"__name__": "__main__"})
    printed = capsys.readouterr().out
    assert "plain: " in printed and "lookup: " in printed
