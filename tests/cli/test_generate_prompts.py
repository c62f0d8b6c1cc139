"""``outpace generate``: one prompt or a file of them, flags that reach the decoder, refusals without a traceback."""

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from safetensors.torch import save_file
from typer.testing import CliRunner, Result

from outpace.cli import app
from outpace.decoding.generate import generate
from outpace.decoding.jobs import answer
from outpace.decoding.text import text_of
from outpace.drafters.lookup import Lookup
from outpace.models.load import load_target
from outpace.models.toy import tiny_config, tiny_tensors
from toys import CHAT, LETTER_VOCAB, character_tokenizer

NEW = "6"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of 64 positions with one token a character and a chat template."""
    folder = tmp_path_factory.mktemp("model")
    character_tokenizer(folder, CHAT)
    config = tiny_config(vocab_size=LETTER_VOCAB, max_position_embeddings=64)
    (folder / "config.json").write_text(json.dumps(config), "utf-8")
    save_file(tiny_tensors(config, seed=3), folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    """Four prompts, one of which is longer than the context."""
    path = tmp_path / "prompts.jsonl"
    lines: list[dict[str, Any]] = [
        {"question_id": 1, "category": "letters", "turns": ["ab", "cd"]},
        {"id": "ids", "category": "numbers", "prompt": [1, 2, 3]},
        {"id": "long", "category": "letters", "prompt": "x" * 60},
        {"category": "letters", "messages": [{"role": "user", "content": "hi"}]},
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
    return path


def run(folder: Path | None, *flags: object, given: str | None = None) -> Result:
    where = [] if folder is None else ["--target", str(folder), "--dtype", "fp32", "--max-new-tokens", NEW]
    return CliRunner().invoke(app, ["generate", *where, *map(str, flags)], input=given)


def document(result: Result) -> dict[str, Any]:
    assert result.exit_code in (0, 1), result.output
    whole: dict[str, Any] = json.loads(result.stdout)
    return whole


# ---- one prompt ----------------------------------------------------------------------------------------------------


def test_one_prompt(folder: Path) -> None:
    """The text on stdout, one line of figures on stderr; with --json the same in one document."""
    shown = run(folder, "hello")
    whole = document(run(folder, "hello", "--json"))
    assert shown.exit_code == 0 and shown.stdout == whole["text"] + "\n"
    assert shown.stderr.startswith("6 tokens, ")
    assert set(whole) == {
        "format_version",
        "text",
        "token_ids",
        "finish_reason",
        "usage",
        "speculation",
        "timing",
    }
    assert (whole["finish_reason"], whole["usage"]["completion_tokens"]) == ("length", 6)
    assert document(run(folder, "-", "--json", given="hello"))["token_ids"] == whole["token_ids"]


FLAGS: list[tuple[list[str], dict[str, Any]]] = [
    (["--repetition-penalty", "3"], {"repetition_penalty": 3.0}),
    (["--presence-penalty", "9"], {"presence_penalty": 9.0}),
    (["--frequency-penalty", "-9"], {"frequency_penalty": -9.0}),
    (["--logit-bias", "3=50", "--logit-bias", "4=-1e1"], {"logit_bias": {3: 50.0, 4: -10.0}}),
    (["--logit-bias", "5=-inf"], {"logit_bias": {5: float("-inf")}}),
    (["--bad-word", "a", "--bad-word", "bc"], {"bad_words": ["a", "bc"]}),
    (["--min-new-tokens", "4"], {"min_new_tokens": 4}),
    (["--num-draft-tokens", "3", "--depth", "3", "--tree", "chain"], {"num_draft_tokens": 3, "depth": 3}),
    (["--temperature", "1", "--top-k", "5", "--seed", "7"], {"temperature": 1.0, "top_k": 5, "seed": 7}),
]


@pytest.mark.parametrize(("flags", "options"), FLAGS, ids=lambda value: " ".join(value) if type(value) is list else "")
def test_flags_reach_the_decoder(flags: list[str], options: dict[str, Any], folder: Path) -> None:
    """What the command says is what the call says, and, where the flag changes the text, not what silence says."""
    target = load_target(folder, dtype="fp32")
    wanted = generate(target, Lookup(), "hello", max_new_tokens=int(NEW), **options)  # type: ignore[misc]
    assert document(run(folder, "hello", "--json", *flags))["token_ids"] == wanted.token_ids
    plain = generate(target, None, "hello", max_new_tokens=int(NEW))
    if {"repetition_penalty", "presence_penalty", "frequency_penalty", "temperature"} & set(options):
        assert wanted.token_ids != plain.token_ids
    if "logit_bias" in options:
        assert (wanted.token_ids == [3] * 6) == (options["logit_bias"].get(3) == 50)


# ---- a file of prompts ---------------------------------------------------------------------------------------------


def test_a_file_of_prompts(folder: Path, prompts: Path, tmp_path: Path) -> None:
    """Answers in the output file, what was skipped on stderr, exit code 1 for it; again, and all is kept."""
    out = tmp_path / "out.jsonl"
    first = run(folder, "--prompts", prompts, "--output", out, "--batch-size", "2")
    assert first.exit_code == 1 and first.stdout == ""
    long, last = first.stderr.splitlines()
    assert long == "outpace: line 3 (id long): 78 tokens leave no room in the context of 64; skipped"
    assert last.startswith("3 answered, 1 skipped; 24 tokens in ")
    head, *answers = [json.loads(line) for line in out.read_text("utf-8").splitlines()]
    assert head["settings"]["max_new_tokens"] == 6
    assert {one["id"]: len(one["answers"]) for one in answers} == {"1": 2, "ids": 1, "line 4": 1}
    held = out.read_bytes()
    again = document(run(folder, "--prompts", prompts, "--output", out, "--json"))
    assert (again["answered"], again["kept"], len(again["skipped"]), again["failed"]) == (0, 3, 1, [])
    assert again["skipped"][0] == {
        "id": "long",
        "line": 3,
        "reason": "78 tokens leave no room in the context of 64",
    }
    assert again["output"] == str(out) and "answers" not in again and out.read_bytes() == held


def test_without_an_output_file_answers_are_lines(folder: Path, prompts: Path) -> None:
    """JSON lines on stdout; with --json they stand in the one document."""
    shown = run(folder, "--prompts", prompts, "--category", "numbers")
    assert shown.exit_code == 0, shown.output
    [line] = [json.loads(text) for text in shown.stdout.splitlines()]
    whole = document(run(folder, "--prompts", prompts, "--category", "numbers", "--json"))
    assert [one["answers"][0]["token_ids"] for one in whole["answers"]] == [line["answers"][0]["token_ids"]]
    assert (whole["answered"], whole["output"]) == (1, None)
    assert whole["usage"] == {"prompt_tokens": 3, "completion_tokens": 6}
    two = document(run(folder, "--prompts", prompts, "--category", "numbers", "--category", "letters", "--json"))
    assert [len(two["answers"]), len(two["skipped"])] == [3, 1]


def test_the_second_turn_sees_the_first_answer(folder: Path, prompts: Path) -> None:
    whole = document(run(folder, "--prompts", prompts, "--category", "letters", "--json", "--max-new-tokens", "3"))
    [one] = [found for found in whole["answers"] if found["id"] == "1"]
    said = one["answers"][0]["text"]
    text = text_of(folder)
    dialogue = [("user", "ab"), ("assistant", said), ("user", "cd")]
    ids = text.encode([{"role": role, "content": words} for role, words in dialogue])
    assert one["answers"][1]["usage"]["prompt_tokens"] == len(ids)


def test_a_terminal_sees_a_bar(folder: Path, prompts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On stderr, beside the notes; stdout stays what it is."""
    screen = io.StringIO()
    monkeypatch.setattr(
        sys.modules["outpace.cli.generate"],
        "Console",
        lambda **options: Console(file=screen, force_terminal=options.get("stderr", False), width=100),
    )
    result = run(folder, "--prompts", prompts, "--output", tmp_path / "out.jsonl", "--json")
    assert document(result)["answered"] == 3
    shown = screen.getvalue()
    assert "answering" in shown and "4/4" in shown and "24 tokens" in shown and "(id long)" in shown


def test_an_interrupt_keeps_what_is_written(
    folder: Path, prompts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit code 130; the next run goes on."""

    def stopped(*given: Any, **options: Any) -> Any:
        for place, outcome in enumerate(answer(*given, **options)):
            yield outcome
            if place == 1:
                raise KeyboardInterrupt

    out = tmp_path / "out.jsonl"
    with monkeypatch.context() as patch:
        patch.setattr(sys.modules["outpace.cli.generate"], "answer", stopped)
        result = run(folder, "--prompts", prompts, "--output", out)
    assert result.exit_code == 130 and result.stderr.endswith("outpace: interrupted\n")
    assert document(run(folder, "--prompts", prompts, "--output", out, "--json"))["kept"] == 1


# ---- refusals ------------------------------------------------------------------------------------------------------

REFUSED: list[tuple[list[str], str]] = [
    ([], "neither a prompt nor --prompts was given; allowed: one of them\nhint: "),
    (["hello", "--prompts", "x.jsonl"], "a prompt and --prompts was given; allowed: one of them"),
    (["hello", "--output", "x.jsonl"], "--output was given without --prompts; allowed: with a file of prompts"),
    (["hello", "--batch-size", "2"], "--batch-size was given without --prompts"),
    (["hello", "--category", "maths"], "--category was given without --prompts"),
    (["--prompts", "x.jsonl", "--trace", "t"], "--trace was given with --prompts; allowed: a trace of one prompt"),
    (["--prompts", "/nowhere.jsonl"], "the prompts cannot be read from /nowhere.jsonl: No such file or directory"),
    (["hello", "--logit-bias", "5"], "logit_bias is '5'; allowed: ID=VALUE, such as 5=-100 or 5=-inf"),
    (["hello", "--logit-bias", "a=1"], "logit_bias is 'a=1'; allowed"),
    (["hello", "--logit-bias", "5=1", "--logit-bias", "5=2"], "logit_bias names token 5 twice; allowed: once"),
    (["hello", "--num-draft-tokens", "few"], "num_draft_tokens is 'few'; allowed: auto, or a number"),
    (["hello", "--tree", "bush"], "tree is 'bush'; allowed: chain"),
    (["hello", "--depth", "0"], "depth is 0; allowed: 1 or more"),
    (["hello", "--min-new-tokens", "-1"], "min_new_tokens is -1; allowed: 0 or more"),
    (["--prompts", "x.jsonl", "--batch-size", "0"], "batch_size is 0; allowed: 1 or more"),
]


@pytest.mark.parametrize(("flags", "words"), REFUSED, ids=lambda value: str(value)[:50])
def test_refusals(flags: list[str], words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before a model is opened: exit code 2, one sentence on stderr, and no traceback."""

    def never(*given: Any, **options: Any) -> Any:
        raise AssertionError("a model was opened")

    monkeypatch.setattr(sys.modules["outpace.cli.pair"], "load_target", never)
    result = run(None, *flags)
    assert result.exit_code == 2 and result.stdout == ""
    assert result.stderr.startswith(f"outpace: {words}")


def test_a_wrong_line_and_a_wrong_category_are_named(folder: Path, prompts: Path, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.jsonl"
    wrong.write_text('{"prompt": "fine"}\n{"prompt": 3}\n', "utf-8")
    result = run(folder, "--prompts", wrong)
    assert result.exit_code == 2 and f"line 2 of {wrong} has 3 for its prompt; allowed" in result.stderr
    result = run(folder, "--prompts", prompts, "--category", "maths")
    assert result.exit_code == 2 and "category is 'maths'; allowed: letters, numbers" in result.stderr


def test_other_settings_are_named(folder: Path, prompts: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    run(folder, "--prompts", prompts, "--output", out)
    result = run(folder, "--prompts", prompts, "--output", out, "--temperature", "0.5")
    assert result.exit_code == 2
    assert f"{out} was begun with temperature 0.0, and now it is 0.5; allowed: the same settings" in result.stderr


def test_the_help_names_every_flag() -> None:
    result = CliRunner().invoke(app, ["generate", "--help"], env={"COLUMNS": "200"})
    assert "Example: outpace generate" in result.stdout
    for name in ("prompts", "category", "batch-size", "output", "tree", "depth", "repetition-penalty", "bad-word"):
        assert f"--{name}" in result.stdout
