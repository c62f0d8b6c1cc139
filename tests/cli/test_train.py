"""``outpace train eagle3``: from stored answers to a drafter that ``generate`` takes, and what is refused."""

import importlib
import io
import json
import signal
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner, Result

from outpace.cli import app
from outpace.drafters.card import read_card
from outpace.training.ledger import read_ledger
from outpace.training.recipe import Recipe
from pupils import ASKED, NEW, answers_of, lines_of, model_folder, opened, recipe_file

COMMAND = importlib.import_module("outpace.cli.train")
FILES = ["config.json", "log.jsonl", "model.safetensors", "outpace.json", "recipe.toml", "training.png"]
EPOCHS = 5


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model_folder(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="module")
def answers(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return answers_of(opened(model), tmp_path_factory.mktemp("data") / "answers.jsonl")


@pytest.fixture
def recipe(tmp_path: Path, answers: Path) -> Path:
    return recipe_file(tmp_path / "recipe.toml", {"answers": (str(answers),)}, epochs=EPOCHS)


def train(recipe: Path, model: Path, out: Path, *flags: Any) -> Result:
    words = ["train", "eagle3", "--recipe", recipe, "--target", model, "--out", out, *flags]
    return CliRunner().invoke(app, [str(word) for word in words])


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def weights(out: Path) -> dict[str, torch.Tensor]:
    return read_card(out)[0].state_dict()


def same(ours: Path, theirs: Path) -> bool:
    pairs = zip(weights(ours).items(), weights(theirs).items(), strict=True)
    return all(name == other and torch.equal(one, two) for (name, one), (other, two) in pairs)


# ---- from answers to a drafter ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def learnt(model: Path, answers: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    """Trained until it knows most of the answers by heart; two of six prompts only measure."""
    folder = tmp_path_factory.mktemp("learnt")
    made = recipe_file(folder / "recipe.toml", {"answers": (str(answers),), "held_out": 0.4}, epochs=40)
    return folder / "head", train(made, model, folder / "head", "--json")


def test_json_is_one_document_on_stdout(model: Path, answers: Path, learnt: tuple[Path, Result]) -> None:
    out, result = learnt
    assert result.exit_code == 0, result.output
    _, card = read_card(out)
    assert json.loads(result.stdout) == {
        "format_version": 1,
        "path": str(out),
        "target": str(model),
        "steps": card.steps,
        "tau": card.tau,
        "acceptance_by_position": list(card.acceptance_by_position or ()),
    }
    assert card.tau is not None and card.data["held_out"] == 2 and card.target.name == str(model)


def test_log_recipe_and_picture_lie_beside_the_card(model: Path, answers: Path, learnt: tuple[Path, Result]) -> None:
    out, _ = learnt
    assert names(out) == FILES
    _, card = read_card(out)
    lines = [line for line in read_ledger(out / "log.jsonl") if "loss" in line]
    assert len(lines) == card.steps == lines[-1]["step"] and lines[-1]["loss"][0] < 0.7 * lines[0]["loss"][0]
    followed = Recipe.read(out / "recipe.toml")
    assert followed.to_dict() | {"data": None} == Recipe.read(out.with_name("recipe.toml")).to_dict() | {
        "data": None,
        "target": str(model),
    }
    assert json.loads(json.dumps(followed.to_dict())) == card.recipe
    assert (out / "training.png").read_bytes()[:4] == b"\x89PNG"


def test_it_drafts(model: Path, learnt: tuple[Path, Result]) -> None:
    """The texts are those of plain decoding, and most drafts are accepted."""
    out, _ = learnt
    found = {}
    for draft in ("none", str(out)):
        flags = ["--draft", draft, "--num-draft-tokens", "3"] if draft != "none" else ["--draft", draft]
        words = ["generate", ASKED[0], "--target", str(model), "--dtype", "fp32", "--max-new-tokens", str(NEW)]
        result = CliRunner().invoke(app, [*words, *flags, "--json"])
        assert result.exit_code == 0, result.output
        found[draft] = json.loads(result.stdout)
    plain, drafted = found["none"], found[str(out)]
    assert drafted["token_ids"] == plain["token_ids"]
    assert drafted["speculation"]["method"].startswith("eagle3") and drafted["speculation"]["acceptance"] > 0.2


def test_a_line_for_people(recipe: Path, model: Path, tmp_path: Path) -> None:
    result = train(recipe, model, tmp_path / "head")
    steps = read_card(tmp_path / "head")[1].steps
    assert (result.exit_code, result.stdout) == (0, f"{tmp_path / 'head'}: trained in {steps} steps\n")
    assert f"step {steps - steps % 10}/{steps} epoch " in result.stderr, "without a terminal there are lines"


def test_a_terminal_sees_a_bar(recipe: Path, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.StringIO()
    monkeypatch.setattr(COMMAND, "Console", lambda stderr: Console(file=screen, force_terminal=stderr, width=200))
    assert train(recipe, model, tmp_path / "head", "--json").exit_code == 0
    assert f"epoch {EPOCHS}/{EPOCHS}" in screen.getvalue() and "accepted" in screen.getvalue()


def test_data_in_place_of_the_recipe_s(recipe: Path, model: Path, answers: Path, tmp_path: Path) -> None:
    """Prompts are answered by the target, answers trained as they stand; the recipe's own file is not even read."""
    recipe_file(recipe, {"answers": ("nowhere.jsonl",), "max_new_tokens": NEW}, epochs=EPOCHS)
    asked = lines_of(tmp_path / "asked.jsonl", *({"prompt": one} for one in ASKED[:4]))
    few = lines_of(tmp_path / "few.jsonl", *map(json.loads, answers.read_text("utf-8").splitlines()[4:]))
    assert train(recipe, model, tmp_path / "head", "--data", asked, "--data", few).exit_code == 0
    _, card = read_card(tmp_path / "head")
    told = [(name, one["samples"]) for one in card.data["sources"] for name in ("answers", "prompts") if name in one]
    assert sorted(told) == [("answers", 2), ("prompts", 4)]
    assert train(recipe, model, tmp_path / "all", "--data", answers).exit_code == 0
    assert read_card(tmp_path / "all")[1].data["answer_tokens"] == card.data["answer_tokens"]


# ---- interrupted -----------------------------------------------------------------------------------------------------


def test_interrupted_and_gone_on_with(
    recipe: Path, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    straight, cut = tmp_path / "straight", tmp_path / "cut"
    assert train(recipe, model, straight).exit_code == 0

    @contextmanager
    def bar() -> Iterator[Any]:
        yield lambda report: signal.raise_signal(signal.SIGINT) if report.place.step == 2 else None

    with monkeypatch.context() as patched:
        patched.setattr(COMMAND, "_bar", bar)
        result = train(recipe, model, cut, "--json")
    work = tmp_path / "cut.training"
    assert result.exit_code == 130 and result.stdout == "" and not cut.exists()
    assert result.stderr == f"outpace: what was done is kept in {work}; go on with --resume\noutpace: interrupted\n"
    result = train(recipe, model, cut)
    assert result.exit_code == 2 and f"outpace: {work} holds a training already; allowed: to go on" in result.stderr
    assert train(recipe, model, cut, "--resume").exit_code == 0
    assert same(straight, cut) and names(cut) == FILES
    assert train(recipe, model, cut, "--resume").exit_code == 0, "what is done is done"
    assert same(straight, cut) and names(cut) == FILES


# ---- what it would take ----------------------------------------------------------------------------------------------


def test_a_plan_writes_nothing(recipe: Path, model: Path, tmp_path: Path) -> None:
    before = names(tmp_path)
    result = train(recipe, model, tmp_path / "head", "--plan", "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["format_version"] == 1 and found["target"] == str(model) and found["samples"] == len(ASKED)
    people = train(recipe, model, tmp_path / "head", "--plan")
    assert people.exit_code == 0 and names(tmp_path) == before
    words = " ".join(people.stdout.split())
    for said in (
        f"an EAGLE-3 head for {model}"[:60],
        f"{found['samples']} , 0 of them held out; 0 left out".replace(" ,", ","),
        f"{found['tokens']:,}, {found['answer_tokens']:,} of them answers'",
        f"{found['parameters']:,} weights",
        f"{found['steps']:,}, ",
        "none to answer",
    ):
        assert said in words, said
    assert train(recipe, model, tmp_path / "head", "--json").exit_code == 0
    assert read_card(tmp_path / "head")[1].steps == found["steps"]


def test_a_plan_of_what_is_still_to_be_answered() -> None:
    found = {
        "target": "smollm2", "to_answer": 8000, "to_invent": 8000, "samples": 8000, "held_out": 240, "left_out": 0,
        "tokens": 3_000_000, "answer_tokens": 2_500_000, "parameters": 18_000_000, "steps": 5900, "step_s": 2.345,
        "missing_bytes": 14_000_000_000, "feature_bytes": 14_000_000_000, "checkpoint_bytes": 500_000_000,
        "free_bytes": 90_000_000_000, "memory_bytes": None, "device": "cuda", "device_bytes": 3_000_000_000,
        "processes": 2, "answering_s": 12_000.0, "recording_s": 101.0, "training_s": 59.6,
    }  # fmt: skip
    screen = io.StringIO()
    Console(file=screen, width=160).print(COMMAND.table(found, "", "heads"))
    words = " ".join(screen.getvalue().split())
    for said in (
        "prompts 8,000 to invent, 8,000 to answer",
        "samples at most 8,000, 240 of them held out",
        "steps at most 5,900, 2.35 s each on cuda in each of 2 processes",
        "disk 14.0 GB of 14.0 GB for features still to write, 0.5 GB for checkpoints; 90.0 GB are free",
        "memory not told by this system, 3.0 GB on cuda",
        "time at most 3 h 23 min: answers 3 h 20 min, features 2 min, steps 60 s",
    ):
        assert said in words, words


# ---- packages that may be missing ------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("default")
def test_without_matplotlib(recipe: Path, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No picture, a line that says so, and a drafter all the same."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    result = train(recipe, model, tmp_path / "head")
    line = "outpace: a picture of the training needs matplotlib, which is not installed; the drafter goes without\n"
    assert result.exit_code == 0 and line in result.stderr
    assert names(tmp_path / "head") == [name for name in FILES if name != "training.png"]


def test_without_accelerate(recipe: Path, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith(("accelerate", "outpace.training."))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "accelerate", None)
    result = train(recipe, model, tmp_path / "head")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == (
        "outpace: training needs accelerate, which is not installed\nhint: pip install 'outpace[train]'\n"
    )


def test_tensorboard(recipe: Path, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Refused before anything is done where it is missing; else it shows what the log says."""
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    result = train(recipe, model, tmp_path / "head", "--tensorboard", tmp_path / "board")
    assert result.exit_code == 2 and "needs tensorboard, which is not installed" in result.stderr
    assert names(tmp_path) == ["recipe.toml"]
    shown: list[tuple[str, int]] = []
    module: Any = types.ModuleType("torch.utils.tensorboard")
    module.SummaryWriter = lambda folder, purge_step: types.SimpleNamespace(
        add_scalar=lambda name, value, step: shown.append((name, step)), close=lambda: shown.append(("closed", 0))
    )
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)
    assert train(recipe, model, tmp_path / "head", "--tensorboard", tmp_path / "board").exit_code == 0
    steps = [line["step"] for line in read_ledger(tmp_path / "head" / "log.jsonl") if "tau" in line]
    assert [step for name, step in shown if name == "tau"] == steps and shown[-1] == ("closed", 0)


# ---- what is refused -------------------------------------------------------------------------------------------------


def refused(result: Result, message: str) -> None:
    assert (result.exit_code, result.stdout) == (2, ""), result.output
    assert result.stderr.startswith(f"outpace: {message}") and "Traceback" not in result.stderr


def test_refusals(recipe: Path, model: Path, tmp_path: Path) -> None:
    """By name, and before there is anything under --out or beside it."""
    wrong, none, mine = tmp_path / "wrong.toml", tmp_path / "none.toml", tmp_path / "mine"
    wrong.write_text(recipe.read_text("utf-8").replace("epochs =", "epoch ="), "utf-8")
    recipe_file(none)
    mine.mkdir()
    (mine / "thesis.txt").write_text("all of it", "utf-8")
    before = names(tmp_path)
    out = tmp_path / "head"
    missing = tmp_path / "missing.toml"
    refused(train(wrong, model, out), f"the recipe {wrong}, [train]: unknown key 'epoch'; allowed: depth, epochs, ")
    refused(train(missing, model, out), f"the recipe {missing} cannot be read: No such file or directory")
    refused(train(none, model, out), "the recipe has no data; allowed: answers, prompts, or invent above 0")
    refused(train(none, model, out, "--plan"), "the recipe has no data; allowed: answers, prompts, or invent above 0")
    refused(train(recipe, model, out, "--data", missing), f"the data cannot be read from {missing}: No such file")
    refused(train(recipe, model, mine), f"{mine} holds thesis.txt; allowed: a folder that is new or empty")
    refused(train(recipe, model, mine, "--plan"), f"{mine} holds thesis.txt; allowed: a folder that is new or empty")
    refused(train(recipe, model, recipe), f"{recipe} is a file; allowed: a folder that is new or empty")
    refused(train(recipe, tmp_path / "nobody", out), f"{str(tmp_path / 'nobody')!r} is no folder here; allowed: ")
    assert names(tmp_path) == before


@pytest.mark.parametrize("missing", ["--recipe", "--out"])
def test_recipe_and_place_are_asked_for(missing: str, tmp_path: Path) -> None:
    given = {"--recipe": str(tmp_path / "r.toml"), "--out": str(tmp_path / "head")}
    words = [word for name, value in given.items() if name != missing for word in (name, value)]
    result = CliRunner().invoke(app, ["train", "eagle3", *words])
    assert result.exit_code == 2 and missing in result.stderr


def test_the_help_has_an_example() -> None:
    result = CliRunner().invoke(app, ["train", "eagle3", "--help"])
    words = " ".join(result.stdout.split())
    assert "Example: outpace train eagle3 --recipe recipes/eagle3-smollm2.toml --out head" in words
