"""vLLM's and SGLang's own code parses what is emitted, and finds in it what the plan said.

Their files come from the package registry, into the cache; nothing is installed into this environment. Offline these
tests are skipped.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from definitions import libraries, release
from outpace.decoding.plan import Choice
from outpace.engines.emit import emit
from outpace.engines.schema import versions
from plans import DRAFT, TARGET, emitted, plan_of

OWN = Path(__file__).with_name("own")
CASES: list[tuple[str, dict[str, Any]]] = [
    ("lookup", {"num_draft_tokens": 6}),
    ("model", {"num_draft_tokens": 5}),
    ("model", {"num_draft_tokens": 5, "rule": "rejection"}),
    ("eagle3", {"num_draft_tokens": 1}),
    ("eagle3", {"num_draft_tokens": 5, "rule": "match"}),
    ("eagle3", {"num_draft_tokens": 5, "temperature": 1.0}),
    ("eagle1", {"num_draft_tokens": 24, "depth": 6, "tree": "dynamic"}),
    ("eagle3", {"num_draft_tokens": 9, "depth": 3, "tree": "top-k:2"}),
    ("eagle3", {"depth": 8}),
]
BY_BATCH = plan_of(
    Choice(drafter=DRAFT, num_draft_tokens=5),
    Choice(drafter=DRAFT, num_draft_tokens=2, batch=8),
    Choice(drafter="none", batch=32),
)


def run(script: str, words: list[Path], asked: Any, folder: Path) -> list[dict[str, Any]]:
    command = [sys.executable, str(OWN / script), *map(str, words)]
    done = subprocess.run(
        command, input=json.dumps(asked), capture_output=True, text=True, cwd=folder, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert isinstance(found, list) and len(found) == len(asked)
    return found


# ---- vLLM ------------------------------------------------------------------------------------------------------------


def by_vllm(version: str, asked: list[Any], folder: Path) -> list[dict[str, Any]]:
    """What vLLM makes of these configurations; each was a word of a command before."""
    return run("vllm_speculation.py", [release("vllm", version)], asked, folder)


@pytest.mark.parametrize("version", versions("vllm"))
def test_vllm_reads_what_was_meant(version: str, tmp_path: Path) -> None:
    """Method, drafter, number, rule and schedule; the defaults that vLLM fills in are those that were counted on."""
    done = [emitted("vllm", kind, version, **said) for kind, said in CASES]
    done.append(emit(BY_BATCH, "vllm", version, kind="eagle3"))
    found = by_vllm(version, [json.loads(one.argv[-1]) for one in done], tmp_path)
    for one, made in zip(done, found, strict=True):
        assert "refused" not in made, (one.config, made)
        config = dict(one.config or {})
        schedule = config.pop("num_speculative_tokens_per_batch_size", None)
        assert {name: made[name] for name in config} == config
        for name, default in (("rejection_sample_method", "standard"), ("draft_sample_method", "greedy")):
            assert made[name] == config.get(name, default)
        if schedule is None:
            assert set(made["by_batch"]) == {config["num_speculative_tokens"]}
    drafts = [BY_BATCH.choice(batch=batch).options["num_draft_tokens"] for batch in range(1, 81)]
    assert found[-1]["by_batch"] == drafts


@pytest.mark.parametrize("version", versions("vllm"))
def test_vllm_refuses_planted_faults(version: str, tmp_path: Path) -> None:
    """Else its silence above would mean nothing; Medusa is what tells the versions apart."""
    medusa = {"method": "medusa", "model": DRAFT, "num_speculative_tokens": 3}
    ngram = {"method": "ngram", "num_speculative_tokens": 3}
    schedule = "num_speculative_tokens_per_batch_size"
    planted = [
        {"method": "eagle3", "model": DRAFT, "num_speculative_tokens": 3, "tree": "top-k:3"},
        {"method": "eagle3", "num_speculative_tokens": 3},
        {"method": "eagle3", "model": DRAFT, "num_speculative_tokens": 0},
        ngram | {"rejection_sample_method": "strict"},
        ngram | {"prompt_lookup_min": 4, "prompt_lookup_max": 2},
        ngram | {schedule: [[2, 8, 1]]},
        ngram | {schedule: [[1, 8, 3], [8, 9, 1]]},
        ngram | {schedule: {"1-8": 3}},
    ]
    *found, known = by_vllm(version, [*planted, medusa], tmp_path)
    assert all("refused" in one for one in found), found
    assert ("refused" in known) == (version != "0.32.0")


# ---- SGLang ----------------------------------------------------------------------------------------------------------


def by_sglang(version: str, asked: list[Any], folder: Path) -> list[dict[str, Any]]:
    """What SGLang makes of the words behind ``python -m sglang.launch_server``."""
    return run("sglang_arguments.py", [release("sglang", version), libraries("msgspec")], asked, folder)


@pytest.mark.parametrize("version", versions("sglang"))
def test_sglang_reads_what_was_meant(version: str, tmp_path: Path) -> None:
    """After parsing and after all that it resolves, the numbers stand as they were given: it adjusted none."""
    done = [emitted("sglang", kind, version, **said) for kind, said in CASES]
    done.append(emit(BY_BATCH, "sglang", version, kind="eagle3"))
    asked = []
    for place, one in enumerate(done):
        words = list(one.argv[3:])
        if one.file is not None:  # each has its own file of that name
            own = tmp_path / f"{place}-{one.file}"
            own.write_text(one.text or "", "utf-8")
            words[words.index(one.file)] = str(own)
        asked.append(words)
    found = by_sglang(version, asked, tmp_path)
    for one, made in zip(done, found, strict=True):
        assert "refused" not in made, (one.argv, made)
        words = list(one.argv)
        assert made["model"] == TARGET
        for name, value in made.items():
            flag = f"--speculative-{name.replace('_', '-')}"
            if flag in words:
                assert value is True or str(value) == words[words.index(flag) + 1], (name, one.argv, made)
        assert "--speculative-num-draft-tokens" in words
        assert made["adaptive"] == ("--speculative-adaptive" in words)
        assert made["use_rejection_sampling"] == ("--speculative-use-rejection-sampling" in words)
    assert sum(made["adaptive"] for made in found) == 2, "auto, and the plan by batch size"


@pytest.mark.parametrize("version", versions("sglang"))
def test_sglang_refuses_planted_faults(version: str, tmp_path: Path) -> None:
    """Else its silence above would mean nothing; block verification is what tells the versions apart."""
    head = ["--model-path", TARGET, "--speculative-algorithm"]
    numbers = ["--speculative-num-steps", "3", "--speculative-eagle-topk", "1", "--speculative-num-draft-tokens", "4"]
    eagle = [*head, "EAGLE3", "--speculative-draft-model-path", DRAFT, *numbers]
    (tmp_path / "steps.json").write_text('{"1": {"candidate_steps": [1, 2]}}', "utf-8")
    (tmp_path / "none.json").write_text('{"all": {"candidate_steps": [3]}}', "utf-8")
    planted = [
        [*eagle, "--speculative-tree", "3"],
        [*head, "EAGLE3", "--speculative-draft-model-path", DRAFT, "--speculative-eagle-topk", "1"],
        [
            *head,
            "STANDALONE",
            "--speculative-draft-model-path",
            DRAFT,
            *numbers,
            "--speculative-use-rejection-sampling",
        ],
        [*[word if word != "1" else "2" for word in eagle], "--speculative-use-rejection-sampling"],
        [*eagle, "--speculative-adaptive", "--speculative-adaptive-config", "steps.json"],
        [*eagle, "--speculative-adaptive", "--speculative-adaptive-config", "none.json"],
    ]
    block = [*eagle, "--speculative-use-block-verification"]
    *found, known = by_sglang(version, [*planted, block], tmp_path)
    assert all("refused" in one for one in found), found
    assert ("refused" in known) == (version == "0.5.20")
    short = [word if word != "4" else "9" for word in eagle]
    (adjusted,) = by_sglang(version, [short], tmp_path)
    assert adjusted["num_draft_tokens"] == 4, "a chain has one token more than steps, whatever was asked for"
