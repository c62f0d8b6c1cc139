"""``outpace emit`` prints a script or a program on stdout and all that is to be known on stderr; or one document."""

import json
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from outpace.cli import app
from outpace.decoding.plan import Choice
from outpace.engines.emit import ENGINES
from plans import plan_of

PLAN = plan_of(
    Choice(num_draft_tokens=6, tree="chain"),
    Choice(num_draft_tokens=2, batch=8),
    Choice(category="rag", num_draft_tokens=9),
    target="my models/target",
)
CONFIG = {
    "method": "ngram",
    "prompt_lookup_min": 1,
    "prompt_lookup_max": 8,
    "num_speculative_tokens": 6,
    "num_speculative_tokens_per_batch_size": [[1, 7, 6], [8, 1024, 2]],
}


@pytest.fixture
def plan(tmp_path: Path) -> str:
    path = tmp_path / "plan.toml"
    PLAN.write(path)
    return str(path)


def run(*words: str) -> Result:
    return CliRunner().invoke(app, ["emit", *words])


def test_json_is_one_document_on_stdout(plan: str) -> None:
    result = run("--engine", "vllm", "--plan", plan, "--json")
    assert result.exit_code == 0 and result.stderr == "", result.output
    said = json.loads(result.stdout)
    assert list(said) == [
        "format_version",
        "engine",
        "version",
        "argv",
        "config",
        "file",
        "python",
        "prepare",
        "notes",
        "cannot",
    ]
    assert said["format_version"] == 1 and said["engine"] == "vllm" and said["version"] == "0.33.0"
    assert said["argv"] == ["vllm", "serve", "my models/target", "--speculative-config", json.dumps(CONFIG)]
    assert said["config"] == CONFIG and said["file"] is said["python"] is None and said["prepare"] == []
    assert said["notes"] == ["left out: choices of their own for rag; --category NAME emits one of them"]
    assert said["cannot"][0] == {
        "what": "min_p and logit_bias in a request: refused while vLLM speculates",
        "nearest": "top_p or top_k",
    }


def test_a_script_on_stdout_and_the_rest_on_stderr(plan: str) -> None:
    result = run("--engine", "vllm", "--engine-version", "0.32.0", "--plan", plan)
    assert shlex.split(result.stdout) == [
        "vllm",
        "serve",
        "my models/target",
        "--speculative-config",
        json.dumps(CONFIG),
    ]
    lines = result.stderr.splitlines()
    assert (
        lines[0] == "for vllm 0.32.0" and lines[1].startswith("note: left out") and lines[2].startswith("cannot: min")
    )
    assert lines[3] == "  instead: top_p or top_k"


def test_a_file_stands_in_the_script(plan: str) -> None:
    result = run("--engine", "trtllm", "--plan", plan, "--batch", "8")
    assert result.stdout == (
        "cat > speculative.yaml <<'END'\n"
        "disable_overlap_scheduler: true\n"
        "speculative_config:\n"
        '  decoding_type: "NGram"\n'
        "  max_draft_len: 2\n"
        "  max_matching_ngram_size: 4\n"
        "END\n"
        "trtllm-serve 'my models/target' --backend pytorch --config speculative.yaml\n"
    )


def test_a_library_is_given_a_program(plan: str) -> None:
    result = run("--engine", "openvino", "--plan", plan, "--category", "rag", "--temperature", "0.5")
    assert result.stdout.startswith(
        "# before: optimum-cli export openvino --model 'my models/target' target-openvino\nimport openvino_genai\n"
    )
    assert "options.num_assistant_tokens = 9" in result.stdout and "options.temperature = 0.5" in result.stdout
    compile(result.stdout, "program", "exec")


def test_a_pair_without_a_plan() -> None:
    result = run("--engine", "llamacpp", "--target", "Qwen/Qwen3-32B", "--draft", "Qwen/Qwen3-0.6B")
    assert result.stdout.splitlines()[-1] == (
        "llama-server -m Qwen3-32B.gguf --spec-type draft-simple -md Qwen3-0.6B.gguf --spec-draft-n-max 4"
    )
    assert "note: not measured: Qwen/Qwen3-0.6B for Qwen/Qwen3-32B" in result.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["--engine", "tgi", "--target", "Qwen/Qwen3-32B"],
            "the engine is 'tgi'; allowed: vllm, sglang, trtllm, llamacpp",
        ),
        (["--engine", "vllm"], "both --plan and --target were given, or neither; allowed: one of them"),
        (
            ["--engine", "vllm", "--target", "a/b", "--draft", "a/c"],
            "drafter 'a/c' is not on this machine to be looked",
        ),
        (["--engine", "vllm", "--plan", "nowhere.toml"], "the plan nowhere.toml cannot be read: No such file"),
        (
            ["--engine", "vllm", "--plan", "PLAN", "--draft", "a/c"],
            "--draft is a/c and --plan was given; allowed: with",
        ),
        (
            ["--engine", "vllm", "--plan", "PLAN", "--engine-version", "9"],
            "is '9'; allowed: 0.32.0, 0.33.0\nhint: take",
        ),
        (["--engine", "vllm", "--plan", "PLAN", "--category", "code"], "category is 'code'; allowed: all, rag"),
        (["--engine", "vllm", "--plan", "PLAN", "--temperature", "-1"], "temperature is -1.0; allowed: 0 (greedy) or"),
    ],
)
def test_an_error_is_a_sentence_on_stderr(words: list[str], message: str, plan: str) -> None:
    result = run(*(plan if word == "PLAN" else word for word in words))
    assert result.exit_code == 2 and result.stdout == "", result.output
    assert message in result.stderr


def test_what_no_engine_version_has_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    plan_of(Choice(drafter="org/heads", num_draft_tokens=3)).write(path)
    words = ("--plan", str(path), "--kind", "medusa")
    result = run("--engine", "vllm", *words)
    assert result.exit_code == 2 and "hint: --engine-version 0.32.0 does" in result.stderr
    assert run("--engine", "vllm", "--engine-version", "0.32.0", *words).exit_code == 0


def test_the_help_has_an_example_and_every_engine() -> None:
    result = run("--help")
    assert "Example: outpace emit --engine vllm --plan plan.toml" in result.stdout
    assert all(name in result.stdout for name in ENGINES)
