"""The skill is a skill: a name and a description, commands that run in their order, figures that are results."""

import json
import os
import re
import sys
from pathlib import Path

import pytest

from pupils import model_folder

REPOSITORY = Path(__file__).parents[2]
SKILL = REPOSITORY / "outputs" / "skill-speculative-tuning.md"
FRONT = re.compile(r"\A---\nname: (?P<name>[a-z-]+)\ndescription: >-\n(?P<words>(?:  .+\n)+)---\n")
FENCE = re.compile(r"^```bash\n(.*?)^```$", re.MULTILINE | re.DOTALL)
TINY = {
    "bench": ["--max-new-tokens", "6", "--budget", "1s", "--per-category", "1"],
    "tune": ["--max-new-tokens", "6", "--budget", "2s"],
    "generate": ["--max-new-tokens", "6"],
}
"""What is added to a verb's command here: the same work in seconds."""
NOWHERE = "http://127.0.0.1:9/v1"


def text() -> str:
    return SKILL.read_text("utf-8")


def lines() -> list[str]:
    """Every command of the skill, comments off."""
    return [line.partition("  #")[0].strip() for body in FENCE.findall(text()) for line in body.splitlines() if line]


def test_the_front_matter_names_and_describes_it() -> None:
    """As skills are looked up: a short name, and a description of at most 1,024 characters that says when to use it."""
    found = FRONT.match(text())
    assert found is not None and found["name"] == SKILL.stem.removeprefix("skill-")
    words = " ".join(found["words"].split())
    assert "Use when" in words and len(words) <= 1024


def test_every_decision_table_quotes_results() -> None:
    """More than fifty figures stand behind a link into a result; those without one are of closed forms alone."""
    quoted = re.findall(r'\]\((\.\./[^\s)]+\.json) "', text())
    assert len(quoted) > 50 and {"../benchmarks/results/auto_speed.json", "../labs/05-failure/results.json"} <= {
        *quoted
    }


@pytest.mark.timeout(900)
def test_its_commands_run(
    unchecked: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One after the other in an empty folder, on a tiny model and two prompts; slower than plain, exit 1, is fine."""
    from outpace.cli import main

    monkeypatch.chdir(tmp_path)
    prompts = [{"category": kind, "prompt": asked} for kind, asked in (("sea", "Tell me of the sea."), ("why", "Why?"))]
    Path("mine.jsonl").write_text("".join(json.dumps(line) + "\n" for line in prompts), "utf-8")
    ran = []
    for line in lines():
        if line.startswith("export "):
            for name, value in (word.split("=") for word in line.split()[1:]):
                monkeypatch.setenv(name, value)
            monkeypatch.setenv("TARGET", str(model_folder(tmp_path / "tiny")))
            monkeypatch.setenv("URL", NOWHERE)
            continue
        words = [os.path.expandvars(word) for word in re.findall(r'"[^"]*"|\S+', line)]
        verb, away = words[1], NOWHERE in words
        assert words[0] == "outpace" and "$" not in " ".join(words), line
        monkeypatch.setattr(sys, "argv", [word.strip('"') for word in words] + TINY.get(verb, []))
        with pytest.raises(SystemExit) as ended:
            main()
        told = capsys.readouterr()
        assert (ended.value.code or 0) in ({2} if away else {0, 1}), f"{line}\n{told.out}\n{told.err}"
        assert not away or "cannot be reached" in told.err
        ran.append(verb)
    assert {"pull", "check", "bench", "tune", "generate", "report", "emit"} <= {*ran} and Path("plan.toml").is_file()
