"""``--plan``: what it says is what is done, by category and batch; what it decides is said nowhere else."""

import json
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import save_file
from typer.testing import CliRunner, Result

from outpace.cli import app
from outpace.cli.pair import chosen, passed_over
from outpace.decoding.plan import Choice, Plan
from outpace.models.load import load_target
from outpace.models.toy import tiny_config, tiny_tensors
from toys import CHAT, LETTER_VOCAB, character_tokenizer

CHOICES = (
    Choice(num_draft_tokens=2),
    Choice(batch=2, num_draft_tokens=5),
    Choice(category="letters", num_draft_tokens=3),
    Choice(category="plain", drafter="none", tree="top-k:3"),
)
COUNTS = {1: 2, 2: 5, 8: 5}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with one token a character."""
    folder = tmp_path_factory.mktemp("model")
    character_tokenizer(folder, CHAT)
    config = tiny_config(vocab_size=LETTER_VOCAB, max_position_embeddings=128)
    (folder / "config.json").write_text(json.dumps(config), "utf-8")
    save_file(tiny_tensors(config, seed=3), folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@pytest.fixture(scope="module")
def plan(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("plan") / "plan.toml"
    Plan(str(folder), load_target(folder, dtype="fp32").fingerprint, CHOICES).write(path)
    return path


@pytest.fixture(scope="module")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two prompts in each of three categories, all with something to look up."""
    path = tmp_path_factory.mktemp("prompts") / "prompts.jsonl"
    lines = [{"category": kind, "prompt": one * 9} for kind in ("letters", "plain", "words") for one in ("abc ", "ab ")]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
    return path


def run(verb: str, folder: Path | None, *flags: object) -> Result:
    where = [] if folder is None else ["--target", folder, "--dtype", "fp32", "--max-new-tokens", 6]
    once = ["--repeats", 1] if verb == "bench" and "--probe" not in flags else []
    return CliRunner().invoke(app, [verb, *map(str, [*where, *once, *flags])])


def said(verb: str, folder: Path, *flags: object) -> tuple[Any, str]:
    """The document, and what stands beside it."""
    result = run(verb, folder, *flags, "--json")
    assert result.exit_code in (0, 1), result.output  # a toy may well be slower with drafts
    return json.loads(result.stdout), result.stderr


# ---- bench ---------------------------------------------------------------------------------------------------------


def measured(folder: Path, *flags: object) -> set[int]:
    found, _ = said("bench", folder, *flags)
    assert found["protocol"]["plan"] == "plan.toml"
    return {row["num_draft_tokens"] for row in found["results"]}


def test_bench_measures_what_the_plan_says(folder: Path, plan: Path, prompts: Path) -> None:
    """By category and by batch, at every temperature asked for; without a plan the document says so."""
    flags = ["--plan", plan, "--prompts", prompts]
    assert measured(folder, *flags) == {2}
    assert measured(folder, *flags, "--category", "letters") == {3}
    assert measured(folder, *flags, "--category", "words", "--concurrency", 2) == {5}
    found, notes = said("bench", folder, *flags, "--temperature", 0, "--temperature", 0.5)
    heats = {(row["temperature"], row["num_draft_tokens"]) for row in found["results"]}
    assert heats == {(0, 2), (0.5, 2)}
    own = "the plan has a choice of its own for 'letters'; the one for 'all' is used: name the category alone"
    assert own in notes and "'plain'" in notes and "'words'" not in notes
    found, notes = said("bench", folder, "--prompts", prompts, "--num-draft-tokens", 2, "--category", "letters")
    assert found["protocol"]["plan"] is None and "the plan" not in notes


# ---- generate ------------------------------------------------------------------------------------------------------


def drafts(answers: list[Any]) -> list[dict[str, Any]]:
    return [answer["speculation"] for one in answers for answer in one["answers"]]


def test_generate_does_what_the_plan_says(folder: Path, plan: Path, prompts: Path) -> None:
    """Alone by the choice for one; a file of prompts by that for as many as are decoded at once."""
    alone, _ = said("generate", folder, "abcabcabcabc", "--plan", plan)
    wanted, _ = said("generate", folder, "abcabcabcabc", "--num-draft-tokens", 2)
    assert alone["speculation"] == wanted["speculation"] and alone["speculation"]["drafted"] > 0
    seen = []
    for size, count in COUNTS.items():
        flags = ["--prompts", prompts, "--category", "words", "--batch-size", size]
        planned, _ = said("generate", folder, *flags, "--plan", plan)
        wanted, _ = said("generate", folder, *flags, "--num-draft-tokens", count)
        assert drafts(planned["answers"]) == drafts(wanted["answers"])
        seen.append([one["drafted"] for one in drafts(planned["answers"])])
    assert seen[0] != seen[1] == seen[2], "the number of drafts does not show: take other prompts"
    planned, _ = said("generate", folder, "--prompts", prompts, "--category", "words", "--plan", plan)
    wanted, _ = said("generate", folder, "--prompts", prompts, "--category", "words", "--num-draft-tokens", 5)
    assert drafts(planned["answers"]) == drafts(wanted["answers"]), "eight are decoded at once where nothing is said"
    planned, notes = said("generate", folder, "--prompts", prompts, "--category", "plain", "--plan", plan)
    assert {one["method"] for one in drafts(planned["answers"])} == {"plain"} and notes == ""


def test_a_file_of_several_categories_has_the_choice_of_each(folder: Path, plan: Path, prompts: Path) -> None:
    """What each category is answered with alone; into one file, which the same plan goes on with."""
    flags = ["--prompts", prompts, "--plan", plan]
    together, notes = said("generate", folder, *flags)
    assert notes == "" and together["answered"] == 6
    for kind in ("letters", "plain", "words"):
        alone, _ = said("generate", folder, *flags, "--category", kind)
        assert drafts(alone["answers"]) == drafts([one for one in together["answers"] if one["category"] == kind])
    output = prompts.with_name("answers.jsonl")
    first, _ = said("generate", folder, *flags, "--category", "words", "--output", output)
    rest, _ = said("generate", folder, *flags, "--output", output)
    assert (first["answered"], rest["answered"], rest["kept"]) == (2, 4, 2)
    head = json.loads(output.read_text("utf-8").splitlines()[0])["settings"]
    assert [one["num_draft_tokens"] for one in head["plan"]] == [2, 5, 3, 0] and head["drafter"] is None
    other = run("generate", folder, "--prompts", prompts, "--output", output)
    assert other.exit_code == 2 and "was begun with" in other.stderr


def test_the_plan_knows_the_temperature(folder: Path, prompts: Path, tmp_path: Path) -> None:
    path, flags = tmp_path / "hot.toml", ["--prompts", prompts, "--category", "words", "--seed", 3]
    hot = Choice(temperature=0.7, drafter="none")
    Plan(str(folder), load_target(folder, dtype="fp32").fingerprint, (Choice(num_draft_tokens=2), hot)).write(path)
    for heat, method in ((0, "lookup"), (0.5, "lookup"), (0.7, "plain"), (2, "plain")):
        found, _ = said("generate", folder, *flags, "--plan", path, "--temperature", heat)
        assert {one["method"] for one in drafts(found["answers"])} == {method}


# ---- refusals ------------------------------------------------------------------------------------------------------

DECIDED = {"draft": "lookup", "num-draft-tokens": "2", "tree": "chain", "depth": "2", "rule": "match"}


@pytest.mark.parametrize("flag", DECIDED)
@pytest.mark.parametrize("verb", ["bench", "generate"])
def test_a_flag_beside_the_plan_is_refused(verb: str, flag: str, plan: Path) -> None:
    prompt = ["abc"] if verb == "generate" else []
    result = run(verb, None, *prompt, "--plan", plan, f"--{flag}", DECIDED[flag])
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == f"outpace: --plan and --{flag} were given; allowed: one of them\n"


@pytest.mark.parametrize("verb", ["bench", "generate"])
def test_a_plan_that_cannot_be_followed(verb: str, folder: Path, plan: Path, tmp_path: Path) -> None:
    """No such file, an unknown key, another target: named, and nothing is decoded."""
    prompt = ["abc"] if verb == "generate" else []
    other = tmp_path / "other.toml"
    Plan("another", "f-1", CHOICES).write(other)
    wrong = tmp_path / "wrong.toml"
    wrong.write_text(plan.read_text("utf-8") + "colour = 3\n", "utf-8")
    for path, words in (
        (tmp_path / "none.toml", "cannot be read: No such file or directory"),
        (wrong, "choice 4: unknown key 'colour' with value 3; allowed: category, batch"),
        (other, "fingerprint is 'f-1' in the plan, made for 'another'; allowed: '"),
    ):
        result = run(verb, folder, *prompt, "--plan", path)
        assert result.exit_code == 2 and result.stdout == ""
        assert words in result.stderr and "Traceback" not in result.stderr


def test_what_bench_cannot_measure_of_a_plan(plan: Path, tmp_path: Path) -> None:
    result = run("bench", None, "--plan", plan, "--category", "plain")
    words = "the plan decodes plainly here; allowed: one that drafts\nhint: plain decoding is measured anyway"
    assert result.exit_code == 2 and words in result.stderr
    result = run("bench", None, "--plan", plan, "--probe", tmp_path / "probe")
    assert result.exit_code == 2 and f"plan is {plan} beside a probe; allowed there: no plan" in result.stderr


@pytest.mark.parametrize(
    "shape",
    [["--tree", "top-k:3"], ["--tree", "chain"], ["--depth", "3"], ["--num-draft-tokens", "auto"]],
    ids=" ".join,
)
def test_shapes_of_drafts_without_a_drafter(shape: list[str], folder: Path) -> None:
    """Refused by name; no drafts may be asked for of nobody."""
    result = run("generate", None, "abc", "--draft", "none", *shape)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == f"outpace: {shape[0]} was given with --draft none; allowed: with a drafter\n"
    assert run("generate", folder, "abc", "--draft", "none", "--num-draft-tokens", "0").exit_code == 0


# ---- choices -------------------------------------------------------------------------------------------------------


def test_a_choice_is_passed_over_only_where_it_is() -> None:
    plan = Plan("t", "f", CHOICES)
    alone, several = plan.choice("letters"), plan.choice()
    assert passed_over(plan, alone, ["letters"]) == [] == passed_over(plan, several, ["words", None])
    assert len(passed_over(plan, several, ["letters", "letters", "plain"])) == 2
    assert passed_over(None, None, ["letters"]) == []


def test_nothing_said_is_the_default() -> None:
    nothing = dict.fromkeys(DECIDED)
    assert chosen(None, nothing, None, 1) == (Choice(drafter="auto"), None)
    assert chosen(None, nothing | {"draft": "none", "rule": "match"}, None, 1)[0] == Choice(
        drafter="none", rule="match"
    )
